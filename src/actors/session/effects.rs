//! Carries out the effects that the machine of a session requests.

use ractor::MessagingErr;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::messages::SessionMsg;
use super::state::SessionActorState;
use crate::actors::calls::Reply;
use crate::actors::executor::messages::{Command, ExecutorMsg};
use crate::protocol::api::VariableList;
use crate::protocol::event::EventBody;
use crate::quota::Permit;
use crate::session::machine::{Effect, Input};
use crate::session::outcome::{Cause, Changes, Ending, conclude};
use crate::store::CellRecord;

type Waiting = Reply<VariableList>;

impl SessionActorState {
    pub(super) fn apply(&mut self, input: Input<Waiting>) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            // The permit is released if its cell is gone, because other users wait for one. An effect may get
            // the permit for the next input.
            let mut permit = matches!(input, Input::MayRun).then(|| self.cell_permits.spare.take()).flatten();
            for effect in self.machine.step(input, Instant::now()) {
                inputs.extend(self.carry_out(effect, &mut permit));
            }
        }
        self.answer_sleepers();
        let queue = self.machine.queue();
        self.cell_permits.running.retain(|cell, _| queue.is_running(*cell));
    }

    /// Carries out one effect. Gives the input that follows at once, if there is one.
    fn carry_out(&mut self, effect: Effect<Waiting>, permit: &mut Option<Permit>) -> Option<Input<Waiting>> {
        match effect {
            Effect::StartSandbox => {
                let started = self.start_sandbox();
                return started.err().map(|problem| self.sandbox_failed(problem));
            }
            Effect::EndSandbox => self.end_sandbox(),
            Effect::WantPermit => {
                return self.request_cell_permit().unwrap_or_else(|problem| Some(Input::MayNotRun(problem)));
            }
            Effect::Begin { cell, begin } => {
                if let Some(permit) = permit.take() {
                    self.cell_permits.running.insert(cell, permit);
                }
                let before = self.counters.read();
                self.machine.counted(cell, before);
                let session = self.myself.clone();
                // The journal has the start first: if a kernel ran a cell that the journal does not know, its
                // result would be taken for that of the next cell with the same number.
                let command = self.machine.is_command(cell);
                let queue = self.machine.queue();
                if queue.main() == Some(cell) || queue.is_background(cell) {
                    self.saving.states.began(cell);
                }
                self.append_and(EventBody::CellStarted { cell, command, before }, move |is_written| {
                    let _ = session.cast(SessionMsg::Input(Input::Started { begin, is_written }));
                });
            }
            Effect::Run(start) => self.command(Command::Run(start)),
            Effect::Show { which, reply_to } => {
                let executor = self.executor.as_ref()?;
                // An executor that does not take the message has ended, and the session is about to learn of
                // it.
                if let Err(MessagingErr::SendErr(ExecutorMsg::Command(Command::Variables {
                    which,
                    reply_to,
                }))) = executor.cast(ExecutorMsg::Command(Command::Variables { which, reply_to }))
                {
                    return Some(Input::NotShown { which, reply_to });
                }
            }
            Effect::Interrupt(cell) => self.command(Command::Interrupt(cell)),
            Effect::Kill(cell) => self.command(Command::Kill(cell)),
            Effect::Thaw => self.command(Command::Thaw),
            Effect::Append(event) => {
                self.saving.states.take(&event);
                self.log.append(event);
            }
            Effect::Sleeps { reason } => self.sleeps(reason),
            Effect::Save { number, urgent } => return self.save(number, urgent),
            Effect::StopSaving { number } => self.stop_saving(number),
            Effect::Unrun(start) => {
                let (record, cause) = (CellRecord::default(), Cause::default());
                let unrun = conclude(start, Ending::Cancelled, cause, record, unchanged(), Duration::ZERO);
                self.tell_end(unrun, None);
            }
            Effect::Lost(start, ended_by) => {
                let record = self.recorder.finish(start.cell);
                let (ending, cause) =
                    (Ending::SandboxGone { end: None }, Cause { ended_by, ..Cause::default() });
                let lost = conclude(start, ending, cause, record, unchanged(), Duration::ZERO);
                self.tell_end(lost, None);
            }
            Effect::Refuse(reply_to, problem) => drop(reply_to.send(Err(problem))),
        }
        None
    }

    /// Has the executor carry out a command, if there is one.
    pub(super) fn command(&self, command: Command) {
        if let Some(executor) = &self.executor {
            let _ = executor.cast(ExecutorMsg::Command(command));
        }
    }
}

fn unchanged() -> Changes {
    Changes { artifacts: Vec::new(), cut: false }
}
