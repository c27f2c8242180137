//! Versions of a plan.

use serde_json::Value;
use std::collections::BTreeMap;
use uuid::Uuid;

use super::model::{PlanNode, PlanTree};
use super::words::Words;
use super::{check, diff, render};
use crate::protocol::ask::{Language, PlanVersion};

/// The newest version of a plan; older ones are in the journal.
#[derive(Clone, Debug, Default)]
pub struct PlanHistory {
    version: u64,
    latest: Option<PlanTree>,
}

impl PlanHistory {
    /// Continues after a version from the journal.
    pub fn after(latest: &PlanVersion) -> Self {
        Self { version: latest.version, latest: serde_json::from_value(latest.tree.clone()).ok() }
    }

    /// Accepts the next version, or returns everything that is wrong with it.
    pub fn submit(&mut self, mut tree: PlanTree, language: Language) -> Result<PlanVersion, Vec<String>> {
        check::check(&tree)?;
        self.fill_in_ids(&mut tree);
        // A filled-in id may equal one that the model gave to another task, so the tree is checked again.
        check::check(&tree)?;
        let changes = match &self.latest {
            None => vec![Words(language).first()],
            Some(latest) => diff::changes(latest, &tree, language),
        };
        let version = PlanVersion {
            version: self.version + 1,
            tree: serde_json::to_value(&tree).unwrap_or(Value::Null),
            changes,
            markdown: render::markdown(&tree, language),
            statistics: render::statistics(&tree),
        };
        self.version = version.version;
        self.latest = Some(tree);
        Ok(version)
    }

    /// Gives a task without an id the id of the task that had its name in the previous version, or a new id.
    fn fill_in_ids(&self, tree: &mut PlanTree) {
        let known: BTreeMap<String, String> = self
            .latest
            .iter()
            .flat_map(PlanTree::walk)
            .map(|(node, _)| (node.task_name.clone(), node.id().to_owned()))
            .collect();
        let mut waiting: Vec<&mut PlanNode> = tree.tree_nodes.iter_mut().collect();
        while let Some(node) = waiting.pop() {
            if node.task_id.is_none() {
                let id = known.get(&node.task_name).cloned();
                node.task_id = Some(id.unwrap_or_else(|| format!("TASK-{}", Uuid::new_v4())));
            }
            waiting.extend(node.children.iter_mut().flatten());
        }
    }
}

