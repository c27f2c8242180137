//! The threads that work in users' folders. A folder may answer late or never (because of its file system, a guest that
//! makes millions of names, or a client that reads nothing), so these threads do no other work: each user has a limited
//! number of them for each kind of work, and further work waits, but only that of the same user.

use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::sync::oneshot;

use crate::fair_queue::FairQueue;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::owner::{CurrentIds, acting_as};
use crate::security_controls;

/// Maximum number of threads of all users together. A user without a thread for a kind of work gets one nevertheless.
const THREADS: usize = 256;
/// Maximum number of waiting pieces of work of one user and kind.
const WAITING: usize = 1024;
/// A thread that has been idle for this long ends.
const IDLE: Duration = Duration::from_secs(10);
/// A small stack is enough, because no tree is walked by recursion beyond a few dozen levels.
const STACK: usize = 1024 * 1024;

/// The kind of a piece of work. Work of one kind never waits for work of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkKind {
    /// Opens, lists or measures, with a bound on what it looks at.
    Look,
    /// Measures what grows meanwhile, and is ended if it is not known how far: late is too late, and other looks of the
    /// same user must not make it late.
    Watch,
    /// Sends or receives, at the speed of the other side.
    Transfer,
    /// Removes trees of any size.
    Removal,
}

impl WorkKind {
    /// Maximum number of threads of one user for this kind at once.
    fn threads(self) -> usize {
        match self {
            Self::Look => 4,
            Self::Transfer => 8,
            Self::Removal | Self::Watch => 2,
        }
    }

    /// How long the caller waits for the work; the thread itself cannot be ended.
    fn deadline(self) -> Option<Duration> {
        match self {
            Self::Look => Some(Duration::from_secs(60)),
            // A watch has a deadline of its own.
            Self::Watch | Self::Transfer | Self::Removal => None,
        }
    }
}

/// The user who is charged for the thread, and the kind of work.
type Key = (Principal, WorkKind);
type Work = Box<dyn FnOnce() + Send>;

struct Pool {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    waiting: FairQueue<Key, Work>,
    running: BTreeMap<Key, usize>,
    threads: usize,
    idle: usize,
}

impl Default for Pool {
    fn default() -> Self {
        let waiting = FairQueue::new(WAITING);
        let state = State { waiting, running: BTreeMap::new(), threads: 0, idle: 0 };
        Self { state: Mutex::new(state), wake: Condvar::new() }
    }
}

static POOL: LazyLock<Arc<Pool>> = LazyLock::new(Arc::default);

/// Does `work` on such a thread, charged to the user `pays`, with the rights of `ids` or the daemon's own. Work that takes
/// longer than its kind may is given up by the caller, and done nevertheless.
pub async fn run<T: Send + 'static>(
    pays: Principal,
    lane: WorkKind,
    ids: Option<Arc<CurrentIds>>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    let outcome = begin(pays, lane, ids, work)?;
    match lane.deadline() {
        None => outcome.await,
        Some(deadline) => tokio::time::timeout(deadline, outcome).await.map_err(|_| late(deadline))?,
    }
}

/// Begins such work, or lets it wait for a thread, and gives the outcome, for a caller who has to know it however long it
/// takes.
pub fn begin<T: Send + 'static>(
    pays: Principal,
    lane: WorkKind,
    ids: Option<Arc<CurrentIds>>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<impl Future<Output = Result<T, Problem>> + Send + 'static, Problem> {
    let (done, outcome) = oneshot::channel();
    let job = move || {
        let ids = ids.map(|ids| ids.now());
        drop(done.send(acting_as(ids.as_deref(), work)));
    };
    POOL.submit((pays, lane), Box::new(job))?;
    Ok(async move { io_result_to_problem(outcome.await.map_err(|_| died())?) })
}

/// The problem of a caller who has waited long enough for a folder.
pub fn late(deadline: Duration) -> Problem {
    Problem::new(Code::Storage, format!("the folder did not answer within {} s", deadline.as_secs()))
        .hint("see whether the file system that it lies on works")
}

fn io_result_to_problem<T>(outcome: std::io::Result<T>) -> Result<T, Problem> {
    outcome.map_err(|error| {
        Problem::new(Code::Internal, format!("the rights of the folder's owner cannot be taken: {error}"))
            .hint("a daemon of root needs the capabilities CAP_SETUID and CAP_SETGID")
    })
}

fn died() -> Problem {
    Problem::new(Code::Internal, "what worked in the folder died")
}

impl Pool {
    fn submit(self: &Arc<Self>, key: Key, work: Work) -> Result<(), Problem> {
        let mut state = self.state.lock();
        let ticket = state.waiting.push(key, work).map_err(|_| {
            Problem::new(Code::TooMany, "too much of yours waits for folders already")
                .hint("try again when some of it is done")
        })?;
        if state.runnable() <= state.idle {
            self.wake.notify_one();
        } else if state.threads < THREADS || !state.running.contains_key(&key) {
            let pool = Arc::clone(self);
            let builder = std::thread::Builder::new().name("folders".into()).stack_size(STACK);
            // A thread above the common maximum does only the work that it was started for, even if other users wait.
            let only = (state.threads >= THREADS).then_some(key);
            match builder.spawn(move || pool.serve(only)) {
                Ok(_) => state.threads += 1,
                // Another thread does the work later, if there is one.
                Err(error) if state.threads == 0 => {
                    state.waiting.remove(ticket);
                    return Err(Problem::new(Code::Internal, format!("no thread can be started: {error}")));
                }
                Err(error) => tracing::warn!(%error, "no thread can be started"),
            }
        }
        Ok(())
    }

