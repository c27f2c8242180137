//! Jobs that the journal knows: those that wait or run, and for a time those that have ended.

use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime};

use super::blobs::Blobs;
use super::journal::Journal;
use super::rows::int;
use super::sessions::seconds;
use super::writer::{Durability, JournalError, Patience};
use crate::protocol::ids::{JobId, SessionId};
use crate::protocol::job::{JobState, JobView, NewJob};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    pub view: JobView,
    pub job: NewJob,
    /// Its sandbox, and where its output is.
    pub session: Option<SessionId>,
}

impl Journal {
    /// Durable when it returns.
    pub async fn put_job(&self, record: &JobRecord) -> Result<(), JournalError> {
        let (id, owner) = (record.view.id, record.view.owner);
        let ended = (record.view.state == JobState::Ended).then(|| seconds(SystemTime::now()));
        let text = serde_json::to_string(record).unwrap_or_default();
        let put = move |file: &Connection, _: &Blobs| {
            let query = "INSERT OR REPLACE INTO jobs (id, owner, ended_at, record) VALUES (?1, ?2, ?3, ?4)";
            Ok(file.execute(query, params![id.0.as_bytes(), owner, ended, text])?)
        };
        // A verdict waits for the disk; a job that cannot be noted is not taken.
        let patience = if ended.is_some() { Patience::Wait } else { Patience::Fail };
        self.core.queue.ask(Durability::Full, patience, put).await.map(drop)
    }

    pub fn job(&self, owner: u32, id: JobId) -> Result<Option<JobRecord>, JournalError> {
        let text = self.core.read(|file, _| {
            let query = "SELECT record FROM jobs WHERE id = ?1 AND owner = ?2";
            file.query_row(query, params![id.0.as_bytes(), owner], |row| row.get::<_, String>(0)).optional()
        })?;
        Ok(text.as_deref().and_then(parse))
    }

    /// The newest first.
    pub fn jobs(&self, owner: u32, limit: usize) -> Result<Vec<JobRecord>, JournalError> {
        let query = "SELECT record FROM jobs WHERE owner = ?1 ORDER BY id DESC LIMIT ?2";
        self.records(query, params![owner, int(limit as u64)])
    }

    /// Those of all users that have not ended, the oldest first.
    pub fn open_jobs(&self) -> Result<Vec<JobRecord>, JournalError> {
        self.records("SELECT record FROM jobs WHERE ended_at IS NULL ORDER BY id", [])
    }

    /// Whether anything is known of it.
    pub fn has_job(&self, id: JobId) -> Result<bool, JournalError> {
        Ok(self
            .core
            .read(|file, _| file.prepare("SELECT 1 FROM jobs WHERE id = ?1")?.exists([id.0.as_bytes()]))?)
    }

    /// Forgets jobs that ended so long ago.
    pub async fn forget_jobs(&self, now: SystemTime, keep: Duration) -> Result<usize, JournalError> {
        let before = seconds(now).saturating_sub(int(keep.as_secs()));
        let delete = move |file: &Connection, _: &Blobs| {
            Ok(file.execute("DELETE FROM jobs WHERE ended_at <= ?1", [before])?)
        };
        self.core.queue.ask(Durability::Normal, Patience::Wait, delete).await
    }

    /// Forgets one that has ended; false if there is none.
    pub async fn forget_job(&self, owner: u32, id: JobId) -> Result<bool, JournalError> {
        let delete = move |file: &Connection, _: &Blobs| {
            let query = "DELETE FROM jobs WHERE id = ?1 AND owner = ?2 AND ended_at IS NOT NULL";
            Ok(file.execute(query, params![id.0.as_bytes(), owner])?)
        };
        Ok(self.core.queue.ask(Durability::Normal, Patience::Wait, delete).await? > 0)
    }

    fn records(&self, query: &str, values: impl rusqlite::Params) -> Result<Vec<JobRecord>, JournalError> {
        let texts = self.core.read(|file, _| {
            let mut statement = file.prepare(query)?;
            let rows = statement.query_map(values, |row| row.get::<_, String>(0))?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        })?;
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
