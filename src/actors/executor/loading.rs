//! Loads the variables of a snapshot into a fresh worker, before the sandbox is ready or the reset done to which they belong.

use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use super::kernel::request_number;
use super::messages::{ExecutorMsg, ExecutorRef, WakePlan};
use super::pending::Request;
use super::requests::reset_meanwhile;
use super::snapshots::TRANSFER_BYTES;
use super::state::ExecutorState;
use super::transfers;
use crate::actors::calls::Reply;
use crate::actors::session::messages::{SessionMsg, WakeOutcome};
use crate::memory::MemoryPurpose;
use crate::panics::spawn_reporting;
use crate::protocol::frames::{HostFrame, RefusedCode};
use crate::protocol::preload::Preloaded;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Receipt;
use crate::protocol::snapshot::RestoreReport;
use crate::security_controls;
use crate::session::restore::{Wake, Waking};
use crate::session::rules::SandboxRules;

/// The longest time that loading takes.
const WAKE_LIMIT: Duration = Duration::from_secs(5 * 60);

/// A snapshot that is being loaded into a fresh worker.
pub(super) struct Loading {
    request: u64,
    then: AfterLoading,
    wake: Box<Wake>,
    began: Instant,
    /// Why it failed, as far as the daemon knows.
    problem: Option<Problem>,
    /// Whether the daemon has sent what it can.
    is_sent: bool,
    /// What the kernel says of a failure whose reason the daemon may know better, until it has said so.
    failure: Option<RestoreReport>,
    /// The variables that may be loaded in part are being dropped.
    is_given_up: bool,
    extent: Extent,
    task: Option<AbortOnDropHandle<()>>,
}

/// How much of a snapshot is loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Extent {
    /// All, or nothing.
    Whole,
    /// All failed, for the variables or with the process; what can be loaded of them follows when the worker is fresh
    /// again.
    PartIsNext,
    /// What can be loaded.
    Part,
}

/// What follows when a snapshot is loaded, or could not be.
enum AfterLoading {
    /// The sandbox is ready.
    Ready { receipt: Box<Receipt>, preloaded: Option<Preloaded> },
    /// The reset is done, to which the snapshot belongs.
    Reset(Reply<()>),
}

impl ExecutorState {
    /// The kernel has refused to load. True if the request was that one.
    pub(super) fn refused_loading(
        &mut self,
        myself: &ExecutorRef,
        number: u64,
        code: RefusedCode,
        message: &str,
    ) -> bool {
        if self.loading.as_ref().is_none_or(|loading| loading.request != number) {
            return false;
        }
        // A variable may end the process that loads it. The load in part finds out which one.
        if code == RefusedCode::NoProcess {
            self.try_part_next();
        }
        let code = match code {
            RefusedCode::Busy | RefusedCode::NoWorker => Code::Busy,
            RefusedCode::NoProcess | RefusedCode::NoDescriptors => Code::SandboxFull,
            RefusedCode::NotListed
            | RefusedCode::NoShell
            | RefusedCode::OutOfReach
            | RefusedCode::Malformed => Code::SnapshotFailed,
        };
        self.give_up_loading(myself, Problem::new(code, message));
        true
    }

    /// A load in part follows one that has failed as a whole.
    fn try_part_next(&mut self) {
        // Cells that run again need all of what they begin with.
        if let Some(loading) = &mut self.loading
            && loading.extent == Extent::Whole
            && !loading.is_given_up
            && matches!(loading.then, AfterLoading::Ready { .. })
        {
            loading.extent = Extent::PartIsNext;
        }
    }

    /// Gives up what takes too long.
    pub(super) fn look_at_loading(&mut self, myself: &ExecutorRef) {
        let is_late = |loading: &&Loading| !loading.is_given_up && loading.began.elapsed() >= WAKE_LIMIT;
        let Some(loading) = self.loading.as_ref().filter(is_late) else { return };
        // A busy machine is slow with every variable. Only what takes too long again is likely to be held up by one of them.
        if self.args.too_slow.as_ref() == Some(&loading.wake.snapshot.id) {
            self.try_part_next();
        }
        let what = format!("it was not loaded within {} s", WAKE_LIMIT.as_secs());
        self.give_up_loading(myself, Problem::new(Code::TooSlow, what));
    }

