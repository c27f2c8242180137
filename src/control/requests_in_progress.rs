//! The requests with an idempotency key that are in progress.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tokio::sync::watch;

use crate::protocol::limits::CONNECTIONS_PER_USER;
use crate::protocol::principal::Principal;

/// Requests with a key that are in progress; a repetition waits for the first one.
#[derive(Clone, Default)]
pub struct RequestsInProgress(Arc<Mutex<FirstRequests>>);

/// The first requests, by owner and key.
type FirstRequests = HashMap<(Principal, String), FirstRequest>;

struct FirstRequest {
    hash: String,
    /// Closes when the first request is done.
    done: watch::Receiver<()>,
}

pub(super) enum Entry {
    /// No other request with this key is in progress.
    First(WorkGuard),
    /// The same request is in progress; the receiver closes when it is done.
    Repetition(watch::Receiver<()>),
    /// A different request with this key is in progress.
    Conflict,
    /// The owner has as many requests in progress as may be: they go on without their connections.
    TooMany,
}

impl RequestsInProgress {
    /// Whether a request of this owner is in progress.
    pub(super) fn has_some(&self, owner: Principal) -> bool {
        self.0.lock().keys().any(|(other, _)| *other == owner)
    }

    /// Registers a request atomically, before the journal is asked, so that of two simultaneous requests one waits.
    pub(super) fn enter(&self, owner: Principal, key: &str, hash: &str) -> Entry {
        let at = (owner, key.to_owned());
        let mut waiting = self.0.lock();
        match waiting.get(&at) {
            Some(first) if first.hash == hash => Entry::Repetition(first.done.clone()),
            Some(_) => Entry::Conflict,
            None if waiting.keys().filter(|(other, _)| *other == owner).count() >= CONNECTIONS_PER_USER => {
                Entry::TooMany
            }
            None => {
                let (sender, done) = watch::channel(());
                waiting.insert(at.clone(), FirstRequest { hash: hash.to_owned(), done });
                Entry::First(WorkGuard { all: self.clone(), at, _done: sender })
            }
        }
    }
}

/// A request in progress. Dropping this wakes the repetitions that wait for it.
pub(super) struct WorkGuard {
    all: RequestsInProgress,
    at: (Principal, String),
    _done: watch::Sender<()>,
}

impl Drop for WorkGuard {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_that_outlive_their_connections_are_bounded() {
        let in_work = RequestsInProgress::default();
        let enter = |owner, n: usize| in_work.enter(owner, &format!("key {n}"), "hash");
        let entries: Vec<Entry> = (0..CONNECTIONS_PER_USER).map(|n| enter(Principal::ANN, n)).collect();
        assert!(entries.iter().all(|entry| matches!(entry, Entry::First(_))));
        assert!(matches!(enter(Principal::ANN, CONNECTIONS_PER_USER), Entry::TooMany));
        assert!(matches!(enter(Principal::ANN, 0), Entry::Repetition(_)));
        assert!(matches!(enter(Principal::BOB, 0), Entry::First(_)));
        assert!(in_work.has_some(Principal::ANN));
        drop(entries);
        assert!(!in_work.has_some(Principal::ANN));
        assert!(matches!(enter(Principal::ANN, 0), Entry::First(_)));
    }
}
