//! Brings up a sandbox until it may run code: start, connect, greet, attest.

use std::sync::Arc;
use std::time::Duration;
use tokio_tungstenite::WebSocketStream;

use crate::bridge::{self, BridgeError, Hello, Metered};
use crate::config::Settings;
use crate::protocol::frames::KernelLimits;
use crate::protocol::limits::{
    DISPLAY_BYTES, DISPLAYS, DISPLAYS_BYTES, EXCEPTION_CHARS, KERNEL_HELLO, NAMES, PREVIEW_CHARS, REPR_CHARS,
    TOOL_CALLS_IN_FLIGHT, TRACEBACK_CHARS, UNACKNOWLEDGED_BYTES, VARIABLES,
};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{ImageFact, Receipt};
use crate::quota::SharedPermit;
use crate::sandbox::launch::{ConnectError, Launcher, Sandbox, SandboxRequest, UserSlot};
use crate::sandbox::workspace::Workspace;

/// The number of attempts to reach an engine that does not answer, before its sandbox is given up.
const ADOPT_TRIES: usize = 60;
const ADOPT_PAUSE: Duration = Duration::from_secs(1);

/// A sandbox that passed attestation.
pub struct ReadySandbox {
    pub sandbox: Sandbox,
    pub socket: WebSocketStream<Metered>,
    pub receipt: Receipt,
    pub hello: Hello,
    /// The number of the kernel's frames that have already been processed.
    pub received: u64,
}

/// The workspace and the user id with which a session begins, and a waiting sandbox if there was one.
pub struct SandboxPlace {
    pub workspace: Workspace,
    /// The user id of a managed workspace.
    pub slot: Option<UserSlot>,
    /// A sandbox of the pool that has the workspace mounted.
    pub ready: Option<Box<ReadySandbox>>,
    /// The image of a session that begins without a sandbox.
    pub later: Option<ImageFact>,
}

/// Starts a sandbox, which has the `permit` until it is gone. If a step fails, all earlier ones are undone.
pub async fn launch(
    launcher: Arc<Launcher>,
    wanted: SandboxRequest,
    workspace: Arc<Workspace>,
    permit: Option<SharedPermit>,
    progress: impl Fn(String) + Sync,
) -> Result<ReadySandbox, Problem> {
    let prepared = launcher.prepare(&wanted, &workspace, &progress).await?;
    let sandbox = prepared.start(permit).await?;
    let greeted = tokio::select! {
        biased;
        greeted = greet(&sandbox, kernel_limits(&launcher.settings, &wanted), 0) => greeted,
        () = sandbox.gone() => Err(ReachError::Connection(ConnectError::Ended)),
    };
    let (socket, hello) = match greeted {
        Ok(greeted) => greeted,
        Err(error) => {
            // The exit code is more informative than the missing greeting.
            let ended = sandbox.end().await.filter(|end| !end.running);
            let problem = match ended.and_then(|end| end.exit_code) {
                Some(code) => Problem::new(
                    Code::SandboxFailed,
                    format!(
                        "the sandbox ended with exit code {code} before its kernel was ready{}",
                        last_words(&sandbox)
                    ),
                )
                .hint("the image needs `python3` 3.9 or later on its PATH"),
                None => error.into(),
            };
            sandbox.undo().await;
            return Err(problem);
        }
    };
    match sandbox.attest(hello.python.clone(), hello.probe.clone()) {
        Ok(receipt) => Ok(ReadySandbox { sandbox, socket, receipt, hello, received: 0 }),
        Err(problem) => {
            sandbox.undo().await;
            Err(problem)
        }
    }
}

fn last_words(sandbox: &Sandbox) -> String {
    match sandbox.last_words() {
        words if words.is_empty() => words,
        words => format!(": {words}"),
    }
}

