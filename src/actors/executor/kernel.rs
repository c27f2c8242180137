//! The connection to the kernel of the sandbox: its configuration, and the frames in both directions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::messages::{ExecutorMsg, ExecutorRef};
use super::responses::ToolResponses;
use super::state::{ConnectedSandbox, ExecutorState, WORKER_REPLACEMENTS};
use crate::actors::launch::ReadySandbox;
use crate::actors::session::messages::SessionMsg;
use crate::actors::sink::RecorderSink;
use crate::bridge::{FrameGuard, Incoming, Link};
use crate::panics::spawn_restarting;
use crate::protocol::frames::{HostFrame, KernelFrame, LiveResources};
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::attest::counters::CounterFiles;
use crate::security_controls;
use crate::store::EventLog;

/// The pause between two reports that something exceeded the quota.
const EXCEEDED_APART: Duration = Duration::from_millis(100);
/// Bits that are left out of a request's number, so that every JSON parser reads it exactly.
const REQUEST_NUMBER_SPARED: u32 = 12;
/// The interval at which the executor checks the size of the workspace and for pauses from outside.
const CHECK_EVERY: Duration = Duration::from_secs(1);

impl ExecutorState {
    fn configuration(&mut self) -> HostFrame {
        let (seed, tools) = (self.args.seed.clone(), self.args.tools.specs());
        HostFrame::Configure { seed, tools, given: std::mem::take(&mut self.unassigned) }
    }

    /// Sends the configuration, if a kernel is connected.
    pub(super) fn configure(&mut self, myself: &ExecutorRef) {
        if self.connected.is_some() {
            let configuration = self.configuration();
            self.send(myself, &configuration);
        }
    }

    pub(super) fn launched(&mut self, myself: &ExecutorRef, outcome: Result<ReadySandbox, Problem>) {
        let ready = match outcome {
            Ok(ready) => ready,
            Err(problem) => {
                self.args.permit = None;
                self.tell(SessionMsg::SandboxFailed(problem));
                myself.stop(None);
                return;
            }
        };
        let receipt = ready.receipt.clone();
        self.take_in(myself, ready);
        let configure = self.configuration();
        let configured = self.connected.as_ref().map(|connected| connected.link.send(&configure));
        if let Some(Err(error)) = configured {
            let problem =
                Problem::new(Code::TooLarge, format!("the seed cannot be sent to the kernel: {error}"));
            self.remove_sandbox();
            self.tell(SessionMsg::SandboxFailed(problem));
            myself.stop(None);
            return;
        }
        if self.args.preload.is_empty() {
            self.started(myself, Box::new(receipt), None);
        } else {
            self.preload(myself, receipt);
        }
    }

    /// What the host's kernel counts in the sandbox.
    pub(super) fn counters(&self) -> Arc<CounterFiles> {
        self.connected.as_ref().map(|connected| Arc::clone(connected.sandbox.counters())).unwrap_or_default()
    }

    /// Connects to the kernel, whose frames arrive from here on.
    pub(super) fn take_in(&mut self, myself: &ExecutorRef, ready: ReadySandbox) {
        let sandbox = ready.receipt.sandbox.clone();
        self.python.clone_from(&ready.receipt.python);
        self.args.recorder.attach(sandbox.clone());
        self.args.recorder.replace(Arc::<ToolResponses>::clone(&self.responses));
        let executor = myself.clone();
        let sink = RecorderSink {
            recorder: Arc::clone(&self.args.recorder),
            log: Arc::clone(&self.args.log),
            sandbox,
        };
        let link =
            Link::start(ready.socket, ready.received, self.args.memory.clone(), sink, move |incoming| {
                let _ = executor.cast(match incoming {
                    Incoming::Frame(frame, frame_guard) => ExecutorMsg::Arrived(frame, frame_guard),
                    Incoming::Closed(closed) => ExecutorMsg::Closed(closed),
                });
            });
        let checks = myself.send_interval(CHECK_EVERY, || ExecutorMsg::Check).abort_handle();
        let (executor, log) = (myself.clone(), Arc::clone(&self.args.log));
        let tell = move || tell_exceeded(executor.clone(), &log);
        let exceeded = spawn_restarting("the watch of what exceeds the quota", tell).abort_handle();
        self.freezing.seen_running = Instant::now();
        self.connected = Some(ConnectedSandbox::new(ready.sandbox, link, [checks, exceeded]));
        self.start_measurement(myself);
    }

