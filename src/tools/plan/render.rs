//! A plan as Markdown, and its statistics.

use serde_json::{Map, Value, json};

use super::model::{PlanNode, PlanTree, TaskStatus};
use super::words::Words;
use crate::protocol::ask::Language;

/// A nested list, two spaces per level.
pub fn markdown(tree: &PlanTree, language: Language) -> String {
    let mut lines = Vec::new();
    for node in &tree.tree_nodes {
        render(node, 0, Words(language), &mut lines);
    }
    lines.join("\n")
}

fn render(node: &PlanNode, level: usize, words: Words, lines: &mut Vec<String>) {
    let indent = "  ".repeat(level);
    let mut line = words.task_line(node.status.symbol(), &node.task_name, node.id());
    if matches!(node.status, TaskStatus::Failed | TaskStatus::Retry | TaskStatus::Skipped) {
        line.push_str(&words.status_note(words.status(node.status)));
    }
    lines.push(format!("{indent}{line}"));
    for (label, text) in [(words.about(), &node.description), (words.result(), &node.output)] {
        // Every line of a text needs its own mark to stay in the quote.
        for (at, part) in text.trim_end().lines().enumerate() {
            let label = if at == 0 { label } else { "" };
            lines.push(format!("{indent}  > {label}{part}"));
        }
    }
    for child in node.children() {
        render(child, level + 1, words, lines);
    }
}

/// Tasks per status, `__total`, `__completion_rate` and `__pending_rate` (0 to 1, two decimals).
pub fn statistics(tree: &PlanTree) -> Map<String, Value> {
    let nodes = tree.walk();
    let count = |status| nodes.iter().filter(|(node, _)| node.status == status).count();
    let rate = |status| {
        // Integer arithmetic rounds to hundredths exactly.
        let hundredths = (count(status) * 200 + nodes.len()).checked_div(nodes.len() * 2).unwrap_or(0);
        json!(f64::from(u32::try_from(hundredths).unwrap_or(100)) / 100.0)
    };
    let mut counted: Map<String, Value> =
        TaskStatus::ALL.into_iter().map(|status| (status.name().to_owned(), json!(count(status)))).collect();
    counted.insert("__total".into(), json!(nodes.len()));
    counted.insert("__completion_rate".into(), rate(TaskStatus::Completed));
    counted.insert("__pending_rate".into(), rate(TaskStatus::Pending));
    counted
}
