//! Events as rows: how they are written, read and turned into the JSON that clients get.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use rusqlite::types::{FromSql, FromSqlResult, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, ToSql, params};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use super::blobs::{Blobs, INLINE_BYTES};
use super::durability::WriteError;
use super::error::JournalError;
use super::spill::Range;
use crate::memory::NoRoom;
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{CellNumber, SandboxId, Seq, SessionId};
use crate::protocol::principal::Principal;
use crate::protocol::result::Stream;
use crate::protocol::values;

/// The most levels of nesting in an event. Incoming values are parsed with at most 128 levels and get a few more around
/// them in the event.
const EVENT_DEPTH: usize = 192;
/// The most bytes that one byte of output takes in JSON: an escape in the text, and 4/3 more as base64.
const ESCAPED: u64 = 8;

/// An event ready to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedEvent {
    pub seq: Seq,
    pub name: Cow<'static, str>,
    pub cell: Option<CellNumber>,
    /// JSON of [`Event`].
    pub json: Arc<str>,
}

/// The frame of a kernel that caused an event: after a restart, frames up to the highest number in the journal are not
/// requested again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedFrame {
    pub sandbox: SandboxId,
    pub received: u64,
}

/// What the recorder needs in addition to the events to continue after a restart; clients never see it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct RecorderState {
    /// Bytes of the cell on stdout and stderr so far that are not in any event.
    pub lost: [u64; 2],
    /// How many of the lost bytes came after the bytes of this event.
    pub dropped: u64,
    pub displays_dropped: u64,
    /// The beginning of a character or placeholder that arrived with this event's frame and waits for its end.
    pub rest: Option<IncompleteText>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct IncompleteText {
    pub stream: Stream,
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub at: String,
    pub cell: Option<CellNumber>,
    pub name: Cow<'static, str>,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub(super) enum Content {
    /// JSON text, serialised once for any number of readers; its length is the entry's cost.
    Json(Arc<str>),
    /// Output stays in its spill file until a reader needs it.
    Output { stream: Stream, start: u64, bytes: u64 },
}

/// One row to be written.
#[derive(Debug)]
pub(super) struct Row {
    pub session: SessionId,
    pub seq: Seq,
    pub entry: Arc<Entry>,
    pub applied: Option<AppliedFrame>,
    pub recorder_state: Option<RecorderState>,
}

/// An event as the recorder needs it to continue after a restart.
#[derive(Debug)]
pub(super) struct StoredEvent {
    pub cell: Option<CellNumber>,
    pub entry: Entry,
    pub recorder_state: Option<RecorderState>,
    pub received: Option<u64>,
}

/// Converts to the signed integers of `SQLite`; no count here is large enough to be cut.
pub(super) fn int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl Entry {
    pub fn cost(&self) -> usize {
        match &self.content {
            Content::Json(text) => text.len(),
            Content::Output { .. } => 0,
        }
    }

    /// The most bytes that the entry takes when it is rendered.
    pub fn size(&self) -> u64 {
        match &self.content {
            Content::Json(text) => text.len() as u64,
            Content::Output { bytes, .. } => bytes.saturating_mul(ESCAPED),
        }
    }

    pub fn render(&self, seq: Seq, spill: &Path) -> RenderedEvent {
        let json = match &self.content {
            Content::Json(text) => Arc::clone(text),
            Content::Output { stream, start, bytes } => {
                let (text, bytes) = Range::new(spill, self.cell, *start, *bytes).text();
                let base64 = bytes.map(|bytes| BASE64.encode(bytes));
                let body = EventBody::Output { cell: self.cell, stream: *stream, text, base64 };
                serde_json::to_string(&Event { seq, at: self.at.clone(), body }).unwrap_or_default().into()
            }
        };
        RenderedEvent { seq, name: self.name.clone(), cell: self.cell, json }
    }
}

