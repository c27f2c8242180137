//! The report's wording in each language. Existing prompts refer to the Chinese titles, so these must not
//! change.

use crate::agent::words::Words;
use crate::protocol::exit_codes::signal_name;
use crate::protocol::ids::CellNumber;
use crate::protocol::result::{Reason, Status};
use crate::protocol::word_enums::bilingual;

impl Words {
    bilingual! {
        succeeded => "## The code ran to its end: the output is complete", "## 代码执行成功，输出结果完整，任务完成";
        failed =>
            "## The code failed with an exception: debug it by the error below",
            "## 代码执行失败，代码抛出异常，根据报错信息进行调试";
        timed_out =>
            "## The code ran out of time and was stopped: retry with another time limit",
            "## 代码执行超时，强制退出执行，调整超时时间后重试";
        crashed =>
            "## The code crashed, its process ended: debug it by what is below",
            "## 代码执行崩溃，进程异常退出，根据报错信息进行调试";
        was_interrupted => "## The code was interrupted before its end", "## 代码执行被中断，没有执行完毕";
        output => "### Terminal output:", "### 终端输出：";
        nothing => "(none)", "（无）";
        printed_nothing =>
            "(The code ran to its end and printed nothing. Use `print` to see a value.)",
            "（代码执行完毕，没有任何输出。请用 `print` 查看结果。）";
        source => "### Source code:", "### 原始代码：";
        error => "### Error:", "### 报错信息：";
        value => "### Value of the last expression:", "### 最后一个表达式的值：";
        displays => "### Displayed to the user:", "### 已向用户展示：";
        artifacts => "### Files changed in the workspace:", "### 工作区中变化的文件：";
        new_file => "new", "新建";
        modified => "modified", "已修改";
        removed => "removed", "已删除";
        truncated => "### Not shown:", "### 未显示的内容：";
        artifacts_cut =>
            "The list of changed files is incomplete: there are too many files to look at.",
            "文件过多，变化的文件列表不完整。";
        timeout_advice =>
            "Do less in one cell, split the work over several cells, or ask for a longer time limit.",
            "请减少单次执行的工作量，把任务拆分到多次执行，或者申请更长的超时时间。";
        interrupted =>
            "Somebody stopped the cell. Ask before you run the same code again.",
            "代码被人为中止。再次执行同样的代码之前，请先询问用户。";
        cancelled => "The cell was cancelled, because its session was reset or removed.", "会话被重置或删除，代码执行已取消。";
        rolled_back =>
            "The cell ended, because the session went back to earlier variables on account of something else.",
            "会话因其他原因恢复到之前的变量，代码随之结束。";
        state => "### State of the session:", "### 会话状态：";
        variables_kept => "All variables are as the cell left them.", "所有变量保持代码执行结束时的值。";
        kept_unrun => "Nothing of the cell ran; all variables are as before it.", "代码没有执行，所有变量与执行前相同。";
        kept_failed =>
            "All variables are kept, as they were when the exception was raised. What the cell did before that has happened: continue from there.",
            "所有变量保留为抛出异常时的值。异常之前的操作已经生效，请从该处继续。";
        kept_interrupted =>
            "All variables are kept, as they were when the cell was stopped.", "所有变量保留为代码被中止时的值。";
        forked =>
            "The cell ran in a copy of the session; the session's own variables are unchanged. Files it wrote remain.",
            "代码在会话的副本中执行，会话本身的变量没有变化，写入的文件仍然存在。";
        lost =>
            "All variables, imports and functions are gone. The files in the workspace are still there. Run what you need of the earlier cells again before you go on.",
            "所有变量、导入和函数都已丢失，工作区中的文件仍然存在。请先重新执行所需的代码，再继续任务。";
        tools_completed =>
            "These tool calls of the cell had completed; their effects remain:", "代码中的以下工具调用已经完成，其效果仍然有效：";
        maybe_assigned =>
            "These names may have been assigned in the lost cell; they are as before it, or not there:",
            "丢失的代码可能给以下名称赋过值，它们现在是执行之前的值或不存在：";
        unprotected =>
            "There was no checkpoint to go back to, had this cell died: memory was short, or checkpoints are off.",
            "执行这段代码时没有可恢复的检查点（内存不足或检查点已关闭），如果崩溃，变量将会丢失。";
        time_limit(seconds: f64) =>
            "### Time limit that was exceeded: {seconds} seconds", "### 超出限制的时间：{seconds} 秒";
        bytes(bytes: u64) => "{bytes} bytes", "{bytes} 字节";
        more(count: usize) => "… and {count} more", "…… 以及另外 {count} 项";
        output_cut(bytes: u64) =>
            "{bytes} bytes from the middle of the output. Print less, or write to a file.",
            "输出中间的 {bytes} 字节。请减少输出，或写入文件。";
        output_dropped(bytes: u64) => "{bytes} bytes of output were not kept at all.", "{bytes} 字节的输出没有保存。";
        displays_cut(count: u64) =>
            "{count} displays that were too many or too large.", "{count} 个展示内容因过多或过大而未保留。";
    }

