//! Messages to a model beside results, in each language.

use std::fmt::Display;

use super::report::shortened;
use crate::protocol::ask::Language;
use crate::protocol::word_enums::bilingual;
use crate::schema::Problem;

#[derive(Clone, Copy, Debug)]
pub(super) struct Words(pub Language);

impl Words {
    bilingual! {
        /// The prefix of every message about a failed call. Existing prompts look for the Chinese prefix.
        call_failed(why: &str) => "The tool call failed: {why}", "工具函数调用失败, 错误信息: {why}";
        python_off() =>
            "Python is switched off: the code was not run. Go on without it, by reasoning and by the other tools.",
            "Python 已关闭，代码没有执行。请不使用 Python，通过推理和其他工具继续。";
        python_given_up(failures: u32) =>
            "Python failed {failures} times in a row and is now switched off for this request. Go on without it, by reasoning and by the other tools.",
            "Python 已连续失败 {failures} 次，在本次请求中不再可用。请不使用 Python，通过推理和其他工具继续。";
        too_many_calls(dropped: usize, at_once: usize) =>
            "{dropped} further calls of your last reply were not executed: a reply may make {at_once} calls. Make them again if they are still needed.",
            "上一条回复中另有 {dropped} 个调用没有执行：每条回复最多 {at_once} 个调用。如仍需要，请重新调用。";
        person_responds(text: &str) =>
            "It was not run. A person answered instead:\n{text}", "没有执行。用户的答复：\n{text}";
        person_edits(text: &str) =>
            "It was not run. A person would rather have it like this; consider it and call again:\n{text}",
            "没有执行。用户希望改成如下内容，请参考后重新调用：\n{text}";
        person_changed_code(code: &str) =>
            "A person changed the code before it ran. This is what ran:\n{code}\n\n",
            "代码在执行前被用户修改，实际执行的是：\n{code}\n\n";
        pictures() => "The pictures that the code showed:", "代码展示的图片：";
        pictures_gone => "[Pictures that the code showed, no longer here]", "[代码展示过的图片，此处不再保留]";
        pictures_refused =>
            "[Pictures that the code showed, not here because a request with them was refused]",
            "[代码展示过的图片，因包含图片的请求被拒绝，此处不再保留]";
        time_was_cut(wanted: f64, allowed: f64) =>
            "{wanted} seconds were asked for; {allowed} seconds are the most that a cell may take here.\n",
            "申请的时间为 {wanted} 秒，这里每次执行最多 {allowed} 秒。\n";
        unclosed_tag(tag: &str) =>
            "`<{tag}>` is not closed: end it with `</{tag}>`", "`<{tag}>` 没有结束标签：请以 `</{tag}>` 结束";
        unopened_tag(tag: &str) =>
            "`</{tag}>` closes nothing: begin with `<{tag}>`", "`</{tag}>` 没有对应的开始标签：请以 `<{tag}>` 开始";
        repeated() =>
            "This is the same step that failed before, and it failed again. Once more ends this request: change the code or the arguments, or take another way.",
            "这一步与之前失败的步骤完全相同，并且再次失败。再重复一次，本次请求就会结束：请修改代码或参数，或者换一种方法。";
        no_function_call() =>
            "No `function_call` is defined here and it cannot be executed. Use `tool_calls` to call tools.",
            "没有定义function_call工具调用，无法执行function_call，请使用tool_calls调用工具。";
        empty_reply() => "it was empty", "回复为空";
        cut_reply() => "it was cut off at the limit of tokens. Say less at a time", "回复达到长度上限而被截断，请缩短每次的内容";
        native_calls() => "it used tool calls, which do not exist here", "使用了这里不存在的工具调用格式";
        unknown_action(action: &str, known: &str) =>
            "`action` is {action}, but has to be one of {known}", "`action` 的值 {action} 无效，必须是 {known} 之一";
        no_object(problem: &str) =>
            "there is no JSON object in it as it was agreed ({problem})", "其中没有约定的 JSON 对象（{problem}）";
        malformed(why: &str, contract: &str) =>
            "Your reply cannot be used: {why}.\n{contract}", "你的回复无法使用：{why}。\n{contract}";
        left_out(chars: impl Display) => "[… {chars} characters left out …]", "[…… 省略 {chars} 个字符 ……]";
        no_text(field: &str) => "`{field}` has to be a text", "`{field}` 必须是文本";
        empty_field(field: &str) => "`{field}` is missing or empty", "缺少 `{field}` 或其内容为空";
        no_object_in(field: &str) => "`{field}` has to be an object", "`{field}` 必须是对象";
        summary => "[Summary of earlier turns that were cut]", "[已删减的早先对话摘要]";
    }