impl Row {
    pub fn insert(&self, connection: &Connection, blobs: &Blobs) -> Result<(), WriteError> {
        let (mut stream, mut start, mut bytes, mut blob, mut json) = (None, None, None, None, None);
        match &self.entry.content {
            Content::Json(text) if text.len() > INLINE_BYTES => {
                (blob, bytes) = (Some(blobs.put(text.as_bytes())?), Some(int(text.len() as u64)));
            }
            Content::Json(text) => json = Some(&**text),
            Content::Output { stream: of, start: from, bytes: count } => {
                (stream, start, bytes) = (Some(of.name()), Some(int(*from)), Some(int(*count)));
            }
        }
        let recorder_state = self
            .recorder_state
            .as_ref()
            .and_then(|recorder_state| serde_json::to_string(recorder_state).ok());
        let sandbox = self.applied.as_ref().map(|applied| applied.sandbox.0.as_str());
        let received = self.applied.as_ref().map(|applied| int(applied.received));
        let mut statement = connection.prepare_cached(
            "INSERT INTO events
                (session, seq, at, name, cell, sandbox, received, stream, start, bytes, carry, blob, json)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )?;
        statement.execute(params![
            self.session.0.as_bytes(),
            int(self.seq),
            self.entry.at,
            self.entry.name,
            self.entry.cell.map(int),
            sandbox,
            received,
            stream,
            start,
            bytes,
            recorder_state,
            blob,
            json,
        ])?;
        Ok(())
    }
}

const COLUMNS: &str = "seq, at, name, cell, stream, start, bytes, blob, json, carry, received";

fn stored(row: &SqlRow<'_>, blobs: &Blobs) -> rusqlite::Result<(Seq, StoredEvent)> {
    let seq = unsigned(row.get("seq")?);
    let at: String = row.get("at")?;
    let name: String = row.get("name")?;
    let cell = row.get::<_, Option<i64>>("cell")?.map(unsigned);
    let content = if let Some(stream) = row.get::<_, Option<String>>("stream")? {
        let stream = if stream == "stderr" { Stream::Stderr } else { Stream::Stdout };
        Content::Output { stream, start: unsigned(row.get("start")?), bytes: unsigned(row.get("bytes")?) }
    } else if let Some(blob) = row.get::<_, Option<String>>("blob")? {
        Content::Json(blobs.get(&blob).unwrap_or_else(|error| lost_blob(&error, seq, &at, &name)).into())
    } else {
        Content::Json(row.get::<_, Option<String>>("json")?.unwrap_or_default().into())
    };
    let recorder_state: Option<String> = row.get("carry")?;
    let recorder_state = recorder_state.and_then(|text| serde_json::from_str(&text).ok());
    let received = row.get::<_, Option<i64>>("received")?.map(unsigned);
    Ok((
        seq,
        StoredEvent { cell, entry: Entry { at, cell, name: name.into(), content }, recorder_state, received },
    ))
}

/// A stand-in for an event whose blob file is missing; the event keeps its place in the order.
fn lost_blob(error: &std::io::Error, seq: Seq, at: &str, name: &str) -> String {
    tracing::error!(%error, seq, "the content of an event is gone");
    serde_json::json!({ "seq": seq, "at": at, "type": name, "lost": true }).to_string()
}

/// At most `limit` events after `after` and up to `until`, with at most `most_bytes`; the first is returned even if it
/// is larger.
pub(super) fn read(
    connection: &Connection,
    blobs: &Blobs,
    session: SessionId,
    (after, until): (Seq, Seq),
    (limit, most_bytes): (usize, u64),
) -> rusqlite::Result<Vec<(Seq, Entry)>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM events WHERE session = ?1 AND seq > ?2 AND seq <= ?3 ORDER BY seq LIMIT ?4"
    ))?;
    let bounds = params![session.0.as_bytes(), int(after), int(until), int(limit as u64)];
    let mut rows = statement.query(bounds)?;
    let (mut entries, mut bytes) = (Vec::new(), 0_u64);
    while let Some(row) = rows.next()? {
        // The size is checked before the content is read.
        bytes = size_of(row)?.saturating_add(bytes);
        if bytes > most_bytes && !entries.is_empty() {
            break;
        }
        let (seq, recorded) = stored(row, blobs)?;
        entries.push((seq, recorded.entry));
    }
    Ok(entries)
}

/// The JSON of events without output and displays.
pub(super) struct EventBatch {
    pub events: Vec<(Seq, String)>,
    /// The number of the last event that was examined, output and displays included.
    pub last: Seq,
}

