//! Jobs: scripts that wait for a slot, run once in a sandbox of their own, and leave a verdict.
//!
//! A job is carried by a session that serves it alone and that nobody else is told of. What is known
//! of a job is in the journal before anybody hears of it; here is only what has not ended.

mod carry;
mod check;
mod inputs;
mod script;
mod verdict;

pub use inputs::{Inputs, Reserved};

use ractor::{Actor, ActorProcessingErr, ActorRef, RpcReplyPort, SpawnErr, SupervisionEvent};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::session::{SessionRef, a_sandbox};
use super::supervisor::{SupervisorRef, wanted};
use crate::protocol::clock;
use crate::protocol::ids::{JobId, SessionId};
use crate::protocol::job::{JobEnd, JobReceipt, JobState, JobView, NewJob};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, FairQueue, Ledger, Permit, Place};
use crate::sandbox::launch::Launcher;
use crate::store::{JobRecord, Journal, JournalError};

use carry::Carry;

pub type JobsRef = ActorRef<JobsMsg>;
type Answer<T> = RpcReplyPort<Result<T, Problem>>;

/// Time between two looks at what can be forgotten.
const TIDY: Duration = Duration::from_secs(60);
/// Between two looks whether a user has room again: sessions that are no jobs take of it too.
const PUMP: Duration = Duration::from_secs(1);

/// Quotas bound how many a user has; this is for whoever has none.
const WAITING_PER_USER: usize = 100_000;

pub enum JobsMsg {
    /// Answered as soon as it is in the journal.
    Submit {
        owner: u32,
        job: Box<NewJob>,
        reply_to: Answer<JobView>,
    },
    /// A job that waits or runs; its receiver ends when the verdict is in the journal. None if it has
    /// ended already, or never was.
    Watch {
        owner: u32,
        id: JobId,
        reply_to: RpcReplyPort<Option<watch::Receiver<JobState>>>,
    },
    /// False if there is nothing to cancel.
    Cancel {
        owner: u32,
        id: JobId,
        reply_to: RpcReplyPort<bool>,
    },

    /// It is in the journal, or could not be put there.
    Noted {
        id: JobId,
        noted: Result<(), Problem>,
        reply_to: Answer<JobView>,
    },
    /// Its sandbox is ready. Answered when that is in the journal, and the script may run.
    Started {
        id: JobId,
        started: Box<Started>,
        reply_to: Answer<()>,
    },
    /// Its slot is free. Without an end the next daemon goes on with it.
    Done {
        id: JobId,
        end: Option<JobEnd>,
    },
    /// The verdict is in the journal.
    Settled {
        id: JobId,
    },
    Tidy,
    /// Room may have come from elsewhere.
    Pump,
}

pub struct Started {
    pub session: SessionId,
    pub receipt: Option<JobReceipt>,
}

pub struct JobsArgs {
    pub journal: Journal,
    pub launcher: Arc<Launcher>,
    pub supervisor: SupervisorRef,
    pub inputs: Inputs,
    pub ledger: Ledger,
    pub shutdown: CancellationToken,
}

pub struct JobsState {
    args: JobsArgs,
    myself: JobsRef,
    jobs: BTreeMap<JobId, Entry>,
    queue: FairQueue<JobId>,
    running: usize,
}

struct Entry {
    record: JobRecord,
    state: watch::Sender<JobState>,
    cancel: CancellationToken,
    /// In the queue.
    place: Option<Place>,
    _permit: Permit,
}

pub struct Jobs;

impl Jobs {
    /// Takes up what an earlier daemon left.
    pub async fn spawn(args: JobsArgs) -> Result<JobsRef, SpawnErr> {
        let supervisor = args.supervisor.get_cell();
        Actor::spawn_linked(None, Self, args, supervisor).await.map(|(jobs, _)| jobs)
    }
}

impl Actor for Jobs {
    type Msg = JobsMsg;
    type State = JobsState;
    type Arguments = JobsArgs;

