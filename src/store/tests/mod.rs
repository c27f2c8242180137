//! Tests of the journal's guarantees, one file per kind of guarantee.

/// Bytes that are charged, refused, kept in reserve and refunded.
mod batches;
mod charges;
/// The process dies at every commit.
mod crash;
/// A disk that refuses writes and later accepts them again.
mod disk;
/// Files that the daemon must refuse to open.
mod files;
/// Commits on the thread of the caller.
mod here;
/// How long sessions and keys are kept.
mod keeping;
/// Which users have to wait for the disk and which do not.
mod lanes;
/// Order, visibility and reading of events.
mod log;
/// Recording that continues after a restart.
mod recovery;
/// Measurements that are printed and not asserted.
mod speed;

use std::time::Duration;

use super::durability::Durability;
use super::{EventLog, Journal, SessionRecord};
use crate::protocol::event::{Counters, Event, EventBody};
use crate::protocol::ids::{Seq, SessionId, SessionName};
use crate::protocol::principal::Principal;

/// Longer than any test here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A share of the memory without a limit.
fn no_bound() -> crate::memory::Pool {
    crate::memory::Memory::default().pool(Principal::ANN)
}

fn created(name: &str) -> EventBody {
    EventBody::SessionCreated { name: name.into() }
}

fn started(cell: u64) -> EventBody {
    EventBody::CellStarted { cell, command: false, before: Counters::default() }
}

fn append(log: &EventLog, events: u64) {
    for _ in 0..events {
        log.append(EventBody::Reset);
    }
}

fn record(name: &str) -> SessionRecord {
    SessionRecord {
        id: SessionId::fresh(),
        owner: Principal::new(1000),
        name: SessionName::parse(name).unwrap(),
        created_at: "2026-01-01T00:00:00.000Z".into(),
        request: serde_json::json!({ "cpus": 2.0 }),
        job: None,
        slot: None,
    }
}

/// All events of a log, read in small steps.
fn bodies(log: &EventLog) -> Vec<EventBody> {
    let (mut after, mut found) = (0, Vec::new());
    loop {
        let events = log.read(after, 7).unwrap();
        if events.is_empty() {
            return found;
        }
        for event in events {
            assert_eq!(event.seq, after + 1);
            let parsed: Event = serde_json::from_str(&event.json).unwrap();
            assert_eq!((parsed.seq, parsed.body.name()), (event.seq, &*event.name));
            assert_eq!(parsed.body.cell(), event.cell);
            found.push(parsed.body);
            after = event.seq;
        }
    }
}

fn seqs(log: &EventLog, after: Seq, limit: usize) -> Vec<Seq> {
    log.read(after, limit).unwrap().iter().map(|event| event.seq).collect()
}

/// A result as an older version may have written it, with only the fields that every result has.
fn finished(cell: u64) -> EventBody {
    let result = serde_json::json!({
        "cell": cell, "mode": "main", "status": "success", "reason": "ok", "exit_code": 0,
        "code": "1", "timeout_s": 30.0, "stdout": "", "stderr": "", "output": [], "result": null,
        "displays": [], "artifacts": [], "exception": null, "duration_ms": 1.0,
        "truncated": { "stdout_bytes": 0, "stderr_bytes": 0, "dropped_bytes": 0, "displays": 0, "artifacts": false },
        "state": { "kind": "kept" },
    });
    EventBody::CellFinished { result: serde_json::from_value(result).unwrap() }
}
