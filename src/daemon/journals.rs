//! What removed sessions leave in the journal counts for their owner. Where it is too much, the oldest
//! go before their time: nobody fills the disk by making and removing sessions.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::protocol::ids::SessionId;
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Ledger, Permit};
use crate::store::{Journal, JournalError};

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(10);
/// How it stands among what uses a quota.
const NAME: &str = "removed sessions";

struct Kept {
    permit: Permit,
    bytes: u64,
}

pub async fn keep_within_quotas(journal: Journal, ledger: Ledger) {
    // What a removed session has does not change any more.
    let mut sizes = HashMap::new();
    let mut kept = BTreeMap::new();
    loop {
        if let Err(error) = look(&journal, &ledger, &mut sizes, &mut kept).await {
            tracing::warn!(%error, "the journals of removed sessions cannot be looked at");
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn look(
    journal: &Journal,
    ledger: &Ledger,
    sizes: &mut HashMap<SessionId, u64>,
    kept: &mut BTreeMap<u32, Kept>,
) -> Result<(), JournalError> {
    let mut owners: BTreeMap<u32, Vec<(SessionId, u64)>> = BTreeMap::new();
    let removed = journal.removed()?;
    sizes.retain(|id, _| removed.iter().any(|(_, removed)| removed == id));
    for (owner, id) in removed {
        let size = match sizes.get(&id) {
            Some(size) => *size,
            None => *sizes.entry(id).or_insert(journal.stored(id)?),
        };
        owners.entry(owner).or_default().push((id, size));
    }
    kept.retain(|owner, _| owners.contains_key(owner));
    for (owner, oldest_first) in owners {
        let mine = kept
            .entry(owner)
            .or_insert_with(|| Kept { permit: ledger.keep(owner, NAME, Amounts::default()), bytes: 0 });
        let room = ledger.room(owner, Kind::Journal).saturating_add(mine.bytes);
        mine.bytes = oldest_first.iter().map(|(_, size)| size).sum();
        for (id, size) in oldest_first {
            if mine.bytes <= room {
                break;
            }
            journal.forget(id).await?;
            tracing::info!(session = %id, owner, "the journal of a removed session was too much");
            mine.bytes -= size;
        }
        // It fits, or there is none left.
        let _ = mine.permit.gauge().measure(Kind::Journal, mine.bytes);
    }
    Ok(())
}