    pub fn pick(self, english: impl FnOnce() -> String, chinese: impl FnOnce() -> String) -> String {
        match self.0 {
            Language::English => english(),
            Language::Chinese => chinese(),
        }
    }

    /// Whether this is all that is left of a message that showed pictures.
    pub fn stands_for_pictures(self, text: &str) -> bool {
        text == self.pictures_gone() || text == self.pictures_refused()
    }

    pub fn pictures_left_out(self, count: usize, most: usize, kib: usize, side: u32) -> String {
        self.pick(
            || format!("{} not here: at most {most} are, each of at most {kib} KiB as base64 and {side} pixels a side. Show fewer or smaller ones (dpi, figsize) to see them.", pictures_are(count)),
            || format!("另有 {count} 张图片未显示：最多 {most} 张，每张不超过 {kib} KiB（base64）、边长不超过 {side} 像素。如需查看，请减少数量或缩小尺寸（dpi、figsize）。"),
        )
    }

    pub fn pictures_broken(self, count: usize) -> String {
        self.pick(
            || format!("{} not here, because the data is no valid PNG or JPEG in base64: check how it is made.", pictures_are(count)),
            || format!("另有 {count} 张图片未显示，因为其数据不是有效的 PNG 或 JPEG（base64）：请检查其生成方式。"),
        )
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

    pub fn no_python(self) -> String {
        self.call_failed(&self.pick(
            || "Python is not among the tools of this request.".to_owned(),
            || "本次请求不能使用 Python。".to_owned(),
        ))
    }

    /// Advice after a tool failed several times; none if it is not there.
    pub fn try_otherwise(self, tool: Option<&str>, failures: u32) -> String {
        let tool = tool.map(|tool| format!("`{tool}`"));
        self.pick(
            || {
                let tool = tool.as_deref().unwrap_or("Calls of tools that are not there");
                format!("{tool} failed {failures} times in a row. Find out the cause, then take another way instead of repeating what failed.")
            },
            || {
                let tool = tool.as_deref().unwrap_or("对不存在的工具的调用");
                format!("{tool} 已连续失败 {failures} 次。请分析原因，换一种方法，不要重复失败的操作。")
            },
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

    pub fn field(self, name: &str, problem: Field) -> String {
        match problem {
            Field::NoText => self.no_text(name),
            Field::Empty => self.empty_field(name),
            Field::NoObject => self.no_object_in(name),
        }
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

    /// How packages are installed, for the system prompt.
    pub fn install(self, allowed: bool, asked: bool) -> String {
        if !allowed {
            return self.pick(|| "Nothing can be installed.".to_owned(), || "不能安装软件包。".to_owned());
        }
        let asks = if asked {
            self.pick(
                || "; a person decides about each request, so name all that you need in one".to_owned(),
                || "；每次请求都要由人批准，因此请一次列出所需的全部软件包".to_owned(),
            )
        } else {
            String::new()
        };
        self.pick(
            || format!("`%pip install NAME` in a cell installs a package for the session{asks}."),
            || format!("在单元格中用 `%pip install 名称` 可以为会话安装软件包{asks}。"),
        )
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
    pub fn shorten(self, text: &str, chars: usize) -> String {
        shortened(text, text.chars().count(), chars, &|left_out| self.left_out(left_out))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Field {
    NoText,
    Empty,
    NoObject,
}

fn pictures_are(count: usize) -> String {
    if count == 1 { "1 picture is".to_owned() } else { format!("{count} pictures are") }
}

fn listed(problems: &[String]) -> String {
    let lines: Vec<String> = problems.iter().map(|problem| format!("- {problem}")).collect();
    lines.join("\n")
}