/// Like [`read`], without output and displays, whose content is not read at all; an event that cannot be read is an
/// error. `reserve` is asked for the bytes of each event before it is read.
pub(super) fn read_batch(
    connection: &Connection,
    blobs: &Blobs,
    session: SessionId,
    (after, until): (Seq, Seq),
    (limit, most_bytes): (usize, u64),
    mut reserve: impl FnMut(u64) -> Result<(), NoRoom>,
) -> Result<EventBatch, JournalError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM events WHERE session = ?1 AND seq > ?2 AND seq <= ?3 ORDER BY seq LIMIT ?4"
    ))?;
    let bounds = params![session.0.as_bytes(), int(after), int(until), int(limit as u64)];
    let mut rows = statement.query(bounds)?;
    let (mut batch, mut bytes) = (EventBatch { events: Vec::new(), last: after }, 0_u64);
    while let Some(row) = rows.next()? {
        let seq = unsigned(row.get("seq")?);
        if seq != batch.last + 1 {
            return Err(unreadable(batch.last + 1, &"it is not there"));
        }
        if !matches!(row.get_ref("name")?.as_str(), Ok("output" | "display")) {
            let size = size_of(row)?;
            bytes = bytes.saturating_add(size);
            if bytes > most_bytes && !batch.events.is_empty() {
                return Ok(batch);
            }
            reserve(size).map_err(JournalError::NoRoom)?;
            let json = match row.get::<_, Option<String>>("blob")? {
                Some(blob) => blobs.get(&blob).map_err(|error| unreadable(seq, &error))?,
                None => row.get::<_, Option<String>>("json")?.unwrap_or_default(),
            };
            batch.events.push((seq, json));
        }
        batch.last = seq;
    }
    if batch.last == after { Err(unreadable(after + 1, &"it is not there")) } else { Ok(batch) }
}

/// Parses an event as it was written. A value in it may be as deep as the parser of incoming values allows and has a
/// few more levels around it; an even deeper one could overflow the stack.
pub(super) fn parse(seq: Seq, json: &str) -> Result<Event, JournalError> {
    if values::depth(json) > EVENT_DEPTH {
        return Err(unreadable(seq, &format!("it is nested more than {EVENT_DEPTH} levels deep")));
    }
    let mut parser = serde_json::Deserializer::from_str(json);
    parser.disable_recursion_limit();
    Event::deserialize(&mut parser).map_err(|error| unreadable(seq, &error))
}

/// The error that an event is missing or cannot be used.
pub(super) fn unreadable(seq: Seq, reason: &dyn std::fmt::Display) -> JournalError {
    JournalError::EventUnreadable { seq, reason: reason.to_string() }
}

/// The same number as [`Entry::size`], computed from the row.
fn size_of(row: &SqlRow<'_>) -> rusqlite::Result<u64> {
    let is_output = !matches!(row.get_ref("stream")?, ValueRef::Null);
    match row.get::<_, Option<i64>>("bytes")?.map(unsigned) {
        Some(bytes) if is_output => Ok(bytes.saturating_mul(ESCAPED)),
        Some(bytes) => Ok(bytes),
        None => Ok(match row.get_ref("json")? {
            ValueRef::Text(json) => json.len() as u64,
            _ => 0,
        }),
    }
}

/// The size of one event, without reading its blob or output.
pub(super) fn size(connection: &Connection, session: SessionId, seq: Seq) -> rusqlite::Result<Option<u64>> {
    let mut statement = connection
        .prepare_cached("SELECT stream, bytes, json FROM events WHERE session = ?1 AND seq = ?2")?;
    statement.query_row(params![session.0.as_bytes(), int(seq)], size_of).optional()
}

/// The event that ended a cell.
pub(super) fn finished(
    connection: &Connection,
    blobs: &Blobs,
    session: SessionId,
    cell: CellNumber,
) -> rusqlite::Result<Option<(Seq, Entry)>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM events WHERE session = ?1 AND cell = ?2 AND name = 'cell_finished'
         ORDER BY seq DESC LIMIT 1"
    ))?;
    let found = statement.query_row(params![session.0.as_bytes(), int(cell)], |row| stored(row, blobs));
    Ok(found.optional()?.map(|(seq, recorded)| (seq, recorded.entry)))
}

/// The sequence number of the newest event.
pub(super) fn newest(connection: &Connection, session: SessionId) -> rusqlite::Result<Seq> {
    let query = "SELECT coalesce(max(seq), 0) FROM events WHERE session = ?1";
    connection.query_row(query, [session.0.as_bytes()], |row| row.get(0)).map(unsigned)
}

