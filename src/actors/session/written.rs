//! First in the journal, then told to others: what an answer waits for, and for how long.

use super::journalled::when_written;
use super::state::SessionActorState;
use crate::protocol::event::EventBody;
use crate::protocol::problem::{Code, FREE_SPACE, Problem};
use crate::store::{AppliedFrame, KeyTarget, Paid};

impl SessionActorState {
    /// An error while the disk refuses: nothing is begun then that could not be kept.
    pub(super) fn can_write(&self) -> Result<(), Problem> {
        self.args.journal.healthy().map_err(|trouble| {
            Problem::new(Code::Storage, format!("the journal cannot be written: {trouble}"))
                .hint("free some space where the daemon's home is; cells run again as soon as there is some")
        })?;
        // Whatever is begun writes something; only its removal a session can always write.
        self.log.has_reserve().map_err(|exceeded| Problem::new(Code::QuotaExceeded, exceeded.to_string()))
    }

    /// Appends an event and says whether it was committed in time. If not, it still will be when the
    /// disk is back.
    pub(super) fn append_and(&self, body: EventBody, then: impl FnOnce(bool) + Send + 'static) {
        self.append_applied_and(body, None, then);
    }

    /// Likewise, with what a key leads to from then on.
    pub(super) fn append_aimed_and(
        &self,
        body: EventBody,
        paid: Paid,
        aim: Option<KeyTarget>,
        then: impl FnOnce(bool) + Send + 'static,
    ) {
        self.log.append_keyed_then(body, paid, aim, when_written(then));
    }

    /// Likewise, as the effect of a kernel's frame.
    pub(super) fn append_applied_and(
        &self,
        body: EventBody,
        applied: Option<AppliedFrame>,
        then: impl FnOnce(bool) + Send + 'static,
    ) {
        self.log.append_then(body, applied, when_written(then));
    }

    /// What became of something that the journal does not have yet.
    pub(super) fn unwritable(&self, outcome: &str) -> Problem {
        let trouble = self.args.journal.healthy().err().unwrap_or_else(|| "it is slow".into());
        Problem::new(Code::Storage, format!("{outcome}, because the journal cannot be written: {trouble}"))
            .hint(FREE_SPACE)
    }
}
