//! Restores the jobs that an earlier daemon, or an earlier run of the actor, accepted; and removes files that
//! are no longer needed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::batches::BatchEntry;
use super::messages::JobsMsg;
use super::state::JobsState;
use super::{run, verdict};
use crate::actors::amounts;
use crate::actors::calls::call;
use crate::actors::results;
use crate::actors::supervisor::messages::SupervisorMsg;
use crate::memory::MemoryPurpose;
use crate::protocol::clock;
use crate::protocol::ids::JobId;
use crate::protocol::job::JobState;
use crate::sandbox::launch::Launcher;
use crate::store::{Journal, JournalError};

const ARTIFACTS: &str = ".artifacts";

impl JobsState {
    /// Queues jobs again that waited; resumes those that ran, or concludes them as lost.
    pub(super) async fn restore(&mut self) -> Result<(), JournalError> {
        let open = self.args.journal.open_jobs()?;
        remove_unfinished(&self.args.launcher);
        let found = call(&self.args.supervisor, |reply_to| SupervisorMsg::OfJobs { reply_to }).await;
        let mut sessions: BTreeMap<_, _> = found.into_iter().flatten().collect();
        for batch in self.args.journal.open_batches()? {
            self.batches.insert(batch.view.id, BatchEntry::of(&batch));
        }
        for mut record in open {
            let (id, owner) = (record.view.id, record.view.owner);
            let bytes = record.view.receipt.as_ref().map_or(0, |receipt| receipt.input.bytes);
            let input = record.job.input.map(|input| self.args.inputs.take_again(owner, input, bytes));
            let (state, session, judged) = (record.view.state, record.session, record.judged.take());
            let permit = self.args.ledger.keep(owner, &format!("job {id}"), amounts::of_job(&record.job));
            let memory = self.args.ledger.memory(owner);
            let memory = memory.charge_anyway(MemoryPurpose::Jobs, amounts::description_bytes(&record.job));
            self.insert(record, (permit, memory), input);
            match (state, judged, sessions.contains_key(&id)) {
                // The verdict stays hidden from clients until the sandbox is removed.
                (_, Some(end), true) => {
                    sessions.remove(&id);
                    self.running += 1;
                    self.is_active_in_batch(id);
                    let (jobs, supervisor) = (self.myself.clone(), self.args.supervisor.clone());
                    tokio::spawn(async move {
                        run::remove(&supervisor, id).await;
                        let _ = jobs.cast(JobsMsg::Done { id, end: Some(*end) });
                    });
                }
                (_, Some(end), false) => self.conclude(id, *end),
                (JobState::Running, None, true) => self.start(id, sessions.remove(&id), None),
                (JobState::Running, None, false) => {
                    let log = session.and_then(|session| self.args.journal.log(session).ok());
                    let result = log.and_then(|log| results::in_journal(&log, run::CELL));
                    self.conclude(
                        id,
                        result.map_or_else(verdict::lost, |(_, result)| verdict::of_result(&result, true)),
                    );
                }
                // The script has not begun. The job's old session is removed first, because the job finds its
                // session by the job's id.
                (JobState::Queued | JobState::Ended, None, true) => {
                    sessions.remove(&id);
                    let (jobs, supervisor) = (self.myself.clone(), self.args.supervisor.clone());
                    tokio::spawn(async move {
                        run::remove(&supervisor, id).await;
                        let _ = jobs.cast(JobsMsg::Waits { id });
                    });
                }
                (JobState::Queued | JobState::Ended, None, false) => self.enqueue(id),
            }
        }
        self.batches.retain(|_, batch| !batch.open.is_empty());
        for id in sessions.into_keys() {
            let supervisor = self.args.supervisor.clone();
            tokio::spawn(async move { run::remove(&supervisor, id).await });
        }
        self.pump();
        Ok(())
    }

    pub(super) fn tidy(&self) {
        let (journal, launcher) = (self.args.journal.clone(), Arc::clone(&self.args.launcher));
        let inputs = self.args.inputs.clone();
        tokio::spawn(async move {
            if let Err(error) = journal.forget_jobs(clock::wall(), launcher.settings.jobs.keep).await {
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

/// The file with the artifacts of a job.
#[must_use]
pub fn artifacts_of(launcher: &Launcher, id: JobId) -> PathBuf {
    launcher.paths.jobs_dir().join(format!("{id}{ARTIFACTS}"))
}

/// All stored artifact files with their sizes, the oldest first.
#[must_use]
pub fn artifacts(launcher: &Launcher) -> Vec<(JobId, PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(launcher.paths.jobs_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let id = name.strip_suffix(ARTIFACTS).and_then(|id| uuid::Uuid::parse_str(id).ok());
        if let (Some(id), Ok(data)) = (id, entry.metadata()) {
            found.push((data.modified().ok(), JobId(id), entry.path(), data.len()));
        }
    }
    found.sort_by_key(|(changed, ..)| *changed);
    found.into_iter().map(|(_, id, path, size)| (id, path, size)).collect()
}

/// Removes files that an earlier daemon was writing when it ended.
fn remove_unfinished(launcher: &Launcher) {
    for entry in std::fs::read_dir(launcher.paths.jobs_dir()).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().ends_with(run::UNFINISHED) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Removes the artifacts of forgotten jobs.
fn sweep_artifacts(launcher: &Launcher, journal: &Journal) {
    for (id, path, _) in artifacts(launcher) {
        if journal.has_job(id).is_ok_and(|known| !known) {
            let _ = std::fs::remove_file(path);
        }
    }
}
