//! The records of sessions in the journal, and how their rows are deleted.

use rusqlite::{Connection, ErrorCode, params};
use serde::{Deserialize, Serialize};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::blobs::Blobs;
use super::durability::{Durability, OnRefusal, WriteError};
use super::error::JournalError;
use super::journal::Journal;
use super::rows::{self, int};
use super::used_amounts;
use crate::protocol::clock;
use crate::protocol::ids::{JobId, SandboxId, SessionId, SessionName};
use crate::protocol::principal::Principal;

/// How long the events of a removed session are kept, unless the caller says otherwise.
pub const KEEP_REMOVED: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// Rows deleted in one transaction, so that other writes do not wait long behind a large session.
pub(super) const ROWS_DELETED: i64 = 5_000;
/// Free pages given back to the disk in one transaction.
const PAGES_RETURNED: u32 = 1_000;
/// Files of large values that are looked at in one transaction, for the same reason.
const BLOBS_SWEPT: usize = 500;

const BLOB_IS_USED: &str = "SELECT 1 FROM events WHERE blob = ?1 LIMIT 1";

/// The data needed to restore a session after a restart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SessionRecord {
    pub id: SessionId,
    pub owner: Principal,
    pub name: SessionName,
    pub created_at: String,
    /// The request that created the session.
    pub request: serde_json::Value,
    /// The job for which alone this session exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The uid of the session's guests, if the session holds one of the configured range.
    pub slot: Option<u32>,
}

/// What a clean-up removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanupCounts {
    pub sessions: usize,
    pub blobs: usize,
    pub keys: usize,
}

/// Seconds since 1970.
pub(super) fn seconds(at: SystemTime) -> i64 {
    int(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs())
}

impl Journal {
    /// Durable on return, so that resources made for the session afterwards can be found again.
    pub async fn create_session(&self, record: &SessionRecord) -> Result<(), JournalError> {
        let record = record.clone();
        let insert = move |file: &Connection, _: &Blobs| insert(file, &record);
        let made = self.core.queue.write(Durability::Full, OnRefusal::Fail, insert).await?;
        if made { Ok(()) } else { Err(JournalError::NameTaken) }
    }

    /// Marks a session as removed, which frees its name. Its events are kept until they expire or are forgotten.
    pub async fn remove_session(&self, id: SessionId) -> Result<(), JournalError> {
        self.remove_session_at(id, clock::wall()).await
    }

    pub(super) async fn remove_session_at(&self, id: SessionId, now: SystemTime) -> Result<(), JournalError> {
        let query = "UPDATE sessions SET removed_at = ?2 WHERE id = ?1 AND removed_at IS NULL";
        let values = (id.0.into_bytes(), seconds(now));
        self.core.execute(Durability::Full, OnRefusal::Wait, query, values).await.map(drop)
    }

    /// Notes that an ephemeral session stays for its idle time.
    pub async fn let_linger(&self, id: SessionId) -> Result<(), JournalError> {
        let query =
            "UPDATE sessions SET record = json_set(record, '$.request.lingers', json('true')) WHERE id = ?1";
        self.core.execute(Durability::Full, OnRefusal::Fail, query, [id.0.into_bytes()]).await.map(drop)
    }

    /// The sessions that are not removed, oldest first.
    pub fn sessions(&self) -> Result<Vec<SessionRecord>, JournalError> {
        let query = "SELECT record FROM sessions WHERE removed_at IS NULL ORDER BY id";
        let found = self.core.read(|file, _| rows::all(file, query, [], |row| row.get(0)))?;
        let parse = |text: String| match serde_json::from_str(&text) {
            Ok(record) => Some(record),
            Err(error) => {
                tracing::error!(%error, "a session's record is not understood");
                None
            }
        };
        Ok(found.into_iter().filter_map(parse).collect())
    }

    /// The record of a session that is not removed.
    pub fn session(&self, id: SessionId) -> Result<Option<SessionRecord>, JournalError> {
        let query = "SELECT record FROM sessions WHERE id = ?1 AND removed_at IS NULL";
        let found: Vec<String> =
            self.core.read(|file, _| rows::all(file, query, [id.0.as_bytes()], |row| row.get(0)))?;
        Ok(found.first().and_then(|text| serde_json::from_str(text).ok()))
    }

    /// The ids of all sessions that are not removed, including those whose records cannot be parsed.
    pub fn living(&self) -> Result<Vec<SessionId>, JournalError> {
        let query = "SELECT id FROM sessions WHERE removed_at IS NULL";
        Ok(self.core.read(|file, _| rows::all(file, query, [], |row| Ok(SessionId(rows::uuid(row, 0)?))))?)
    }

    /// The sandboxes that may belong to a session; only the session itself may remove them.
    pub fn sandboxes(&self, id: SessionId) -> Result<Vec<SandboxId>, JournalError> {
        Ok(self.core.read(|file, blobs| rows::sandboxes(file, blobs, id))?)
    }

    /// Whether the session's creator may have received an answer: its first sandbox was ready, or it begins without one.
    pub fn was_ready(&self, id: SessionId) -> Result<bool, JournalError> {
        Ok(self.core.read(|file, _| {
            let query =
                "SELECT 1 FROM events JOIN sessions ON sessions.id = events.session WHERE session = ?1
                AND (events.name = 'sandbox_ready' OR (events.name = 'session_created'
                    AND json_extract(record, '$.request.lazy'))) LIMIT 1";
            file.prepare(query)?.exists([id.0.as_bytes()])
        })?)
    }