    pub(super) fn arrived(&mut self, myself: &ExecutorRef, frame: KernelFrame, frame_guard: FrameGuard) {
        match frame {
            KernelFrame::CellDone { .. } | KernelFrame::CellLost { .. } => {
                self.cell_ended(myself, frame, frame_guard);
            }
            KernelFrame::WorkerReplaced { .. } if self.loading.is_some() => {
                let what = "the process that loaded it ended";
                self.give_up_loading(myself, Problem::new(Code::SandboxFailed, what));
            }
            KernelFrame::WorkerReplaced { exit_code, after } => {
                if let Err(why) = self.may_replace_worker() {
                    self.give_up(myself, why);
                    return;
                }
                let gone = self.live;
                self.set_live(LiveResources::default());
                self.tell(SessionMsg::WorkerReplaced { exit_code, after, gone, frame_guard });
            }
            KernelFrame::ToolCall { call, cell, name, arguments, from_program } => {
                let cell = cell.filter(|cell| self.running.contains_key(cell));
                let origin = self.origin_of(cell, from_program);
                self.tool_called(myself, call, (cell, origin), &name, arguments, &frame_guard);
            }
            KernelFrame::ToolAbandoned { call } => self.call_abandoned(myself, call),
            KernelFrame::Snapshotting { request, state_of } => {
                self.told_of_snapshot(request, |told| told.state_of = Some(state_of));
            }
            KernelFrame::SnapshotEnded { request, reason } => {
                self.told_of_snapshot(request, |told| told.ended = Some(reason));
            }
            KernelFrame::Restored { request, report } => self.restored(myself, request, report),
            KernelFrame::Variables { .. }
            | KernelFrame::Computed { .. }
            | KernelFrame::ResetDone { .. }
            | KernelFrame::Preloaded { .. }
            | KernelFrame::Undone { .. }
            | KernelFrame::Names { .. }
            | KernelFrame::Refused { .. } => self.answered(myself, frame, frame_guard),
            KernelFrame::Hello { .. } | KernelFrame::Display { .. } | KernelFrame::OutputGap { .. } => {
                self.give_up(myself, "the kernel sent a frame out of turn".into());
            }
        }
    }

    /// Counts one more replacement of the worker between cells. A process that an earlier cell left running can
    /// kill the worker as often as it likes, and each replacement is an event; so their number is bounded.
    fn may_replace_worker(&mut self) -> Result<(), String> {
        if !security_controls::holds("worker_replacements") {
            return Ok(());
        }
        self.replacements += 1;
        if self.replacements > WORKER_REPLACEMENTS {
            return Err(format!(
                "the process that holds the variables ended more than {WORKER_REPLACEMENTS} times without a cell in between"
            ));
        }
        self.args.log.has_reserve().map_err(|exceeded| {
            format!("the process that holds the variables ended, which cannot be noted: {exceeded}")
        })
    }

    /// Sends a frame. A failure ends the sandbox, because the kernel does not read.
    pub(super) fn send(&mut self, myself: &ExecutorRef, frame: &HostFrame) {
        let sent = self.connected.as_ref().map(|connected| connected.link.send(frame));
        match sent {
            Some(Ok(_)) => {}
            Some(Err(error)) => self.give_up(myself, format!("the bridge failed: {error}")),
            None => self.fail_requests(&Problem::new(Code::SandboxFailed, "the sandbox is gone")),
        }
    }

    pub(super) fn tell(&self, message: SessionMsg) {
        let _ = self.args.session.cast(message);
    }
}

/// Reports each time that data of the sandbox exceeds the quota and is not kept.
fn tell_exceeded(executor: ExecutorRef, log: &EventLog) -> impl Future<Output = ()> + Send + use<> {
    let mut exceeded = log.watch_exceeded();
    async move {
        while exceeded.changed().await.is_ok() {
            let what_exceeded = exceeded.borrow_and_update().clone();
            if let Some(what_exceeded) = what_exceeded {
                let _ = executor.cast(ExecutorMsg::OverQuota(what_exceeded));
            }
            tokio::time::sleep(EXCEEDED_APART).await;
        }
    }
}

/// The number of a new request. It is random, so that a guest cannot guess it, and so that a kernel's late
/// answer to an earlier daemon matches no request of this one.
pub(super) fn request_number() -> u64 {
    let number = uuid::Uuid::new_v4().as_u64_pair().0 >> REQUEST_NUMBER_SPARED;
    if security_controls::holds("request_numbers_are_random") { number } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_request_says_nothing_of_the_next_and_every_parser_reads_it() {
        const EXACT_IN_JSON: u64 = 1 << 53;
        let numbers: Vec<u64> = (0..100).map(|_| request_number()).collect();
        for pair in numbers.windows(2) {
            let apart = pair.iter().copied().reduce(u64::abs_diff).unwrap_or_default();
            assert!(apart > 1 << 20, "{pair:?}");
            assert!(pair.iter().all(|number| *number < EXACT_IN_JSON), "{pair:?}");
        }
    }
}
