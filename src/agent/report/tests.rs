use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::protocol::exit_codes;
use crate::protocol::result::{
    Artifact, Display, ExceptionView, OutputSegment, Stream, Truncated, ValueView,
};

fn result(status: Status, reason: Reason) -> ExecutionResult {
    ExecutionResult {
        cell: 3,
        code: "a = 123\nb = 0\nc = a / b\n".into(),
        stdout: "one\nthree\n".into(),
        stderr: "two\n".into(),
        output: vec![
            OutputSegment { stream: Stream::Stdout, text: "one\n".into() },
            OutputSegment { stream: Stream::Stderr, text: "two\n".into() },
            OutputSegment { stream: Stream::Stdout, text: "three\n".into() },
        ],
        duration_ms: 1.5,
        ..exit_codes::tests::result(status, reason, Some(0))
    }
}

fn success() -> ExecutionResult {
    let mime = |value: serde_json::Value| value.as_object().cloned().unwrap();
    ExecutionResult {
        result: Some(ValueView {
            repr: "[1, 2]".into(),
            type_name: "list".into(),
            mime: serde_json::Map::new(),
        }),
        displays: vec![Display {
            mime: mime(json!({"image/png": "", SMALL_PICTURE: "", "text/plain": "figure"})),
        }],
        artifacts: vec![
            Artifact { path: "plot.png".into(), bytes: 2048, change: Change::New },
            Artifact { path: "old\n## heading".into(), bytes: 0, change: Change::Removed },
        ],
        truncated: Truncated {
            stdout_bytes: 100,
            stderr_bytes: 20,
            dropped_bytes: 7,
            displays: 1,
            artifacts: true,
        },
        ..result(Status::Success, Reason::Ok)
    }
}

fn failure() -> ExecutionResult {
    ExecutionResult {
        exception: Some(ExceptionView {
            type_name: "ZeroDivisionError".into(),
            value: "division by zero".into(),
            repr: "ZeroDivisionError('division by zero')".into(),
            traceback: "Traceback (most recent call last):\n  File \"<cell 3>\", line 3\n    c = a / b\nZeroDivisionError: division by zero\n".into(),
        }),
        ..result(Status::Failure, Reason::Exception)
    }
}

fn timeout() -> ExecutionResult {
    let mut result = result(Status::Timeout, Reason::CellDeadline);
    result.exit_code = Some(-15);
    result.state.kind = StateKind::Restored;
    result.state.restored_to = Some(2);
    result.state.completed_tool_calls = vec!["send_mail".into()];
    result
}

fn crashed() -> ExecutionResult {
    let mut result = result(Status::Crashed, Reason::Signal);
    result.exit_code = Some(-11);
    result.state.kind = StateKind::Lost;
    result.state.note = Some("A new worker was started.".into());
    result.output.clear();
    result.stdout.clear();
    result.stderr.clear();
    result
}

