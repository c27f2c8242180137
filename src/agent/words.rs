//! Messages to a model beside results, in each language.

use std::fmt::Display;

use super::report::shortened;
use crate::protocol::ask::Language;
use crate::schema::Problem;

#[derive(Clone, Copy, Debug)]
pub(super) struct Words(pub Language);

impl Words {
    fn pick(self, english: impl FnOnce() -> String, chinese: impl FnOnce() -> String) -> String {
        match self.0 {
            Language::English => english(),
            Language::Chinese => chinese(),
        }
    }

    /// The prefix of every message about a failed call. Existing prompts look for the Chinese prefix.
    pub fn call_failed(self, why: &str) -> String {
        self.pick(|| format!("The tool call failed: {why}"), || format!("工具函数调用失败, 错误信息: {why}"))
    }

    pub fn unknown_tool(self, name: &str, known: &str) -> String {
        self.call_failed(&self.pick(
            || format!("there is no tool `{name}`. Known tools: {known}."),
            || format!("没有名为 `{name}` 的工具。可用的工具：{known}。"),
        ))
    }

    pub fn no_json(self, problem: &str, given: &str) -> String {
        self.call_failed(&self.pick(
            || format!("the arguments are no valid JSON object ({problem}). They were: {given}"),
            || format!("参数不是有效的 JSON 对象（{problem}）。收到的参数：{given}"),
        ))
    }

    pub fn problems(self, problems: &[Problem]) -> Vec<String> {
        problems.iter().map(|problem| problem.describe(self.0)).collect()
    }

    pub fn bad_arguments(self, tool: &str, problems: &[Problem]) -> String {
        let problems = listed(&self.problems(problems));
        self.call_failed(&self.pick(
            || format!("the arguments do not fit the schema of `{tool}`:\n{problems}"),
            || format!("参数不符合 `{tool}` 的定义：\n{problems}"),
        ))
    }

    pub fn not_run(self, why: &str) -> String {
        self.call_failed(
            &self.pick(|| format!("the code was not run: {why}"), || format!("代码没有执行：{why}")),
        )
    }

    pub fn python_off(self) -> String {
        self.pick(
            || "Python is switched off: the code was not run. Go on without it, by reasoning and by the other tools.".to_owned(),
            || "Python 已关闭，代码没有执行。请不使用 Python，通过推理和其他工具继续。".to_owned(),
        )
    }

    pub fn python_given_up(self, failures: u32) -> String {
        self.pick(
            || format!("Python failed {failures} times in a row and is now switched off for this request. Go on without it, by reasoning and by the other tools."),
            || format!("Python 已连续失败 {failures} 次，在本次请求中不再可用。请不使用 Python，通过推理和其他工具继续。"),
        )
    }

    pub fn no_python(self) -> String {
        self.call_failed(&self.pick(
            || "Python is not among the tools of this request.".to_owned(),
            || "本次请求不能使用 Python。".to_owned(),
        ))
    }

    pub fn too_many_calls(self, dropped: usize, at_once: usize) -> String {
        self.pick(
            || format!("{dropped} further calls of your last reply were not executed: a reply may make {at_once} calls. Make them again if they are still needed."),
            || format!("上一条回复中另有 {dropped} 个调用没有执行：每条回复最多 {at_once} 个调用。如仍需要，请重新调用。"),
        )
    }

    pub fn person_responds(self, text: &str) -> String {
        self.pick(
            || format!("It was not run. A person answered instead:\n{text}"),
            || format!("没有执行。用户的答复：\n{text}"),
        )
    }

    pub fn person_edits(self, text: &str) -> String {
        self.pick(
            || format!("It was not run. A person would rather have it like this; consider it and call again:\n{text}"),
            || format!("没有执行。用户希望改成如下内容，请参考后重新调用：\n{text}"),
        )
    }

    pub fn person_changed_code(self, code: &str) -> String {
        self.pick(
            || format!("A person changed the code before it ran. This is what ran:\n{code}\n\n"),
            || format!("代码在执行前被用户修改，实际执行的是：\n{code}\n\n"),
        )
    }

    pub fn try_otherwise(self, failures: u32) -> String {
        self.pick(
            || format!("The calls of {failures} replies in a row have failed. Find out the cause, then take another way instead of repeating what failed."),
            || format!("已连续 {failures} 次回复中的调用失败。请分析原因，换一种方法，不要重复失败的操作。"),
        )
    }

