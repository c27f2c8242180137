//! Jobs: scripts that wait for a slot, run once in a sandbox of their own, and leave a verdict.
//!
//! A job runs in a session of its own that no client sees. A job's state is in the journal before any client
//! sees it; this actor holds only jobs that have not ended.

mod check;
mod inputs;
mod messages;
mod restore;
mod run;
mod script;
mod verdict;

pub use inputs::{Inputs, Reserved};
pub use messages::{JobsArgs, JobsMsg, JobsRef, Started, Watched};
pub use restore::{artifacts, artifacts_of};

use ractor::{Actor, ActorProcessingErr, RpcReplyPort, SpawnErr, SupervisionEvent};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::actors::calls::Reply;
use crate::actors::holding::{Hold, Holders};
use crate::actors::session::messages::SessionRef;
use crate::actors::session::sandbox::a_sandbox;
use crate::actors::supervisor::wanted;
use crate::controls;
use crate::fair_queue::{FairQueue, Place};
use crate::memory::{Charge, MemoryPurpose};
use crate::panics::spawn_reporting;
use crate::protocol::clock;
use crate::protocol::ids::JobId;
use crate::protocol::job::{JobEnd, JobReceipt, JobState, JobView, NewJob, Verdict};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Permit};
use crate::store::{JobRecord, ROW_BYTES};

use inputs::InputRef;
use run::JobRun;

/// The interval at which old records and unused files are removed.
const TIDY: Duration = Duration::from_secs(60);
/// The interval at which a user's room is checked again: sessions that serve no job take room too.
const PUMP: Duration = Duration::from_secs(1);

/// Quotas bound how many jobs a user has; this bound is for users without a quota.
const WAITING_PER_USER: usize = 100_000;

pub struct JobsState {
    args: JobsArgs,
    /// Cancelled when this actor ends, for all tasks that work for it.
    life: CancellationToken,
    myself: JobsRef,
    jobs: BTreeMap<JobId, Entry>,
    queue: FairQueue<u32, JobId>,
    running: usize,
}

struct Entry {
    record: JobRecord,
    state: watch::Sender<JobState>,
    cancel: CancellationToken,
    /// The place in the queue, while the job waits.
    place: Option<Place>,
    holders: Holders,
    /// The clients that cancelled the job. They are answered when its end is in the journal: the next daemon would
    /// carry on with a job whose end it does not know.
    cancelled_by: Vec<RpcReplyPort<bool>>,
    /// Whether the job was cancelled because no client held it.
    forsaken: bool,
    permit: Permit,
    /// The memory charged for the job's description, as long as this actor holds the job.
    _memory: Charge,
    _input: Option<InputRef>,
}

impl Entry {
    /// Leaves the charge of an ended job's record in place, because the record stays on the disk.
    fn leave_record(self) {
        if self.record.view.state != JobState::Ended || !controls::holds("job_record_charge") {
            return;
        }
        let bytes = serde_json::to_string(&self.record).map_or(0, |text| text.len() as u64);
        let _ = self.permit.gauge().measure(Kind::Journal, bytes.saturating_add(ROW_BYTES));
        self.permit.leave(ENDED, Kind::Journal);
    }
}

/// The name under which the record of an ended job counts against `quota.journal`, until the look over the journal
/// (`daemon::journals`) has found the record and counts it itself.
const ENDED: &str = "jobs that have ended";
/// The bytes reserved for a job's end: its verdict, its receipt, the names of its artifacts.
const VERDICT_BYTES: u64 = 16 * 1024;

pub struct Jobs;

impl Jobs {
    /// Starts the actor, which resumes the jobs that an earlier daemon, or an earlier run of the actor, left.
    pub async fn spawn(
        args: JobsArgs,
        life: CancellationToken,
    ) -> Result<(JobsRef, JoinHandle<()>), SpawnErr> {
        Actor::spawn(None, Self, (args, life)).await
    }
}

impl Actor for Jobs {
    type Msg = JobsMsg;
    type State = JobsState;
    type Arguments = (JobsArgs, CancellationToken);

