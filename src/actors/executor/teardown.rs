//! The end of a sandbox: on its own, by a fault, or because it is no longer wanted.

use ractor::RpcReplyPort;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::messages::{ExecutorMsg, ExecutorRef};
use super::pending::Request;
use super::running::FinishedCell;
use super::state::LastPrograms;
use super::state::{ConnectedSandbox, ExecutorState};
use crate::actors::executor::preload;
use crate::actors::launch::ReadySandbox;
use crate::actors::session::messages::SessionMsg;
use crate::bridge::{Closed, Delivery};
use crate::panics::spawn_reporting;
use crate::protocol::frames::HostFrame;
use crate::protocol::problem::{Code, Problem};
use crate::quota::SharedPermit;
use crate::sandbox::launch::{Sandbox, SandboxEnd};
use crate::session::machine::Input;
use crate::session::outcome::{Cause, Ending};

/// The interval at which the delivery of the last answers to the kernel's socket is checked.
const LOOK_AT_SOCKET: Duration = Duration::from_millis(5);

impl ExecutorState {
    pub(super) fn closed(&mut self, myself: &ExecutorRef, closed: Closed) {
        let why = match closed {
            Closed::ByUs | Closed::Fault => return,
            Closed::ByKernel => "the sandbox ended".to_owned(),
            Closed::Violation(what) => format!("the kernel broke the protocol: {what}"),
        };
        self.give_up(myself, why);
    }

    /// Removes the sandbox; its running cells are reported as lost.
    pub(super) fn give_up(&mut self, myself: &ExecutorRef, why: String) {
        let Some(connected) = self.connected.take() else { return };
        tracing::warn!(why, "a sandbox is given up");
        self.held.clear();
        drop(connected.link);
        // Read while the sandbox's control group exists, because the engine reports a lack of memory late or
        // never.
        let oom_kills = connected.sandbox.counters().read().oom_kills;
        for running in self.running.values_mut() {
            running.out_of_memory |= oom_kills > running.start.before.oom_kills;
        }
        self.hurry_no_more();
        let (executor, permit) = (myself.clone(), self.args.permit.take());
        let sandbox = connected.sandbox;
        let removed = async move {
            let end = sandbox.end().await;
            remove(&sandbox, permit).await;
            end
        };
        spawn_reporting(removed, move |end| {
            let _ = executor.cast(ExecutorMsg::Ended { why, end: end.flatten() });
        });
    }

    /// Restores the CPU limit while the sandbox still exists.
    fn hurry_no_more(&mut self) {
        let running = self.running.values_mut().map(|running| &mut running.cpu_boost);
        let finished = self.finished.values_mut().map(|finished| &mut finished.cpu_boost);
        running.chain(finished).for_each(|cpu_boost| *cpu_boost = None);
        for request in self.requests.values_mut() {
            if let Request::Reset { cpu_boost, .. } = request {
                *cpu_boost = None;
            }
        }
    }

    pub(super) fn ended(&mut self, myself: &ExecutorRef, why: &str, end: Option<SandboxEnd>) {
        self.unstash(myself);
        let mut over: Vec<FinishedCell> = self.finished.drain().map(|(_, finished)| finished).collect();
        for (cell, mut running) in std::mem::take(&mut self.running) {
            let record = self.args.recorder.finish(cell);
            // A cell that the kernel never received is not reported: the session gives it to the next
            // sandbox.
            if !running.resumed && !running.delivery.is_made() {
                continue;
            }
            over.push(FinishedCell {
                cause: Cause {
                    ended_by: running.ended_by.take(),
                    out_of_memory: running.out_of_memory,
                    completed_tool_calls: std::mem::take(&mut running.completed),
                    live: self.live,
                    ..Cause::default()
                },
                record,
                elapsed: running.elapsed(self.freezing.at),
                start: running.start.clone(),
                ending: Ending::SandboxGone { end: end.clone() },
                frame_guard: None,
                cpu_boost: None,
                harmless: false,
            });
        }
        for mut finished in over {
            // This includes lost cells whose state had been restored: it is gone with the sandbox.
            finished.ending = Ending::SandboxGone { end: end.clone() };
            self.complete(myself, finished);
        }
        let gone = Problem::new(Code::SandboxFailed, format!("the sandbox is gone: {why}"));
        self.fail_transfers(&gone);
        self.fail_requests(&gone);
        let out_of_memory = end.is_some_and(|end| end.out_of_memory);
        self.gone = Some(if out_of_memory { format!("{why} (out of memory)") } else { why.to_owned() });
        self.end_if_done(myself);
    }

