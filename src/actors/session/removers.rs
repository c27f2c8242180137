//! The callers that remove a session. Most are answered when the journal has the removal: from then on the session is gone
//! for clients, its name is free, and a daemon that dies leaves the rest to the next one. Others wait for the rest.

use parking_lot::Mutex;
use std::sync::Arc;

use crate::actors::calls::Reply;
use crate::protocol::problem::Problem;

/// A caller that removes a session.
pub struct Remover {
    reply_to: Reply<()>,
    /// Whether the answer waits until the sandbox and the workspace are gone and their quotas are free.
    waits: bool,
}

impl Remover {
    /// Answered when the journal has the removal.
    #[must_use]
    pub fn of_record(reply_to: Reply<()>) -> Self {
        Self { reply_to, waits: false }
    }

    /// Answered when nothing is left.
    #[must_use]
    pub fn of_all(reply_to: Reply<()>) -> Self {
        Self { reply_to, waits: true }
    }

    pub(super) fn refuse(self, problem: Problem) {
        let _ = self.reply_to.send(Err(problem));
    }
}

/// The callers that wait for one removal. Clones are the same callers.
#[derive(Clone, Default)]
pub struct Removers(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waiting: Vec<Remover>,
    /// Whether the journal has the removal.
    is_recorded: bool,
}

impl Removers {
    /// Adds callers. Gives those that can be answered at once.
    pub(super) fn add(&self, removers: impl IntoIterator<Item = Remover>) -> Vec<Reply<()>> {
        let mut state = self.0.lock();
        state.waiting.extend(removers);
        if state.is_recorded { state.take_impatient() } else { Vec::new() }
    }

    /// The journal has the removal. Gives the callers that waited for that.
    pub(super) fn recorded(&self) -> Vec<Reply<()>> {
        let mut state = self.0.lock();
        state.is_recorded = true;
        state.take_impatient()
    }

    /// All callers that still wait.
    pub(super) fn take(&self) -> Vec<Remover> {
        std::mem::take(&mut self.0.lock().waiting)
    }

    pub(super) fn take_replies(&self) -> Vec<Reply<()>> {
        self.take().into_iter().map(|remover| remover.reply_to).collect()
    }
}

impl State {
    fn take_impatient(&mut self) -> Vec<Reply<()>> {
        let (waiting, impatient) =
            std::mem::take(&mut self.waiting).into_iter().partition(|remover| remover.waits);
        self.waiting = waiting;
        let impatient: Vec<Remover> = impatient;
        impatient.into_iter().map(|remover| remover.reply_to).collect()
    }
}
