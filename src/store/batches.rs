//! The batches in the journal: which jobs belong together, how many of them have ended, and the numbers of what happened
//! to them. The row of a batch is small, and what its jobs are charged for their own rows covers it.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::blobs::Blobs;
use super::durability::{Durability, OnRefusal};
use super::error::JournalError;
use super::idempotency::KeyTarget;
use super::jobs::{JobRecord, JobRow};
use super::journal::Journal;
use super::rows::{all, bytes, int, uuid};
use super::sessions::ROWS_DELETED;
use crate::protocol::batch::BatchView;
use crate::protocol::clock;
use crate::protocol::ids::{BatchId, JobId, Seq};
use crate::protocol::principal::Principal;

/// The columns of a batch, in the order in which [`record`] reads them.
const COLUMNS: &str = "id, owner, created_at, ended_at, parallel, size, ended, passed, ephemeral, events";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRecord {
    /// Without the jobs, which are rows of their own.
    pub view: BatchView,
    pub ephemeral: bool,
    /// The number of the newest event.
    pub events: Seq,
}

/// A change of a job that is an event of its batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchChange {
    Started,
    Ended { passed: bool },
}

/// An event of a batch, before the job that it is about is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchEventRow {
    pub seq: Seq,
    pub job: JobId,
    /// Whether the job has ended, and not begun.
    pub is_end: bool,
    /// The bytes of the job's record.
    pub bytes: u64,
}

/// Gives a change of a job the next number among the events of its batch. It does so once: the record of a job is
/// written several times while it runs.
pub(super) fn number(
    file: &Connection,
    batch: BatchId,
    job: JobId,
    change: BatchChange,
) -> rusqlite::Result<()> {
    let (numbered, counted) = match change {
        BatchChange::Started => (
            "UPDATE jobs SET started_event = (SELECT events + 1 FROM batches WHERE id = ?2)
                WHERE id = ?1 AND started_event IS NULL",
            "UPDATE batches SET events = events + 1 WHERE id = ?1",
        ),
        BatchChange::Ended { .. } => (
            "UPDATE jobs SET ended_event = (SELECT events + 1 FROM batches WHERE id = ?2)
                WHERE id = ?1 AND ended_event IS NULL",
            "UPDATE batches SET events = events + 1, ended = ended + 1, passed = passed + ?2,
                ended_at = CASE WHEN ended + 1 >= size THEN ?3 END WHERE id = ?1",
        ),
    };
    if file.prepare_cached(numbered)?.execute(params![job.0.as_bytes(), batch.0.as_bytes()])? == 0 {
        return Ok(());
    }
    let mut counted = file.prepare_cached(counted)?;
    match change {
        BatchChange::Started => counted.execute(params![batch.0.as_bytes()])?,
        BatchChange::Ended { passed } => {
            counted.execute(params![batch.0.as_bytes(), passed, clock::now()])?
        }
    };
    Ok(())
}

impl Journal {
    /// Writes a batch and all its jobs, or nothing, together with what the key of the request stands for from now on.
    /// Durable on return.
    pub async fn put_batch(
        &self,
        batch: &BatchRecord,
        jobs: &[JobRecord],
        target: Option<KeyTarget>,
    ) -> Result<(), JournalError> {
        let (batch, rows) = (batch.clone(), jobs.iter().map(JobRow::of).collect::<Vec<_>>());
        let write = move |file: &Connection, _: &Blobs| {
            let BatchRecord { view, ephemeral, .. } = &batch;
            let query = "INSERT INTO batches (id, owner, created_at, parallel, size, ephemeral, events, ended, passed)
                VALUES (?1, ?2, ?3, ?4, ?5, ?6, 0, 0, 0)";
            let (parallel, size) = (int(view.parallel as u64), int(view.size as u64));
            file.execute(
                query,
                params![view.id.0.as_bytes(), view.owner, view.created_at, parallel, size, ephemeral],
            )?;
            for row in &rows {
                row.write(file)?;
            }
            if let Some(target) = &target {
                target.note(file)?;
            }
            Ok(())
        };
        self.core.queue.write(Durability::Full, OnRefusal::Fail, write).await
    }