    pub fn skip(self, plan: bool) -> String {
        self.pick(
            || {
                let how = if plan {
                    "Mark this sub-task as skipped in the plan tree and go on with the next one"
                } else {
                    "Skip this sub-task"
                };
                format!("One more failure ends this request. {how}, or answer with what you have.")
            },
            || {
                let how = if plan {
                    "请在计划树中把该子任务标记为 skipped 并继续下一个任务"
                } else {
                    "请跳过该子任务"
                };
                format!("再失败一次，本次请求就会结束。{how}，或者用已有的结果作答。")
            },
        )
    }

    pub fn no_function_call(self) -> String {
        self.pick(
            || "No `function_call` is defined here and it cannot be executed. Use `tool_calls` to call tools.".to_owned(),
            || "没有定义function_call工具调用，无法执行function_call，请使用tool_calls调用工具。".to_owned(),
        )
    }

    pub fn empty_reply(self) -> String {
        self.pick(|| "it was empty".to_owned(), || "回复为空".to_owned())
    }

    pub fn cut_reply(self) -> String {
        self.pick(
            || "it was cut off at the limit of tokens. Say less at a time".to_owned(),
            || "回复达到长度上限而被截断，请缩短每次的内容".to_owned(),
        )
    }

    pub fn native_calls(self) -> String {
        self.pick(
            || "it used tool calls, which do not exist here".to_owned(),
            || "使用了这里不存在的工具调用格式".to_owned(),
        )
    }

    pub fn field(self, name: &str, problem: Field) -> String {
        match problem {
            Field::NoText => {
                self.pick(|| format!("`{name}` has to be a text"), || format!("`{name}` 必须是文本"))
            }
            Field::Empty => self
                .pick(|| format!("`{name}` is missing or empty"), || format!("缺少 `{name}` 或其内容为空")),
            Field::NoObject => {
                self.pick(|| format!("`{name}` has to be an object"), || format!("`{name}` 必须是对象"))
            }
        }
    }

    pub fn unknown_action(self, action: &str, known: &str) -> String {
        self.pick(
            || format!("`action` is {action}, but has to be one of {known}"),
            || format!("`action` 的值 {action} 无效，必须是 {known} 之一"),
        )
    }

    pub fn no_object(self, problem: &str) -> String {
        self.pick(
            || format!("there is no JSON object in it as it was agreed ({problem})"),
            || format!("其中没有约定的 JSON 对象（{problem}）"),
        )
    }

    pub fn malformed(self, why: &str, contract: &str) -> String {
        self.pick(
            || format!("Your reply cannot be used: {why}.\n{contract}"),
            || format!("你的回复无法使用：{why}。\n{contract}"),
        )
    }

    pub fn answer_unfit(self, problems: &[String]) -> String {
        let problems = listed(problems);
        self.pick(
            || format!("Your final answer does not fit the schema it has to have:\n{problems}\nGive the final answer again, corrected, with nothing else."),
            || format!("最终答案不符合要求的结构：\n{problems}\n请重新给出修正后的最终答案，不要附加其他内容。"),
        )
    }

    pub fn missing_dependencies(self, missing: &str, available: &[String]) -> String {
        let there = self.dependencies(available);
        self.call_failed(&self.pick(
            || format!("the code was not run, because these packages are not installed and cannot be installed here: {missing}. Beside the standard library there is: {there}. Write the code with that."),
            || format!("代码没有执行，因为以下软件包没有安装，也无法在此安装：{missing}。除标准库外可以使用：{there}。请据此编写代码。"),
        ))
    }

    /// The packages of the image, as far as they are known.
    pub fn dependencies(self, available: &[String]) -> String {
        if available.is_empty() {
            return self.pick(|| "no package that is known of".to_owned(), || "没有已知的软件包".to_owned());
        }
        available.join(", ")
    }

    pub fn never_answered(self) -> String {
        self.call_failed(&self.pick(
            || "there is no result; it was not executed to its end.".to_owned(),
            || "没有结果，调用没有执行完毕。".to_owned(),
        ))
    }

    /// Cuts a text to the characters that a model is shown of one result. A shorter text stays as it is.
    pub fn told(self, text: &str, told_chars: usize) -> String {
        shortened(text, text.chars().count(), told_chars, &|left_out| self.left_out(left_out))
    }

    pub fn left_out(self, chars: impl Display) -> String {
        self.pick(|| format!("[… {chars} characters left out …]"), || format!("[…… 省略 {chars} 个字符 ……]"))
    }

    pub fn summary(self) -> &'static str {
        match self.0 {
            Language::English => "[Summary of earlier turns that were cut]",
            Language::Chinese => "[已删减的早先对话摘要]",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    NoText,
    Empty,
    NoObject,
}

fn listed(problems: &[String]) -> String {
    let lines: Vec<String> = problems.iter().map(|problem| format!("- {problem}")).collect();
    lines.join("\n")
}