/// The sandboxes that a session has according to its events: the one that became ready last, unless an event says that
/// it is gone. If that event cannot be parsed, all sandboxes whose frames the session ever recorded: naming one too
/// many is safer than missing one.
pub(super) fn sandboxes(
    connection: &Connection,
    blobs: &Blobs,
    session: SessionId,
) -> rusqlite::Result<Vec<SandboxId>> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM events INDEXED BY sandbox_changes
         WHERE session = ?1 AND name IN ('sandbox_ready', 'sandbox_gone')
         ORDER BY seq DESC LIMIT 1"
    ))?;
    let last = statement.query_row([session.0.as_bytes()], |row| stored(row, blobs)).optional()?;
    let Some(Entry { name, content: Content::Json(json), .. }) = last.map(|(_, recorded)| recorded.entry)
    else {
        return Ok(Vec::new());
    };
    if name == "sandbox_gone" {
        return Ok(Vec::new());
    }
    if let Ok(EventBody::SandboxReady { receipt, .. }) =
        serde_json::from_str::<Event>(&json).map(|event| event.body)
    {
        return Ok(vec![receipt.sandbox]);
    }
    Ok(received(connection, session)?.into_iter().map(|applied| applied.sandbox).collect())
}

/// The highest frame number applied, per sandbox.
pub(super) fn received(connection: &Connection, session: SessionId) -> rusqlite::Result<Vec<AppliedFrame>> {
    let query = "SELECT sandbox, max(received) FROM events
         WHERE session = ?1 AND sandbox IS NOT NULL GROUP BY sandbox";
    all(connection, query, [session.0.as_bytes()], |row| {
        Ok(AppliedFrame { sandbox: SandboxId(row.get(0)?), received: unsigned(row.get(1)?) })
    })
}

/// All rows that a query finds.
pub(super) fn all<T>(
    connection: &Connection,
    query: &str,
    values: impl rusqlite::Params,
    row: impl FnMut(&SqlRow<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection.prepare(query)?.query_map(values, row)?.collect()
}

/// A UUID in the given column.
pub(super) fn uuid(row: &SqlRow<'_>, column: usize) -> rusqlite::Result<uuid::Uuid> {
    Ok(uuid::Uuid::from_bytes(row.get(column)?))
}

/// In the journal a principal is a user id.
impl ToSql for Principal {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.uid().into())
    }
}

impl FromSql for Principal {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        u32::column_result(value).map(Self::new)
    }
}

/// A number of bytes in the given column.
pub(super) fn bytes(row: &SqlRow<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get(column).map(unsigned)
}

/// Passes the output and displays of a cell since its last start to `each`, in order.
pub(super) fn of_cell(
    connection: &Connection,
    blobs: &Blobs,
    session: SessionId,
    cell: CellNumber,
    mut each: impl FnMut(StoredEvent),
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(&format!(
        "SELECT {COLUMNS} FROM events
         WHERE session = ?1 AND cell = ?2 AND name IN ('output', 'output_cut', 'display') AND seq > coalesce(
            (SELECT seq FROM events WHERE session = ?1 AND cell = ?2 AND name = 'cell_started'
             ORDER BY seq DESC LIMIT 1), 0)
         ORDER BY seq"
    ))?;
    let mut rows = statement.query(params![session.0.as_bytes(), int(cell)])?;
    while let Some(row) = rows.next()? {
        each(stored(row, blobs)?.1);
    }
    Ok(())
}

/// The newest event of output: of any cell or none, or only of output between cells.
pub(super) fn last_output(
    connection: &Connection,
    blobs: &Blobs,
    session: SessionId,
    between_cells: bool,
) -> rusqlite::Result<Option<StoredEvent>> {
    let of = if between_cells { "AND cell IS NULL AND name = 'output'" } else { "" };
    let query = format!(
        "SELECT {COLUMNS} FROM events WHERE session = ?1 AND name IN ('output', 'output_cut') {of}
         ORDER BY seq DESC LIMIT 1"
    );
    let found = connection.query_row(&query, [session.0.as_bytes()], |row| stored(row, blobs)).optional()?;
    Ok(found.map(|(_, recorded)| recorded))
}
