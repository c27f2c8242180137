//! The session's actor: how it handles each message.

use super::generations::{Generations, Inheritance};
use super::messages::{SessionMsg, SessionRef};
use super::state::{SessionActorState, SessionArgs, expiry};
use crate::actors::executor::messages::Command;
use crate::actors::pace::{Intervals, Pace};
use crate::actors::session::agent;
use crate::protocol::api::Interrupted;
use crate::protocol::problem::{Code, Problem};
use crate::session::machine::{Expiry, Input};
use ractor::{Actor, ActorProcessingErr, ActorRuntime, SpawnErr, SupervisionEvent};
use std::time::Duration;
use tokio::task::JoinHandle;

/// The intervals at which idleness and age are checked: at first, and at the most while nothing is to be waited for.
const TICK: Duration = Duration::from_secs(1);
const LONGEST_TICK: Duration = Duration::from_secs(10);
/// The part of the shortest of these times by which a sandbox may end too late.
const TICKS_OF_EXPIRY: u32 = 100;
/// The part of the time of rest by which variables may be saved too late.
const TICKS_OF_REST: u32 = 10;
/// The most computations and installations that wait for a sandbox.
const COMPUTATIONS_WAITING: usize = 16;

pub struct Session;

/// Whether a session has begun, with the task that runs it.
type StartedSession = Result<JoinHandle<()>, SpawnErr>;

impl Session {
    /// Starts a session without waiting for it. The task says whether it has begun.
    pub fn spawn(args: SessionArgs) -> Result<(SessionRef, JoinHandle<StartedSession>), SpawnErr> {
        let supervisor = args.supervisor.get_cell();
        ActorRuntime::spawn_linked_instant(None, Self, args, supervisor)
    }
}

impl Actor for Session {
    type Msg = SessionMsg;
    type State = Generations;
    type Arguments = SessionArgs;

    async fn pre_start(
        &self,
        myself: SessionRef,
        args: SessionArgs,
    ) -> Result<Generations, ActorProcessingErr> {
        let inheritance = Inheritance::first(args);
        agent::watch_clients(&myself, &inheritance.clients);
        let Expiry { idle, max_age, at_rest, .. } = expiry(&inheritance.args);
        let expires = idle.min(max_age) / TICKS_OF_EXPIRY;
        let rests = at_rest.map_or(expires, |at_rest| at_rest / TICKS_OF_REST);
        let calm = expires.min(rests).clamp(TICK, LONGEST_TICK);
        let (pace, ticked) = (Pace::default(), myself.clone());
        let ticks =
            pace.clone().keep(Intervals { usual: TICK, calm }, move || ticked.cast(SessionMsg::Tick).is_ok());
        tokio::spawn(ticks);
        Generations::first(&myself, inheritance, pace).await
    }

    async fn post_start(
        &self,
        myself: SessionRef,
        generations: &mut Generations,
    ) -> Result<(), ActorProcessingErr> {
        Box::pin(generations.restore(&myself)).await;
        Ok(())
    }

