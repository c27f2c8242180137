//! The jobs in the journal: those that wait or run, and for some time those that have ended.

use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

use super::account::ROW_BYTES;
use super::batches::{self, BatchChange};
use super::blobs::Blobs;
use super::durability::{Durability, OnRefusal};
use super::error::JournalError;
use super::journal::Journal;
use super::rows::{all, bytes, int, uuid};
use super::sessions::{ROWS_DELETED, seconds};
use crate::protocol::clock;
use crate::protocol::ids::{BatchId, JobId, SessionId};
use crate::protocol::job::{AdminAct, JobEnd, JobState, JobView, NewJob, Verdict};
use crate::protocol::limits::{JOB_ACTS_KEPT, JOB_ACTS_LISTED, SAME_ACT_WITHIN};
use crate::protocol::principal::Principal;
use crate::security_controls;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    pub view: JobView,
    pub job: NewJob,
    /// The session that has the job's sandbox and its output.
    pub session: Option<SessionId>,
    /// How the job ended, set while its sandbox is still being removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Box<JobEnd>>,
}

/// A job as it is written.
pub(super) struct JobRow {
    id: JobId,
    owner: Principal,
    ended: Option<i64>,
    text: String,
    batch: Option<BatchId>,
    /// What the batch of the job has as an event, unless it has it already.
    change: Option<BatchChange>,
}

impl JobRow {
    pub fn of(record: &JobRecord) -> Self {
        let view = &record.view;
        let passed = view.end.as_ref().is_some_and(|end| end.verdict == Verdict::Passed);
        Self {
            id: view.id,
            owner: view.owner,
            ended: (view.state == JobState::Ended).then(|| seconds(clock::wall())),
            text: serde_json::to_string(record).unwrap_or_default(),
            batch: view.batch.map(|place| place.id),
            change: match view.state {
                JobState::Ended => Some(BatchChange::Ended { passed }),
                // A job that has a slot has not begun before its sandbox is ready.
                JobState::Running => view.started_at.as_ref().map(|_| BatchChange::Started),
                JobState::Queued => None,
            },
        }
    }

    pub fn write(&self, file: &Connection) -> rusqlite::Result<()> {
        let query = "INSERT INTO jobs (id, owner, ended_at, record, batch) VALUES (?1, ?2, ?3, ?4, ?5)
            ON CONFLICT (id) DO UPDATE SET ended_at = excluded.ended_at, record = excluded.record";
        let batch = self.batch.map(|batch| batch.0.into_bytes());
        let values = params![self.id.0.as_bytes(), self.owner, self.ended, self.text, batch];
        file.prepare_cached(query)?.execute(values)?;
        match (self.batch, self.change) {
            (Some(batch), Some(change)) => batches::number(file, batch, self.id, change),
            _ => Ok(()),
        }
    }
}

impl Journal {
    /// Durable on return.
    pub async fn put_job(&self, record: &JobRecord) -> Result<(), JournalError> {
        let row = JobRow::of(record);
        // The end of a job waits until the disk accepts it; a new job that cannot be written is refused.
        let on_refusal = if row.ended.is_some() { OnRefusal::Wait } else { OnRefusal::Fail };
        let write = move |file: &Connection, _: &Blobs| Ok(row.write(file)?);
        self.core.queue.write(Durability::Full, on_refusal, write).await
    }

    pub fn job(&self, id: JobId) -> Result<Option<JobRecord>, JournalError> {
        Ok(self.text_of_job(id)?.as_deref().and_then(parse))
    }

    fn text_of_job(&self, id: JobId) -> Result<Option<String>, JournalError> {
        Ok(self.core.read(|file, _| {
            let query = "SELECT record FROM jobs WHERE id = ?1";
            file.query_row(query, [id.0.as_bytes()], |row| row.get(0)).optional()
        })?)
    }

    /// The views of the jobs of one user, or of all users, newest first. Each record is read only after `reserve`
    /// granted its bytes.
    pub fn job_views<E: From<JournalError>>(
        &self,
        owner: Option<Principal>,
        limit: usize,
        mut reserve: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<Vec<JobView>, E> {
        #[derive(Deserialize)]
        struct ViewOnly {
            view: JobView,
        }
        let ids = self.core.read(|file, _| {
            let query = "SELECT id, octet_length(record) FROM jobs
                WHERE ?1 IS NULL OR owner = ?1 ORDER BY id DESC LIMIT ?2";
            let row = |row: &rusqlite::Row<'_>| Ok((JobId(uuid(row, 0)?), bytes(row, 1)?));
            all(file, query, (owner, int(limit as u64)), row)
        });
        let mut views = Vec::new();
        for (id, bytes) in ids.map_err(JournalError::from)? {
            if security_controls::holds("job_list_charge") {
                reserve(bytes)?;
            }
            let text = self.text_of_job(id)?.unwrap_or_default();
            // A job that was forgotten meanwhile is left out, and so is a record that cannot be parsed: it is logged
            // where it is used.
            views.extend(serde_json::from_str::<ViewOnly>(&text).ok().map(|record| record.view));
        }
        Ok(views)
    }

    /// The jobs of one user, or of all users, newest first.
    pub fn jobs(&self, owner: Option<Principal>, limit: usize) -> Result<Vec<JobRecord>, JournalError> {
        let limit = int(limit as u64);
        match owner {
            Some(owner) => {
                let query = "SELECT record FROM jobs WHERE owner = ?1 ORDER BY id DESC LIMIT ?2";
                self.records(query, (owner, limit))
            }
            None => self.records("SELECT record FROM jobs ORDER BY id DESC LIMIT ?1", [limit]),
        }
    }

    /// Records that an administrator acts on another user's job; the caller does this before the act itself. False if the
    /// same act was recorded a moment ago. Of many acts of one administrator, those that only look go first, the oldest
    /// before others.
    pub async fn note_act(&self, id: JobId, admin: Principal, act: &str) -> Result<bool, JournalError> {
        let (at, now, act) = (clock::now(), seconds(clock::wall()), act.to_owned());
        let note = move |file: &Connection, _: &Blobs| {
            let query = "INSERT INTO job_acts (job, at, noted, admin, act) SELECT ?1, ?2, ?3, ?4, ?5
                WHERE NOT EXISTS (SELECT 1 FROM job_acts WHERE job = ?1 AND admin = ?4 AND act = ?5 AND noted > ?6)";
            let since = now.saturating_sub(int(SAME_ACT_WITHIN.as_secs()));
            let job = id.0.as_bytes();
            let is_noted = file.execute(query, params![job, at, now, admin, act, since])? > 0;
            if is_noted && security_controls::holds("acts_on_jobs_are_bounded") {
                let query = "DELETE FROM job_acts WHERE rowid IN (SELECT rowid FROM job_acts
                    WHERE job = ?1 AND admin = ?2 ORDER BY act LIKE 'GET %', rowid DESC LIMIT -1 OFFSET ?3)";
                file.execute(query, params![job, admin, int(JOB_ACTS_KEPT as u64)])?;
            }
            Ok(is_noted)
        };
        self.core.queue.write(Durability::Normal, OnRefusal::Fail, note).await
    }

