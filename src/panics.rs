//! Panics: reported to the owner of what panicked, counted, and provoked by tests.
//!
//! A task that panics must reach its owner as surely as one that returns ([`spawn_reporting`]). Who starts something anew
//! that has died does so a few times and then stops ([`CrashCounter`]). And a test lets an actor die at every message in
//! turn ([`panic_if_requested`]).

use std::collections::VecDeque;
use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Deaths within [`WITHIN`] after which nothing is started anew any more.
pub const TOO_MANY: usize = 3;
pub const WITHIN: Duration = Duration::from_secs(60);

/// When something died of late.
#[derive(Debug, Default)]
pub struct CrashCounter(VecDeque<Instant>);

impl CrashCounter {
    /// Notes one more. True if these are too many, so that another life would be a waste.
    pub fn one_more(&mut self) -> bool {
        let now = Instant::now();
        while self.0.front().is_some_and(|at| now.duration_since(*at) >= WITHIN) {
            self.0.pop_front();
        }
        self.0.push_back(now);
        self.0.len() >= TOO_MANY
    }

    /// Somebody decided that it shall be tried again.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

/// Tells what came of some work: nothing if it panicked, or was dropped before its end.
struct Teller<T, F: FnOnce(Option<T>)> {
    tell: Option<F>,
    outcome: Option<T>,
}

impl<T, F: FnOnce(Option<T>)> Drop for Teller<T, F> {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            tell(self.outcome.take());
        }
    }
}

/// Runs a task. Its owner is told how it ended, however that was: with none if it panicked or was aborted.
/// `tell` must neither block nor panic.
pub fn spawn_reporting<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
    tell: impl FnOnce(Option<T>) + Send + 'static,
) -> JoinHandle<()> {
    let mut teller = Teller { tell: Some(tell), outcome: None };
    tokio::spawn(async move {
        let teller = &mut teller;
        teller.outcome = Some(work.await);
    })
}

/// Whose death is wanted, and when.
#[derive(Debug, PartialEq, Eq)]
struct PanicAt {
    kind: String,
    /// The message that is to be the last one, counted over all lives of all of that kind.
    number: u64,
    /// As many, one after the other.
    times: u64,
}

impl PanicAt {
    fn parse(text: &str) -> Option<Self> {
        let (kind, number) = text.split_once(':')?;
        let (number, times) = number.split_once('*').unwrap_or((number, "1"));
        Some(Self { kind: kind.to_owned(), number: number.parse().ok()?, times: times.parse().ok()? })
    }

    fn is_now(&self, number: u64) -> bool {
        number.checked_sub(self.number).is_some_and(|after| after < self.times)
    }
}

const VARIABLE: &str = "BELLJAR_PANIC_AT";

/// Called with every message of an actor, or batch of the journal's writer, before anything is done with it.
///
/// `BELLJAR_PANIC_AT=KIND:n` panics at the n-th one of that kind in this process, `KIND:n*m` at m from there on.
/// Release builds do not look.
pub fn panic_if_requested(kind: &str) {
    static WANTED: OnceLock<Option<PanicAt>> = OnceLock::new();
    static MESSAGES: AtomicU64 = AtomicU64::new(0);
    if !cfg!(debug_assertions) {
        return;
    }
    let wanted = WANTED.get_or_init(|| std::env::var(VARIABLE).ok().and_then(|text| PanicAt::parse(&text)));
    if let Some(wanted) = wanted.as_ref().filter(|wanted| wanted.kind == kind) {
        let number = MESSAGES.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(!wanted.is_now(number), "{kind}: message {number} was to be the last one");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn tell<T>(sender: oneshot::Sender<Option<T>>, outcome: Option<T>) {
        let _ = sender.send(outcome);
    }

    #[tokio::test]
    async fn an_owner_is_told_of_every_end() {
        let (sender, told) = oneshot::channel();
        spawn_reporting(async { 7 }, |outcome| tell(sender, outcome));
        assert_eq!(told.await.unwrap(), Some(7));

        let (sender, told) = oneshot::channel();
        spawn_reporting(async { panic!("as it was told to") }, |outcome: Option<()>| tell(sender, outcome));
        assert_eq!(told.await.unwrap(), None);

        let (sender, told) = oneshot::channel();
        spawn_reporting(std::future::pending::<()>(), |outcome| tell(sender, outcome)).abort();
        assert_eq!(told.await.unwrap(), None);
    }

    #[test]
    fn three_deaths_in_a_minute_are_too_many() {
        let mut deaths = CrashCounter::default();
        assert!(!deaths.one_more() && !deaths.one_more() && deaths.one_more());
        deaths.forget();
        assert!(!deaths.one_more());
        let long_ago = Instant::now().checked_sub(WITHIN).unwrap();
        let mut deaths = CrashCounter(VecDeque::from([long_ago, long_ago]));
        assert!(!deaths.one_more());
    }

    #[test]
    fn a_death_is_wanted_of_a_kind_at_a_number_once_or_some_times() {
        let wanted = |kind: &str, number, times| Some(PanicAt { kind: kind.to_owned(), number, times });
        assert_eq!(PanicAt::parse("session:3"), wanted("session", 3, 1));
        assert_eq!(PanicAt::parse("writer:12*3"), wanted("writer", 12, 3));
        for wrong in ["", "session", "session:", "session:x", "session:*", "session:1*"] {
            assert_eq!(PanicAt::parse(wrong), None, "{wrong}");
        }
        let (once, twice) = (PanicAt::parse("a:2").unwrap(), PanicAt::parse("a:2*2").unwrap());
        assert_eq!([1, 2, 3, 4].map(|number| once.is_now(number)), [false, true, false, false]);
        assert_eq!([1, 2, 3, 4].map(|number| twice.is_now(number)), [false, true, true, false]);
    }
}