    /// The sandbox is started: it is ready, or loads the variables of a snapshot first. Cells that run again come after that.
    pub(super) fn started(
        &mut self,
        myself: &ExecutorRef,
        receipt: Box<Receipt>,
        preloaded: Option<Preloaded>,
    ) {
        match self.wake.take() {
            None => self.ready(receipt, preloaded, None),
            Some(Waking::Rebuilds(cells)) => {
                self.ready(receipt, preloaded, Some(WakeOutcome::Rebuilds(cells)));
            }
            Some(Waking::Loads(wake)) => {
                self.begin_loading(myself, wake, AfterLoading::Ready { receipt, preloaded });
            }
        }
    }

    /// The worker is fresh after a reset, and gets the variables with which the session began.
    pub(super) fn load_base(&mut self, myself: &ExecutorRef, wake: Wake, reply_to: Reply<()>) {
        self.begin_loading(myself, Box::new(wake), AfterLoading::Reset(reply_to));
    }

    fn begin_loading(&mut self, myself: &ExecutorRef, wake: Box<Wake>, then: AfterLoading) {
        let request = request_number();
        let began = Instant::now();
        let loading = Loading {
            request,
            then,
            wake,
            began,
            problem: None,
            is_sent: false,
            failure: None,
            is_given_up: false,
            extent: Extent::Whole,
            task: None,
        };
        self.loading = Some(loading);
        self.load_or_give_up(myself, request);
    }

    /// The worker is fresh, so what cannot be loaded at all needs no reset.
    fn load_or_give_up(&mut self, myself: &ExecutorRef, request: u64) {
        match self.load(myself, request) {
            Ok(()) => {}
            Err(problem) if is_lasting(&problem) => self.not_loaded(problem.message),
            Err(problem) => self.give_up_loading(myself, problem),
        }
    }

    fn load(&mut self, myself: &ExecutorRef, request: u64) -> Result<(), Problem> {
        let Some(loading) = &self.loading else { return Ok(()) };
        let Wake { snapshot, state_of, keep: given, .. } = (*loading.wake).clone();
        let partial = loading.extent == Extent::Part;
        let has = self.python.clone();
        if !is_same_python(&snapshot.python, &has) {
            let what = format!("it was made by Python {}, and the sandbox has {has}", snapshot.python);
            return Err(Problem::new(Code::SnapshotMismatch, what));
        }
        let end = self.data_end()?;
        let (token, path) = (end.token.clone(), end.listener.path_inside().to_owned());
        // What the session gives anew is newer than what was saved.
        let tools = self.args.tools.specs().into_iter().map(|tool| tool.name);
        let keep = tools.chain(given).collect();
        let executor = myself.clone();
        // Variables that are saved are not lost for want of a few records' memory.
        let memory = self.args.memory.charge_anyway(MemoryPurpose::Snapshots, TRANSFER_BYTES);
        let sending = async move {
            let _memory = memory;
            transfers::send(end, snapshot).await
        };
        let task: JoinHandle<()> = spawn_reporting(sending, move |outcome| {
            let outcome = outcome.unwrap_or_else(|| Err(transfers::not_loaded("an internal error")));
            let _ = executor.cast(ExecutorMsg::SnapshotSent { request, outcome });
        });
        if let Some(loading) = &mut self.loading {
            loading.task = Some(AbortOnDropHandle::new(task));
        }
        self.send(myself, &HostFrame::Restore { request, token, path, state_of, keep, partial });
        Ok(())
    }

