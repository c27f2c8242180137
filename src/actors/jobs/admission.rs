//! Takes jobs in: everything is checked and charged before anything is created.

use super::check;
use super::inputs::{self, InputRef};
use super::messages::JobsMsg;
use super::state::JobsState;
use crate::actors::amounts;
use crate::actors::calls::Reply;
use crate::memory::{Charge, MemoryPurpose};
use crate::protocol::batch::BatchPlace;
use crate::protocol::clock;
use crate::protocol::ids::JobId;
use crate::protocol::job::{JobInput, JobReceipt, JobState, JobView, NewJob};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::quota::Permit;
use crate::store::JobRecord;

impl JobsState {
    pub(super) fn submit(&mut self, owner: Principal, job: NewJob, reply_to: Reply<JobView>) {
        match self.admit(owner, job, None, &mut None) {
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

    /// Checks everything before anything is created. `known` is the input of the job before, whose digest is not made again
    /// for every job of a batch.
    pub(super) fn admit(
        &self,
        owner: Principal,
        job: NewJob,
        batch: Option<BatchPlace>,
        known: &mut Option<JobInput>,
    ) -> Result<(JobRecord, (Permit, Charge), InputRef), Problem> {
        if self.args.shutdown.is_cancelled() {
            return Err(Problem::new(Code::ShuttingDown, "the daemon is going down"));
        }
        let settings = &self.args.launcher.settings;
        let missing = || {
            Problem::new(Code::NoSuchInput, "the files of the job are not here")
                .hint("send them first with `PUT /v1/job-inputs`, and name its `id` as `input`")
        };
        let id = JobId::fresh();
        let permit = self.args.ledger.take(owner, &format!("job {id}"), amounts::of_job(&job))?;
        let memory = self
            .args
            .ledger
            .memory(owner)
            .try_charge(MemoryPurpose::Jobs, amounts::description_bytes(&job))?;
        let input = job.input.ok_or_else(missing)?;
        let (manifest, used) = self.args.inputs.take(owner, input).ok_or_else(missing)?;
        let timeout = check::check(&job, &manifest, settings)?;
        let seen = known.take().filter(|known| known.id == input);
        let seen = known.insert(seen.unwrap_or_else(|| inputs::view(input, &manifest)));
        let receipt = JobReceipt {
            input: seen.clone(),
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
            batch,
            admin_acts: Vec::new(),
        };
        Ok((JobRecord { view, job, session: None, judged: None }, (permit, memory), used))
    }

    pub(super) fn noted(&mut self, id: JobId, noted: Result<(), Problem>, reply_to: Reply<JobView>) {
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
}
