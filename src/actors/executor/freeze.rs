//! Freezing and thawing: a frozen sandbox answers nothing, so its deadlines stand still.

use ractor::ActorStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

use super::messages::{ExecutorMsg, ExecutorRef};
use super::state::ExecutorState;
use crate::actors::calls::Reply;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::launch::Sandbox;

/// An engine that restarts does not answer for a while. Until then no time passes for frozen cells.
const THAW_TRIES: u32 = 60;
const THAW_PAUSE: Duration = Duration::from_secs(1);

impl ExecutorState {
    pub(super) fn freeze(&mut self, myself: &ExecutorRef, reply_to: Option<Reply<()>>) {
        let Some(connected) = &self.connected else {
            let gone = || Err(Problem::new(Code::SandboxFailed, "the sandbox is gone"));
            reply_to.map(|reply_to| reply_to.send(gone()));
            return;
        };
        let sandbox = Arc::clone(&connected.sandbox);
        if !std::mem::replace(&mut self.freezing.wanted, true) {
            self.begin_freeze(myself, sandbox);
        }
        let Some(reply_to) = reply_to else { return };
        // A client that asks while the sandbox is being frozen is told how that ends, too.
        let mut outcome = self.freezing.outcome.clone();
        tokio::spawn(async move {
            let outcome = outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
            // Without an outcome the port is dropped, which tells the session that the sandbox has ended.
            outcome.map(|outcome| reply_to.send(outcome))
        });
    }

    fn begin_freeze(&mut self, myself: &ExecutorRef, sandbox: Arc<Sandbox>) {
        let executor = myself.clone();
        self.freezing.freezes += 1;
        let number = self.freezing.freezes;
        let (done, outcome) = watch::channel(None);
        self.freezing.outcome = outcome;
        self.stop_clocks(Instant::now());
        self.after_the_last(async move {
            let outcome = sandbox.freeze().await;
            if outcome.is_err() {
                let _ = executor.cast(ExecutorMsg::FreezeFailed(number));
            }
            done.send_replace(Some(outcome));
        });
    }

    /// Lets the cells' clocks run again after a failed freeze, unless the session has changed its mind meanwhile: then the
    /// thaw or the newer freeze that follows counts.
    pub(super) fn freeze_failed(&mut self, myself: &ExecutorRef, number: u64) {
        if self.freezing.wanted && self.freezing.freezes == number {
            self.thaw(myself);
        }
    }

    fn after_the_last(&mut self, change: impl Future<Output = ()> + Send + 'static) {
        let last = self.freezing.under_way.take();
        self.freezing.under_way = Some(tokio::spawn(async move {
            if let Some(last) = last {
                let _ = last.await;
            }
            change.await;
        }));
    }

    /// Stops the cells' clocks, because the sandbox has not run since `since`, or since an earlier freeze.
    pub(super) fn stop_clocks(&mut self, since: Instant) {
        if let Some(connected) = &self.connected {
            connected.link.expect_silence(true);
        }
        self.freezing.at.get_or_insert(since);
        self.running.values_mut().for_each(super::running::RunningCell::stop_clocks);
    }

    pub(super) fn thaw(&mut self, myself: &ExecutorRef) {
        (self.freezing.again, self.freezing.wanted) = (false, false);
        if let Some(attach) = &mut self.args.attach {
            attach.frozen = false;
        }
        let Some(connected) = &self.connected else { return };
        let (sandbox, executor) = (Arc::clone(&connected.sandbox), myself.clone());
        self.after_the_last(async move {
            for _ in 0..THAW_TRIES {
                match sandbox.thaw().await {
                    Err(problem) if problem.code == Code::EngineUnavailable => {
                        tokio::time::sleep(THAW_PAUSE).await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "a sandbox could not be thawed");
                        break;
                    }
                    Ok(()) => break,
                }
                if executor.get_status() >= ActorStatus::Stopping {
                    return;
                }
            }
            let _ = executor.cast(ExecutorMsg::Thawed);
        });
    }

    /// Gives the cells back the time during which they were frozen.
    pub(super) fn thawed(&mut self, myself: &ExecutorRef) {
        if self.freezing.wanted {
            return;
        }
        let Some(frozen_at) = self.freezing.at.take() else { return };
        self.freezing.seen_running = Instant::now();
        if let Some(connected) = &self.connected {
            connected.link.expect_silence(false);
        }
        let cells: Vec<CellNumber> = self.running.keys().copied().collect();
        for cell in cells {
            let Some(running) = self.running.get_mut(&cell) else { continue };
            // The time since a question to a person is given back with the answer.
            let asked = running.asked.as_ref().map(|asked| asked.since);
            let until = asked.unwrap_or_else(Instant::now);
            running.since += until.saturating_duration_since(frozen_at.max(running.since));
            let (ended, interrupted) = (running.ended_by.is_some(), running.interrupted);
            if ended {
                self.expect_killed(myself, cell);
                continue;
            }
            if asked.is_none() {
                self.arm(myself, cell);
            }
            if interrupted {
                self.expect_interrupted(myself, cell);
            }
        }
    }
}
