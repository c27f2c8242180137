//! The session's actor: how it handles each message.

use super::generations::{Generations, Inheritance};
use super::messages::{SessionMsg, SessionRef};
use super::state::{SessionActorState, SessionArgs};
use crate::actors::executor::messages::Command;
use crate::actors::session::agent;
use crate::protocol::api::Interrupted;
use crate::protocol::event::EventBody;
use crate::protocol::problem::{Code, Problem};
use crate::session::machine::Input;
use ractor::{Actor, ActorProcessingErr, ActorRuntime, SpawnErr, SupervisionEvent};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// The interval at which idleness and age are checked.
const TICK: Duration = Duration::from_secs(1);
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
        myself.send_interval(TICK, || SessionMsg::Tick);
        Generations::first(&myself, inheritance).await
    }

    async fn post_start(
        &self,
        myself: SessionRef,
        generations: &mut Generations,
    ) -> Result<(), ActorProcessingErr> {
        generations.restore(&myself).await;
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
                generations.part_failed(&myself, &part, &error).await;
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
            message @ (SessionMsg::Compute { .. } | SessionMsg::Install(_)) => {
                if state.defer(message, COMPUTATIONS_WAITING) {
                    state.apply(Input::SandboxWanted);
                }
            }
            SessionMsg::InstallDone { outcome, reply_to } => state.install_done(myself, *outcome, reply_to),
            SessionMsg::PrepareReplay { reply_to } => state.prepare_replay(reply_to),
            SessionMsg::ReplayEnded { finished, reply_to } => {
                state.apply(Input::ReplayEnded { finished });
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
            SessionMsg::Lend { tools, memory, reply_to } => state.lend(tools, memory, reply_to),
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
            SessionMsg::ActedOn { admin, act } => {
                if state.admin_acts.is_new(admin, &act, Instant::now()) {
                    state.log.append(EventBody::AdminActed { admin, act });
                }
            }
            SessionMsg::Remove { remover } => state.remove(myself, remover),
            SessionMsg::Placed(outcome) => state.placed(*outcome),
            SessionMsg::SandboxReady { receipt, preloaded, counters } => {
                state.counters = counters;
                state.sandbox_ready(myself, *receipt, preloaded);
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
            SessionMsg::Input(input) => {
                let not_attached = matches!(input, Input::NotAttached { .. });
                let is_gone = not_attached || matches!(input, Input::SandboxGone { .. });
                if is_gone {
                    state.forgo_sandbox();
                }
                state.apply(input);
                if is_gone {
                    state.undo_has_no_sandbox();
                }
                if not_attached {
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