    pub fn batch(&self, id: BatchId) -> Result<Option<BatchRecord>, JournalError> {
        Ok(self.core.read(|file, _| {
            let query = format!("SELECT {COLUMNS} FROM batches WHERE id = ?1");
            file.query_row(&query, [id.0.as_bytes()], record).optional()
        })?)
    }

    /// The batches of one user, newest first.
    pub fn batches(&self, owner: Principal, limit: usize) -> Result<Vec<BatchView>, JournalError> {
        let query = format!("SELECT {COLUMNS} FROM batches WHERE owner = ?1 ORDER BY id DESC LIMIT ?2");
        let values = (owner, int(limit as u64));
        Ok(self.core.read(|file, _| all(file, &query, values, |row| Ok(record(row)?.view)))?)
    }

    /// The batches of all users with jobs that have not ended.
    pub fn open_batches(&self) -> Result<Vec<BatchRecord>, JournalError> {
        let query = format!("SELECT {COLUMNS} FROM batches WHERE ended_at IS NULL ORDER BY id");
        Ok(self.core.read(|file, _| all(file, &query, [], record))?)
    }

    /// The jobs of a batch that are still kept, in their order: ids are made in it.
    pub fn jobs_of_batch(&self, id: BatchId) -> Result<Vec<JobId>, JournalError> {
        let query = "SELECT id FROM jobs WHERE batch = ?1 ORDER BY id";
        Ok(self.core.read(|file, _| all(file, query, [id.0.as_bytes()], |row| Ok(JobId(uuid(row, 0)?))))?)
    }

    /// The first event of a batch after a number; none if there is none yet.
    pub fn next_batch_event(&self, id: BatchId, after: Seq) -> Result<Option<BatchEventRow>, JournalError> {
        // The indexes on these columns are asked one after the other; the bytes are looked up for one row alone.
        let query = "SELECT seq, id, is_end, (SELECT octet_length(record) FROM jobs WHERE jobs.id = found.id)
            FROM (SELECT started_event AS seq, id, 0 AS is_end FROM jobs WHERE batch = ?1 AND started_event > ?2
                UNION ALL
                SELECT ended_event, id, 1 FROM jobs WHERE batch = ?1 AND ended_event > ?2
                ORDER BY seq LIMIT 1) AS found";
        let row = |row: &Row<'_>| {
            Ok(BatchEventRow {
                seq: bytes(row, 0)?,
                job: JobId(uuid(row, 1)?),
                is_end: row.get(2)?,
                bytes: bytes(row, 3)?,
            })
        };
        Ok(self.core.read(|file, _| {
            file.prepare_cached(query)?.query_row(params![id.0.as_bytes(), int(after)], row).optional()
        })?)
    }

    /// Forgets some of the batches whose jobs have ended and are forgotten; returns how many.
    pub(super) async fn forget_some_batches(&self) -> Result<usize, JournalError> {
        let query = "DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE ended_at IS NOT NULL
            AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.batch = batches.id) LIMIT ?1)";
        self.core.execute(Durability::Normal, OnRefusal::Wait, query, [ROWS_DELETED]).await
    }
}

fn record(row: &Row<'_>) -> rusqlite::Result<BatchRecord> {
    let count = |column| bytes(row, column).map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    let view = BatchView {
        id: BatchId(uuid(row, 0)?),
        owner: row.get(1)?,
        created_at: row.get(2)?,
        ended_at: row.get(3)?,
        parallel: count(4)?,
        size: count(5)?,
        ended: count(6)?,
        passed: count(7)?,
        jobs: Vec::new(),
    };
    Ok(BatchRecord { view, ephemeral: row.get(8)?, events: bytes(row, 9)? })
}
