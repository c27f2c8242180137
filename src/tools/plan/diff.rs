//! The differences between two versions of a plan. Tasks with the same id are the same task.

use std::collections::BTreeMap;

use super::model::{PlanNode, PlanTree};
use super::words;
use crate::protocol::ask::Language;

type Placed<'a> = BTreeMap<&'a str, (&'a PlanNode, Option<&'a PlanNode>)>;

/// One line for added tasks, one for removed tasks, and one for each task that changed its status or parent. Never
/// empty.
#[must_use]
pub fn changes(old: &PlanTree, new: &PlanTree, language: Language) -> Vec<String> {
    let (before, after) = (placed(old), placed(new));
    let mut lines = Vec::new();
    let missing_in = |there: &Placed, tree: &PlanTree| -> Vec<String> {
        let missing = |(node, _): &(&PlanNode, _)| !there.contains_key(node.id());
        tree.walk().into_iter().filter(missing).map(|(node, _)| node.task_name.clone()).collect()
    };
    let added = missing_in(&before, new);
    if !added.is_empty() {
        lines.push(words::added(&refs(&added), language));
    }
    let removed = missing_in(&after, old);
    if !removed.is_empty() {
        lines.push(words::removed(&refs(&removed), language));
    }
    let both = || {
        new.walk().into_iter().filter_map(|(node, parent)| Some((*before.get(node.id())?, (node, parent))))
    };
    for ((old, _), (new, _)) in both() {
        if old.status != new.status {
            lines.push(words::status_changed(&new.task_name, old.status, new.status, language));
        }
    }
    for ((_, old), (node, new)) in both() {
        if old.map(PlanNode::id) != new.map(PlanNode::id) {
            let (old, new) = (old.map(name), new.map(name));
            lines.push(words::moved(&node.task_name, old, new, language));
        }
    }
    if lines.is_empty() {
        lines.push(words::unchanged(language));
    }
    lines
}

fn placed(tree: &PlanTree) -> Placed<'_> {
    tree.walk().into_iter().map(|(node, parent)| (node.id(), (node, parent))).collect()
}

fn name(node: &PlanNode) -> &str {
    &node.task_name
}

fn refs(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}
