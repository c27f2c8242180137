//! Idempotency keys, with which clients make a request safe to repeat: each key has one effect for a day.

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value;
use std::time::{Duration, SystemTime};

use super::account::ROW_BYTES;
use super::blobs::Blobs;
use super::durability::{Durability, OnRefusal};
use super::error::JournalError;
use super::journal::Journal;
use super::rows::{all, bytes, int};
use super::sessions::{ROWS_DELETED, seconds};
use crate::protocol::clock;
use crate::protocol::ids::SessionId;
use crate::protocol::principal::Principal;

/// How long a key stands for its first request.
pub const KEY_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// The state of a key when a request claims it.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// The key was unknown and is now claimed; the caller has to carry out the request.
    New,
    /// The same request was made before. Without an answer, the request is still in progress, or the daemon died during
    /// it; the target, if there is one, names what the request creates.
    Known { target: Option<Value>, answer: Option<Answered> },
    /// Another request was made with this key.
    Conflict,
}

/// An answer as the client received it.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    pub status: u16,
    pub body: Value,
}

/// What a claimed request creates, so that a repeated request finds it even if no answer was ever recorded.
#[derive(Clone, Debug)]
pub struct KeyTarget {
    pub owner: Principal,
    pub key: String,
    pub target: Value,
}

impl KeyTarget {
    pub(super) fn note(&self, file: &Connection) -> rusqlite::Result<()> {
        aim(file, self.owner, &self.key, Some(&self.target.to_string()))
    }
}

fn aim(file: &Connection, owner: Principal, key: &str, target: Option<&str>) -> rusqlite::Result<()> {
    let query = "UPDATE idempotency SET target = ?3 WHERE owner = ?1 AND key = ?2";
    file.prepare_cached(query)?.execute(params![owner, key, target]).map(drop)
}

impl Journal {
    /// Claims a key. Durable on return, so that the request is never carried out twice.
    pub async fn claim(&self, owner: Principal, key: &str, body_hash: &str) -> Result<Claim, JournalError> {
        self.claim_at(owner, key, body_hash, clock::wall()).await
    }

    pub(super) async fn claim_at(
        &self,
        owner: Principal,
        key: &str,
        body_hash: &str,
        now: SystemTime,
    ) -> Result<Claim, JournalError> {
        let (key, body_hash) = (key.to_owned(), body_hash.to_owned());
        let claim = move |file: &Connection, _: &Blobs| {
            if let Some(known) = find(file, owner, &key, &body_hash, now)? {
                return Ok(known);
            }
            let query = "INSERT OR REPLACE INTO idempotency (owner, key, body_hash, created)
                VALUES (?1, ?2, ?3, ?4)";
            file.execute(query, params![owner, key, body_hash, seconds(now)])?;
            Ok(Claim::New)
        };
        self.core.queue.write(Durability::Full, OnRefusal::Fail, claim).await
    }

    /// Records what a claimed request is about to create, so that a repeated request finds it even if no answer is ever
    /// recorded; with `None`, records that nothing was created.
    pub async fn aim(&self, owner: Principal, key: &str, target: Option<&Value>) -> Result<(), JournalError> {
        let (key, target) = (key.to_owned(), target.map(Value::to_string));
        let note = move |file: &Connection, _: &Blobs| Ok(aim(file, owner, &key, target.as_deref())?);
        self.core.queue.write(Durability::Full, OnRefusal::Wait, note).await
    }

