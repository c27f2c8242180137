//! Events that follow from one message are committed with one transaction.

use super::EventLog;

/// While this exists, the events of a log are numbered but wait. Dropping it commits them together, on this thread if the
/// journal has nothing else to do, so no lock may be held then that a callback of these events takes.
#[must_use]
pub struct AppendTogether<'a> {
    log: &'a EventLog,
    /// Whether no other one was there before, which sends the events.
    is_outermost: bool,
}

impl EventLog {
    /// Has all events that are appended from now on committed together. To be held only for as long as one message is
    /// handled, because the events of all who append to this log wait.
    pub fn together(&self) -> AppendTogether<'_> {
        let mut inner = self.state.inner.lock();
        let is_outermost = inner.batched.is_none();
        inner.batched.get_or_insert_default();
        drop(inner);
        AppendTogether { log: self, is_outermost }
    }
}

impl Drop for AppendTogether<'_> {
    fn drop(&mut self) {
        if !self.is_outermost {
            return;
        }
        let mut inner = self.log.state.inner.lock();
        if let Some(batched) = inner.batched.take().filter(|batched| !batched.is_empty()) {
            // Sent while the lock is held, so that the writer gets the events in the order of their numbers.
            if self.log.send(inner, batched) {
                self.log.core.queue.commit_here();
            }
        }
    }
}
