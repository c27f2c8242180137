//! What a session writes is charged to its owner's quota of stored bytes, before it is written.

use serde_json::{Map, Value};

use crate::protocol::problem::Problem;
use crate::protocol::quota::Kind;
use crate::protocol::values;
use crate::quota::{Gauge, Refusal};
use crate::security_controls;
use crate::store::{Account, Exceeded, ROW_BYTES};

/// The room that a new cell or session needs: for a minimum of a cell's output, and for its end.
pub const ROOM_TO_BEGIN_BYTES: u64 = 128 * 1024;

/// The bytes of a session's record. Most of them are its request with the seed.
#[must_use]
pub fn record_bytes(request: &serde_json::Value) -> u64 {
    let record = if security_controls::holds("seed_charge") { request.to_string().len() as u64 } else { 0 };
    record.saturating_add(ROW_BYTES)
}

/// The copies of a cell's code and recorded calls: in the queue, in the executor.
pub const CELL_COPIES: u64 = 2;
/// The copies of a seed while its session exists: in the request, in the session, in its executor.
const SEED_COPIES: u64 = 3;

/// The memory that a seed takes.
#[must_use]
pub fn seed_bytes(seed: &Map<String, Value>) -> u64 {
    if seed.is_empty() || !security_controls::holds("seed_memory_charge") {
        return 0;
    }
    let text = serde_json::to_string(seed).unwrap_or_default();
    values::parsed_bytes(&text).saturating_mul(SEED_COPIES)
}

/// The account of one session for its record and its log.
pub struct JournalAccount {
    gauge: Gauge,
    record: u64,
}

impl JournalAccount {
    #[must_use]
    pub fn new(gauge: Gauge, request: &serde_json::Value) -> Self {
        Self { gauge, record: record_bytes(request) }
    }
}

impl Account for JournalAccount {
    /// Sets the charge to the bytes that the session has stored already, as a restored session has.
    fn open(&self, bytes: u64) {
        let _ = self.gauge.measure(Kind::Journal, self.record.saturating_add(bytes));
    }

    fn charge(&self, bytes: u64) -> Result<(), Exceeded> {
        self.gauge.grow(Kind::Journal, bytes).map_err(|refusal| exceeded(&refusal))
    }

    fn charge_anyway(&self, bytes: u64) {
        self.gauge.add(Kind::Journal, bytes);
    }

    fn refund(&self, bytes: u64) {
        self.gauge.shrink(Kind::Journal, bytes);
    }
}

fn exceeded(refusal: &Refusal) -> Exceeded {
    let Problem { hint, .. } = Problem::from(refusal.clone());
    let hint = hint.map(|hint| format!(" What to do: {hint}.")).unwrap_or_default();
    Exceeded(format!("{}{hint}", refusal.sentence()))
}