    /// The daemon has sent what it can; the kernel says what became of it.
    pub(super) fn snapshot_sent(&mut self, myself: &ExecutorRef, request: u64, outcome: Result<(), Problem>) {
        let Some(loading) = self.loading.as_mut().filter(|loading| loading.request == request) else {
            return;
        };
        loading.is_sent = true;
        if !loading.is_given_up {
            loading.problem = outcome.err();
        }
        if let Some(report) = loading.failure.take() {
            self.restored(myself, request, report);
        }
    }

    pub(super) fn restored(&mut self, myself: &ExecutorRef, number: u64, mut report: RestoreReport) {
        let is_it = |loading: &Loading| loading.request == number && !loading.is_given_up;
        if !self.loading.as_ref().is_some_and(is_it) {
            return;
        }
        report.bound();
        if let Some(loading) =
            self.loading.as_mut().filter(|loading| !loading.is_sent && report.error.is_some())
        {
            // A stream that breaks off is the daemon's doing, and the reason for that is on its way.
            loading.failure = Some(report);
            return;
        }
        let own = self.loading.as_mut().and_then(|loading| loading.problem.take());
        if own.is_none() && report.error.is_some() {
            self.try_part_next();
        }
        // Whatever the kernel says of the variables, code of the snapshot may have run that goes on beside them.
        let of_kernel = || report.error.clone().map(|error| Problem::new(Code::SnapshotFailed, error));
        if let Some(problem) = own.or_else(of_kernel) {
            self.give_up_loading(myself, problem);
            return;
        }
        let Some(Loading { then, wake, extent, .. }) = self.loading.take() else { return };
        match then {
            AfterLoading::Ready { receipt, preloaded } => {
                let is_part = extent == Extent::Part;
                self.ready(receipt, preloaded, Some(WakeOutcome::Woken { wake, report, is_part }));
            }
            AfterLoading::Reset(reply_to) => drop(reply_to.send(Ok(()))),
        }
    }

    /// Drops what may be loaded in part, and ends the code that may have run for it. Before a part is loaded, and where nothing
    /// can load the snapshot, the worker is made anew. For any other failure the new sandbox ends, so that nothing runs
    /// without the variables that are there, and the next one loads them.
    pub(super) fn give_up_loading(&mut self, myself: &ExecutorRef, problem: Problem) {
        let Some(loading) = self.loading.as_mut().filter(|loading| !loading.is_given_up) else { return };
        loading.is_given_up = true;
        loading.task = None;
        let why = problem.message.clone();
        let is_over = is_lasting(&problem)
            || loading.extent == Extent::PartIsNext
            || matches!(loading.then, AfterLoading::Reset(_));
        loading.problem = Some(problem);
        if !is_over {
            self.give_up(myself, why);
            return;
        }
        let frame = |request| HostFrame::Reset { request };
        self.request(myself, Request::Unload, frame, Duration::ZERO);
    }

    /// Another reset ends the one that the snapshot belongs to.
    pub(super) fn drop_loading(&mut self) {
        let is_of_reset = |loading: &mut Loading| matches!(loading.then, AfterLoading::Reset(_));
        if let Some(Loading { then: AfterLoading::Reset(reply_to), .. }) = self.loading.take_if(is_of_reset) {
            let _ = reply_to.send(Err(reset_meanwhile()));
        }
    }

    /// The worker is fresh again, after a snapshot that could not be loaded. One thing that fails, or that ends the process,
    /// is not to cost all: what can be loaded is tried once.
    pub(super) fn unloaded(&mut self, myself: &ExecutorRef) {
        if let Some(loading) = self.loading.as_mut().filter(|loading| loading.extent == Extent::PartIsNext) {
            let request = request_number();
            loading.request = request;
            loading.extent = Extent::Part;
            (loading.is_given_up, loading.is_sent) = (false, false);
            (loading.problem, loading.failure) = (None, None);
            loading.began = Instant::now();
            self.load_or_give_up(myself, request);
            return;
        }
        let why = self.loading.as_mut().and_then(|loading| loading.problem.take());
        self.not_loaded(why.map_or_else(String::new, |problem| problem.message));
    }

