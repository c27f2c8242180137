//! The texts about plans, in both languages.

use super::model::TaskStatus;
use crate::protocol::ask::Language;
use crate::protocol::word_enums::bilingual;

#[derive(Clone, Copy)]
pub struct Words(pub Language);

impl Words {
    bilingual! {
        first() => "✅ the first version of the plan", "✅ 首次创建计划树";
        unchanged() => "ℹ️ no change to the plan's tasks", "ℹ️ 计划树无明显变更";
        added(names: &str) => "🆕 new tasks: {names}", "🆕 新增任务：{names}";
        removed(names: &str) => "🗑️ tasks taken out: {names}", "🗑️ 删除任务：{names}";
        changed(name: &str, old: &str, new: &str) =>
            "🔄 status of {name}: {old} → {new}", "🔄 状态变更：{name}（{old} → {new}）";
        top_level => "top level", "根节点";
        moved_between(name: &str, old: &str, new: &str) =>
            "📂 {name} moved: {old} → {new}", "📂 层级调整：{name}（父任务：{old} → {new}）";
        task_line(symbol: &str, name: &str, id: &str) =>
            "- {symbol} **{name}** (id: {id})", "- {symbol} **{name}**（ID：{id}）";
        status_note(status: &str) => " | status: {status}", " | 状态：{status}";
        /// What stands before the description of a task.
        about => "about: ", "说明：";
        /// What stands before the result of a task.
        result => "result: ", "结果：";
        changes_heading => "What changed:", "变更总结：";
        plan_heading => "The plan:", "Markdown格式：";
    }

    pub fn status(self, status: TaskStatus) -> &'static str {
        match (self.0, status) {
            (Language::English, status) => status.name(),
            (Language::Chinese, TaskStatus::Pending) => "待执行",
            (Language::Chinese, TaskStatus::Processing) => "正在执行",
            (Language::Chinese, TaskStatus::Completed) => "执行成功",
            (Language::Chinese, TaskStatus::Failed) => "执行失败",
            (Language::Chinese, TaskStatus::Retry) => "重试",
            (Language::Chinese, TaskStatus::Skipped) => "已跳过",
        }
    }

    /// A task without a parent is at the top level.
    pub fn moved(self, name: &str, old: Option<&str>, new: Option<&str>) -> String {
        let top = self.top_level();
        self.moved_between(name, old.unwrap_or(top), new.unwrap_or(top))
    }
}