    async fn pre_start(
        &self,
        myself: JobsRef,
        (args, life): (JobsArgs, CancellationToken),
    ) -> Result<JobsState, ActorProcessingErr> {
        let (jobs, queue) = (BTreeMap::new(), FairQueue::new(WAITING_PER_USER));
        let mut state = JobsState { args, life, myself: myself.clone(), jobs, queue, running: 0 };
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
        crate::panics::panic_if_requested("jobs");
        match message {
            JobsMsg::Submit { owner, job, reply_to } => state.submit(owner, *job, reply_to),
            JobsMsg::Watch { id, reply_to } => drop(reply_to.send(state.watch(id))),
            JobsMsg::Cancel { id, reply_to } => state.cancel(id, Some(reply_to)),
            JobsMsg::Released(id) => {
                if let Some(entry) = state.jobs.get_mut(&id) {
                    entry.holders.release();
                }
            }
            JobsMsg::Noted { id, noted, reply_to } => state.noted(id, noted, reply_to),
            JobsMsg::Started { id, started, reply_to } => state.started(id, *started, reply_to),
            JobsMsg::Judged { id, end, reply_to } => state.judged(id, end, reply_to),
            JobsMsg::Done { id, end } => {
                state.running = state.running.saturating_sub(1);
                match end {
                    Some(end) => state.conclude(id, end),
                    None => drop(state.jobs.remove(&id)),
                }
                state.pump();
            }
            JobsMsg::Waits { id } => {
                state.enqueue(id);
                state.pump();
            }
            JobsMsg::Settled { id } => {
                if let Some(mut entry) = state.jobs.remove(&id) {
                    entry.cancelled_by.drain(..).for_each(|reply_to| drop(reply_to.send(true)));
                    let input = entry.record.job.input;
                    entry.leave_record();
                    if let Some(input) = input {
                        state.args.inputs.forget_unused(input);
                    }
                }
            }
            JobsMsg::Tidy => state.tidy(),
            JobsMsg::Pump => {
                state.cancel_forsaken();
                state.pump();
            }
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
    fn watch(&mut self, id: JobId) -> Option<Watched> {
        let entry = self.jobs.get_mut(&id)?;
        entry.holders.add();
        let (state, jobs) = (entry.state.subscribe(), self.myself.clone());
        Some(Watched { state, hold: Hold::new(move || drop(jobs.cast(JobsMsg::Released(id)))) })
    }

    fn submit(&mut self, owner: u32, job: NewJob, reply_to: Reply<JobView>) {
        match self.admit(owner, job) {
            Err(problem) => drop(reply_to.send(Err(problem))),
            Ok((record, permit, input)) => {
                let id = record.view.id;
                self.insert(record.clone(), permit, Some(input));
                let (journal, jobs) = (self.args.journal.clone(), self.myself.clone());
                tokio::spawn(async move {
                    let noted = journal.put_job(&record).await.map_err(Problem::from);
                    let _ = jobs.cast(JobsMsg::Noted { id, noted, reply_to });
                });
            }
        }
    }

    /// Checks everything before anything is created.
    fn admit(&self, owner: u32, job: NewJob) -> Result<(JobRecord, (Permit, Charge), InputRef), Problem> {
        if self.args.shutdown.is_cancelled() {
            return Err(Problem::new(Code::ShuttingDown, "the daemon is going down"));
        }
        let settings = &self.args.launcher.settings;
        let missing = || {
            Problem::new(Code::NoSuchInput, "the files of the job are not here")
                .hint("send them first with `PUT /v1/job-inputs`, and name its `id` as `input`")
        };
        let id = JobId::fresh();
        let permit = self.args.ledger.take(owner, &format!("job {id}"), a_job(&job))?;
        let memory =
            self.args.ledger.memory(owner).try_charge(MemoryPurpose::Jobs, description_bytes(&job))?;
        let input = job.input.ok_or_else(missing)?;
        let (manifest, used) = self.args.inputs.take(owner, input).ok_or_else(missing)?;
        let timeout = check::check(&job, &manifest, settings)?;
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
            admin_acts: Vec::new(),
        };
        Ok((JobRecord { view, job, session: None, judged: None }, (permit, memory), used))
    }

    fn insert(&mut self, record: JobRecord, (permit, memory): (Permit, Charge), input: Option<InputRef>) {
        let entry = Entry {
            state: watch::Sender::new(record.view.state),
            cancel: CancellationToken::new(),
            place: None,
            holders: Holders::default(),
            cancelled_by: Vec::new(),
            forsaken: false,
            permit,
            _memory: memory,
            _input: input,
            record,
        };
        self.jobs.insert(entry.record.view.id, entry);
    }

    fn noted(&mut self, id: JobId, noted: Result<(), Problem>, reply_to: Reply<JobView>) {
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
        if entry.cancel.is_cancelled() {
            return self.conclude(id, verdict::cancelled(" before it ran"));
        }
        entry.place = self.queue.push(entry.record.view.owner, id).ok();
        if entry.place.is_none() {
            let message = format!("{WAITING_PER_USER} jobs of yours wait already");
            self.conclude(id, verdict::of_problem(&Problem::new(Code::TooMany, message)));
        }
    }

    /// Starts waiting jobs while there are free slots and their users have room for a sandbox. A job whose
    /// user has no room waits without a slot, so that it does not block others. A user with no running job
    /// may get a slot beyond the configured ones, up to as many again, because another user's jobs may occupy
    /// all of them for hours.
    fn pump(&mut self) {
        let slots = self.args.launcher.settings.jobs.slots;
        let most = if controls::holds("a_slot_for_each_user") { slots.saturating_mul(2) } else { slots };
        while self.running < most && !self.args.shutdown.is_cancelled() {
            let mut room = None;
            let are_taken = self.running >= slots;
            let Self { args, jobs, queue, .. } = self;
            let runs = |owner: u32| {
                let views = jobs.values().map(|entry| &entry.record.view);
                views.filter(|view| view.owner == owner).any(|view| view.state == JobState::Running)
            };
            let popped = queue.pop_where(|owner, id| {
                let Some(entry) = jobs.get(id) else { return true };
                if are_taken && runs(owner) {
                    return false;
                }
                let sandbox = &args.launcher.settings.sandbox;
                let amounts = a_sandbox(&wanted(sandbox, &run::request(&entry.record.job), true), sandbox);
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
        let carry = JobRun {
            jobs: self.myself.clone(),
            supervisor: self.args.supervisor.clone(),
            launcher: Arc::clone(&self.args.launcher),
            ledger: self.args.ledger.clone(),
            record: entry.record.clone(),
            input,
            artifacts: artifacts_of(&self.args.launcher, id),
            cancel: entry.cancel.clone(),
            life: self.life.clone(),
            shutdown: self.args.shutdown.clone(),
            resume,
        };
        let (jobs, supervisor) = (self.myself.clone(), self.args.supervisor.clone());
        spawn_reporting(carry.go(room), move |done| {
            if done.is_none() {
                tokio::spawn(run::given_up(jobs, supervisor, id));
            }
        });
    }

    fn started(&mut self, id: JobId, started: Started, reply_to: Reply<()>) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        let view = &mut entry.record.view;
        view.started_at.get_or_insert_with(clock::now);
        view.receipt = started.receipt;
        entry.record.session = Some(started.session);
        let (record, state) = (entry.record.clone(), entry.state.clone());
        let journal = self.args.journal.clone();
        tokio::spawn(async move {
            let noted = journal.put_job(&record).await.map_err(Problem::from);
            state.send_replace(JobState::Running);
            let _ = reply_to.send(noted);
        });
    }

    /// Records the verdict, which clients do not see yet because the sandbox still exists.
    fn judged(&mut self, id: JobId, mut end: Box<JobEnd>, reply_to: Reply<()>) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        // A cancelled job has no result that would contain its duration.
        if let (Verdict::Cancelled, Some(at)) = (end.verdict, &entry.record.view.started_at) {
            end.duration_ms = clock::since(at).as_secs_f64() * 1000.0;
        }
        entry.record.judged = Some(end);
        let (record, journal) = (entry.record.clone(), self.args.journal.clone());
        tokio::spawn(async move {
            let _ = reply_to.send(journal.put_job(&record).await.map_err(Problem::from));
        });
    }

    fn cancel(&mut self, id: JobId, reply_to: Option<RpcReplyPort<bool>>) {
        let Some(entry) = self.jobs.get_mut(&id) else {
            if let Some(reply_to) = reply_to {
                let _ = reply_to.send(false);
            }
            return;
        };
        entry.cancelled_by.extend(reply_to);
        // The token also cancels a job that is still being written to the journal.
        entry.cancel.cancel();
        if let Some(place) = entry.place
            && self.queue.remove(place).is_some()
        {
            self.conclude(id, verdict::cancelled(" before it ran"));
        }
    }

    /// Cancels ephemeral jobs that no client holds any more.
    fn cancel_forsaken(&mut self) {
        let mut found = Vec::new();
        for (id, entry) in &mut self.jobs {
            if entry.record.job.ephemeral && !entry.cancel.is_cancelled() && entry.holders.are_gone() {
                entry.forsaken = true;
                found.push(*id);
            }
        }
        for id in found {
            tracing::info!(job = %id, "nobody waits for it any more");
            self.cancel(id, None);
        }
    }

    /// Puts the verdict into the journal before any client sees it: until then, a crash of the daemon could
    /// undo it.
    fn conclude(&mut self, id: JobId, mut end: JobEnd) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        if let Some(judged) = entry.record.judged.take() {
            end = *judged;
        }
        if entry.forsaken && end.verdict == Verdict::Cancelled {
            end.reason.push_str(", because nobody waited for it any more");
        }
        entry.record.view.state = JobState::Ended;
        entry.record.view.ended_at = Some(clock::now());
        entry.record.view.end = Some(end);
        // The values of the environment may be secrets, and are no longer needed.
        entry.record.job.env.clear();
        let (record, journal, jobs) = (entry.record.clone(), self.args.journal.clone(), self.myself.clone());
        tokio::spawn(async move {
            if let Err(error) = journal.put_job(&record).await {
                tracing::error!(%error, job = %id, "a verdict is not in the journal");
            }
            let _ = jobs.cast(JobsMsg::Settled { id });
        });
    }
}

/// The quota of one job: the job itself, and its record including the later verdict.
fn a_job(job: &NewJob) -> Amounts {
    let record = description_bytes(job).saturating_add(VERDICT_BYTES);
    Amounts::of([(Kind::Jobs, u64::from(controls::holds("job_quota"))), (Kind::Journal, record)])
}

/// The bytes of a job's description, which is kept twice: as it was sent, and as it is shown.
fn description_bytes(job: &NewJob) -> u64 {
    let said = serde_json::to_string(job).map_or(0, |text| text.len() as u64);
    if controls::holds("job_record_charge") { said.saturating_mul(2) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_job_is_charged() {
        let job = NewJob { args: vec!["x".repeat(10_000)], ..NewJob::default() };
        assert!(description_bytes(&job) > 20_000);
        assert!(a_job(&job).get(Kind::Journal) > 20_000);
    }
}