    async fn pre_start(&self, myself: JobsRef, args: JobsArgs) -> Result<JobsState, ActorProcessingErr> {
        let (jobs, queue) = (BTreeMap::new(), FairQueue::new(WAITING_PER_USER));
        let mut state = JobsState { args, myself: myself.clone(), jobs, queue, running: 0 };
        state.restore().await?;
        myself.send_interval(TIDY, || JobsMsg::Tidy);
        myself.send_interval(PUMP, || JobsMsg::Pump);
        let _ = myself.cast(JobsMsg::Tidy);
        Ok(state)
    }

    async fn handle(
        &self,
        _: JobsRef,
        message: JobsMsg,
        state: &mut JobsState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            JobsMsg::Submit { owner, job, reply_to } => state.submit(owner, *job, reply_to),
            JobsMsg::Watch { owner, id, reply_to } => {
                let found = state.of(owner, id).map(|entry| entry.state.subscribe());
                let _ = reply_to.send(found);
            }
            JobsMsg::Cancel { owner, id, reply_to } => drop(reply_to.send(state.cancel(owner, id))),
            JobsMsg::Noted { id, noted, reply_to } => state.noted(id, noted, reply_to),
            JobsMsg::Started { id, started, reply_to } => state.started(id, *started, reply_to),
            JobsMsg::Done { id, end } => {
                state.running = state.running.saturating_sub(1);
                match end {
                    Some(end) => state.conclude(id, end),
                    None => drop(state.jobs.remove(&id)),
                }
                state.pump();
            }
            JobsMsg::Settled { id } => {
                if let Some(input) = state.jobs.remove(&id).and_then(|entry| entry.record.job.input) {
                    state.args.inputs.release(input);
                    state.args.inputs.forget_unused(input);
                }
            }
            JobsMsg::Tidy => state.tidy(),
            JobsMsg::Pump => state.pump(),
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: JobsRef,
        _: SupervisionEvent,
        _: &mut JobsState,
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}

impl JobsState {
    fn of(&self, owner: u32, id: JobId) -> Option<&Entry> {
        self.jobs.get(&id).filter(|entry| entry.record.view.owner == owner)
    }

    fn submit(&mut self, owner: u32, job: NewJob, reply_to: Answer<JobView>) {
        match self.admit(owner, job) {
            Err(problem) => drop(reply_to.send(Err(problem))),
            Ok((record, permit)) => {
                let id = record.view.id;
                self.insert(record.clone(), permit);
                let (journal, jobs) = (self.args.journal.clone(), self.myself.clone());
                tokio::spawn(async move {
                    let noted = journal.put_job(&record).await.map_err(|error| unwritten(&error));
                    let _ = jobs.cast(JobsMsg::Noted { id, noted, reply_to });
                });
            }
        }
    }

    /// Checks everything before anything exists.
    fn admit(&self, owner: u32, job: NewJob) -> Result<(JobRecord, Permit), Problem> {
        if self.args.shutdown.is_cancelled() {
            return Err(Problem::new(Code::ShuttingDown, "the daemon is going down"));
        }
        let settings = &self.args.launcher.settings;
        let missing = || {
            Problem::new(Code::NoSuchInput, "the files of the job are not here")
                .hint("send them first with `PUT /v1/job-inputs`, and name its `id` as `input`")
        };
        let id = JobId::fresh();
        let permit = self.args.ledger.take(owner, &format!("job {id}"), a_job())?;
        let input = job.input.ok_or_else(missing)?;
        let manifest = self.args.inputs.take(owner, input).ok_or_else(missing)?;
        let timeout = match check::check(&job, &manifest, settings) {
            Ok(timeout) => timeout,
            Err(problem) => {
                self.args.inputs.release(input);
                return Err(problem);
            }
        };
        let receipt = JobReceipt {
            input: inputs::view(input, &manifest),
            script_sha256: manifest.files.get(&job.script).cloned().unwrap_or_default(),
            ..JobReceipt::default()
        };
        let view = JobView {
            id,
            name: job.name.clone().unwrap_or_else(|| job.script.clone()),
            owner,
            state: JobState::Queued,
            script: job.script.clone(),
            args: job.args.clone(),
            env: job.env.keys().cloned().collect(),
            timeout_s: timeout.as_secs_f64(),
            created_at: clock::now(),
            started_at: None,
            ended_at: None,
            receipt: Some(receipt),
            end: None,
        };
        Ok((JobRecord { view, job, session: None }, permit))
    }