/// The report to the model about the version that it submitted.
pub fn plan_report(plan: &PlanVersion, language: Language) -> String {
    let words = Words(language);
    let (changes_heading, plan_heading) = (words.changes_heading(), words.plan_heading());
    let statistics = Value::Object(plan.statistics.clone());
    format!(
        "{changes_heading}\n{}\n\n{plan_heading}\n{}\n\nstatus_statistics: {statistics}",
        plan.changes.join("\n"),
        plan.markdown
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tree(value: Value) -> PlanTree {
        serde_json::from_value(value).unwrap()
    }

    fn first() -> Value {
        json!({"core_goal": "调度", "tree_nodes": [
            {"task_id": "T1", "task_name": "读取数据", "status": "processing", "description": "五个文件"},
            {"task_id": "T2", "task_name": "计算", "dependencies": ["读取数据"], "children": [
                {"task_id": "T3", "task_name": "贪心"}, {"task_id": "T4", "task_name": "加权"}]},
        ], "next_action": {"priority": "high"}})
    }

    fn second() -> Value {
        json!({"core_goal": "调度", "tree_nodes": [
            {"task_id": "T1", "task_name": "读取数据", "status": "completed", "output": "已读取\n5 个"},
            {"task_id": "T2", "task_name": "计算", "dependencies": ["读取数据"], "children": []},
            {"task_id": "T3", "task_name": "贪心", "status": "failed"},
            {"task_id": "T5", "task_name": "作图", "status": "skipped"},
        ]})
    }

    #[test]
    fn chinese_versions_have_the_shapes_of_the_source() {
        let mut history = PlanHistory::default();
        let one = history.submit(tree(first()), Language::Chinese).unwrap();
        assert_eq!((one.version, one.changes), (1, vec!["✅ 首次创建计划树".to_owned()]));
        assert_eq!(
            one.markdown,
            "- [⚡️] **读取数据**（ID：T1）\n  > 说明：五个文件\n- [⏳] **计算**（ID：T2）\n  - [⏳] **贪心**（ID：T3）\n  - [⏳] **加权**（ID：T4）"
        );
        let two = history.submit(tree(second()), Language::Chinese).unwrap();
        assert_eq!(two.version, 2);
        assert_eq!(
            two.changes,
            [
                "🆕 新增任务：作图",
                "🗑️ 删除任务：加权",
                "🔄 状态变更：读取数据（正在执行 → 执行成功）",
                "🔄 状态变更：贪心（待执行 → 执行失败）",
                "📂 层级调整：贪心（父任务：计算 → 根节点）",
            ]
        );
        assert_eq!(
            two.markdown,
            "- [✅] **读取数据**（ID：T1）\n  > 结果：已读取\n  > 5 个\n- [⏳] **计算**（ID：T2）\n\
             - [❌] **贪心**（ID：T3） | 状态：执行失败\n- [⏭️] **作图**（ID：T5） | 状态：已跳过"
        );
        let three = history.submit(tree(second()), Language::Chinese).unwrap();
        assert_eq!(three.changes, ["ℹ️ 计划树无明显变更"]);
    }

    #[test]
    fn the_report_holds_all_three_parts() {
        let mut history = PlanHistory::default();
        let plan = history.submit(tree(second()), Language::English).unwrap();
        let text = plan_report(&plan, Language::English);
        insta::assert_snapshot!(text);
    }

    #[test]
    fn statistics_count_every_level_and_an_empty_plan_has_zero_rates() {
        let mut history = PlanHistory::default();
        let plan = history.submit(tree(first()), Language::English).unwrap();
        assert_eq!(
            Value::Object(plan.statistics),
            json!({"pending": 3, "processing": 1, "completed": 0, "failed": 0, "retry": 0, "skipped": 0,
                   "__total": 4, "__completion_rate": 0.0, "__pending_rate": 0.75})
        );
        let plan = history.submit(tree(json!({"core_goal": "g"})), Language::English).unwrap();
        assert_eq!(
            (&plan.statistics["__total"], &plan.statistics["__pending_rate"]),
            (&json!(0), &json!(0.0))
        );
        let thirds = json!({"core_goal": "g", "tree_nodes": [
            {"task_name": "a", "status": "completed"}, {"task_name": "b", "status": "completed"}, {"task_name": "c"}]});
        let plan = history.submit(tree(thirds), Language::English).unwrap();
        assert_eq!(
            (&plan.statistics["__completion_rate"], &plan.statistics["__pending_rate"]),
            (&json!(0.67), &json!(0.33))
        );
    }

    #[test]
    fn a_task_without_an_id_is_followed_by_its_name() {
        let mut history = PlanHistory::default();
        let given = |status| json!({"core_goal": "g", "tree_nodes": [{"task_name": "a", "status": status}]});
        let one = history.submit(tree(given("pending")), Language::English).unwrap();
        let id = one.tree["tree_nodes"][0]["task_id"].as_str().unwrap();
        assert!(id.starts_with("TASK-"), "{id}");
        let mut resumed = PlanHistory::after(&one);
        let two = resumed.submit(tree(given("completed")), Language::English).unwrap();
        assert_eq!(two.version, 2);
        assert_eq!(two.changes, ["🔄 status of a: pending → completed"]);
        assert_eq!(two.tree["tree_nodes"][0]["task_id"], id);
    }

    #[test]
    fn a_wrong_plan_leaves_the_history_as_it_was() {
        let mut history = PlanHistory::default();
        history.submit(tree(first()), Language::English).unwrap();
        let wrong = json!({"core_goal": "g", "tree_nodes": [{"task_name": "a", "dependencies": ["a"]}]});
        assert_eq!(
            history.submit(tree(wrong), Language::English).unwrap_err(),
            ["tasks wait for each other in a circle: a → a"]
        );
        // The first task has the name of a previous task whose id another task now has.
        let stolen = json!({"core_goal": "g", "tree_nodes": [
            {"task_name": "读取数据"}, {"task_name": "x", "task_id": "T1"}]});
        assert_eq!(
            history.submit(tree(stolen), Language::English).unwrap_err(),
            ["two tasks have the task_id `T1`"]
        );
        assert_eq!(history.submit(tree(first()), Language::English).unwrap().version, 2);
    }
}