    /// Records that a claimed request created no session. If the session exists after all, the key keeps leading to it.
    pub async fn aim_at_nothing(
        &self,
        owner: Principal,
        key: &str,
        session: SessionId,
    ) -> Result<(), JournalError> {
        let query = "UPDATE idempotency SET target = NULL WHERE owner = ?1 AND key = ?2
            AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = ?3 AND removed_at IS NULL)";
        let values = (owner, key.to_owned(), session.0.into_bytes());
        self.core.execute(Durability::Full, OnRefusal::Wait, query, values).await.map(drop)
    }

    /// Keeps the answer of a claimed request for repetitions of the request.
    pub async fn answer(
        &self,
        owner: Principal,
        key: &str,
        status: u16,
        answer: &Value,
        target: Option<&Value>,
    ) -> Result<(), JournalError> {
        let query = "UPDATE idempotency SET status = ?3, answer = ?4, target = coalesce(?5, target)
            WHERE owner = ?1 AND key = ?2";
        let values = (owner, key.to_owned(), status, answer.to_string(), target.map(Value::to_string));
        self.core.execute(Durability::Normal, OnRefusal::Wait, query, values).await.map(drop)
    }

    /// Bytes that the keys of one owner, or of every owner, take on the disk, and the records of what administrators did
    /// with jobs of others. To be called where a thread may wait.
    pub fn kept_for_requests(&self, owner: Option<Principal>) -> Result<Vec<(Principal, u64)>, JournalError> {
        Ok(self.core.scan(|file, _| {
            // The whole table is only read if the keys of every owner are asked for.
            let (first, last) = owner.map_or((0, u32::MAX), |owner| (owner.uid(), owner.uid()));
            let query = "SELECT owner, sum(bytes + ?3) FROM (
                    SELECT owner, coalesce(octet_length(answer), 0) + octet_length(key)
                        + coalesce(octet_length(target), 0) AS bytes
                    FROM idempotency WHERE owner BETWEEN ?1 AND ?2
                    UNION ALL
                    SELECT admin, octet_length(act) FROM job_acts WHERE admin BETWEEN ?1 AND ?2
                ) GROUP BY owner";
            all(file, query, (first, last, int(ROW_BYTES)), |row| Ok((row.get(0)?, bytes(row, 1)?)))
        })?)
    }

    /// Deletes some of the expired keys, so that other writes go in between; returns how many.
    pub(super) async fn expire_keys(&self, now: SystemTime) -> Result<usize, JournalError> {
        let query = "DELETE FROM idempotency WHERE (owner, key) IN
            (SELECT owner, key FROM idempotency WHERE created <= ?1 LIMIT ?2)";
        self.core.execute(Durability::Normal, OnRefusal::Wait, query, (oldest(now), ROWS_DELETED)).await
    }

    /// Deletes all keys of an owner with their answers, some at a time, so that other writes go in between.
    pub(super) async fn forget_keys(&self, owner: Principal) -> Result<(), JournalError> {
        let query = "DELETE FROM idempotency WHERE (owner, key) IN
            (SELECT owner, key FROM idempotency WHERE owner = ?1 LIMIT ?2)";
        let some = || self.core.execute(Durability::Full, OnRefusal::Fail, query, (owner, ROWS_DELETED));
        while some().await? > 0 {}
        Ok(())
    }

    /// Releases a claimed key because nothing was done. A key with a target stays, because something was begun.
    pub async fn release(&self, owner: Principal, key: &str) -> Result<(), JournalError> {
        let query =
            "DELETE FROM idempotency WHERE owner = ?1 AND key = ?2 AND answer IS NULL AND target IS NULL";
        let values = (owner, key.to_owned());
        self.core.execute(Durability::Normal, OnRefusal::Wait, query, values).await.map(drop)
    }
}

fn find(
    file: &Connection,
    owner: Principal,
    key: &str,
    body_hash: &str,
    now: SystemTime,
) -> rusqlite::Result<Option<Claim>> {
    let query = "SELECT body_hash, target, status, answer FROM idempotency
        WHERE owner = ?1 AND key = ?2 AND created > ?3";
    let mut statement = file.prepare_cached(query)?;
    let found = statement.query_row(params![owner, key, oldest(now)], |row| {
        if row.get::<_, String>(0)? != body_hash {
            return Ok(Claim::Conflict);
        }
        let json = |text: Option<String>| text.and_then(|text| serde_json::from_str(&text).ok());
        let (status, body): (Option<u16>, Option<Value>) = (row.get(2)?, json(row.get(3)?));
        let answer = status.zip(body).map(|(status, body)| Answered { status, body });
        Ok(Claim::Known { target: json(row.get(1)?), answer })
    });
    found.optional()
}

fn oldest(now: SystemTime) -> i64 {
    seconds(now).saturating_sub(int(KEY_LIFE.as_secs()))
}
