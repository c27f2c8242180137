//! The rules for a plan beyond its schema.

use std::collections::{BTreeMap, BTreeSet};

use super::model::{PlanNode, PlanTree};

/// The most tasks of a plan, levels of tasks, characters of one text, and entries of one list.
pub const NODES: usize = 500;
pub const DEPTH: usize = 16;
pub const TEXT_CHARS: usize = 20_000;
pub const LIST_ITEMS: usize = 100;
/// The most characters of a task's name or id.
pub const NAME_CHARS: usize = 300;
/// The most bytes of the whole plan as JSON.
pub const PLAN_BYTES: usize = 512 * 1024;
/// The most problems that are reported at once.
const PROBLEMS_TOLD: usize = 10;

/// # Errors
/// Descriptions of everything that is wrong.
pub fn check(tree: &PlanTree) -> Result<(), Vec<String>> {
    let mut found = Problems::default();
    // The checks below walk the tree, so its size is checked first.
    if depth_of(&tree.tree_nodes) > DEPTH {
        found.add(|| format!("tasks are nested deeper than {DEPTH} levels"));
        return Err(found.0);
    }
    let nodes = tree.walk();
    if nodes.len() > NODES {
        found.add(|| format!("there are {} tasks, more than {NODES}", nodes.len()));
        return Err(found.0);
    }
    if serde_json::to_string(tree).map_or(usize::MAX, |text| text.len()) > PLAN_BYTES {
        found.add(|| format!("the plan takes more than {PLAN_BYTES} bytes"));
        return Err(found.0);
    }
    if tree.core_goal.trim().is_empty() {
        found.add(|| "`core_goal` is empty".into());
    }
    check_text(&mut found, "core_goal", &tree.core_goal);
    check_list(&mut found, "references", tree.references.as_deref());
    for (node, _) in &nodes {
        check_node(&mut found, node);
    }
    let names = unique(&mut found, "task_name", nodes.iter().map(|(node, _)| node.task_name.as_str()));
    unique(&mut found, "task_id", nodes.iter().filter_map(|(node, _)| node.task_id.as_deref()));
    for (node, _) in &nodes {
        for wanted in node.dependencies.iter().flatten() {
            if !names.contains(wanted.as_str()) {
                found.add(|| {
                    format!("`{}` depends on `{wanted}`, which is no task_name of this plan", node.task_name)
                });
            }
        }
    }
    let within_itself = parts_that_wait(&nodes);
    for (part, whole) in &within_itself {
        found.add(|| {
            format!(
                "`{part}` depends on `{whole}`, of which it is a part: a task is done when its parts are, so \
                 leave out that dependency"
            )
        });
    }
    // A dependency on a task's own parent also makes a circle, which is already reported.
    if within_itself.is_empty()
        && let Some(circle) = circle(&nodes)
    {
        found.add(|| format!("tasks wait for each other in a circle: {}", circle.join(" → ")));
    }
    if found.0.is_empty() { Ok(()) } else { Err(found.0) }
}

#[derive(Default)]
struct Problems(Vec<String>);

impl Problems {
    fn add(&mut self, problem: impl FnOnce() -> String) {
        if self.0.len() < PROBLEMS_TOLD {
            self.0.push(problem());
        }
    }
}

fn depth_of(nodes: &[PlanNode]) -> usize {
    // This goes level by level instead of recursing, because the depth is not known to be safe yet.
    let mut level: Vec<&PlanNode> = nodes.iter().collect();
    let mut depth = 0;
    while !level.is_empty() {
        depth += 1;
        level = level.into_iter().flat_map(PlanNode::children).collect();
    }
    depth
}

fn check_node(found: &mut Problems, node: &PlanNode) {
    for (field, text) in [("task_name", Some(&node.task_name)), ("task_id", node.task_id.as_ref())] {
        let Some(text) = text else { continue };
        if text.trim().is_empty() {
            found.add(|| format!("a task has an empty `{field}`"));
        } else if text.chars().count() > NAME_CHARS || text.chars().any(char::is_control) {
            found.add(|| format!("a `{field}` is not one line of at most {NAME_CHARS} characters"));
        }
    }
    check_text(found, "description", &node.description);
    check_text(found, "output", &node.output);
    check_list(found, "dependencies", node.dependencies.as_deref());
    check_list(found, "research_directions", node.research_directions.as_deref());
    check_list(found, "references", node.references.as_deref());
}

fn check_text(found: &mut Problems, field: &str, text: &str) {
    if text.chars().count() > TEXT_CHARS {
        found.add(|| format!("a `{field}` has more than {TEXT_CHARS} characters"));
    }
}

fn check_list(found: &mut Problems, field: &str, list: Option<&[String]>) {
    let list = list.unwrap_or_default();
    if list.len() > LIST_ITEMS {
        found.add(|| format!("a list `{field}` has more than {LIST_ITEMS} entries"));
    }
    for text in list {
        check_text(found, field, text);
    }
}

fn unique<'a>(found: &mut Problems, field: &str, values: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for value in values {
        if !seen.insert(value) {
            found.add(|| format!("two tasks have the {field} `{value}`"));
        }
    }
    seen
}

