//! Packages of a session: one installation at a time, written down before it shows, and again in each later sandbox.

use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use super::install_request::InstallRequest;
use super::messages::{OwnSession, SessionMsg};
use super::state::{SessionActorState, SessionArgs};
use crate::actors::calls::Reply;
use crate::actors::executor::messages::{Command, ExecutorMsg};
use crate::panics::spawn_reporting;
use crate::protocol::event::EventBody;
use crate::protocol::packages::{InstallEnd, InstalledPackages, PackageSet};
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::packages::{Installed, WantedPackages};
use crate::store::EventLog;

/// Installations of one session that wait for another one.
const WAITING: usize = 16;
/// Time between two looks whether the caller of an installation still waits for it.
const LOOK_FOR_CALLER: Duration = Duration::from_millis(200);
/// Time between two events about the progress of an installation.
const EVENTS_APART: Duration = Duration::from_millis(500);

/// What a session knows of its packages.
#[derive(Default)]
pub(super) struct SessionPackages {
    /// The packages beside those of the image.
    pub set: Option<PackageSet>,
    /// Whether an installation is under way. The next one waits, because it has to know what this one brings.
    busy: bool,
    waiting: VecDeque<InstallRequest>,
}

impl SessionPackages {
    pub fn of(set: Option<PackageSet>) -> Self {
        Self { set, ..Self::default() }
    }
}

impl SessionActorState {
    /// Ends what an earlier daemon, or an earlier generation, had begun: an installation is over, because nobody waits for
    /// it any more, but a reset that other packages need is done, or code would go on with what has given way.
    pub(super) fn end_installation_of_before(&self, was_installing: bool, reset_is_due: bool) {
        if was_installing {
            let status = "it was interrupted and is not done; install the packages again".to_owned();
            self.log.append(EventBody::PackagesInstalling { status, end: Some(InstallEnd::Interrupted) });
        }
        if reset_is_due {
            let (session, id, log) = (self.myself.clone(), self.args.id, Arc::clone(&self.log));
            tokio::spawn(async move {
                if let Err(problem) = reset_for_packages(&session, &log).await {
                    tracing::warn!(%problem, session = %id, "the reset after an installation was not done");
                }
            });
        }
    }

    /// Begins an installation in the sandbox that is there, or lets it wait for its turn.
    pub(super) fn install(&mut self, request: InstallRequest) {
        if self.packages.busy {
            self.packages.waiting.retain(|waiting| !waiting.reply_to.is_closed());
            if self.packages.waiting.len() >= WAITING {
                let problem =
                    Problem::new(Code::Busy, format!("{WAITING} installations of the session wait already"));
                let _ = request.reply_to.send(Err(problem.hint("wait for one of them to end")));
                return;
            }
            self.packages.waiting.push_back(request);
            return;
        }
        if let Err(problem) = self.can_write() {
            let _ = request.reply_to.send(Err(problem));
            return;
        }
        let Some(receipt) = self.receipt.clone() else {
            let _ = request.reply_to.send(Err(Problem::new(Code::Internal, "a sandbox without a receipt")));
            return;
        };
        let InstallRequest { requirements, replace, sources, reply_to } = request;
        self.packages.busy = true;
        let names: Vec<String> = requirements.iter().map(ToString::to_string).collect();
        self.log.append(EventBody::PackagesInstalling { status: names.join(", "), end: None });
        let wanted = WantedPackages {
            owner: self.args.owner,
            backend: receipt.backend,
            image: receipt.image.clone(),
            existing: self.packages.set.clone(),
            requirements,
            replace,
            sources,
            session: Some(self.args.name.clone()),
            stop: CancellationToken::new(),
        };
        let (launcher, ledger) = (Arc::clone(&self.args.launcher), self.args.ledger.clone());
        let log = Arc::clone(&self.log);
        let caller = Arc::new(Mutex::new(Some(reply_to)));
        let waits = Arc::clone(&caller);
        let installing = async move {
            let progress = progress(log);
            let mut work = std::pin::pin!(launcher.install(&wanted, &ledger, &progress));
            loop {
                tokio::select! {
                    outcome = &mut work => return outcome,
                    () = tokio::time::sleep(LOOK_FOR_CALLER) => {}
                }
                if waits.lock().as_ref().is_some_and(Reply::is_closed) {
                    // The installation ends its sandbox, gives its room back, and is done soon.
                    wanted.stop.cancel();
                }
            }
        };
        let session = self.myself.clone();
        spawn_reporting(installing, move |outcome| {
            let panicked = || Err(Problem::new(Code::Internal, "the installation failed: an internal error"));
            let outcome = Box::new(outcome.unwrap_or_else(panicked));
            if let Some(reply_to) = caller.lock().take() {
                let _ = session.cast(SessionMsg::InstallDone { outcome, reply_to });
            }
        });
    }

