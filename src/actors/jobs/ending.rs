//! The end of a job: it is cancelled or judged, and its end is in the journal before any client sees it.

use ractor::RpcReplyPort;

use super::messages::JobsMsg;
use super::state::JobsState;
use super::verdict;
use crate::actors::calls::Reply;
use crate::protocol::clock;
use crate::protocol::ids::JobId;
use crate::protocol::job::{JobEnd, JobState, Verdict};
use crate::protocol::problem::Problem;

impl JobsState {
    /// Records the verdict, which clients do not see yet because the sandbox still exists.
    pub(super) fn judged(&mut self, id: JobId, mut end: Box<JobEnd>, reply_to: Reply<()>) {
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

    pub(super) fn cancel(&mut self, id: JobId, reply_to: Option<RpcReplyPort<bool>>) {
        let Some(entry) = self.jobs.get_mut(&id) else {
            if let Some(reply_to) = reply_to {
                let _ = reply_to.send(false);
            }
            return;
        };
        entry.cancelled_by.extend(reply_to);
        // The token also cancels a job that is still being written to the journal.
        entry.cancel.cancel();
        let queue_ticket = entry.queue_ticket;
        let waited = queue_ticket.is_some_and(|ticket| self.queue.remove(ticket).is_some());
        if waited || self.leaves_waiting(id) {
            self.conclude(id, verdict::cancelled(" before it ran"));
        }
    }

    /// Cancels ephemeral jobs that no client holds any more.
    pub(super) fn cancel_forsaken(&mut self) {
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
    pub(super) fn conclude(&mut self, id: JobId, mut end: JobEnd) {
        self.ends_in_batch(id);
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
    /// The sandbox of a job is removed. Without an end, the next daemon resumes the job.
    pub(super) fn done(&mut self, id: JobId, end: Option<JobEnd>) {
        self.running = self.running.saturating_sub(1);
        match end {
            Some(end) => self.conclude(id, end),
            None => drop(self.jobs.remove(&id)),
        }
        self.pump();
    }

    /// The end of a job is in the journal: those who cancelled it learn of it, and what the job had is released.
    pub(super) fn settled(&mut self, id: JobId) {
        let Some(mut entry) = self.jobs.remove(&id) else { return };
        entry.cancelled_by.drain(..).for_each(|reply_to| drop(reply_to.send(true)));
        let (input, batch) = (entry.record.job.input, entry.record.view.batch);
        entry.leave_record();
        if let Some(place) = batch {
            self.settled_in_batch(place.id, id);
        }
        if let Some(input) = input {
            self.args.inputs.forget_unused(input);
        }
    }
}
