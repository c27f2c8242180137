//! First in the journal, then told to others: what an answer waits for, and for how long.

use std::time::Duration;
use tokio::sync::oneshot;

use super::SessionActorState;
use crate::protocol::event::EventBody;
use crate::protocol::problem::{Code, Problem};
use crate::store::{Aim, Applied, Paid};

/// Time for an event to get into the journal. It takes some tens of microseconds; a disk that hangs
/// longer than this must not hold a session or a client.
pub(super) const JOURNALLED: Duration = Duration::from_secs(2);

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
        aim: Option<Aim>,
        then: impl FnOnce(bool) + Send + 'static,
    ) {
        self.log.append_aimed_then(body, paid, aim, when_written(then));
    }

    /// Likewise, as the effect of a kernel's frame.
    pub(super) fn append_applied_and(
        &self,
        body: EventBody,
        applied: Option<Applied>,
        then: impl FnOnce(bool) + Send + 'static,
    ) {
        self.log.append_then(body, applied, when_written(then));
    }

    /// What became of something that the journal does not have yet.
    pub(super) fn unwritable(&self, outcome: &str) -> Problem {
        let trouble = self.args.journal.healthy().err().unwrap_or_else(|| "it is slow".into());
        Problem::new(Code::Storage, format!("{outcome}, because the journal cannot be written: {trouble}"))
            .hint("free some space where the daemon's home is")
    }
}

/// To be called when something is committed. `then` hears whether that was in time.
fn when_written(then: impl FnOnce(bool) + Send + 'static) -> impl FnOnce() + Send + 'static {
    let (committed, written) = oneshot::channel();
    tokio::spawn(async move {
        then(matches!(tokio::time::timeout(JOURNALLED, written).await, Ok(Ok(()))));
    });
    move || {
        let _ = committed.send(());
    }
}
