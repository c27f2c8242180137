//! A cell that was asked for with an idempotency key: what the key leads to if the daemon dies over it.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::protocol::ids::{CellNumber, Seq, SessionId};
use crate::store::KeyTarget;

/// The key of a request for a cell.
#[derive(Clone, Debug)]
pub struct Keyed {
    pub owner: u32,
    pub key: String,
    pub wants: Wants,
}

/// What the client of a cell is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// That it was taken into the queue.
    Number,
    Result,
    /// The events until its end.
    Events,
}

/// By the session's id, because its name may be another's by the time somebody asks.
#[derive(Debug, Serialize, Deserialize)]
pub struct CellTarget {
    pub session: String,
    pub cell: CellNumber,
    #[serde(default = "yes")]
    pub result: bool,
    /// Its client wants the events after this one, until the cell has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_after: Option<Seq>,
}

fn yes() -> bool {
    true
}

impl Keyed {
    pub(super) fn aim(self, session: SessionId, cell: CellNumber, newest: Seq) -> KeyTarget {
        let target = CellTarget {
            session: session.to_string(),
            cell,
            result: self.wants != Wants::Number,
            events_after: (self.wants == Wants::Events).then_some(newest),
        };
        KeyTarget { owner: self.owner, key: self.key, target: json!(target) }
    }
}