    /// The worker is fresh: either nothing was sent to it, or it was made anew after that.
    fn not_loaded(&mut self, reason: String) {
        let Some(Loading { then, wake, .. }) = self.loading.take() else { return };
        let snapshot = wake.snapshot.id;
        let (receipt, preloaded) = match then {
            AfterLoading::Ready { receipt, preloaded } => (receipt, preloaded),
            AfterLoading::Reset(reply_to) => {
                let what =
                    format!("the variables with which the session began could not be loaded: {reason}");
                let _ = reply_to.send(Err(Problem::new(Code::SnapshotFailed, what)));
                return;
            }
        };
        // Nothing of the earlier code is here, so its rules are not, either, but for those that the session began with.
        self.bound = SandboxRules::begin(&self.args.client_rules, self.args.inherited.as_deref());
        self.ready(receipt, preloaded, Some(WakeOutcome::Failed { snapshot, reason }));
    }

    /// What the session is told if the sandbox was loading a snapshot when it ended.
    pub(super) fn died_loading(&mut self, reason: &str) -> Option<SessionMsg> {
        let Loading { then: AfterLoading::Ready { .. }, wake, problem, extent, .. } = self.loading.take()?
        else {
            return None;
        };
        let snapshot = wake.snapshot.id;
        let ended = || {
            let what = format!("the sandbox ended while it loaded its snapshot: {reason}");
            Problem::new(Code::SandboxFailed, what)
        };
        // Before a part was tried, it is not known that nothing can be loaded.
        let problem = problem.filter(|_| extent != Extent::PartIsNext).unwrap_or_else(ended);
        Some(if is_lasting(&problem) {
            SessionMsg::WakeDied { snapshot, reason: problem.message }
        } else {
            SessionMsg::WakeInterrupted { snapshot, problem }
        })
    }

    fn ready(&self, receipt: Box<Receipt>, preloaded: Option<Preloaded>, woken: Option<WakeOutcome>) {
        let counters = self.counters();
        self.tell(SessionMsg::SandboxReady { receipt, preloaded, counters, woken: woken.map(Box::new) });
    }

    /// The new sandbox gets the variables of before, and is bound by the rules of the code that made them.
    pub(super) fn wakes_with(&mut self, plan: WakePlan) {
        if let Some((waking, rules)) = plan {
            if security_controls::holds("rules_go_on_after_waking") {
                self.bound = rules;
            }
            self.wake = Some(waking);
        }
    }
}

/// Whether no sandbox of this kind will load the snapshot: it is damaged, it is of another Python, or its kernel has tried. All
/// other failures may be over soon.
const fn is_lasting(problem: &Problem) -> bool {
    matches!(
        problem.code,
        Code::SnapshotDamaged | Code::NoSuchSnapshot | Code::SnapshotMismatch | Code::SnapshotFailed
    )
}

/// Whether one Python can load what the other has packed: the code of functions is that of one minor version.
fn is_same_python(packed: &str, has: &str) -> bool {
    let minor = |version: &str| version.split('.').take(2).map(str::to_owned).collect::<Vec<_>>();
    minor(packed) == minor(has) || !security_controls::holds("snapshot_python_is_compared")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_is_given_up_for_what_stays_and_for_nothing_that_passes() {
        let lasts = |code| is_lasting(&Problem::new(code, ""));
        assert!([Code::SnapshotDamaged, Code::NoSuchSnapshot, Code::SnapshotMismatch].into_iter().all(lasts));
        let passes = [Code::Storage, Code::SandboxFailed, Code::SandboxFull, Code::Busy, Code::TooSlow];
        assert!(!passes.into_iter().any(lasts));
        assert!(!is_lasting(&transfers::not_loaded("an internal error")));
    }

    #[test]
    fn only_the_same_minor_version_loads_a_snapshot() {
        assert!(is_same_python("3.13.5", "3.13.1"));
        assert!(!is_same_python("3.13.5", "3.12.5"));
        assert!(!is_same_python("3.13.5", ""));
    }
}