    fn insert(&mut self, record: JobRecord, permit: Permit) {
        let state = watch::Sender::new(record.view.state);
        let cancel = CancellationToken::new();
        self.jobs.insert(record.view.id, Entry { record, state, cancel, place: None, _permit: permit });
    }

    fn noted(&mut self, id: JobId, noted: Result<(), Problem>, reply_to: Answer<JobView>) {
        let Some(entry) = self.jobs.get(&id) else { return };
        let view = entry.record.view.clone();
        match noted {
            Ok(()) => {
                let _ = reply_to.send(Ok(view));
                self.enqueue(id);
                self.pump();
            }
            Err(problem) => {
                let _ = self.myself.cast(JobsMsg::Settled { id });
                let _ = reply_to.send(Err(problem));
            }
        }
    }

    fn enqueue(&mut self, id: JobId) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        entry.place = self.queue.push(entry.record.view.owner, id).ok();
        if entry.place.is_none() {
            let message = format!("{WAITING_PER_USER} jobs of yours wait already");
            self.conclude(id, verdict::of_problem(&Problem::new(Code::TooMany, message)));
        }
    }

    /// Starts what waits, as far as there are slots and its users have room for a sandbox. Who has none
    /// waits without a slot, out of the way of others.
    fn pump(&mut self) {
        while self.running < self.args.launcher.settings.jobs.slots && !self.args.shutdown.is_cancelled() {
            let mut room = None;
            let Self { args, jobs, queue, .. } = self;
            let popped = queue.pop_where(|owner, id| {
                let Some(entry) = jobs.get(id) else { return true };
                let sandbox = &args.launcher.settings.sandbox;
                let amounts = a_sandbox(&wanted(sandbox, &carry::request(&entry.record.job), true), sandbox);
                room = args.ledger.take(owner, &format!("job {id}"), amounts.clone()).ok();
                room.is_some() || !args.ledger.could_grant(owner, &amounts)
            });
            let Some((_, id)) = popped else { return };
            self.carry(id, None, room);
        }
    }