    /// Ends the executor once the sandbox is gone and every cell that ran in it has been reported.
    pub(super) fn end_if_done(&mut self, myself: &ExecutorRef) {
        if self.concluding == 0
            && let Some(reason) = self.gone.take()
        {
            let died_loading = self.died_loading(&reason);
            if self.preloading.take().is_some() {
                let problem = preload::problem(format!("the modules cannot be preloaded: {reason}"));
                self.tell(SessionMsg::SandboxFailed(problem));
            } else if let Some(interrupted @ SessionMsg::WakeInterrupted { .. }) = died_loading {
                // There never was a sandbox that was ready.
                self.tell(interrupted);
            } else {
                if let Some(died) = died_loading {
                    self.tell(died);
                }
                self.tell(SessionMsg::Input(Input::SandboxGone { reason }));
            }
            myself.stop(None);
        }
    }

    pub(super) fn end_programs(&mut self, reply_to: RpcReplyPort<()>) {
        self.last_programs = Some(LastPrograms { unsent: Vec::new(), reply_to: Some(reply_to) });
        self.last_program_done(None);
    }

    /// Called after each answer. When no call runs a host program any more, the waiting caller gets its
    /// answer.
    pub(super) fn last_program_done(&mut self, sent: Option<Delivery>) {
        let Some(last) = &mut self.last_programs else { return };
        last.unsent.extend(sent);
        if self.calls.handles().any(|call| call.program_runs.load(Ordering::Relaxed)) {
            return;
        }
        let Some(reply_to) = last.reply_to.take() else { return };
        let unsent = std::mem::take(&mut last.unsent);
        tokio::spawn(async move {
            // The journal has these answers already, so they get time to reach the kernel, too.
            while !unsent.iter().all(Delivery::is_made) && !reply_to.is_closed() {
                tokio::time::sleep(LOOK_AT_SOCKET).await;
            }
            let _ = reply_to.send(());
        });
    }

    /// Ends the executor without its sandbox, which runs on for the next daemon.
    pub(super) fn leave(&mut self, myself: &ExecutorRef, reply_to: RpcReplyPort<()>) {
        self.unstash(myself);
        self.let_go();
        let _ = reply_to.send(());
        myself.stop(None);
    }

    /// Removes a sandbox that was never reported to the session.
    pub(super) fn remove_sandbox(&mut self) {
        let Some(ConnectedSandbox { sandbox, link, .. }) = self.connected.take() else { return };
        drop(link);
        let permit = self.args.permit.take();
        tokio::spawn(async move { remove(&sandbox, permit).await });
    }

    /// Whether a sandbox that has just arrived is still wanted, that is, no caller waits for its removal.
    pub(super) fn is_wanted(&mut self) -> bool {
        self.arriving.take_if(|removers| removers.is_empty()).is_some()
    }

    pub(super) fn remove_late(&mut self, myself: &ExecutorRef, ready: Option<ReadySandbox>) {
        let (executor, removers) = (myself.clone(), self.arriving.take().unwrap_or_default());
        let permit = self.args.permit.take();
        tokio::spawn(async move {
            match ready {
                Some(ready) => remove(&ready.sandbox, permit).await,
                None => drop(permit),
            }
            for reply_to in removers {
                let _ = reply_to.send(());
            }
            executor.stop(None);
        });
    }

    pub(super) fn shut_down(&mut self, myself: &ExecutorRef, reply_to: RpcReplyPort<()>) {
        if let Some(removers) = &mut self.arriving {
            removers.push(reply_to);
            return;
        }
        self.unstash(myself);
        let removed = Problem::new(Code::Busy, "the sandbox is just being removed");
        let removed = removed.hint("ask again; the session may be gone by then");
        self.fail_transfers(&removed);
        self.fail_requests(&removed);
        self.hurry_no_more();
        let (connected, permit) = (self.connected.take(), self.args.permit.take());
        let executor = myself.clone();
        tokio::spawn(async move {
            match connected {
                Some(connected) => {
                    let _ = connected.link.send(&HostFrame::Bye {});
                    drop(connected.link);
                    remove(&connected.sandbox, permit).await;
                }
                None => drop(permit),
            }
            let _ = reply_to.send(());
            executor.stop(None);
        });
    }
}

/// Removes a sandbox, whose part of its owner's quota is free when it is gone. That is later if it cannot be removed now.
async fn remove(sandbox: &Sandbox, permit: Option<SharedPermit>) {
    sandbox.keep_until_gone(permit);
    if let Err(error) = sandbox.remove().await {
        tracing::warn!(%error, "a sandbox is left to the reaper");
    }
}