/// The tasks that depend on a task of which they are a part, each with that task.
fn parts_that_wait<'a>(nodes: &[(&'a PlanNode, Option<&'a PlanNode>)]) -> Vec<(&'a str, &'a str)> {
    let wholes: BTreeMap<&str, &str> = nodes
        .iter()
        .filter_map(|(node, whole)| Some((node.task_name.as_str(), (*whole)?.task_name.as_str())))
        .collect();
    let mut found = Vec::new();
    for (node, _) in nodes {
        // Duplicate names could make the way up endless, so it is bounded.
        let up = std::iter::successors(wholes.get(node.task_name.as_str()), |name| wholes.get(**name));
        for whole in up.take(DEPTH) {
            if node.dependencies.iter().flatten().any(|wanted| wanted == whole) {
                found.push((node.task_name.as_str(), *whole));
            }
        }
    }
    found
}

/// Tasks that wait for each other, in order, with the first one repeated at the end. A task waits for its dependencies
/// and for its parts.
fn circle(nodes: &[(&PlanNode, Option<&PlanNode>)]) -> Option<Vec<String>> {
    let mut waits_for: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, _) in nodes {
        let wanted = node.dependencies.iter().flatten().map(String::as_str);
        let parts = node.children().iter().map(|child| child.task_name.as_str());
        waits_for.entry(&node.task_name).or_default().extend(wanted.chain(parts));
    }
    let mut done = BTreeSet::new();
    for start in waits_for.keys() {
        // The path from the start, each task with the index of its next neighbour to visit.
        let mut way: Vec<(&str, usize)> = vec![(start, 0)];
        while let Some((name, next)) = way.last_mut() {
            let neighbour = waits_for.get(*name).and_then(|all| all.get(*next));
            *next += 1;
            match neighbour {
                None => {
                    done.insert(*name);
                    way.pop();
                }
                Some(neighbour) => {
                    if let Some(at) = way.iter().position(|(name, _)| name == neighbour) {
                        let mut circle: Vec<String> =
                            way.iter().skip(at).map(|(name, _)| (*name).to_owned()).collect();
                        circle.push((*neighbour).to_owned());
                        return Some(circle);
                    }
                    if !done.contains(neighbour) {
                        way.push((neighbour, 0));
                    }
                }
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn problems_of(tree: Value) -> Vec<String> {
        check(&serde_json::from_value(tree).unwrap()).err().unwrap_or_default()
    }

    #[test]
    fn a_goal_and_one_task_are_a_plan() {
        assert!(problems_of(json!({"core_goal": "g", "tree_nodes": [{"task_name": "a"}]})).is_empty());
        assert_eq!(problems_of(json!({"core_goal": " "})), ["`core_goal` is empty"]);
    }

    #[test]
    fn names_and_ids_are_unique_over_all_levels() {
        let tree = json!({"core_goal": "g", "tree_nodes": [
            {"task_name": "a", "task_id": "T1", "children": [{"task_name": "a", "task_id": "T2"}]},
            {"task_name": "b", "task_id": "T2"},
        ]});
        let found = problems_of(tree);
        assert!(found.contains(&"two tasks have the task_name `a`".to_owned()), "{found:?}");
        assert!(found.contains(&"two tasks have the task_id `T2`".to_owned()), "{found:?}");
    }

    #[test]
    fn dependencies_have_to_be_there() {
        let tree = json!({"core_goal": "g", "tree_nodes": [{"task_name": "a", "dependencies": ["b"]}]});
        assert_eq!(problems_of(tree), ["`a` depends on `b`, which is no task_name of this plan"]);
    }

    #[test]
    fn circles_are_named() {
        let tree = json!({"core_goal": "g", "tree_nodes": [
            {"task_name": "a", "dependencies": ["b"]},
            {"task_name": "b", "dependencies": ["c"]},
            {"task_name": "c", "dependencies": ["a"]},
        ]});
        assert_eq!(problems_of(tree), ["tasks wait for each other in a circle: a → b → c → a"]);
        let diamond = json!({"core_goal": "g", "tree_nodes": [
            {"task_name": "a", "dependencies": ["b", "c"]},
            {"task_name": "b", "dependencies": ["d"]},
            {"task_name": "c", "dependencies": ["d"]},
            {"task_name": "d"},
        ]});
        assert!(problems_of(diamond).is_empty());
    }

    #[test]
    fn a_part_that_depends_on_its_whole_is_told_why_that_cannot_be() {
        let part = json!({"task_name": "part", "dependencies": ["whole"]});
        let between = json!({"task_name": "between", "children": [part]});
        let tree = json!({"core_goal": "g", "tree_nodes": [{"task_name": "whole", "children": [between]}]});
        let found = problems_of(tree);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("`part` depends on `whole`, of which it is a part:"), "{found:?}");
    }

    #[test]
    fn size_and_depth_are_bounded() {
        let many: Vec<Value> = (0..=NODES).map(|n| json!({"task_name": format!("t{n}")})).collect();
        assert!(problems_of(json!({"core_goal": "g", "tree_nodes": many}))[0].contains("501 tasks"));
        let mut deep = json!({"task_name": "leaf"});
        for level in 0..DEPTH {
            deep = json!({"task_name": format!("t{level}"), "children": [deep]});
        }
        assert!(problems_of(json!({"core_goal": "g", "tree_nodes": [deep]}))[0].contains("deeper"));
        let long = "x".repeat(TEXT_CHARS + 1);
        let tree = json!({"core_goal": "g", "tree_nodes": [{"task_name": "a\nb", "output": long}]});
        let found = problems_of(tree);
        assert!(found[0].contains("one line") && found[1].contains("`output`"), "{found:?}");
        let big: Vec<Value> =
            (0..60).map(|n| json!({"task_name": format!("t{n}"), "output": "x".repeat(10_000)})).collect();
        assert!(problems_of(json!({"core_goal": "g", "tree_nodes": big}))[0].contains("bytes"));
    }
}
