//! Appends events to the journal and reports when they are committed, because an answer to a client waits for that.

use super::journal_waits::when_written;
use super::state::SessionActorState;
use crate::protocol::event::EventBody;
use crate::protocol::problem::Problem;
use crate::store::{AppliedFrame, KeyTarget, Payment};

impl SessionActorState {
    /// An error while the disk refuses writes: no work is begun whose outcome could not be kept.
    pub(super) fn can_write(&self) -> Result<(), Problem> {
        self.args.journal.healthy()?;
        // Every action writes events and so needs quota; only the removal of a session can always be written.
        Ok(self.log.has_reserve()?)
    }

    /// Appends an event; `then` learns whether it was committed in time. A late event is still committed when
    /// the disk works again.
    pub(super) fn append_and(&self, body: EventBody, then: impl FnOnce(bool) + Send + 'static) {
        self.append_applied_and(body, None, then);
    }

    /// Like `append_and`, and records what an idempotency key refers to from then on.
    pub(super) fn append_aimed_and(
        &self,
        body: EventBody,
        paid: Payment,
        aim: Option<KeyTarget>,
        then: impl FnOnce(bool) + Send + 'static,
    ) {
        self.log.append_keyed_then(body, paid, aim, when_written(then));
    }

    /// Like `append_and`, for an event that is the effect of a kernel's frame.
    pub(super) fn append_applied_and(
        &self,
        body: EventBody,
        applied: Option<AppliedFrame>,
        then: impl FnOnce(bool) + Send + 'static,
    ) {
        self.log.append_then(body, applied, when_written(then));
    }
}
