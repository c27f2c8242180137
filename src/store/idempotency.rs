//! Keys with which clients make a request safe to repeat: one effect a key, for a day.

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value;
use std::time::{Duration, SystemTime};

use super::account::ROW_BYTES;
use super::blobs::Blobs;
use super::error::JournalError;
use super::journal::Journal;
use super::rows::int;
use super::sessions::seconds;
use super::writer::{Durability, OnRefusal};
use crate::protocol::clock;
use crate::protocol::ids::SessionId;

/// Time for which a key stands for its first request.
pub const KEY_LIFE: Duration = Duration::from_secs(24 * 60 * 60);

/// What is known about a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// Nothing, until now: it is the caller's, who has to act.
    New,
    /// The same request was made before. Without an answer it is being worked on, or the daemon
    /// died over it; the target, if it is there, tells what to look at.
    Known { target: Option<Value>, answer: Option<Answered> },
    /// Another request was made with this key.
    Conflict,
}

/// An answer as it was given.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    pub status: u16,
    pub body: Value,
}

/// What a claimed request makes, so that it can be found if there is never an answer.
#[derive(Clone, Debug)]
pub struct KeyTarget {
    pub owner: u32,
    pub key: String,
    pub target: Value,
}

impl KeyTarget {
    pub(super) fn note(&self, file: &Connection) -> rusqlite::Result<()> {
        aim(file, self.owner, &self.key, Some(&self.target.to_string()))
    }
}

fn aim(file: &Connection, owner: u32, key: &str, target: Option<&str>) -> rusqlite::Result<()> {
    let query = "UPDATE idempotency SET target = ?3 WHERE owner = ?1 AND key = ?2";
    file.prepare_cached(query)?.execute(params![owner, key, target]).map(drop)
}

impl Journal {
    /// Durable when it returns, so that what is done afterwards is never done twice.
    pub async fn claim(&self, owner: u32, key: &str, body_hash: &str) -> Result<Claim, JournalError> {
        self.claim_at(owner, key, body_hash, clock::wall()).await
    }

    pub(super) async fn claim_at(
        &self,
        owner: u32,
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
        self.core.queue.ask(Durability::Full, OnRefusal::Fail, claim).await
    }

    /// Notes what a claimed request is about to make, so that it can be found if there is never an answer;
    /// or that nothing came of it.
    pub async fn aim(&self, owner: u32, key: &str, target: Option<&Value>) -> Result<(), JournalError> {
        let (key, target) = (key.to_owned(), target.map(Value::to_string));
        let note = move |file: &Connection, _: &Blobs| Ok(aim(file, owner, &key, target.as_deref())?);
        self.core.queue.ask(Durability::Full, OnRefusal::Wait, note).await
    }

    /// Notes that no session came of a claimed request. If one is there after all, the key goes on leading to it.
    pub async fn aim_at_nothing(
        &self,
        owner: u32,
        key: &str,
        session: SessionId,
    ) -> Result<(), JournalError> {
        let key = key.to_owned();
        let note = move |file: &Connection, _: &Blobs| {
            let query = "UPDATE idempotency SET target = NULL WHERE owner = ?1 AND key = ?2
                AND NOT EXISTS (SELECT 1 FROM sessions WHERE id = ?3 AND removed_at IS NULL)";
            Ok(file.execute(query, params![owner, key, session.0.as_bytes()])?)
        };
        self.core.queue.ask(Durability::Full, OnRefusal::Wait, note).await.map(drop)
    }

    /// Keeps the answer of a claimed request for whoever repeats it.
    pub async fn answer(
        &self,
        owner: u32,
        key: &str,
        status: u16,
        answer: &Value,
        target: Option<&Value>,
    ) -> Result<(), JournalError> {
        let (key, answer, target) = (key.to_owned(), answer.to_string(), target.map(Value::to_string));
        let keep = move |file: &Connection, _: &Blobs| {
            let query = "UPDATE idempotency SET status = ?3, answer = ?4, target = coalesce(?5, target)
                WHERE owner = ?1 AND key = ?2";
            Ok(file.execute(query, params![owner, key, status, answer, target])?)
        };
        self.core.queue.ask(Durability::Normal, OnRefusal::Wait, keep).await.map(drop)
    }

    /// Bytes that are kept for the keys of one owner, or of each.
    pub fn kept_for_keys(&self, owner: Option<u32>) -> Result<Vec<(u32, u64)>, JournalError> {
        Ok(self.core.read(|file, _| {
            let query = "SELECT owner, sum(coalesce(octet_length(answer), 0) + octet_length(key)
                    + coalesce(octet_length(target), 0) + ?2)
                FROM idempotency WHERE ?1 IS NULL OR owner = ?1 GROUP BY owner";
            let mut statement = file.prepare(query)?;
            let kept = statement.query_map(params![owner, int(ROW_BYTES)], |row| {
                Ok((row.get(0)?, u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0)))
            })?;
            kept.collect()
        })?)
    }

    /// Gives a claimed key back, because nothing was done. One with a target stays: something was begun.
    pub async fn release(&self, owner: u32, key: &str) -> Result<(), JournalError> {
        let key = key.to_owned();
        let release = move |file: &Connection, _: &Blobs| {
            let query =
                "DELETE FROM idempotency WHERE owner = ?1 AND key = ?2 AND answer IS NULL AND target IS NULL";
            Ok(file.execute(query, params![owner, key])?)
        };
        self.core.queue.ask(Durability::Normal, OnRefusal::Wait, release).await.map(drop)
    }
}

fn find(
    file: &Connection,
    owner: u32,
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

/// Deletes keys that stand for nothing any more; gives how many.
pub(super) fn expire(file: &Connection, now: SystemTime) -> rusqlite::Result<usize> {
    file.execute("DELETE FROM idempotency WHERE created <= ?1", [oldest(now)])
}
