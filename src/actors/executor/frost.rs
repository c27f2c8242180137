//! Freezing and thawing: a frozen sandbox answers nothing, so nothing is held against it.

use std::sync::Arc;
use std::time::Instant;

use super::{Answer, ExecutorMsg, ExecutorRef, ExecutorState};
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};

impl ExecutorState {
    pub(super) fn freeze(&mut self, reply_to: Answer<()>) {
        let Some(cage) = &self.cage else {
            let _ = reply_to.send(Err(Problem::new(Code::SandboxFailed, "the sandbox is gone")));
            return;
        };
        if self.frozen_at.is_some() {
            let _ = reply_to.send(Ok(()));
            return;
        }
        cage.link.expect_silence(true);
        self.frozen_at = Some(Instant::now());
        for running in self.running.values_mut() {
            running.stop_clocks();
        }
        let sandbox = Arc::clone(&cage.sandbox);
        tokio::spawn(async move {
            let _ = reply_to.send(sandbox.freeze().await.map_err(|error| error.problem()));
        });
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
        let Some(since) = self.frozen_at.take() else { return };
        if let Some(cage) = &self.cage {
            cage.link.expect_silence(false);
        }
        let cells: Vec<CellNumber> = self.running.keys().copied().collect();
        for cell in cells {
            let Some(running) = self.running.get_mut(&cell) else { continue };
            running.since += since.elapsed();
            let left = running.start.timeout.saturating_sub(running.since.elapsed());
            if running.ended_by.is_none() {
                self.arm(myself, cell, left);
            }
        }
    }
}
