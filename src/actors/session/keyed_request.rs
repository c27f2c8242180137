//! A cell that was requested with an idempotency key: what the key refers to if the daemon ends meanwhile.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::protocol::ids::{CellNumber, Seq, SessionId};
use crate::protocol::principal::Principal;
use crate::store::KeyTarget;

/// The key of a request for a cell.
#[derive(Clone, Debug)]
pub struct KeyedRequest {
    pub owner: Principal,
    pub key: String,
    pub wants: Wants,
}

/// What the client gets as the answer to its request for a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// The number of the queued cell.
    Number,
    Result,
    /// The events until the cell's end.
    Events,
}

/// The cell of a key, by the session's id: the name may belong to another session when the key is used again.
#[derive(Debug, Serialize, Deserialize)]
pub struct CellTarget {
    pub session: String,
    pub cell: CellNumber,
    #[serde(default = "yes")]
    pub result: bool,
    /// The client wants the events after this one, until the cell has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub events_after: Option<Seq>,
}

fn yes() -> bool {
    true
}

impl KeyedRequest {
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
