//! What sessions have used, according to the journal: tokens of models and bytes on the disk.

use rusqlite::{Connection, Row, params};
use std::path::Path;

use super::account::ROW_BYTES;
use super::blobs::{Blobs, INLINE_BYTES};
use super::error::JournalError;
use super::journal::Journal;
use super::rows::{all, bytes, int, uuid};
use crate::protocol::chat::Usage;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::SessionId;
use crate::protocol::principal::Principal;

/// Estimated bytes of a reply per token, for providers that do not report token counts.
const BYTES_PER_TOKEN: u64 = 4;
/// The name under which the tokens of sessions appear whose events are deleted already.
const FORGOTTEN: &str = "removed sessions";

/// Tokens of models that one session used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpentTokens {
    pub owner: Principal,
    /// The session's name, or `FORGOTTEN`.
    pub by: String,
    pub tokens: u64,
}

impl Journal {
    /// The tokens used since the beginning of the day of `at`, including those of sessions that were removed since.
    pub fn tokens_of_day(&self, at: &str) -> Result<Vec<SpentTokens>, JournalError> {
        let day = day(at);
        Ok(self.core.read(|file, blobs| {
            let query = "SELECT sessions.owner, sessions.name, events.json, events.blob
                FROM events INDEXED BY model_costs JOIN sessions ON sessions.id = events.session
                WHERE events.name IN ('model_replied', 'model_spent') AND events.at >= ?1";
            let mut spent = all(file, query, [day], |row| {
                Ok(SpentTokens { owner: row.get("owner")?, by: row.get("name")?, tokens: cost(row, blobs)? })
            })?;
            let query = "SELECT owner, tokens FROM spent_tokens WHERE day >= ?1";
            spent.extend(all(file, query, [day], |row| {
                let tokens = u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0);
                Ok(SpentTokens { owner: row.get(0)?, by: FORGOTTEN.into(), tokens })
            })?);
            Ok(spent)
        })?)
    }

    /// Sessions that were removed and are still kept, with their owners, oldest first.
    pub fn removed(&self) -> Result<Vec<(Principal, SessionId)>, JournalError> {
        Ok(self.core.scan(|file, _| {
            let query = "SELECT owner, id FROM sessions WHERE removed_at IS NOT NULL ORDER BY removed_at, id";
            all(file, query, [], |row| Ok((row.get(0)?, SessionId(uuid(row, 1)?))))
        })?)
    }

    /// Bytes that are kept of a session: its record, its events, its output.
    pub fn stored(&self, session: SessionId) -> Result<u64, JournalError> {
        let (record, events) =
            self.core.scan(|file, _| Ok((record_bytes(file, session)?, stored(file, session, None)?)))?;
        let output = output_bytes(&self.spill_folder(session));
        Ok(record.saturating_add(events).saturating_add(output))
    }
}

/// Keeps the sum of what models have cost since the beginning of the day of `now` in events of a session that are about
/// to be deleted: those whose sequence number is below `until`. The quota of the day would come back otherwise.
pub(super) fn keep_costs(
    file: &Connection,
    blobs: &Blobs,
    session: SessionId,
    until: i64,
    now: &str,
) -> rusqlite::Result<()> {
    let day = day(now);
    let query = "SELECT json, blob FROM events
        WHERE session = ?1 AND seq < ?2 AND name IN ('model_replied', 'model_spent') AND at >= ?3";
    let mut statement = file.prepare(query)?;
    let costs = statement.query_map(params![session.0.as_bytes(), until, day], |row| cost(row, blobs))?;
    let mut sum = 0_u64;
    for cost in costs {
        sum = sum.saturating_add(cost?);
    }
    if sum == 0 {
        return Ok(());
    }
    // At most one row of each user is left of earlier days.
    file.execute("DELETE FROM spent_tokens WHERE day < ?1", [day])?;
    let query =
        "INSERT INTO spent_tokens (owner, day, tokens) SELECT owner, ?2, ?3 FROM sessions WHERE id = ?1
        ON CONFLICT (owner, day) DO UPDATE SET tokens = tokens + excluded.tokens";
    file.execute(query, params![session.0.as_bytes(), day, int(sum)]).map(drop)
}

/// The day of a point in time, as text.
fn day(at: &str) -> &str {
    at.get(.."2026-01-01".len()).unwrap_or(at)
}

/// What a model's event has cost, by its columns `json` and `blob`.
fn cost(row: &Row<'_>, blobs: &Blobs) -> rusqlite::Result<u64> {
    let json = match (row.get::<_, Option<String>>("json")?, row.get::<_, Option<String>>("blob")?) {
        (None, Some(blob)) => blobs.get(&blob).ok(),
        (json, _) => json,
    };
    Ok(json.map_or(INLINE_BYTES as u64 / BYTES_PER_TOKEN, |json| tokens(&json)))
}

fn tokens(json: &str) -> u64 {
    let counted = match serde_json::from_str::<Event>(json).map(|event| event.body) {
        Ok(EventBody::ModelReplied { reply, .. }) => reply.usage.map(Usage::total),
        Ok(EventBody::ModelSpent { tokens, .. }) => Some(tokens),
        _ => None,
    };
    counted.unwrap_or(json.len() as u64 / BYTES_PER_TOKEN)
}

/// Bytes of the events of one session. Rows of older versions do not record the size of their blob; such a blob counts
/// as `INLINE_BYTES`, the smallest size that becomes a blob. Events of the kind `without` are left out.
pub(super) fn stored(file: &Connection, session: SessionId, without: Option<&str>) -> rusqlite::Result<u64> {
    let query = "SELECT coalesce(sum(octet_length(json)), 0) + count(*) * ?3
            + coalesce(sum(CASE WHEN blob IS NULL THEN 0 ELSE coalesce(bytes, ?2) END), 0)
        FROM events WHERE session = ?1 AND (?4 IS NULL OR name <> ?4)";
    let (large, row) = (int(INLINE_BYTES as u64), int(ROW_BYTES));
    let values = rusqlite::params![session.0.as_bytes(), large, row, without];
    file.query_row(query, values, |row| bytes(row, 0))
}

fn record_bytes(file: &Connection, session: SessionId) -> rusqlite::Result<u64> {
    let query = "SELECT coalesce(sum(octet_length(record)), 0) FROM sessions WHERE id = ?1";
    file.query_row(query, [session.0.as_bytes()], |row| bytes(row, 0))
}

/// Bytes of the files with a session's output.
pub(super) fn output_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.len()).sum()
}
