//! Events as server-sent events: from a number on, until an end, with a sign of life in between.

use axum::body::Body;
use axum::http::header;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::body::keep_with;
use crate::actors::holding::Hold;
use crate::controls;
use crate::memory::{Charge, MemoryPurpose, NoRoom, Pool, SMALL_BYTES, offload_if_large};
use crate::protocol::ask::AskNumber;
use crate::protocol::event::{AskScope, Event, EventBody};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::limits::JOURNAL_TIMEOUT;
use crate::protocol::limits::STREAM_KEEPALIVE;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::sse;
use crate::store::{EventLog, Gone, Rendered};

/// Events sent at once. More than [`SMALL_BYTES`] of them is a single one, which is charged before it is read.
const BATCH: usize = 64;
/// Copies of an event while it is looked at and made ready to be sent.
const COPIES: u64 = 4;

/// Where a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The newest event of now.
    Now,
    /// The end of the session.
    SessionEnd,
    /// The end of a cell, of which alone it tells.
    CellEnd(CellNumber),
    /// The end of an ask; it tells of that and of its cells.
    AskEnd(AskNumber),
}

/// Whether the next event may be read.
enum ReadAdmission {
    /// It is small.
    Free,
    Charged(Charge),
    /// Not yet.
    Waits,
    Never(NoRoom),
    /// The daemon goes down.
    Ends,
}

struct Feed {
    log: Arc<EventLog>,
    watch: watch::Receiver<Seq>,
    after: Seq,
    until: Until,
    last: Seq,
    ended: bool,
    /// The ask of which alone it tells, with what belongs to it.
    scope: Option<AskScope>,
    /// The daemon goes down: streams that would not end by themselves do.
    shutdown: CancellationToken,
    /// What lives as long as it is followed.
    _hold: Option<Hold>,
    /// Of whoever reads it.
    pool: Pool,
}

/// The events after a number. Asking for events that are gone, or after one that never was, is a problem
/// before anything is sent.
pub fn respond(
    log: Arc<EventLog>,
    after: Seq,
    until: Until,
    shutdown: CancellationToken,
    pool: Pool,
) -> Result<Response, Problem> {
    respond_holding(log, after, until, shutdown, pool, None)
}

/// Likewise, and something is held for as long as the stream lasts.
pub fn respond_holding(
    log: Arc<EventLog>,
    after: Seq,
    until: Until,
    shutdown: CancellationToken,
    pool: Pool,
    hold: Option<Hold>,
) -> Result<Response, Problem> {
    log.read(after, 1).map_err(gone)?;
    let newest = log.newest();
    if after > newest {
        // What its reader saw were the events of another.
        let message = format!("there is no event {after}: the newest is {newest}");
        let hint =
            "a session of that name was removed and made anew; read this one from its start, with `after=0`";
        return Err(Problem::new(Code::BadRequest, message).hint(hint));
    }
    let feed = Feed {
        watch: log.watch(),
        last: newest,
        log,
        after,
        until,
        ended: false,
        scope: match until {
            Until::AskEnd(ask) => Some(AskScope::new(ask)),
            Until::Now | Until::SessionEnd | Until::CellEnd(_) => None,
        },
        shutdown,
        _hold: hold,
        pool,
    };
    let body = Body::from_stream(stream::unfold(feed, |mut feed| async move {
        let chunk = feed.next().await?;
        Some((Ok::<Bytes, Infallible>(chunk), feed))
    }));
    let response = Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .header(header::CACHE_CONTROL, "no-store")
        .body(body);
    response.map_err(|error| Problem::new(Code::Internal, error.to_string()))
}

/// A stream that has ended before it began.
pub fn nothing() -> Result<Response, Problem> {
    let response = Response::builder().header(header::CONTENT_TYPE, "text/event-stream").body(Body::empty());
    response.map_err(|error| Problem::new(Code::Internal, error.to_string()))
}

/// Its reader would wait for an end that no event can tell of.
fn unwritable(trouble: &str) -> Problem {
    let message = format!("what happens cannot be written into the journal: {trouble}");
    Problem::new(Code::Storage, message).hint(
        "free some space where the daemon's home is; then `belljar wait` and `belljar logs` tell the rest",
    )
}