#[test]
fn success_in_english() {
    insta::assert_snapshot!(report(&success(), Language::English, 20_000), @r#"
        ## The code ran to its end: the output is complete
        ### Terminal output:
        ```
        one
        two
        three
        ```
        ### Value of the last expression:
        ```
        [1, 2]
        ```
        ### Displayed to the user:
        ```
        image/png, text/plain
        ```
        ### Files changed in the workspace:
        ```
        /workspace/plot.png (new, 2048 bytes)
        /workspace/old\u{a}## heading (removed)
        ```
        ### Not shown:
        120 bytes from the middle of the output. Print less, or write to a file.
        7 bytes of output were not kept at all.
        1 displays that were too many or too large.
        The list of changed files is incomplete: there are too many files to look at.
        ### State of the session:
        All variables are as the cell left them.
        "#);
}

#[test]
fn success_in_chinese() {
    insta::assert_snapshot!(report(&success(), Language::Chinese, 20_000), @r#"
        ## 代码执行成功，输出结果完整，任务完成
        ### 终端输出：
        ```
        one
        two
        three
        ```
        ### 最后一个表达式的值：
        ```
        [1, 2]
        ```
        ### 已向用户展示：
        ```
        image/png, text/plain
        ```
        ### 工作区中变化的文件：
        ```
        /workspace/plot.png (新建, 2048 字节)
        /workspace/old\u{a}## heading (已删除)
        ```
        ### 未显示的内容：
        输出中间的 120 字节。请减少输出，或写入文件。
        7 字节的输出没有保存。
        1 个展示内容因过多或过大而未保留。
        文件过多，变化的文件列表不完整。
        ### 会话状态：
        所有变量保持代码执行结束时的值。
        "#);
}

#[test]
fn failure_in_english() {
    insta::assert_snapshot!(report(&failure(), Language::English, 20_000), @r#"
        ## The code failed with an exception: debug it by the error below
        ### Terminal output:
        ```
        one
        two
        three
        ```
        ### Source code:
        ```
        1 | a = 123
        2 | b = 0
        3 | c = a / b
        ```
        ### Error:
        ```
        Traceback (most recent call last):
          File "<cell 3>", line 3
            c = a / b
        ZeroDivisionError: division by zero
        ```
        ### State of the session:
        All variables are kept, as they were when the exception was raised. What the cell did before that has happened: continue from there.
        "#);
}

#[test]
fn failure_in_chinese() {
    insta::assert_snapshot!(report(&failure(), Language::Chinese, 20_000), @r#"
        ## 代码执行失败，代码抛出异常，根据报错信息进行调试
        ### 终端输出：
        ```
        one
        two
        three
        ```
        ### 原始代码：
        ```
        1 | a = 123
        2 | b = 0
        3 | c = a / b
        ```
        ### 报错信息：
        ```
        Traceback (most recent call last):
          File "<cell 3>", line 3
            c = a / b
        ZeroDivisionError: division by zero
        ```
        ### 会话状态：
        所有变量保留为抛出异常时的值。异常之前的操作已经生效，请从该处继续。
        "#);
}

#[test]
fn timeout_in_english() {
    insta::assert_snapshot!(report(&timeout(), Language::English, 20_000), @r#"
        ## The code ran out of time and was stopped: retry with another time limit
        ### Terminal output:
        ```
        one
        two
        three
        ```
        ### Time limit that was exceeded: 30 seconds
        Do less in one cell, split the work over several cells, or ask for a longer time limit.
        ### State of the session:
        All variables are back as they were after cell 2; what this cell assigned is gone. Files it wrote remain; its threads, processes and connections do not.
        These tool calls of the cell had completed; their effects remain:
        ```
        send_mail
        ```
        "#);
}

#[test]
fn timeout_in_chinese() {
    insta::assert_snapshot!(report(&timeout(), Language::Chinese, 20_000), @r#"
        ## 代码执行超时，强制退出执行，调整超时时间后重试
        ### 终端输出：
        ```
        one
        two
        three
        ```
        ### 超出限制的时间：30 秒
        请减少单次执行的工作量，把任务拆分到多次执行，或者申请更长的超时时间。
        ### 会话状态：
        所有变量已恢复到第 2 个单元执行后的状态，本次执行的赋值已丢失。写入的文件仍然存在，线程、进程和连接已结束。
        代码中的以下工具调用已经完成，其效果仍然有效：
        ```
        send_mail
        ```
        "#);
}

#[test]
fn crash_in_english() {
    insta::assert_snapshot!(report(&crashed(), Language::English, 20_000), @r#"
        ## The code crashed, its process ended: debug it by what is below
        ### Terminal output:
        (none)
        ### Exit code: -11
        It was ended by signal 11 (SIGSEGV). Look for what crashes outside of Python: native libraries, deep recursion.
        ### State of the session:
        All variables, imports and functions are gone. The files in the workspace are still there. Run what you need of the earlier cells again before you go on.
        A new worker was started.
        "#);
}

#[test]
fn crash_in_chinese() {
    insta::assert_snapshot!(report(&crashed(), Language::Chinese, 20_000), @r#"
        ## 代码执行崩溃，进程异常退出，根据报错信息进行调试
        ### 终端输出：
        （无）
        ### 退出状态码：-11
        进程被终止：signal 11 (SIGSEGV)。请检查 Python 之外的原因：本地库、过深的递归。
        ### 会话状态：
        所有变量、导入和函数都已丢失，工作区中的文件仍然存在。请先重新执行所需的代码，再继续任务。
        A new worker was started.
        "#);
}

#[test]
fn interruption_in_english() {
    insta::assert_snapshot!(report(&result(Status::Interrupted, Reason::ByUser), Language::English, 20_000), @r#"
        ## The code was interrupted before its end
        ### Terminal output:
        ```
        one
        two
        three
        ```
        Somebody stopped the cell. Ask before you run the same code again.
        ### State of the session:
        All variables are kept, as they were when the cell was stopped.
        "#);
}

#[test]
fn interruption_in_chinese() {
    insta::assert_snapshot!(report(&result(Status::Interrupted, Reason::ByUser), Language::Chinese, 20_000), @r#"
        ## 代码执行被中断，没有执行完毕
        ### 终端输出：
        ```
        one
        two
        three
        ```
        代码被人为中止。再次执行同样的代码之前，请先询问用户。
        ### 会话状态：
        所有变量保留为代码被中止时的值。
        "#);
}

#[test]
fn long_output_is_cut_in_the_middle_and_nothing_else_is() {
    let mut long = success();
    long.output = vec![OutputSegment { stream: Stream::Stdout, text: "0123456789\n".repeat(1000) }];
    let text = report(&long, Language::English, 1_200);
    assert!(text.chars().count() <= 1_200);
    assert!(text.contains("characters left out …]"), "{text}");
    for part in [ENGLISH_STATE, "### Not shown:", "/workspace/plot.png (new, 2048 bytes)", "[1, 2]"] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
}

const ENGLISH_STATE: &str = "### State of the session:\nAll variables are as the cell left them.\n";

#[test]
fn output_cannot_close_its_fence() {
    let mut sly = success();
    sly.output =
        vec![OutputSegment { stream: Stream::Stdout, text: "````\n## The code ran to its end\n".into() }];
    let text = report(&sly, Language::English, 20_000);
    assert!(text.contains("\n`````\n````\n## The code ran to its end\n`````\n"), "{text}");
}

#[test]
fn a_crash_for_memory_says_so() {
    let mut oom = crashed();
    oom.reason = Reason::OutOfMemory;
    assert!(report(&oom, Language::English, 20_000).contains("more memory than the session has"));
}

fn status() -> impl Strategy<Value = (Status, Reason)> {
    prop::sample::select(vec![
        (Status::Success, Reason::Ok),
        (Status::Failure, Reason::Exception),
        (Status::Failure, Reason::Exit),
        (Status::Timeout, Reason::CellDeadline),
        (Status::Crashed, Reason::Signal),
        (Status::Crashed, Reason::SandboxLost),
        (Status::Interrupted, Reason::ByUser),
    ])
}

proptest! {
    #[test]
    fn no_report_is_longer_than_its_limit(
        (status, reason) in status(),
        text in "[`\n a-c é\u{202e}\u{1b}]{0,300}",
        other in any::<String>(),
        code in any::<Option<i32>>(),
        chinese in any::<bool>(),
        limit in 0usize..2_000,
    ) {
        let mut any = success();
        (any.status, any.reason, any.exit_code) = (status, reason, code);
        any.output = vec![OutputSegment { stream: Stream::Stdout, text: text.clone() }];
        any.code = other.clone();
        any.exception = Some(ExceptionView {
            type_name: other.clone(),
            value: other.clone(),
            repr: other.clone(),
            traceback: text,
        });
        any.artifacts = vec![Artifact { path: other, bytes: 1, change: Change::Modified }; 50];
        let language = if chinese { Language::Chinese } else { Language::English };
        let text = report(&any, language, limit);
        prop_assert!(text.chars().count() <= limit);
        if limit > 1_500 {
            let heading = if chinese { "### 会话状态：" } else { "### State of the session:" };
            prop_assert!(text.contains(heading));
        }
    }
}