    pub(super) fn install_done(
        &mut self,
        myself: &OwnSession,
        outcome: Result<Installed, Problem>,
        reply_to: Reply<InstalledPackages>,
    ) {
        self.packages.busy = false;
        match outcome {
            Ok(installed) => self.installed(myself, installed, reply_to),
            Err(problem) => {
                append_failed(&self.log, &problem);
                let _ = reply_to.send(Err(problem));
            }
        }
        self.packages.waiting.retain(|waiting| !waiting.reply_to.is_closed());
        if let Some(next) = self.packages.waiting.pop_front() {
            self.install(next);
        }
    }

    /// Writes the packages down and lets them appear in the sandbox, if there still is one.
    fn installed(&mut self, myself: &OwnSession, installed: Installed, reply_to: Reply<InstalledPackages>) {
        let Installed { set, used, in_image, replaced, cached } = installed;
        if let Some(set) = &set {
            self.args.packages_use.hold(&set.key, used);
        }
        let set = set.or_else(|| self.packages.set.clone());
        let packages = set.as_ref().map(|set| set.packages.clone()).unwrap_or_default();
        self.packages.set.clone_from(&set);
        let executor = self.executor.clone();
        let (session, log, resets) = (myself.clone(), Arc::clone(&self.log), !replaced.is_empty());
        let answer = InstalledPackages { packages, in_image, cached, replaced };
        let late = self.log.unwritten("the packages were installed, which may be forgotten");
        let Some(set) = set else {
            let status = "the image has all of it".to_owned();
            self.log.append(EventBody::PackagesInstalling { status, end: Some(InstallEnd::InImage) });
            let _ = reply_to.send(Ok(answer));
            return;
        };
        let event = EventBody::PackagesInstalled { set: Box::new(set.clone()), cached, resets };
        // The journal calls back on its own thread, which has no runtime.
        let (written, is_written) = tokio::sync::oneshot::channel();
        self.append_and(event, move |is_written| {
            let _ = written.send(is_written);
        });
        tokio::spawn(async move {
            if !is_written.await.unwrap_or(false) {
                let _ = reply_to.send(Err(late));
                return;
            }
            let shown = async {
                let Some(executor) = executor else { return Ok(()) };
                let show =
                    |reply_to| ExecutorMsg::Command(Command::ShowPackages { set: Box::new(set), reply_to });
                // Without an answer the sandbox is gone, and the next one begins with the packages.
                match executor.call(show, None).await {
                    Ok(ractor::rpc::CallResult::Success(shown)) => shown,
                    _ => Ok(()),
                }
            };
            let outcome: Result<(), Problem> = match shown.await {
                Ok(()) if resets => reset_for_packages(&session, &log).await,
                Ok(()) => Ok(()),
                Err(problem) => {
                    append_failed(&log, &problem);
                    Err(problem)
                }
            };
            let _ = reply_to.send(outcome.map(|()| answer));
        });
    }
}

/// Resets a session in which packages gave way to others. A refusal is written down, so that no later daemon resets what
/// the session has done since. A session that has ended does not answer, and its reset stays due.
async fn reset_for_packages(session: &OwnSession, log: &EventLog) -> Result<(), Problem> {
    let outcome: Result<(), Problem> =
        session.call(|reply_to| SessionMsg::Reset { replay: None, reply_to }).await?;
    outcome.inspect_err(|problem| append_failed(log, problem))
}

/// Writes down that an installation, or what follows it, failed; no reset is due for it any more.
fn append_failed(log: &EventLog, problem: &Problem) {
    let status = format!("failed: {}", problem.message);
    log.append(EventBody::PackagesInstalling { status, end: Some(InstallEnd::Failed) });
}

/// Uses the packages again that a session of an earlier daemon has. Until that is done, nothing that it might use is
/// removed from the cache.
pub(super) fn use_again(args: &SessionArgs, set: Option<PackageSet>) {
    if !args.packages_use.is_unread() {
        return;
    }
    let (launcher, ledger) = (Arc::clone(&args.launcher), args.ledger.clone());
    let (owner, session, used) = (args.owner, args.id, args.packages_use.clone());
    tokio::spawn(async move {
        if let Err(problem) = launcher.use_packages_again(owner, set.as_ref(), &ledger, &used).await {
            tracing::warn!(%problem, %session, "the packages of a session are not seen; its owner's are kept");
        }
    });
}

/// Reports the steps of an installation as events, a few per second.
fn progress(log: Arc<EventLog>) -> impl Fn(String) + Send + Sync {
    let last = parking_lot::Mutex::new(None::<std::time::Instant>);
    move |status| {
        let mut last = last.lock();
        let is_due = last.is_none_or(|at| at.elapsed() >= EVENTS_APART);
        if is_due && log.has_reserve().is_ok() {
            *last = Some(std::time::Instant::now());
            log.append(EventBody::PackagesInstalling { status, end: None });
        }
    }
}