    fn carry(&mut self, id: JobId, resume: Option<SessionRef>, room: Option<Permit>) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        entry.record.view.state = JobState::Running;
        self.running += 1;
        let input = entry.record.job.input.map(|input| self.args.inputs.path(input)).unwrap_or_default();
        let carry = Carry {
            jobs: self.myself.clone(),
            supervisor: self.args.supervisor.clone(),
            launcher: Arc::clone(&self.args.launcher),
            record: entry.record.clone(),
            input,
            artifacts: artifacts_of(&self.args.launcher, id),
            cancel: entry.cancel.clone(),
            shutdown: self.args.shutdown.clone(),
            resume,
        };
        tokio::spawn(carry.go(room));
    }

    fn started(&mut self, id: JobId, started: Started, reply_to: Answer<()>) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        let view = &mut entry.record.view;
        view.started_at.get_or_insert_with(clock::now);
        view.receipt = started.receipt;
        entry.record.session = Some(started.session);
        let (record, state) = (entry.record.clone(), entry.state.clone());
        let journal = self.args.journal.clone();
        tokio::spawn(async move {
            let noted = journal.put_job(&record).await.map_err(|error| unwritten(&error));
            state.send_replace(JobState::Running);
            let _ = reply_to.send(noted);
        });
    }

    fn cancel(&mut self, owner: u32, id: JobId) -> bool {
        let Some(entry) = self.of(owner, id) else { return false };
        // Also for one that is on its way into the journal.
        entry.cancel.cancel();
        if let Some(place) = entry.place
            && self.queue.remove(place).is_some()
        {
            self.conclude(id, verdict::cancelled(" before it ran"));
        }
        true
    }

    /// Nobody hears of a verdict that a death of the daemon could undo.
    fn conclude(&mut self, id: JobId, end: JobEnd) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        entry.record.view.state = JobState::Ended;
        entry.record.view.ended_at = Some(clock::now());
        entry.record.view.end = Some(end);
        // Values may be secrets, and are not needed any more.
        entry.record.job.env.clear();
        let (record, journal, jobs) = (entry.record.clone(), self.args.journal.clone(), self.myself.clone());
        tokio::spawn(async move {
            if let Err(error) = journal.put_job(&record).await {
                tracing::error!(%error, job = %id, "a verdict is not in the journal");
            }
            let _ = jobs.cast(JobsMsg::Settled { id });
        });
    }

    /// Jobs of before: those that waited wait again, those that ran go on, or are told to be lost.
    async fn restore(&mut self) -> Result<(), JournalError> {
        let open = self.args.journal.open_jobs()?;
        let found = self
            .args
            .supervisor
            .call(|reply_to| super::supervisor::SupervisorMsg::OfJobs { reply_to }, None)
            .await;
        let mut sessions: BTreeMap<_, _> = match found {
            Ok(ractor::rpc::CallResult::Success(sessions)) => sessions.into_iter().collect(),
            _ => BTreeMap::new(),
        };
        for record in open {
            let (id, owner) = (record.view.id, record.view.owner);
            let bytes = record.view.receipt.as_ref().map_or(0, |receipt| receipt.input.bytes);
            if let Some(input) = record.job.input {
                self.args.inputs.take_again(owner, input, bytes);
            }
            let (state, session) = (record.view.state, record.session);
            let permit = self.args.ledger.keep(owner, &format!("job {id}"), a_job());
            self.insert(record, permit);
            match (state, sessions.contains_key(&id)) {
                (JobState::Running, true) => self.carry(id, sessions.remove(&id), None),
                (JobState::Running, false) => {
                    let log = session.and_then(|session| self.args.journal.log(session).ok());
                    let result = log.and_then(|log| carry::result_in(&log));
                    self.conclude(id, result.map_or_else(verdict::lost, |r| verdict::of_result(&r)));
                }
                // Its script has not begun; the sandbox that was made for it goes with the others.
                (JobState::Queued | JobState::Ended, _) => self.enqueue(id),
            }
        }
        for id in sessions.into_keys() {
            carry::remove(&self.args.supervisor, id).await;
        }
        self.pump();
        Ok(())
    }

    fn tidy(&self) {
        let (journal, launcher) = (self.args.journal.clone(), Arc::clone(&self.args.launcher));
        let inputs = self.args.inputs.clone();
        tokio::spawn(async move {
            if let Err(error) = journal.forget_jobs(SystemTime::now(), launcher.settings.jobs.keep).await {
                tracing::warn!(%error, "old jobs cannot be forgotten");
            }
            let swept = tokio::task::spawn_blocking(move || {
                inputs.sweep();
                sweep_artifacts(&launcher, &journal);
            });
            let _ = swept.await;
        });
    }
}

/// Where the artifacts of a job are.
#[must_use]
pub fn artifacts_of(launcher: &Launcher, id: JobId) -> PathBuf {
    launcher.paths.jobs_dir().join(format!("{id}{ARTIFACTS}"))
}

fn a_job() -> Amounts {
    Amounts::of([(Kind::Jobs, 1)])
}

const ARTIFACTS: &str = ".artifacts";

/// Those of jobs that are forgotten.
fn sweep_artifacts(launcher: &Launcher, journal: &Journal) {
    for entry in std::fs::read_dir(launcher.paths.jobs_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(id) = name.strip_suffix(ARTIFACTS).and_then(|id| uuid::Uuid::parse_str(id).ok()) else {
            continue;
        };
        if journal.has_job(JobId(id)).is_ok_and(|known| !known) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn unwritten(error: &JournalError) -> Problem {
    Problem::new(Code::Storage, error.to_string()).hint("free some space where the daemon's home is")
}
