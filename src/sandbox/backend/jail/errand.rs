//! Runs a program to its end in a short-lived jail, which has the limits of a session's jail and a control group of its
//! own where there is one. All its processes are gone when this returns; those of a daemon that died are found by the
//! notes in the folder, as those of sessions are.

use std::path::Path;
use std::process::{ExitStatus, Stdio};

use super::arguments;
use super::explain::{self, NamespaceSettings};
use super::start::{self, Head, Tools};
use super::{Isolation, limits, process};
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::Problem;
use crate::sandbox::backend::ErrandEnd;
use crate::sandbox::spec::{Errand, SandboxSpec};

/// The control group of an errand. The sandbox for which it runs has one of its own.
pub fn group_name(sandbox: &SandboxId) -> String {
    format!("{sandbox}-errand")
}

/// Whether a jail can be built here at all, found out by building one.
pub async fn try_out(tools: &Tools, spec: &SandboxSpec, folder: &Path) -> Result<(), Problem> {
    let errand = Errand {
        command: ["python3", "-I", "-c", ""].map(str::to_owned).into(),
        ..Errand::compile(&spec.kernel_dir, folder)
    };
    run(Some(tools), spec, folder, &errand).await.outcome
}

/// Runs a program to its end, isolated by bubblewrap if there are `tools` for it.
pub async fn run(tools: Option<&Tools>, spec: &SandboxSpec, folder: &Path, errand: &Errand) -> ErrandEnd {
    let mut is_left = false;
    let ended = match tools {
        Some(tools) => in_a_jail(tools, spec, folder, errand, &mut is_left).await,
        None => on_the_host(spec, errand).await,
    };
    let outcome = ended.and_then(|(status, said)| {
        if status.success() {
            return Ok(());
        }
        Err(explain::failure(&(errand.hide)(&said.text, said.is_cut), NamespaceSettings::read()))
    });
    ErrandEnd { outcome, is_left }
}

async fn in_a_jail(
    tools: &Tools,
    spec: &SandboxSpec,
    folder: &Path,
    errand: &Errand,
    is_left: &mut bool,
) -> Result<(ExitStatus, Head), Problem> {
    let name = group_name(&spec.sandbox);
    let line = |host: &arguments::Host<'_>| arguments::errand(spec, host, errand);
    let mut waiting = start::build(tools, spec, folder, &name, line).await?;
    if waiting.group.is_none() {
        limits::bound_memory(waiting.identity.pid, spec.limits.memory_bytes)
            .map_err(|error| start::internal(&format!("the memory of a jail cannot be limited: {error}")))?;
    }
    waiting.go()?;
    let start::WaitingJail { mut started, identity, group, stderr, .. } = waiting;
    let Some(child) = started.bubblewrap.as_mut() else { return Err(start::internal("a jail is gone")) };
    let outcome = ended(child, stderr, errand).await;
    // In any case nothing of it may run on. Until then, `started` ends it if this is given up.
    let end = process::end(Isolation::Bubblewrap, &identity, group.as_ref()).await;
    *is_left = end.is_err();
    end?;
    if let Some(mut child) = started.done() {
        let _ = child.wait().await;
    }
    outcome
}

/// A plain process of the daemon's user, which has no walls.
async fn on_the_host(spec: &SandboxSpec, errand: &Errand) -> Result<(ExitStatus, Head), Problem> {
    let mut command = start::plain(&errand.command_on_host(), spec);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut command = tokio::process::Command::from(command);
    let mut child = command.kill_on_drop(true).spawn().map_err(|error| explain::missing(&error))?;
    let stderr = child.stderr.take();
    ended(&mut child, stderr, errand).await
}

/// Waits for the end of a program, and reads all that it writes to its stderr, of which only the beginning is kept.
async fn ended(
    child: &mut tokio::process::Child,
    stderr: Option<tokio::process::ChildStderr>,
    errand: &Errand,
) -> Result<(ExitStatus, Head), Problem> {
    let said = async {
        let Some(mut stderr) = stderr else { return Head::default() };
        let head = start::head_of(&mut stderr).await;
        let _ = tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await;
        head
    };
    let both = async { tokio::join!(child.wait(), said) };
    let (status, said) = tokio::select! {
        both = tokio::time::timeout(errand.limit, both) => {
            both.map_err(|_| start::took_too_long(errand.limit))?
        }
        () = errand.stop.cancelled() => return Err(start::internal("a program in a jail was ended")),
    };
    Ok((status.map_err(|error| start::internal(&error.to_string()))?, said))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sandbox::spec::tests::spec;
    use std::time::Duration;
    use tokio_util::sync::CancellationToken;

    fn errand(script: &str, limit: Duration) -> Errand {
        let command = ["sh", "-c", script].map(str::to_owned).into();
        // Many words become one sign, so that what is shown reaches to the end of what is kept.
        let hide = Box::new(|said: &str, is_cut: bool| {
            let whole = said.strip_suffix("p4ss").filter(|_| is_cut).unwrap_or(said);
            whole.replace(&"p4ssword".repeat(511), "***").replace("p4ssword", "***")
        });
        Errand { command, mounts: Vec::new(), limit, stop: CancellationToken::new(), hide }
    }

    #[tokio::test]
    async fn of_what_a_program_says_only_the_beginning_is_kept() {
        let flood = errand("echo begun >&2; head -c 50000000 /dev/zero >&2; exit 3", Duration::from_secs(60));
        let (status, said) = on_the_host(&spec(), &flood).await.unwrap();
        assert_eq!(status.code(), Some(3));
        assert!(said.is_cut && said.text.starts_with("begun"), "{}", said.text.len());
        assert!(said.text.len() < 10_000, "{}", said.text.len());
    }

    #[tokio::test]
    async fn a_secret_is_hidden_before_what_a_program_says_is_cut() {
        // The cut goes through the word.
        let said = errand("printf '%0396d p4ssword' 0 >&2; exit 3", Duration::from_secs(60));
        let problem = run(None, &spec(), Path::new("/"), &said).await.outcome.unwrap_err();
        assert!(problem.message.contains("0 ***") && !problem.message.contains("p4s"), "{problem:?}");
        // What is kept of a flood may end in the middle of the word.
        let script = "printf 'xxxx' >&2; i=0; while [ $i -lt 600 ]; do printf 'p4ssword' >&2; i=$((i+1)); done; exit 3";
        let ended = run(None, &spec(), Path::new("/"), &errand(script, Duration::from_secs(60))).await;
        let problem = ended.outcome.unwrap_err();
        assert!(problem.message.contains("xxxx***)"), "{problem:?}");
    }

    #[tokio::test]
    async fn a_program_that_takes_too_long_is_an_error() {
        let problem = on_the_host(&spec(), &errand("sleep 60", Duration::from_millis(50))).await.unwrap_err();
        assert!(problem.message.contains("longer"), "{problem:?}");
    }
}