    /// Whether the session exists and is not removed.
    pub fn is_living(&self, id: SessionId) -> Result<bool, JournalError> {
        Ok(self.core.read(|file, _| {
            let query = "SELECT 1 FROM sessions WHERE id = ?1 AND removed_at IS NULL";
            file.prepare(query)?.exists([id.0.as_bytes()])
        })?)
    }

    /// Deletes all data of a session: rows, output and large values.
    pub async fn forget(&self, id: SessionId) -> Result<(), JournalError> {
        while self.delete_some(id).await? {}
        let (query, values) = ("DELETE FROM sessions WHERE id = ?1", [id.0.into_bytes()]);
        self.core.execute(Durability::Normal, OnRefusal::Wait, query, values).await?;
        self.give_pages_back().await?;
        let folder = self.spill_folder(id);
        // The folder may hold up to a gigabyte in many files, so it is not deleted on the caller's thread.
        let removed = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(folder)).await;
        match removed {
            Ok(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
                tracing::warn!(%error, session = %id, "output of a session is left");
            }
            _ => {}
        }
        Ok(())
    }

    /// Shrinks the file by its free pages. If they were left for later rows, a user who then writes files instead would
    /// take twice the quota on the disk. Works in small steps, so that other writes go in between.
    async fn give_pages_back(&self) -> Result<(), JournalError> {
        let step = |file: &Connection, _: &Blobs| {
            let free_pages = || file.query_row("PRAGMA freelist_count", [], |row| row.get::<_, i64>(0));
            let before = free_pages()?;
            let mut vacuum = file.prepare(&format!("PRAGMA incremental_vacuum({PAGES_RETURNED})"))?;
            let mut pages = vacuum.query([])?;
            while pages.next()?.is_some() {}
            let left = free_pages()?;
            Ok(left > 0 && left < before)
        };
        while self.core.queue.write(Durability::Normal, OnRefusal::Wait, step).await? {}
        Ok(())
    }

    /// Deletes the oldest events of a session; false when there are none left.
    async fn delete_some(&self, id: SessionId) -> Result<bool, JournalError> {
        let delete = move |file: &Connection, blobs: &Blobs| {
            let query = "SELECT coalesce(min(seq), 0) + ?2 FROM events WHERE session = ?1";
            let until = file.query_row(query, params![id.0.as_bytes(), ROWS_DELETED], |row| row.get(0))?;
            used_amounts::keep_costs(file, blobs, id, until, &clock::now())?;
            let oldest = "session = ?1 AND seq < ?2";
            let values = params![id.0.as_bytes(), until];
            let query = format!("SELECT DISTINCT blob FROM events WHERE {oldest} AND blob IS NOT NULL");
            let large = rows::all(file, &query, values, |row| row.get(0))?;
            Ok((file.execute(&format!("DELETE FROM events WHERE {oldest}"), values)?, large))
        };
        let (deleted, large): (usize, Vec<String>) =
            self.core.queue.write(Durability::Normal, OnRefusal::Wait, delete).await?;
        if !large.is_empty() {
            // Blobs are removed after the deletion is committed, and on the writer's thread, so that no event with the
            // same content is written in between.
            let clean = move |file: &Connection, blobs: &Blobs| {
                let mut used = file.prepare(BLOB_IS_USED)?;
                for name in &large {
                    if !used.exists([name])? {
                        blobs.remove(name)?;
                    }
                }
                Ok(())
            };
            self.core.queue.write(Durability::Normal, OnRefusal::Wait, clean).await?;
        }
        Ok(deleted > 0)
    }

    /// Forgets sessions that were removed longer than `keep` ago, expired keys, and large values that no event refers
    /// to. To be called after opening and every day.
    pub async fn tidy(&self, now: SystemTime, keep: Duration) -> Result<CleanupCounts, JournalError> {
        let before = seconds(now).saturating_sub(int(keep.as_secs()));
        let query = "SELECT id FROM sessions WHERE removed_at <= ?1";
        let expired = self.core.read(|file, _| rows::all(file, query, [before], |row| rows::uuid(row, 0)))?;
        let mut tidied = CleanupCounts { sessions: expired.len(), ..CleanupCounts::default() };
        for id in expired {
            self.forget(SessionId(id)).await?;
        }
        loop {
            match self.expire_keys(now).await? {
                0 => break,
                some => tidied.keys += some,
            }
        }
        let blobs = self.core.blobs.clone();
        let names = tokio::task::spawn_blocking(move || blobs.names()).await.unwrap_or_default();
        for names in names.chunks(BLOBS_SWEPT) {
            let names = names.to_vec();
            let clean = move |file: &Connection, blobs: &Blobs| {
                let mut used = file.prepare(BLOB_IS_USED)?;
                // This runs on the writer's thread, so that no event with a new blob is written in between.
                Ok(blobs.sweep(&names, |name| used.exists([name]))?)
            };
            tidied.blobs += self.core.queue.write(Durability::Normal, OnRefusal::Wait, clean).await?;
        }
        self.give_pages_back().await?;
        Ok(tidied)
    }
}

/// False if the name is taken.
fn insert(file: &Connection, record: &SessionRecord) -> Result<bool, WriteError> {
    let query = "INSERT INTO sessions (id, owner, name, record, created_at) VALUES (?1, ?2, ?3, ?4, ?5)";
    let values = params![
        record.id.0.as_bytes(),
        record.owner,
        record.name.as_str(),
        to_text(record),
        record.created_at
    ];
    match file.execute(query, values) {
        Ok(_) => Ok(true),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn to_text(record: &SessionRecord) -> String {
    serde_json::to_string(record).unwrap_or_default()
}