/// An event of the stream itself, with which it ends.
fn problem(problem: &Problem) -> Bytes {
    let json = serde_json::to_string(problem).unwrap_or_default();
    let mut text = String::new();
    sse::encode(None, "problem", &json, &mut text);
    text.into()
}

fn gone(gone: Gone) -> Problem {
    Problem::new(Code::EventsGone, gone.to_string()).hint(format!("ask with `after={}`", gone.first - 1))
}

impl Feed {
    /// The next piece of the stream, none at its end.
    async fn next(&mut self) -> Option<Bytes> {
        let keepalive = tokio::time::sleep(STREAM_KEEPALIVE);
        tokio::pin!(keepalive);
        loop {
            if self.ended {
                return None;
            }
            self.watch.borrow_and_update();
            let closed = self.log.is_closed();
            let mut charge = match self.room_for_next().await {
                ReadAdmission::Free => None,
                ReadAdmission::Charged(charge) => Some(charge),
                ReadAdmission::Waits => return Some(Bytes::from_static(sse::KEEPALIVE.as_bytes())),
                ReadAdmission::Never(no_room) => {
                    self.ended = true;
                    return Some(problem(&no_room.into()));
                }
                ReadAdmission::Ends => return None,
            };
            let bytes = charge.as_ref().map_or(0, Charge::bytes);
            let read = offload_if_large(bytes, || self.log.read_within(self.after, BATCH, SMALL_BYTES));
            let Ok(events) = read else {
                // The reader was too slow; it can see from the numbers that something is missing.
                return None;
            };
            let (mut text, read) = (String::new(), events.len());
            for event in events {
                self.take(&event, &mut text);
                if self.ended {
                    break;
                }
            }
            if !text.is_empty() {
                let chunk = Bytes::from(text);
                return Some(match charge.take() {
                    Some(mut charge) => {
                        charge.shrink_to(chunk.len() as u64);
                        keep_with(chunk, charge)
                    }
                    None => chunk,
                });
            }
            if read > 0 {
                continue;
            }
            if closed || self.until == Until::Now {
                return None;
            }
            let lasting = self.until == Until::SessionEnd;
            tokio::select! {
                // What came before the end is told before the end.
                biased;
                changed = self.watch.changed() => changed.ok()?,
                () = self.shutdown.cancelled(), if lasting => return None,
                () = tokio::time::sleep(JOURNAL_TIMEOUT), if !lasting => {
                    if let Some(trouble) = self.log.stuck() {
                        self.ended = true;
                        return Some(problem(&unwritable(&trouble)));
                    }
                }
                () = &mut keepalive => return Some(Bytes::from_static(sse::KEEPALIVE.as_bytes())),
            }
        }
    }

    /// Takes room for the next event before it is read, if it is large. Who does not read is not read for.
    async fn room_for_next(&self) -> ReadAdmission {
        let size = self.log.next_size(self.after).unwrap_or(0);
        if size <= SMALL_BYTES || !controls::holds("stream_charge") {
            return ReadAdmission::Free;
        }
        let mut charge = self.pool.open(MemoryPurpose::Streams);
        let grown = tokio::select! {
            biased;
            grown = charge.grow(size.saturating_mul(COPIES), STREAM_KEEPALIVE) => grown,
            () = self.shutdown.cancelled() => return ReadAdmission::Ends,
        };
        match grown {
            Ok(()) => ReadAdmission::Charged(charge),
            Err(no_room) if no_room.is_for_ever() => ReadAdmission::Never(no_room),
            Err(_) => ReadAdmission::Waits,
        }
    }

    fn take(&mut self, event: &Rendered, text: &mut String) {
        if self.until == Until::Now && event.seq > self.last {
            self.ended = true;
            return;
        }
        self.after = event.seq;
        if let Until::CellEnd(cell) = self.until {
            if event.cell != Some(cell) {
                return;
            }
            self.ended = event.name == "cell_finished";
        }
        if let Some(scope) = &mut self.scope {
            let Ok(Event { body, .. }) = serde_json::from_str::<Event>(&event.json) else { return };
            if !scope.concerns(&body) {
                return;
            }
            self.ended = matches!(body, EventBody::AskFinished { .. });
        }
        sse::encode(Some(event.seq), &event.name, &event.json, text);
    }
}
