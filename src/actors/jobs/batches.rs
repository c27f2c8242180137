//! Batches: jobs that are taken together. A batch puts only as many of its jobs into the queue as may run at once, so that
//! others of its user need not wait for all of it.

use ractor::RpcReplyPort;
use serde_json::json;
use std::collections::{BTreeSet, VecDeque};
use tokio::sync::watch;

use super::messages::{BatchOrder, JobsMsg, WatchedBatch};
use super::schedule::WAITING_PER_USER;
use super::state::JobsState;
use super::verdict;
use crate::actors::calls::Reply;
use crate::actors::holds::{Hold, Holders};
use crate::memory::Charge;
use crate::protocol::batch::{BatchPlace, BatchView};
use crate::protocol::clock;
use crate::protocol::ids::{BatchId, JobId};
use crate::protocol::job::JobState;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::store::{BatchRecord, JobRecord, KeyTarget};

/// A batch of which some job has not ended.
pub(super) struct BatchEntry {
    parallel: usize,
    ephemeral: bool,
    /// The jobs whose end is not in the journal.
    pub(super) open: BTreeSet<JobId>,
    /// The jobs that are not in the queue yet, in their order.
    waiting: VecDeque<JobId>,
    /// The jobs that are in the queue or run.
    active: BTreeSet<JobId>,
    /// Told of each event that is in the journal.
    pub(super) changes: watch::Sender<()>,
    holders: Holders,
    /// The clients that cancelled the batch, answered when the ends of all its jobs are in the journal.
    cancelled_by: Vec<RpcReplyPort<bool>>,
}

impl BatchEntry {
    pub(super) fn of(record: &BatchRecord) -> Self {
        Self {
            parallel: record.view.parallel.max(1),
            ephemeral: record.ephemeral,
            open: BTreeSet::new(),
            waiting: VecDeque::new(),
            active: BTreeSet::new(),
            changes: watch::Sender::new(()),
            holders: Holders::default(),
            cancelled_by: Vec::new(),
        }
    }
}

impl JobsState {
    /// Takes all jobs of a batch, or none of them.
    pub(super) fn submit_batch(
        &mut self,
        owner: Principal,
        order: BatchOrder,
        memory: Charge,
        reply_to: Reply<BatchView>,
    ) {
        let id = BatchId::fresh();
        let BatchOrder { jobs, parallel, ephemeral, key } = order;
        let mine = |record: &JobRecord| record.view.owner == owner && record.view.state == JobState::Queued;
        let waiting = self.jobs.values().filter(|entry| mine(&entry.record)).count();
        if waiting.saturating_add(jobs.len()) > WAITING_PER_USER {
            let problem = Problem::new(Code::TooMany, format!("{waiting} jobs of yours wait already"));
            return drop(reply_to.send(Err(problem.hint("submit the batch when some of them have ended"))));
        }
        let mut input = None;
        let mut admitted = Vec::with_capacity(jobs.len());
        for (index, job) in jobs.into_iter().enumerate() {
            match self.admit(owner, job, Some(BatchPlace { id, index }), &mut input) {
                Ok(job) => admitted.push(job),
                // What the earlier jobs were charged is released with them.
                Err(problem) => return drop(reply_to.send(Err(of_job(problem, index)))),
            }
        }
        let view = BatchView {
            id,
            owner,
            created_at: clock::now(),
            ended_at: None,
            parallel: parallel.unwrap_or(self.args.launcher.settings.jobs.slots),
            size: admitted.len(),
            ended: 0,
            passed: 0,
            jobs: Vec::new(),
        };
        let batch = BatchRecord { view, ephemeral, events: 0 };
        self.batches.insert(id, BatchEntry::of(&batch));
        let mut records = Vec::with_capacity(admitted.len());
        for (record, charges, input) in admitted {
            records.push(record.clone());
            self.insert(record, charges, Some(input));
        }
        let target = key.map(|key| KeyTarget { owner, key, target: json!({"new_batch": id}) });
        let (journal, jobs) = (self.args.journal.clone(), self.myself.clone());
        tokio::spawn(async move {
            let noted = journal.put_batch(&batch, &records, target).await.map_err(Problem::from);
            let jobs_of_it = records.iter().map(|record| record.view.id).collect();
            let noted = noted.map(|()| BatchView { jobs: jobs_of_it, ..batch.view });
            let _ = jobs.cast(JobsMsg::BatchNoted { id, noted, reply_to });
            // The charge of the request is for the records, too, until they are written.
            drop(memory);
        });
    }

    pub(super) fn batch_noted(
        &mut self,
        id: BatchId,
        noted: Result<BatchView, Problem>,
        reply_to: Reply<BatchView>,
    ) {
        let Some(batch) = self.batches.get_mut(&id) else { return };
        batch.holders.renew();
        let open: Vec<JobId> = batch.open.iter().copied().collect();
        for job in open {
            match &noted {
                Ok(_) => self.enqueue(job),
                Err(_) => self.settled(job),
            }
        }
        let _ = reply_to.send(noted);
        self.pump();
    }