    pub fn title(self, status: Status) -> &'static str {
        match status {
            Status::Success => self.succeeded(),
            Status::Failure => self.failed(),
            Status::Timeout => self.timed_out(),
            Status::Crashed => self.crashed(),
            Status::Interrupted => self.was_interrupted(),
        }
    }

    pub fn exit_code(self, code: Option<i32>) -> String {
        let known = code.map(|code| code.to_string());
        self.pick(
            || format!("### Exit code: {}", known.as_deref().unwrap_or("unknown")),
            || format!("### 退出状态码：{}", known.as_deref().unwrap_or("未知")),
        )
    }

    /// Why a process ended, and what to try.
    pub fn crash(self, reason: Reason, code: Option<i32>) -> String {
        let signal = code.and_then(signal_name);
        let by_signal = signal.as_deref();
        let (english, chinese) = match (reason, by_signal) {
            (Reason::OutOfMemory, _) => (
                "It was killed because it needed more memory than the session has. Work on smaller pieces of the data.",
                "内存超出会话的限制，进程被终止。请把数据分成更小的部分处理。",
            ),
            (Reason::Pids, _) => (
                "It hit the limit on processes and threads. Start fewer of them.",
                "进程或线程数量达到上限。请减少进程或线程。",
            ),
            (Reason::Descriptors, _) => (
                "It did not run, because earlier code has too many files open. Close some of them.",
                "之前的代码打开的文件过多，因此没有执行。请关闭一些文件。",
            ),
            (Reason::SandboxLost, _) => (
                "Its sandbox is gone. How far the cell came, if it began at all, is not known. The next cell gets a new sandbox.",
                "沙箱已经消失，无法得知代码执行到了哪里，也可能尚未开始。下一次执行会使用新的沙箱。",
            ),
            (Reason::PolicyViolation, _) => (
                "It was stopped because it did what is not allowed here. Do not try it again.",
                "代码执行了不允许的操作，因此被终止。请不要再次尝试。",
            ),
            (Reason::JournalQuota, _) => (
                "It was stopped because its output and what it handed to tools are more than may be stored. Print less, and work with files in the workspace.",
                "输出和传给工具的数据超过了允许保存的总量，因此被终止。请减少输出，并使用工作目录中的文件。",
            ),
            (Reason::ExitCall, _) => (
                "It ended its own process, for example by `os._exit`. Let the code run to its end instead.",
                "代码自行结束了进程（例如调用 `os._exit`）。请让代码正常执行完毕。",
            ),
            (_, Some(name)) => {
                return self.pick(
                    || format!("It was ended by {name}. Look for what crashes outside of Python: native libraries, deep recursion."),
                    || format!("进程被终止：{name}。请检查 Python 之外的原因：本地库、过深的递归。"),
                );
            }
            (_, None) => ("Its process ended without an answer.", "进程在没有返回结果的情况下结束。"),
        };
        self.pick(|| english.to_owned(), || chinese.to_owned())
    }

    pub fn restored(self, cell: Option<CellNumber>) -> String {
        match cell.filter(|cell| *cell > 0) {
            Some(cell) => self.pick(
                || format!("All variables are back as they were after cell {cell}; what this cell assigned is gone. Files it wrote remain; its threads, processes and connections do not."),
                || format!("所有变量已恢复到第 {cell} 个单元执行后的状态，本次执行的赋值已丢失。写入的文件仍然存在，线程、进程和连接已结束。"),
            ),
            None => self.pick(
                || "All variables are back as they were before this cell; what it assigned is gone. Files it wrote remain; its threads, processes and connections do not.".to_owned(),
                || "所有变量已恢复到本次执行之前的状态，本次执行的赋值已丢失。写入的文件仍然存在，线程、进程和连接已结束。".to_owned(),
            ),
        }
    }
}