    async fn handle(
        &self,
        myself: SessionRef,
        message: SessionMsg,
        generations: &mut Generations,
    ) -> Result<(), ActorProcessingErr> {
        Box::pin(generations.handle(&myself, message)).await;
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: SessionRef,
        event: SupervisionEvent,
        generations: &mut Generations,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(part, error) => {
                Box::pin(generations.part_failed(&myself, &part, &error)).await;
            }
            SupervisionEvent::ActorStarted(_)
            | SupervisionEvent::ActorTerminated(..)
            | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl SessionActorState {
    #[expect(clippy::too_many_lines, reason = "one arm a message; the work is in the methods")]
    pub(super) fn act(&mut self, message: SessionMsg) {
        crate::panics::panic_if_requested("session");
        let state = self;
        let myself = &state.myself.clone();
        let Some(message) = state.ready_for(message) else { return };
        match message {
            SessionMsg::Run { request, reply_to } => state.enqueue(myself, request, reply_to),
            SessionMsg::Unwritten { ticket, reply_to } => state.unwritten(ticket, reply_to),
            SessionMsg::Ticket { cell, reply_to } => drop(reply_to.send(state.ticket(cell))),
            SessionMsg::CellStatus { cell, reply_to } => drop(reply_to.send(state.status(cell))),
            SessionMsg::Interrupt { reply_to } => {
                let cell = state.machine.interruptible();
                state.apply(Input::Interrupt);
                let _ = reply_to.send(Ok(Interrupted { cell }));
            }
            SessionMsg::Commands { reply_to } => drop(reply_to.send(state.commands())),
            SessionMsg::ToTerminal { cell, what, reply_to } => {
                let _ = reply_to.send(state.pass_to_terminal(cell, what));
            }
            SessionMsg::EndCommand { cell, how, reply_to } => {
                let _ = reply_to.send(state.end_command(cell, how));
            }
            SessionMsg::Variables { which, patient, reply_to } => {
                state.apply(Input::Variables { which, patient, reply_to });
            }
            SessionMsg::Compute { expression, values, timeout, memory, reply_to }
                if state.ready().is_some() =>
            {
                state.apply(Input::SandboxWanted);
                state.command(Command::Compute { expression, values, timeout, memory, reply_to });
            }
            SessionMsg::Install(request) if state.ready().is_some() => {
                state.apply(Input::SandboxWanted);
                state.install(request);
            }
            SessionMsg::InstallDone { outcome, reply_to } => state.install_done(myself, *outcome, reply_to),
            SessionMsg::TakeSnapshot { name, at, or_newest, reply_to }
                if state.ready().is_some() && !state.machine.is_waking() =>
            {
                match state.newest_snapshot().filter(|_| or_newest && at.is_none()) {
                    Some(newest) => drop(reply_to.send(Ok(newest))),
                    None => state.take_named(name, at, reply_to),
                }
            }
            message @ (SessionMsg::Compute { .. }
            | SessionMsg::Install(_)
            | SessionMsg::TakeSnapshot { .. }) => {
                if state.defer(message, COMPUTATIONS_WAITING) {
                    state.apply(Input::SandboxWanted);
                }
            }
            SessionMsg::Snapshots { reply_to } => drop(reply_to.send(state.snapshots())),
            SessionMsg::RemoveSnapshot { snapshot, reply_to } => state.remove_snapshot(&snapshot, reply_to),
            SessionMsg::SnapshotDone { ticket, outcome } => state.snapshot_done(ticket, *outcome),
            SessionMsg::SnapshotNoted { ticket, is_written } => state.snapshot_noted(ticket, is_written),
            SessionMsg::Sleep { reply_to } => state.sleep(reply_to),
            SessionMsg::WakeDied { snapshot, reason } => state.wake_failed(snapshot, reason, false),
            SessionMsg::WakeInterrupted { snapshot, problem } => state.wake_interrupted(snapshot, &problem),
            SessionMsg::Rebuilt { number, outcome } => state.rebuilt(number, outcome),
            SessionMsg::PrepareReplay { reply_to } => state.prepare_replay(reply_to),
            SessionMsg::ReplayEnded { number, finished, reply_to } => {
                state.replay_ended(number, finished);
                let _ = reply_to.send(Ok(()));
            }
            SessionMsg::Reset { replay, reply_to } => state.reset(myself, replay, reply_to),
            SessionMsg::ResetNoted { is_written, reply_to } => state.reset_noted(is_written, reply_to),
            SessionMsg::View { reply_to } => drop(reply_to.send(state.view())),
            SessionMsg::Receipt { reply_to } => {
                let receipt = state.receipt.clone().filter(|_| state.machine.is_ready());
                let _ = reply_to.send(receipt.ok_or_else(|| {
                    Problem::new(
                        Code::Busy,
                        "the session has no sandbox at the moment, so there is nothing to attest",
                    )
                    .hint("run a cell first, which starts one")
                }));
            }
            SessionMsg::Handles { reply_to } => {
                state.touch();
                match state.handles() {
                    Some(handles) => drop(reply_to.send(Ok(handles))),
                    None => state.wait_for_handles(reply_to),
                }
            }
            // No activity by itself: most who want the asks only look at them.
            SessionMsg::Asks { reply_to } => drop(reply_to.send(Ok(state.asks.clone()))),
            SessionMsg::Seed { values, anew } => state.seed(values, anew),
            SessionMsg::Given { reply_to } => drop(reply_to.send(state.args.seed.clone())),
            SessionMsg::Touch => state.touch(),
            SessionMsg::Lend { new, memory, reply_to } => state.lend(new, memory, reply_to),
            SessionMsg::AnswerCall { call, answer, memory, reply_to } => {
                let answered = state.clients.answer(&call, answer, Some(memory));
                let _ = reply_to
                    .send(answered.map_err(|error| Problem::new(Code::NoSuchCall, error.to_string())));
            }
            SessionMsg::ToolsChanged => state.configure(Vec::new()),
            SessionMsg::FilesChanged => match &state.executor {
                Some(_) => state.command(Command::FilesChanged),
                None => state.measure_workspace(),
            },
            // `Generations` has unwrapped the messages of this generation before.
            SessionMsg::Own { .. } => {}
            SessionMsg::MayRun(permit) => state.may_run(permit),
            SessionMsg::ActedOn { admin, act, only_looks_or_interrupts } => {
                state.acted_on(admin, act, only_looks_or_interrupts);
            }
            SessionMsg::Remove { remover } => state.remove(myself, remover),
            SessionMsg::Placed(outcome) => state.placed(*outcome),
            SessionMsg::SandboxReady { receipt, preloaded, counters, woken } => {
                state.counters = counters;
                state.sandbox_ready(myself, *receipt, preloaded, woken.map(|woken| *woken));
                state.resume_deferred();
            }
            SessionMsg::SandboxAttached { receipt, counters } => {
                state.counters = counters;
                state.sandbox_attached(*receipt);
                state.resume_deferred();
            }
            SessionMsg::Leave { within } => state.leave(myself, within),
            SessionMsg::Left => state.left(),
            SessionMsg::SandboxFailed(problem) => {
                let failed = state.sandbox_failed(problem);
                state.apply(failed);
            }
            // Its first sandbox ended before it was ready.
            SessionMsg::Input(Input::SandboxGone { reason }) if state.args.created.is_some() => {
                state.forgo_sandbox();
                let failed = state.sandbox_failed(Problem::new(Code::SandboxFailed, reason));
                state.apply(failed);
            }
            SessionMsg::Input(Input::ReplayEnded { number, finished }) => {
                state.replay_ended(number, finished);
            }
            SessionMsg::Input(input) => {
                let is_gone = matches!(input, Input::NotAttached { .. } | Input::SandboxGone { .. });
                // What waits for a sandbox that wakes gets the next one only if this one never came to run cells.
                let had_begun = state.machine.is_ready();
                if is_gone {
                    state.forgo_sandbox();
                }
                state.apply(input);
                if is_gone {
                    state.undo_has_no_sandbox();
                }
                if is_gone && had_begun {
                    state.refuse_deferred(&Problem::new(Code::SandboxFailed, "the sandbox ended meanwhile"));
                } else if is_gone {
                    state.resume_deferred();
                }
            }
            SessionMsg::WorkerReplaced { exit_code, after, gone, frame_guard } => {
                state.worker_replaced(exit_code, after, gone, &frame_guard);
            }
            SessionMsg::Freeze { reply_to } => state.freeze(myself, reply_to),
            SessionMsg::FreezeDone { number, outcome, reply_to } => {
                state.freeze_done(number, outcome, reply_to);
            }
            SessionMsg::Thaw { reply_to } => {
                state.apply(Input::Thaw);
                let _ = reply_to.send(Ok(()));
            }
            SessionMsg::Undo { cells, reply_to } => state.undo(cells, reply_to),
            SessionMsg::UndoDone { outcome, files_changed } => state.undo_done(outcome, files_changed),
            SessionMsg::UndoneBefore { state_of, frame_guard } => state.undone_before(state_of, frame_guard),
            SessionMsg::CaughtUp => state.caught_up(),
            SessionMsg::CellFinished(result, frame_guard) => state.finished(*result, frame_guard),
            SessionMsg::Removed { removers, noted } => state.removed(&removers, noted),
            SessionMsg::Hold { reply_to } => drop(reply_to.send(Ok(state.hold(myself)))),
            SessionMsg::Linger { reply_to } => state.linger(reply_to),
            SessionMsg::Released => state.holders.release(),
            SessionMsg::Tick => state.tick(myself),
        }
    }
}
