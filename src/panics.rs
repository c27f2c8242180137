//! Panics are reported to the owner of the task that panicked, counted, and provoked by tests.
//!
//! A task that panics must reach its owner as surely as one that returns ([`spawn_reporting`]), and a loop of the daemon
//! goes on after a panic ([`spawn_restarting`]). An owner restarts a
//! part that panicked only a few times and then stops ([`CrashCounter`]). A test makes an actor panic at each of its
//! messages in turn ([`panic_if_requested`]).

use std::collections::VecDeque;
use std::future::Future;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

/// The number of panics within [`WITHIN`] after which the owner does not restart the part again.
pub const TOO_MANY: usize = 3;
pub const WITHIN: Duration = Duration::from_secs(60);

/// The times of recent panics of one part.
#[derive(Debug, Default)]
pub struct CrashCounter(VecDeque<Instant>);

impl CrashCounter {
    /// Counts one more panic. True if there were too many, so that another restart would be a waste.
    pub fn one_more(&mut self) -> bool {
        let now = Instant::now();
        while self.0.front().is_some_and(|at| now.duration_since(*at) >= WITHIN) {
            self.0.pop_front();
        }
        self.0.push_back(now);
        self.0.len() >= TOO_MANY
    }

    /// Forgets all panics, for when a restart is requested explicitly.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

/// Reports the outcome of some work when dropped: `None` if the work panicked, or was dropped before its end.
struct ReportOnDrop<T, F: FnOnce(Option<T>)> {
    tell: Option<F>,
    outcome: Option<T>,
}

impl<T, F: FnOnce(Option<T>)> Drop for ReportOnDrop<T, F> {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            tell(self.outcome.take());
        }
    }
}

/// Runs a task and calls `tell` with its outcome, however it ended: with `None` if it panicked or was aborted.
/// `tell` must neither block nor panic.
pub fn spawn_reporting<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
    tell: impl FnOnce(Option<T>) + Send + 'static,
) -> JoinHandle<()> {
    let mut teller = ReportOnDrop { tell: Some(tell), outcome: None };
    tokio::spawn(async move {
        let teller = &mut teller;
        teller.outcome = Some(work.await);
    })
}

/// Runs a loop that has to go on for as long as its owner needs it. A panic is logged, and the loop begins again; after
/// too many panics it pauses first. It ends with its own end, or when the handle is used to abort it.
pub fn spawn_restarting<F: Future<Output = ()> + Send + 'static>(
    what: &'static str,
    begin: impl Fn() -> F + Send + 'static,
) -> JoinHandle<()> {
    tokio::spawn(restarting(what, WITHIN, begin))
}

async fn restarting<F: Future<Output = ()> + Send + 'static>(
    what: &'static str,
    pause: Duration,
    begin: impl Fn() -> F,
) {
    let mut crashes = CrashCounter::default();
    while let Err(error) = AbortOnDropHandle::new(tokio::spawn(begin())).await {
        if !error.is_panic() {
            return;
        }
        tracing::error!(what, "a task in the background panicked, and begins again");
        if crashes.one_more() {
            tokio::time::sleep(pause).await;
        }
    }
}

/// Where a test wants a panic: at which messages of which kind of actor.
#[derive(Debug, PartialEq, Eq)]
struct PanicAt {
    kind: String,
    /// The number of the message that panics, counted over all actors of that kind and all their restarts.
    number: u64,
    /// How many messages in a row panic.
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

/// Called with every message of an actor, or batch of the journal's writer, before it is handled.
///
/// `BELLJAR_PANIC_AT=KIND:n` panics at the n-th message of that kind in this process, `KIND:n*m` at m messages from
/// there. Release builds ignore the variable.
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
        let (sender, reported) = oneshot::channel();
        spawn_reporting(async { 7 }, |outcome| tell(sender, outcome));
        assert_eq!(reported.await.unwrap(), Some(7));

        let (sender, reported) = oneshot::channel();
        spawn_reporting(async { panic!("as it was told to") }, |outcome: Option<()>| tell(sender, outcome));
        assert_eq!(reported.await.unwrap(), None);

        let (sender, reported) = oneshot::channel();
        spawn_reporting(std::future::pending::<()>(), |outcome| tell(sender, outcome)).abort();
        assert_eq!(reported.await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_loop_that_panics_begins_again_and_pauses_when_that_is_often() {
        let begun = AtomicU64::new(0);
        let pause = Duration::from_millis(50);
        let since = Instant::now();
        let begin = || {
            let nth = begun.fetch_add(1, Ordering::Relaxed);
            async move { assert!(nth > 4, "as it was told to") }
        };
        restarting("a test", pause, begin).await;
        assert_eq!(begun.load(Ordering::Relaxed), 6);
        assert!(since.elapsed() >= 3 * pause, "the third panic and those after it");
    }

    #[tokio::test]
    async fn a_loop_ends_when_its_owner_aborts_it() {
        let (sender, dropped) = oneshot::channel::<()>();
        let sender = std::sync::Mutex::new(Some(sender));
        let running = spawn_restarting("a test", move || {
            let sender = sender.lock().unwrap().take();
            async move {
                std::future::pending::<()>().await;
                drop(sender);
            }
        });
        tokio::task::yield_now().await;
        running.abort();
        assert!(dropped.await.is_err());
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