    /// The main loop of a thread. A thread that was started for one key only does one piece of its work, and ends.
    fn serve(&self, only: Option<Key>) {
        let mut state = self.state.lock();
        loop {
            if let Some((key, work)) = state.next(only) {
                drop(state);
                // If the work panics, its caller learns it from the closed channel.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                state = self.state.lock();
                state.done(key);
                if only.is_none() {
                    continue;
                }
            }
            if only.is_some() {
                state.threads -= 1;
                return;
            }
            state.idle += 1;
            let slept = self.wake.wait_for(&mut state, IDLE);
            state.idle -= 1;
            if slept.timed_out() && state.runnable() == 0 {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl State {
    fn free_threads(&self, key: Key) -> usize {
        let most =
            if security_controls::holds("folder_threads_per_user") { key.1.threads() } else { usize::MAX };
        most.saturating_sub(self.running.get(&key).copied().unwrap_or(0))
    }

    /// The number of pieces of work that may begin now.
    fn runnable(&self) -> usize {
        self.waiting.keys().map(|key| self.free_threads(key).min(self.waiting.waiting(key))).sum()
    }

    /// The next piece of work whose user may have one more thread, of the key `only` if that is given.
    fn next(&mut self, only: Option<Key>) -> Option<(Key, Work)> {
        let with_free_thread: Vec<Key> =
            self.waiting.keys().filter(|key| self.free_threads(*key) > 0).collect();
        let may = |key: Key| with_free_thread.contains(&key) && only.is_none_or(|only| only == key);
        let (key, work) = self.waiting.pop_where(|key, _| may(key))?;
        *self.running.entry(key).or_default() += 1;
        Some((key, work))
    }

    fn done(&mut self, key: Key) {
        if let Some(running) = self.running.get_mut(&key) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// Blocks until the test releases it.
    fn hang(released: &AtomicBool) {
        while !released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[tokio::test]
    async fn a_user_whose_folders_hang_hangs_alone() {
        let (release, started) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut outcomes = Vec::new();
        for _ in 0..50 {
            let (release, started) = (Arc::clone(&release), Arc::clone(&started));
            outcomes.push(tokio::spawn(run(Principal::ANN, WorkKind::Look, None, move || {
                started.fetch_add(1, Ordering::SeqCst);
                hang(&release);
            })));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(started.load(Ordering::SeqCst), WorkKind::Look.threads());
        // Other users, and other kinds of work of the same user, go on.
        assert_eq!(run(Principal::BOB, WorkKind::Look, None, || 7).await.unwrap(), 7);
        assert_eq!(run(Principal::ANN, WorkKind::Transfer, None, || 8).await.unwrap(), 8);
        release.store(true, Ordering::SeqCst);
        for outcome in outcomes {
            outcome.await.unwrap().unwrap();
        }
        assert_eq!(started.load(Ordering::SeqCst), 50);
    }

    /// Many users whose folders hang take all the threads, and have more work waiting in front.
    #[tokio::test]
    async fn a_user_who_has_none_gets_a_thread_whoever_waits_before() {
        let pool = Arc::new(Pool::default());
        let release = Arc::new(AtomicBool::new(false));
        for user in (0..u32::try_from(THREADS).unwrap()).map(Principal::new) {
            for _ in 0..3 {
                let release = Arc::clone(&release);
                pool.submit((user, WorkKind::Look), Box::new(move || hang(&release))).unwrap();
            }
        }
        let (done, outcome) = oneshot::channel();
        pool.submit((Principal::new(9999), WorkKind::Look), Box::new(move || done.send(7).unwrap())).unwrap();
        assert_eq!(tokio::time::timeout(Duration::from_secs(20), outcome).await.unwrap().unwrap(), 7);
        release.store(true, Ordering::SeqCst);
    }

    #[tokio::test]
    async fn what_waits_is_bounded_and_a_panic_is_told() {
        let release = Arc::new(AtomicBool::new(false));
        let mut outcomes = Vec::new();
        for _ in 0..WorkKind::Removal.threads() {
            let release = Arc::clone(&release);
            outcomes
                .push(tokio::spawn(run(Principal::new(3), WorkKind::Removal, None, move || hang(&release))));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        for _ in 0..WAITING {
            POOL.submit((Principal::new(3), WorkKind::Removal), Box::new(|| {})).unwrap();
        }
        assert_eq!(
            run(Principal::new(3), WorkKind::Removal, None, || ()).await.unwrap_err().code,
            Code::TooMany
        );
        release.store(true, Ordering::SeqCst);
        for outcome in outcomes {
            outcome.await.unwrap().unwrap();
        }
        assert!(run(Principal::new(4), WorkKind::Look, None, || panic!("for the test")).await.is_err());
        assert_eq!(run(Principal::new(4), WorkKind::Look, None, || 5).await.unwrap(), 5);
    }
}
