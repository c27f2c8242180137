//! Which waiting jobs start, and when.

use std::sync::Arc;
use std::time::Instant;

use super::lack::LackOfRoom;
use super::messages::StartedJob;
use super::restore::artifacts_of;
use super::run::{self, JobRun};
use super::state::JobsState;
use super::verdict;
use crate::actors::calls::Reply;
use crate::actors::session::messages::SessionRef;
use crate::actors::supervisor::admission::sandbox_request;
use crate::config;
use crate::panics::spawn_reporting;
use crate::protocol::clock;
use crate::protocol::ids::JobId;
use crate::protocol::job::{JobState, NewJob};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::quota::{Amounts, Permit};
use crate::security_controls;

/// Quotas bound how many jobs a user has; this bound is for users without a quota.
pub(super) const WAITING_PER_USER: usize = 100_000;

impl JobsState {
    pub(super) fn enqueue(&mut self, id: JobId) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        if entry.cancel.is_cancelled() {
            return self.conclude(id, verdict::cancelled(" before it ran"));
        }
        if !self.waits_in_batch(id) {
            self.wait_for_slot(id);
        }
    }

    fn wait_for_slot(&mut self, id: JobId) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        entry.queue_ticket = self.queue.push(entry.record.view.owner, id).ok();
        if entry.queue_ticket.is_none() {
            let message = format!("{WAITING_PER_USER} jobs of yours wait already");
            self.conclude(id, verdict::of_problem(&Problem::new(Code::TooMany, message)));
        }
    }

    /// Starts waiting jobs while there are free slots and their users have room for a sandbox. A job whose
    /// user has no room waits without a slot, so that it does not block others. A user with no running job
    /// may get a slot beyond the configured ones, up to as many again, because another user's jobs may occupy
    /// all of them for hours.
    pub(super) fn pump(&mut self) {
        for id in self.next_of_batches() {
            self.wait_for_slot(id);
        }
        let slots = self.args.launcher.settings.jobs.slots;
        let most =
            if security_controls::holds("a_slot_for_each_user") { slots.saturating_mul(2) } else { slots };
        while self.running < most && !self.args.shutdown.is_cancelled() {
            let mut sandbox_permit = None;
            let are_taken = self.running >= slots;
            let Self { args, jobs, queue, .. } = self;
            let runs = |owner: Principal| {
                let views = jobs.values().map(|entry| &entry.record.view);
                views.filter(|view| view.owner == owner).any(|view| view.state == JobState::Running)
            };
            let popped = queue.pop_where(|owner, id| {
                let Some(entry) = jobs.get(id) else { return true };
                let pauses = entry.lack.is_some_and(|lack| !lack.may_try(Instant::now()));
                if pauses || (are_taken && runs(owner)) {
                    return false;
                }
                let amounts = of_sandbox(&args.launcher.settings.sandbox, &entry.record.job);
                sandbox_permit = args.ledger.take(owner, &format!("job {id}"), amounts.clone()).ok();
                sandbox_permit.is_some() || !args.ledger.could_grant(owner, &amounts)
            });
            let Some((_, id)) = popped else { return };
            self.start(id, None, sandbox_permit);
        }
    }

    pub(super) fn start(&mut self, id: JobId, resume: Option<SessionRef>, sandbox_permit: Option<Permit>) {
        self.is_active_in_batch(id);
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        entry.record.view.state = JobState::Running;
        self.running += 1;
        let input = entry.record.job.input.map(|input| self.args.inputs.path(input)).unwrap_or_default();
        let run = JobRun {
            jobs: self.myself.clone(),
            supervisor: self.args.supervisor.clone(),
            launcher: Arc::clone(&self.args.launcher),
            ledger: self.args.ledger.clone(),
            record: entry.record.clone(),
            input,
            artifacts: artifacts_of(&self.args.launcher, id),
            cancel: entry.cancel.clone(),
            lifetime: self.lifetime.clone(),
            shutdown: self.args.shutdown.clone(),
            resume,
        };
        let (jobs, supervisor) = (self.myself.clone(), self.args.supervisor.clone());
        spawn_reporting(run.go(sandbox_permit), move |done| {
            if done.is_none() {
                tokio::spawn(run::given_up(jobs, supervisor, id));
            }
        });
    }

    /// The session of a job was refused for want of room that the queue does not look at, such as the machine's memory,
    /// or that something else has taken meanwhile. The job waits again, without a slot, and is not tried again at once.
    pub(super) fn refused_room(&mut self, id: JobId, problem: &Problem) {
        self.running = self.running.saturating_sub(1);
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        let now = Instant::now();
        let lack = LackOfRoom::refused(entry.lack, now);
        entry.lack = Some(lack);
        let amounts = of_sandbox(&self.args.launcher.settings.sandbox, &entry.record.job);
        let may_have_room = self.args.ledger.could_grant(entry.record.view.owner, &amounts);
        if lack.lasts(self.last_start, now) || !may_have_room {
            return self.conclude(id, verdict::of_problem(problem));
        }
        tracing::info!(job = %id, problem = problem.message, "a job waits for room");
        entry.record.view.state = JobState::Queued;
        self.ends_in_batch(id);
        self.enqueue(id);
    }

    pub(super) fn started(&mut self, id: JobId, started: StartedJob, reply_to: Reply<()>) {
        let changes = self.batch_of(id).map(|batch| batch.changes.clone());
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        entry.lack = None;
        self.last_start = Some(Instant::now());
        let view = &mut entry.record.view;
        view.started_at.get_or_insert_with(clock::now);
        view.receipt = started.receipt;
        entry.record.session = Some(started.session);
        let (record, state) = (entry.record.clone(), entry.state.clone());
        let journal = self.args.journal.clone();
        tokio::spawn(async move {
            let noted = journal.put_job(&record).await.map_err(Problem::from);
            state.send_replace(JobState::Running);
            if let Some(changes) = changes {
                changes.send_replace(());
            }
            let _ = reply_to.send(noted);
        });
    }
}

/// What a job's sandbox takes.
fn of_sandbox(settings: &config::Sandbox, job: &NewJob) -> Amounts {
    sandbox_request(settings, &run::request(job), true).amounts(settings)
}
