//! `run_command`: a shell command in the session's sandbox, beside its cells. Only there if the operator lists it.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::read;
use crate::protocol::command::NewCommand;
use crate::protocol::event::phrases::what_happened;
use crate::protocol::result::ExecutionResult;
use crate::protocol::text::visible;
use crate::protocol::tool_names::COMMAND_TOOL;
use crate::schema::parameters_of;
use crate::tools::contract::{Context, Definition, Tool, ToolFuture, ToolOutput};
use crate::tools::port::as_failure;

/// Characters of each stream that are told.
const TOLD_CHARS: usize = 20_000;

pub struct RunCommand;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Arguments {
    /// The line for the shell.
    #[schemars(extend("examples" = ["ls -la"]))]
    command: String,
    /// Seconds that it may run.
    #[serde(default)]
    timeout_s: Option<f64>,
    /// Return at once, and let it run on: for a server.
    #[serde(default)]
    background: bool,
}

impl Tool for RunCommand {
    fn definition(&self) -> Definition {
        Definition {
            description_zh: Some(
                "在会话的沙箱中运行一条 shell 命令，从工作区开始，没有网络。返回退出码和输出。变量不受影响。"
                    .into(),
            ),
            on_request: true,
            ..Definition::new(
                COMMAND_TOOL,
                "Runs a shell command in the session's sandbox, beginning in the workspace, without a network. Returns \
                 its exit code and its output. The variables are not affected.",
                parameters_of::<Arguments>(),
            )
        }
    }

    fn run(&self, arguments: Map<String, Value>, context: Context) -> ToolFuture {
        Box::pin(async move {
            let Arguments { command, timeout_s, background } = read(arguments)?;
            let wanted = NewCommand { line: Some(command), timeout_s, background, ..NewCommand::default() };
            let port = context.port()?;
            let ended = port.run_command(wanted).await.map_err(as_failure)?;
            Ok(ToolOutput::Text(match ended {
                Some(result) => report(&result),
                None => "It runs in the background, until it ends, this request is answered or the session is reset.".to_owned(),
            }))
        })
    }
}

fn report(result: &ExecutionResult) -> String {
    let code = result.exit_code.map_or_else(|| "no exit code".to_owned(), |code| format!("exit code {code}"));
    let what = what_happened(result).map(|what| format!(" ({what})")).unwrap_or_default();
    let streams = [("stdout", &result.stdout), ("stderr", &result.stderr)].into_iter();
    let streams = streams.filter(|(_, text)| !text.is_empty()).map(|(name, text)| {
        let told: String = text.chars().take(TOLD_CHARS).collect();
        let cut = if told.len() < text.len() { "\n[the rest is cut]" } else { "" };
        format!("\n{name}:\n{}{cut}", visible(&told))
    });
    format!("{code}{what}{}", streams.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::exit_codes::tests::result;
    use crate::protocol::result::{Mode, Reason, Status};

    #[test]
    fn a_model_is_told_the_exit_code_and_both_streams() {
        let mut ended = result(Status::Failure, Reason::Exit, Some(2));
        (ended.mode, ended.stdout, ended.stderr) = (Mode::Command, "a\n".into(), "b\n".into());
        assert_eq!(report(&ended), "exit code 2\nstdout:\na\n\nstderr:\nb\n");
        let mut late = result(Status::Timeout, Reason::CellDeadline, Some(-9));
        late.mode = Mode::Command;
        assert_eq!(report(&late), "exit code -9 (the command ran longer than 30 s and was stopped)");
    }
}
