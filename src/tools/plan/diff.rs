//! The differences between two versions of a plan. Tasks with the same id are the same task.

use std::collections::BTreeMap;

use super::model::{PlanNode, PlanTree};
use super::words::Words;
use crate::protocol::ask::Language;

type NodesByName<'a> = BTreeMap<&'a str, (&'a PlanNode, Option<&'a PlanNode>)>;

/// One line for added tasks, one for removed tasks, and one for each task that changed its status or parent. Never
/// empty.
pub fn changes(old: &PlanTree, new: &PlanTree, language: Language) -> Vec<String> {
    let (before, after, words) = (placed(old), placed(new), Words(language));
    let mut lines = Vec::new();
    let missing_in = |there: &NodesByName, tree: &PlanTree| {
        let missing = |(node, _): &(&PlanNode, _)| !there.contains_key(node.id());
        let names: Vec<String> =
            tree.walk().into_iter().filter(missing).map(|(node, _)| node.task_name.clone()).collect();
        names.join(", ")
    };
    let added = missing_in(&before, new);
    if !added.is_empty() {
        lines.push(words.added(&added));
    }
    let removed = missing_in(&after, old);
    if !removed.is_empty() {
        lines.push(words.removed(&removed));
    }
    let both = || {
        new.walk().into_iter().filter_map(|(node, parent)| Some((*before.get(node.id())?, (node, parent))))
    };
    for ((old, _), (new, _)) in both() {
        if old.status != new.status {
            lines.push(words.changed(&new.task_name, words.status(old.status), words.status(new.status)));
        }
    }
    for ((_, old), (node, new)) in both() {
        if old.map(PlanNode::id) != new.map(PlanNode::id) {
            let (old, new) = (old.map(name), new.map(name));
            lines.push(words.moved(&node.task_name, old, new));
        }
    }
    if lines.is_empty() {
        lines.push(words.unchanged());
    }
    lines
}

fn placed(tree: &PlanTree) -> NodesByName<'_> {
    tree.walk().into_iter().map(|(node, parent)| (node.id(), (node, parent))).collect()
}

fn name(node: &PlanNode) -> &str {
    &node.task_name
}
