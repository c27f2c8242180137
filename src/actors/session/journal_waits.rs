//! Bounds the waiting for the journal: a disk that hangs must not block a session or a client.

use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

use crate::protocol::ids::SessionId;
use crate::protocol::limits::JOURNAL_TIMEOUT;
use crate::security_controls;
use crate::store::Journal;

/// How long a removal waits for the journal before it continues without.
const REMOVAL_NOTED: Duration = Duration::from_secs(2);

/// A removal on its way into the journal. A full disk must not hold up a removal that may free it: the record
/// stays queued, and the waiting ends.
pub struct RemovalRecord(watch::Receiver<bool>);

impl RemovalRecord {
    pub fn begin(journal: &Journal, id: SessionId) -> Self {
        let (sender, receiver) = watch::channel(false);
        let journal = journal.clone();
        tokio::spawn(async move {
            match journal.remove_session(id).await {
                Ok(()) => drop(sender.send(true)),
                Err(error) => tracing::warn!(%error, session = %id, "a removal is not in the journal"),
            }
        });
        Self(receiver)
    }

    /// Whether the journal has the removal by now, or within a short time.
    pub async fn is_written(&mut self) -> bool {
        let is_written = self.0.wait_for(|is_written| *is_written);
        matches!(tokio::time::timeout(REMOVAL_NOTED, is_written).await, Ok(Ok(_)))
    }
}

/// Deletes the whole record of a session that was never made, including its seed.
pub fn forget(journal: &Journal, id: SessionId) {
    if !security_controls::holds("failed_creations_forgotten") {
        return;
    }
    let journal = journal.clone();
    tokio::spawn(async move {
        if let Err(error) = journal.forget(id).await {
            tracing::warn!(%error, session = %id, "the record of a session that was not made is left");
        }
    });
}

/// Gives a callback for the commit of an event. `then` learns whether the commit was in time: on the thread that
/// committed if it was, and in a task if not. It must not block.
pub(super) fn when_written(then: impl FnOnce(bool) + Send + 'static) -> impl FnOnce() + Send + 'static {
    let then = Arc::new(Mutex::new(Some(then)));
    let (committed, is_committed) = oneshot::channel::<()>();
    let late = Arc::clone(&then);
    tokio::spawn(async move {
        let _ = tokio::time::timeout(JOURNAL_TIMEOUT, is_committed).await;
        let then = late.lock().take();
        if let Some(then) = then {
            then(false);
        }
    });
    move || {
        let then = then.lock().take();
        if let Some(then) = then {
            then(true);
        }
        // Only now, so that the task does not look for `then` before it was taken.
        drop(committed);
    }
}
