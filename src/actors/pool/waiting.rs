//! A sandbox that waits for a session.

use futures_util::{FutureExt, SinkExt, StreamExt};
use std::path::PathBuf;
use std::time::Duration;
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::actors::launch::{ReadySandbox, SandboxPlace};
use crate::protocol::frames::{HostFrame, KernelFrame, OutputFrame};
use crate::protocol::limits::PRELOAD;
use crate::protocol::preload::Preload;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::launch::UserSlot;
use crate::sandbox::spec::Choice;
use crate::sandbox::workspace::Workspace;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::security_controls;

/// How long a sandbox that is claimed may take to answer; then another one is taken.
const ANSWER: Duration = Duration::from_secs(1);
const PING: &[u8] = b"claim";
/// The number of the only request that a kernel gets before a session has it.
const PRELOAD_REQUEST: u64 = 1;
/// The most frames that are read of a waiting kernel at once.
const FRAMES_AT_ONCE: usize = 64;

pub struct WaitingSandbox {
    ready: ReadySandbox,
    workspace: Workspace,
    slot: UserSlot,
}

impl WaitingSandbox {
    pub fn new(ready: ReadySandbox, workspace: Workspace, slot: UserSlot) -> Self {
        Self { ready, workspace, slot }
    }

    /// The user id of the guest in the configured range.
    pub fn uid(&self) -> u32 {
        self.slot.uid
    }

    /// The memory that the sandbox takes; none if that is not counted here.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.ready.sandbox.cgroup()?.load().map(|load| load.memory_bytes)
    }

    /// Imports modules without binding names, as far as they are there.
    pub async fn preload(&mut self, preload: Preload) -> Result<(), Problem> {
        let failed = |why: String| Problem::new(Code::PreloadFailed, format!("`pool.preload` failed: {why}"));
        let Preload { imports, families } = preload;
        let frame = HostFrame::Preload { request: PRELOAD_REQUEST, imports, families, bind: false };
        let text = serde_json::to_string(&frame).map_err(|error| failed(error.to_string()))?;
        let sent = self.ready.socket.send(Message::text(text)).await;
        sent.map_err(|error| failed(error.to_string()))?;
        let is_answer =
            |frame: &KernelFrame| matches!(frame, KernelFrame::Preloaded { request: PRELOAD_REQUEST, .. });
        let imported = async {
            loop {
                let message = self.ready.socket.next().await;
                let Some(Ok(message)) = message else { return Err(failed("the sandbox ended".into())) };
                match self.take(message) {
                    KernelMessage::Nothing => {}
                    KernelMessage::Frame(frame) if is_answer(&frame) => return Ok(()),
                    KernelMessage::Frame(frame) => {
                        return Err(failed(format!("the kernel answered {frame:?}")));
                    }
                    KernelMessage::End => return Err(failed("the kernel broke the protocol".into())),
                }
            }
        };
        let in_time = tokio::time::timeout(PRELOAD, imported).await;
        in_time.unwrap_or_else(|_| Err(failed(format!("it took longer than {} s", PRELOAD.as_secs()))))
    }

    /// Whether nothing is known that speaks against the sandbox, without waiting for its kernel.
    pub fn seems_alive(&mut self) -> bool {
        for _ in 0..FRAMES_AT_ONCE {
            let Some(message) = self.ready.socket.next().now_or_never() else { return true };
            let message_kind =
                message.and_then(Result::ok).map_or(KernelMessage::End, |message| self.take(message));
            if !matches!(message_kind, KernelMessage::Nothing) {
                return false;
            }
        }
        false
    }

    /// Whether the kernel answers, and the sandbox is still isolated as its receipt says.
    pub async fn is_as_it_was(&mut self) -> bool {
        let answered = async {
            self.ready.socket.send(Message::Ping(Bytes::from_static(PING))).await.ok()?;
            for _ in 0..FRAMES_AT_ONCE {
                let message = self.ready.socket.next().await?.ok()?;
                let is_pong = matches!(&message, Message::Pong(answer) if answer.as_ref() == PING);
                match self.take(message) {
                    KernelMessage::Nothing if is_pong => return Some(()),
                    KernelMessage::Nothing => {}
                    KernelMessage::Frame(_) | KernelMessage::End => return None,
                }
            }
            None
        };
        if tokio::time::timeout(ANSWER, answered).await.ok().flatten().is_none() {
            return false;
        }
        let ReadySandbox { sandbox, receipt, hello, .. } = &self.ready;
        let attested = sandbox.attest_again(receipt, hello.python.clone(), hello.probe.clone());
        attested.is_ok() || !security_controls::holds("claimed_sandboxes_are_attested_again")
    }

    /// Counts a frame of the kernel, as the connection of a session would. What modules print while they are imported
    /// belongs to no session.
    fn take(&mut self, message: Message) -> KernelMessage {
        let frame = match message {
            Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => return KernelMessage::Nothing,
            Message::Close(_) => return KernelMessage::End,
            Message::Binary(bytes) if OutputFrame::parse(&bytes).is_some() => Ok(None),
            Message::Binary(bytes) => KernelFrame::of_runner(&bytes),
            Message::Text(text) => KernelFrame::of_guardian(&text).map(Some),
        };
        self.ready.received = self.ready.received.saturating_add(1);
        match frame {
            Ok(None) => KernelMessage::Nothing,
            Ok(Some(frame)) => KernelMessage::Frame(Box::new(frame)),
            Err(_) => KernelMessage::End,
        }
    }

    /// Gives the sandbox to a session of this owner, whose workspace has this path. `choice` is that of the session.
    pub async fn given_to(
        self,
        owner: Principal,
        path: PathBuf,
        choice: Choice,
    ) -> Result<SandboxPlace, Problem> {
        let Self { mut ready, workspace, slot } = self;
        ready.receipt.chosen.clone_from(&choice.why);
        let give = move || workspace.given_to(path, owner);
        match folders::run(owner, WorkKind::Look, None, give).await.and_then(|given| given) {
            Ok(mut workspace) => {
                workspace.choice = choice;
                Ok(SandboxPlace { workspace, slot: Some(slot), ready: Some(Box::new(ready)), later: None })
            }
            Err(problem) => {
                ready.sandbox.undo().await;
                Err(problem)
            }
        }
    }

    /// Removes the sandbox and its workspace, which no session has had.
    pub async fn discard(self) {
        let Self { ready, workspace, slot } = self;
        ready.sandbox.undo().await;
        if let Err(error) = workspace.remove().await {
            tracing::warn!(%error, path = %workspace.path.display(), "a workspace is left to the next start");
        }
        drop(slot);
    }
}

/// What a message of a waiting kernel says.
enum KernelMessage {
    Nothing,
    Frame(Box<KernelFrame>),
    End,
}
