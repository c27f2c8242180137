//! Freezing and thawing: a frozen sandbox answers nothing, so nothing is held against it.

use std::sync::Arc;
use std::time::Instant;

use super::{Answer, ExecutorMsg, ExecutorRef, ExecutorState};
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};

/// Whether the sandbox stands still, and why.
pub(super) struct Frost {
    /// Since when no time passes for its cells.
    pub at: Option<Instant>,
    /// It was frozen when the daemon ended, and will be again.
    pub again: bool,
    /// When it was last seen to run, for the case that a stranger pauses it.
    pub seen_running: Instant,
    /// Looks in a row that found it paused by a stranger.
    pub looks: u32,
}

impl Default for Frost {
    fn default() -> Self {
        Self { at: None, again: false, seen_running: Instant::now(), looks: 0 }
    }
}

impl ExecutorState {
    pub(super) fn freeze(&mut self, myself: &ExecutorRef, reply_to: Option<Answer<()>>) {
        let answer = |outcome| reply_to.map(|reply_to| reply_to.send(outcome));
        let Some(cage) = &self.cage else {
            answer(Err(Problem::new(Code::SandboxFailed, "the sandbox is gone")));
            return;
        };
        if self.frost.at.is_some() {
            answer(Ok(()));
            return;
        }
        let (sandbox, executor) = (Arc::clone(&cage.sandbox), myself.clone());
        self.stop_clocks(Instant::now());
        tokio::spawn(async move {
            let outcome = sandbox.freeze().await;
            if outcome.is_err() {
                let _ = executor.cast(ExecutorMsg::Thawed);
            }
            answer(outcome);
        });
    }

    /// It has not run since then; until it does, no time passes for its cells.
    pub(super) fn stop_clocks(&mut self, since: Instant) {
        if let Some(cage) = &self.cage {
            cage.link.expect_silence(true);
        }
        self.frost.at = Some(since);
        self.running.values_mut().for_each(super::cells::Running::stop_clocks);
    }

    pub(super) fn thaw(&mut self, myself: &ExecutorRef) {
        let Some(cage) = &self.cage else { return };
        let (sandbox, executor) = (Arc::clone(&cage.sandbox), myself.clone());
        tokio::spawn(async move {
            if let Err(error) = sandbox.thaw().await {
                tracing::warn!(%error, "a sandbox could not be thawed");
            }
            let _ = executor.cast(ExecutorMsg::Thawed);
        });
    }

    /// Cells get back the time that they were frozen.
    pub(super) fn thawed(&mut self, myself: &ExecutorRef) {
        let Some(frozen_at) = self.frost.at.take() else { return };
        self.frost.seen_running = Instant::now();
        if let Some(cage) = &self.cage {
            cage.link.expect_silence(false);
        }
        let cells: Vec<CellNumber> = self.running.keys().copied().collect();
        for cell in cells {
            let Some(running) = self.running.get_mut(&cell) else { continue };
            running.since += frozen_at.max(running.since).elapsed();
            let left = running.start.timeout.saturating_sub(running.since.elapsed());
            let (ended, interrupted) = (running.ended_by.is_some(), running.interrupted);
            if ended {
                self.expect_killed(myself, cell);
                continue;
            }
            self.arm(myself, cell, left);
            if interrupted {
                self.expect_interrupted(myself, cell);
            }
        }
    }
}