    /// Lets a job wait for its turn in its batch; false if it is in none.
    pub(super) fn waits_in_batch(&mut self, id: JobId) -> bool {
        let Some(batch) = self.batch_of(id) else { return false };
        batch.waiting.push_back(id);
        true
    }

    /// The jobs whose turn in their batch has come. They are to be put into the queue.
    pub(super) fn next_of_batches(&mut self) -> Vec<JobId> {
        let mut next = Vec::new();
        for batch in self.batches.values_mut() {
            while batch.active.len() < batch.parallel
                && let Some(id) = batch.waiting.pop_front()
            {
                batch.active.insert(id);
                next.push(id);
            }
        }
        next
    }

    /// A job of a batch runs that an earlier daemon began.
    pub(super) fn is_active_in_batch(&mut self, id: JobId) {
        if let Some(batch) = self.batch_of(id) {
            batch.active.insert(id);
        }
    }

    /// A job has ended, so the next one of its batch may have its turn.
    pub(super) fn ends_in_batch(&mut self, id: JobId) {
        if let Some(batch) = self.batch_of(id) {
            batch.active.remove(&id);
        }
    }

    /// Removes a job from those that wait in their batch; false if it does not wait there.
    pub(super) fn leaves_waiting(&mut self, id: JobId) -> bool {
        let Some(batch) = self.batch_of(id) else { return false };
        let before = batch.waiting.len();
        batch.waiting.retain(|waiting| *waiting != id);
        batch.waiting.len() < before
    }

    /// The end of a job is in the journal, or the job never came there. With the last one the batch is over.
    pub(super) fn settled_in_batch(&mut self, id: BatchId, job: JobId) {
        let Some(batch) = self.batches.get_mut(&id) else { return };
        batch.open.remove(&job);
        batch.active.remove(&job);
        batch.changes.send_replace(());
        if batch.open.is_empty()
            && let Some(mut batch) = self.batches.remove(&id)
        {
            batch.cancelled_by.drain(..).for_each(|reply_to| drop(reply_to.send(true)));
        }
    }

    /// Cancels all jobs of a batch that have not ended.
    pub(super) fn cancel_batch(&mut self, id: BatchId, reply_to: Option<RpcReplyPort<bool>>) {
        let Some(batch) = self.batches.get_mut(&id) else {
            if let Some(reply_to) = reply_to {
                let _ = reply_to.send(false);
            }
            return;
        };
        batch.cancelled_by.extend(reply_to);
        let waiting: BTreeSet<JobId> = std::mem::take(&mut batch.waiting).into_iter().collect();
        let open: Vec<JobId> = batch.open.iter().copied().collect();
        for job in open {
            if !waiting.contains(&job) {
                self.cancel(job, None);
            } else if let Some(entry) = self.jobs.get_mut(&job) {
                entry.cancel.cancel();
                self.conclude(job, verdict::cancelled(" before it ran"));
            }
        }
    }

    /// Cancels the jobs of ephemeral batches that no client holds any more.
    pub(super) fn cancel_forsaken_batches(&mut self) {
        let forsaken = |batch: &&BatchEntry| batch.ephemeral && batch.holders.are_gone();
        let found: Vec<BatchId> =
            self.batches.iter().filter(|(_, batch)| forsaken(batch)).map(|(id, _)| *id).collect();
        for id in found {
            let Some(batch) = self.batches.get_mut(&id) else { continue };
            // Once is enough.
            batch.ephemeral = false;
            tracing::info!(batch = %id, "nobody waits for it any more");
            for job in &batch.open {
                if let Some(entry) = self.jobs.get_mut(job) {
                    entry.forsaken = true;
                }
            }
            self.cancel_batch(id, None);
        }
    }

    pub(super) fn watch_batch(&mut self, id: BatchId) -> Option<WatchedBatch> {
        let batch = self.batches.get_mut(&id)?;
        batch.holders.add();
        let (changes, jobs) = (batch.changes.subscribe(), self.myself.clone());
        let hold = Hold::new(move || drop(jobs.cast(JobsMsg::BatchReleased(id))));
        Some(WatchedBatch { changes, hold })
    }

    pub(super) fn batch_released(&mut self, id: BatchId) {
        if let Some(batch) = self.batches.get_mut(&id) {
            batch.holders.release();
        }
    }

    pub(super) fn batch_of(&mut self, id: JobId) -> Option<&mut BatchEntry> {
        let place = self.jobs.get(&id)?.record.view.batch?;
        self.batches.get_mut(&place.id)
    }
}

/// The refusal of a batch because of one of its jobs.
fn of_job(problem: Problem, index: usize) -> Problem {
    Problem { message: format!("job {index} of the batch: {}", problem.message), ..problem }
}