/// Takes over a sandbox that an earlier daemon left running; none if it is gone. Its kernel sends all frames
/// after the `received` ones again. The sandbox has the `permit` until it is gone, also where it cannot be taken over.
pub async fn attach(
    launcher: Arc<Launcher>,
    before: Receipt,
    wanted: SandboxRequest,
    workspace: Arc<Workspace>,
    received: u64,
    permit: Option<SharedPermit>,
) -> Result<Option<ReadySandbox>, Problem> {
    let sandbox = match adopt(&launcher, &before, &wanted, &workspace).await {
        Ok(Some(sandbox)) => sandbox,
        Ok(None) => return Ok(None),
        Err(problem) => {
            launcher.keep_until_reaped(&before, permit);
            return Err(problem);
        }
    };
    sandbox.keep_until_gone(permit);
    let limits = kernel_limits(&launcher.settings, &wanted);
    let mut greeted = greet(&sandbox, limits.clone(), received).await;
    if greeted.is_err() && sandbox.is_frozen() {
        // Something froze the sandbox after it was taken over, so its kernel could not answer.
        let _ = sandbox.thaw().await;
        greeted = greet(&sandbox, limits, received).await;
    }
    if matches!(greeted, Err(ReachError::Connection(ConnectError::Ended))) {
        sandbox.undo().await;
        return Ok(None);
    }
    let greeted = greeted.map_err(Problem::from).and_then(|(socket, hello)| {
        sandbox.attest_again(&before, hello.python.clone(), hello.probe.clone())?;
        Ok((socket, hello))
    });
    match greeted {
        Ok((socket, hello)) => {
            let received = hello.resumes_after.max(received);
            Ok(Some(ReadySandbox { sandbox, socket, receipt: before, hello, received }))
        }
        Err(problem) => {
            // The sandbox does not answer, or fails attestation, so it cannot be used.
            sandbox.undo().await;
            Err(problem)
        }
    }
}

/// An engine that restarts does not answer for a while, but keeps its containers.
async fn adopt(
    launcher: &Arc<Launcher>,
    before: &Receipt,
    wanted: &SandboxRequest,
    workspace: &Workspace,
) -> Result<Option<Sandbox>, Problem> {
    for _ in 0..ADOPT_TRIES {
        match launcher.adopt(before, wanted, workspace).await {
            Err(problem) if problem.code == Code::EngineUnavailable => {
                tokio::time::sleep(ADOPT_PAUSE).await;
            }
            other => return other,
        }
    }
    launcher.adopt(before, wanted, workspace).await
}

/// Why the kernel of a sandbox was not reached.
#[derive(Debug, thiserror::Error)]
enum ReachError {
    #[error(transparent)]
    Connection(#[from] ConnectError),
    #[error(transparent)]
    Greeting(#[from] BridgeError),
}

impl From<ReachError> for Problem {
    fn from(error: ReachError) -> Self {
        match error {
            ReachError::Connection(error) => error.into(),
            ReachError::Greeting(error) => Self::new(Code::SandboxFailed, error.to_string()),
        }
    }
}

/// Connects to the kernel of a sandbox and exchanges hellos.
async fn greet(
    sandbox: &Sandbox,
    limits: KernelLimits,
    received: u64,
) -> Result<(WebSocketStream<Metered>, Hello), ReachError> {
    let stream = sandbox.connect(KERNEL_HELLO).await?;
    Ok(bridge::connect(stream, sandbox.id(), limits, received, KERNEL_HELLO).await?)
}

fn kernel_limits(settings: &Settings, wanted: &SandboxRequest) -> KernelLimits {
    KernelLimits {
        output_bytes: settings.cells.spill,
        output_tail_bytes: settings.cells.output_tail,
        repr_chars: REPR_CHARS as u64,
        preview_chars: PREVIEW_CHARS as u64,
        variables: VARIABLES as u64,
        exception_chars: EXCEPTION_CHARS as u64,
        traceback_chars: TRACEBACK_CHARS as u64,
        displays: DISPLAYS as u64,
        display_bytes: DISPLAY_BYTES as u64,
        displays_bytes: DISPLAYS_BYTES as u64,
        tool_calls: TOOL_CALLS_IN_FLIGHT as u64,
        names: NAMES as u64,
        checkpoints: wanted.checkpoints,
        checkpoints_at_rest: wanted.checkpoints_at_rest,
        checkpoint_bytes: settings.sandbox.checkpoint_bytes,
        memory_bytes: wanted.memory_bytes,
        unacknowledged_bytes: UNACKNOWLEDGED_BYTES as u64,
        orphan_s: settings.sandbox.orphan_life.as_secs(),
        keep_cwd: wanted.keep_cwd,
    }
}
