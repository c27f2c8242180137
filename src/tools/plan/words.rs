//! The texts about plans, in both languages.

use super::model::TaskStatus;
use crate::protocol::ask::Language;

#[must_use]
pub fn status(status: TaskStatus, language: Language) -> &'static str {
    match (language, status) {
        (Language::English, status) => status.name(),
        (Language::Chinese, TaskStatus::Pending) => "待执行",
        (Language::Chinese, TaskStatus::Processing) => "正在执行",
        (Language::Chinese, TaskStatus::Completed) => "执行成功",
        (Language::Chinese, TaskStatus::Failed) => "执行失败",
        (Language::Chinese, TaskStatus::Retry) => "重试",
        (Language::Chinese, TaskStatus::Skipped) => "已跳过",
    }
}

pub fn first(language: Language) -> String {
    match language {
        Language::English => "✅ the first version of the plan".into(),
        Language::Chinese => "✅ 首次创建计划树".into(),
    }
}

pub fn unchanged(language: Language) -> String {
    match language {
        Language::English => "ℹ️ no change to the plan's tasks".into(),
        Language::Chinese => "ℹ️ 计划树无明显变更".into(),
    }
}

pub fn added(names: &[&str], language: Language) -> String {
    let names = names.join(", ");
    match language {
        Language::English => format!("🆕 new tasks: {names}"),
        Language::Chinese => format!("🆕 新增任务：{names}"),
    }
}

pub fn removed(names: &[&str], language: Language) -> String {
    let names = names.join(", ");
    match language {
        Language::English => format!("🗑️ tasks taken out: {names}"),
        Language::Chinese => format!("🗑️ 删除任务：{names}"),
    }
}

pub fn status_changed(name: &str, old: TaskStatus, new: TaskStatus, language: Language) -> String {
    let (old, new) = (status(old, language), status(new, language));
    match language {
        Language::English => format!("🔄 status of {name}: {old} → {new}"),
        Language::Chinese => format!("🔄 状态变更：{name}（{old} → {new}）"),
    }
}

/// A task without a parent is at the top level.
pub fn moved(name: &str, old: Option<&str>, new: Option<&str>, language: Language) -> String {
    match language {
        Language::English => {
            format!("📂 {name} moved: {} → {}", old.unwrap_or("top level"), new.unwrap_or("top level"))
        }
        Language::Chinese => {
            let (old, new) = (old.unwrap_or("根节点"), new.unwrap_or("根节点"));
            format!("📂 层级调整：{name}（父任务：{old} → {new}）")
        }
    }
}

pub fn task_line(symbol: &str, name: &str, id: &str, language: Language) -> String {
    match language {
        Language::English => format!("- {symbol} **{name}** (id: {id})"),
        Language::Chinese => format!("- {symbol} **{name}**（ID：{id}）"),
    }
}

pub fn status_note(status_name: &str, language: Language) -> String {
    match language {
        Language::English => format!(" | status: {status_name}"),
        Language::Chinese => format!(" | 状态：{status_name}"),
    }
}

/// Headings of a task's description and of its result.
pub fn labels(language: Language) -> (&'static str, &'static str) {
    match language {
        Language::English => ("about: ", "result: "),
        Language::Chinese => ("说明：", "结果："),
    }
}

/// Headings of the two parts of a report.
pub fn headings(language: Language) -> (&'static str, &'static str) {
    match language {
        Language::English => ("What changed:", "The plan:"),
        Language::Chinese => ("变更总结：", "Markdown格式："),
    }
}