    /// What administrators did with a job, oldest first; if there are many, only the newest ones.
    pub fn acts(&self, id: JobId) -> Result<Vec<AdminAct>, JournalError> {
        let mut acts = self.core.read(|file, _| {
            let query = "SELECT at, admin, act FROM job_acts WHERE job = ?1 ORDER BY rowid DESC LIMIT ?2";
            all(file, query, (id.0.as_bytes(), int(JOB_ACTS_LISTED as u64)), |row| {
                Ok(AdminAct { at: row.get(0)?, admin: row.get(1)?, act: row.get(2)? })
            })
        })?;
        acts.reverse();
        Ok(acts)
    }

    /// The jobs of all users that have not ended, oldest first.
    pub fn open_jobs(&self) -> Result<Vec<JobRecord>, JournalError> {
        self.records("SELECT record FROM jobs WHERE ended_at IS NULL ORDER BY id", [])
    }

    /// The ended jobs, oldest first, each with its owner and the bytes that its record takes.
    pub fn ended_jobs(&self) -> Result<Vec<(Principal, JobId, u64)>, JournalError> {
        Ok(self.core.scan(|file, _| {
            let query =
                "SELECT owner, id, octet_length(record) FROM jobs WHERE ended_at IS NOT NULL ORDER BY id";
            all(file, query, [], |row| {
                Ok((row.get(0)?, JobId(uuid(row, 1)?), bytes(row, 2)?.saturating_add(ROW_BYTES)))
            })
        })?)
    }

    /// Whether the journal has a record of the job.
    pub fn has_job(&self, id: JobId) -> Result<bool, JournalError> {
        Ok(self
            .core
            .read(|file, _| file.prepare("SELECT 1 FROM jobs WHERE id = ?1")?.exists([id.0.as_bytes()]))?)
    }

    /// Forgets jobs that ended at least `keep` ago.
    pub async fn forget_jobs(&self, now: SystemTime, keep: Duration) -> Result<usize, JournalError> {
        let before = seconds(now).saturating_sub(int(keep.as_secs()));
        let mut forgotten = 0;
        loop {
            // In steps, so that other writes go in between.
            let query = "DELETE FROM jobs WHERE id IN (SELECT id FROM jobs WHERE ended_at <= ?1 LIMIT ?2)";
            let values = (before, ROWS_DELETED);
            match self.core.execute(Durability::Normal, OnRefusal::Wait, query, values).await? {
                0 => break,
                some => forgotten += some,
            }
        }
        while self.forget_some_acts(before).await? > 0 {}
        while self.forget_some_batches().await? > 0 {}
        Ok(forgotten)
    }

    /// Forgets some of what administrators did until `before`, in seconds since 1970, with jobs that are forgotten; 0
    /// when nothing is left.
    pub(super) async fn forget_some_acts(&self, before: i64) -> Result<usize, JournalError> {
        let query = "DELETE FROM job_acts WHERE rowid IN (SELECT rowid FROM job_acts
            WHERE noted <= ?1 AND job NOT IN (SELECT id FROM jobs) LIMIT ?2)";
        self.core.execute(Durability::Normal, OnRefusal::Wait, query, (before, ROWS_DELETED)).await
    }

    /// Forgets a job that has ended; false if there is no such job. The record of what administrators did with it is
    /// kept.
    pub async fn forget_job(&self, id: JobId) -> Result<bool, JournalError> {
        let query = "DELETE FROM jobs WHERE id = ?1 AND ended_at IS NOT NULL";
        let values = [id.0.into_bytes()];
        Ok(self.core.execute(Durability::Normal, OnRefusal::Wait, query, values).await? > 0)
    }

    fn records(&self, query: &str, values: impl rusqlite::Params) -> Result<Vec<JobRecord>, JournalError> {
        let texts: Vec<String> = self.core.read(|file, _| all(file, query, values, |row| row.get(0)))?;
        Ok(texts.iter().filter_map(|text| parse(text)).collect())
    }
}

fn parse(text: &str) -> Option<JobRecord> {
    match serde_json::from_str(text) {
        Ok(record) => Some(record),
        Err(error) => {
            tracing::error!(%error, "a job's record is not understood");
            None
        }
    }
}
