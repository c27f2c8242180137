//! Events as server-sent events: after a given number, up to an end, with keepalives in between.

use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::body::keep_with;
use crate::actors::holds::Hold;
use crate::memory::{Charge, MemoryPurpose, NoRoom, Pool, SMALL_BYTES, offload_if_large};
use crate::protocol::ask::AskNumber;
use crate::protocol::event::{AskScope, Event, EventBody};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::limits::JOURNAL_TIMEOUT;
use crate::protocol::limits::STREAM_KEEPALIVE;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::sse;
use crate::security_controls;
use crate::store::{EventLog, EventsGone, RenderedEvent};

/// The most events in one chunk. A chunk larger than [`SMALL_BYTES`] is a single event, which is charged before it is
/// read.
const BATCH: usize = 64;
/// Copies of an event in memory while it is read, parsed and encoded.
const COPIES: u64 = 4;

/// Where a stream ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// The event that was newest when the stream began.
    Now,
    /// The end of the session.
    SessionEnd,
    /// The end of a cell; the stream contains only that cell's events.
    CellEnd(CellNumber),
    /// The end of an ask; the stream contains only the events of that ask and its cells.
    AskEnd(AskNumber),
}

/// Whether the next event may be read.
enum ReadAdmission {
    /// The event is small, so it is not charged.
    Free,
    Charged(Charge),
    /// There is no room for the event yet.
    Waits,
    Never(NoRoom),
    /// The daemon is shutting down.
    Ends,
}

struct Feed {
    log: Arc<EventLog>,
    watch: watch::Receiver<Seq>,
    after: Seq,
    until: Until,
    last: Seq,
    ended: bool,
    /// Selects the events of one ask and its cells.
    scope: Option<AskScope>,
    /// Ends streams without an end of their own when the daemon shuts down.
    shutdown: CancellationToken,
    /// Keeps an ephemeral job alive for as long as the stream lasts.
    _hold: Option<Hold>,
    /// The memory pool of the user who reads the stream.
    pool: Pool,
}

/// Streams the events after a number and keeps `hold` for as long as the stream lasts. If those events are gone, or the
/// number is higher than the newest event's, this is a problem before anything is sent.
pub fn respond(
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
        // The reader saw the events of another session with the same name.
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
    Ok(event_stream(Body::from_stream(stream::unfold(feed, |mut feed| async move {
        let chunk = feed.next().await?;
        Some((Ok::<Bytes, Infallible>(chunk), feed))
    }))))
}

/// An answer whose body is a stream of events.
pub fn event_stream(body: Body) -> Response {
    ([(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")], body).into_response()
}

/// A `problem` event, which does not come from the journal and is the last of the stream.
pub fn problem(problem: &Problem) -> Bytes {
    let json = serde_json::to_string(problem).unwrap_or_default();
    let mut text = String::new();
    sse::encode(None, "problem", &json, &mut text);
    text.into()
}

fn gone(gone: EventsGone) -> Problem {
    Problem::new(Code::EventsGone, gone.to_string()).hint(format!("ask with `after={}`", gone.first - 1))
}

impl Feed {
    /// The next chunk of the stream; `None` at its end.
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
                // The reader was too slow and the events are gone; it can see the gap from the numbers.
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
                // Events that are already committed are sent before a shutdown ends the stream.
                biased;
                changed = self.watch.changed() => changed.ok()?,
                () = self.shutdown.cancelled(), if lasting => return None,
                () = tokio::time::sleep(JOURNAL_TIMEOUT), if !lasting => {
                    if self.log.is_stuck() {
                        self.ended = true;
                        let later = "`belljar wait` and `belljar logs` tell the rest later";
                        return Some(problem(&self.log.unwritten(later)));
                    }
                }
                () = &mut keepalive => return Some(Bytes::from_static(sse::KEEPALIVE.as_bytes())),
            }
        }
    }

    /// Reserves memory for the next event before it is read, if it is large. For a client that does not read, nothing
    /// is read ahead.
    async fn room_for_next(&self) -> ReadAdmission {
        let size = self.log.next_size(self.after).unwrap_or(0);
        if size <= SMALL_BYTES || !security_controls::holds("stream_charge") {
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

    fn take(&mut self, event: &RenderedEvent, text: &mut String) {
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
