//! What a session writes is charged to its owner's quota of stored bytes, before it is written.

use crate::protocol::problem::Problem;
use crate::protocol::quota::Kind;
use crate::quota::{Gauge, Refusal};
use crate::store::{Account, Exceeded};

/// Room without which no cell begins and no session is made: for what a cell says at least, and for its end.
pub const ROOM_TO_BEGIN_BYTES: u64 = 128 * 1024;

/// The share of one session.
pub struct JournalAccount(pub Gauge);

impl Account for JournalAccount {
    fn charge(&self, bytes: u64) -> Result<(), Exceeded> {
        self.0.grow(Kind::Journal, bytes).map_err(|refusal| exceeded(&refusal))
    }

    fn charge_anyway(&self, bytes: u64) {
        self.0.add(Kind::Journal, bytes);
    }

    fn refund(&self, bytes: u64) {
        self.0.shrink(Kind::Journal, bytes);
    }
}

fn exceeded(refusal: &Refusal) -> Exceeded {
    let Problem { hint, .. } = Problem::from(refusal.clone());
    let hint = hint.map(|hint| format!(" What to do: {hint}.")).unwrap_or_default();
    Exceeded(format!("{}{hint}", refusal.sentence()))
}
