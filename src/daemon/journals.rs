//! What removed sessions and ended jobs leave in the journal, and jobs of their files, counts for their owner. Where it is
//! too much, the oldest go before their time: nobody fills the disk by making and removing sessions.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::actors::directory::Directory;
use crate::actors::jobs;
use crate::protocol::ids::{JobId, SessionId};
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Ledger, Permit};
use crate::sandbox::launch::Launcher;
use crate::store::{Journal, JournalError};

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(10);
/// However crowded it is, so much lies between two looks.
const LOOKS_APART: Duration = Duration::from_millis(200);
/// How it stands among what uses a quota.
const NAME: &str = "removed sessions and ended jobs";

struct RetainedUsage {
    permit: Permit,
    bytes: u64,
}

enum Thing {
    Session(SessionId),
    Job(JobId),
    Artifacts(JobId, PathBuf),
}

/// Keeps all of it within the quotas: from time to time, and when it stands in somebody's way.
pub fn watch(launcher: &Arc<Launcher>, journal: &Journal, ledger: &Ledger, directory: &Directory) {
    let (launcher, journal) = (Arc::clone(launcher), journal.clone());
    tokio::spawn(keep_within_quotas(launcher, journal, ledger.clone(), directory.clone()));
}

async fn keep_within_quotas(launcher: Arc<Launcher>, journal: Journal, ledger: Ledger, directory: Directory) {
    // What a removed session has does not change any more.
    let mut sizes = HashMap::new();
    let mut kept = BTreeMap::new();
    loop {
        if let Err(error) = look(&launcher, &journal, &ledger, &directory, &mut sizes, &mut kept).await {
            tracing::warn!(%error, "the journals of removed sessions cannot be looked at");
        }
        let _ = tokio::time::timeout(LOOK, ledger.crowded()).await;
        tokio::time::sleep(LOOKS_APART).await;
    }
}

async fn look(
    launcher: &Launcher,
    journal: &Journal,
    ledger: &Ledger,
    directory: &Directory,
    sizes: &mut HashMap<SessionId, u64>,
    kept: &mut BTreeMap<u32, RetainedUsage>,
) -> Result<(), JournalError> {
    let left = ledger.left_until_now();
    let mut owners: BTreeMap<u32, Vec<(Thing, u64)>> = BTreeMap::new();
    // Files first: they are larger, and less is lost with them than with what was said.
    for (id, path, size) in jobs::artifacts(launcher) {
        if let Some(record) = journal.job(id)? {
            owners.entry(record.view.owner).or_default().push((Thing::Artifacts(id, path), size));
        }
    }
    for (owner, id, size) in journal.ended_jobs()? {
        owners.entry(owner).or_default().push((Thing::Job(id), size));
    }
    let mut removed = journal.removed()?;
    // As long as a session is being taken down, its own hold pays for its journal, and it still writes there.
    removed.retain(|(_, id)| !directory.lists(*id));
    sizes.retain(|id, _| removed.iter().any(|(_, removed)| removed == id));
    for (owner, id) in removed {
        let size = match sizes.get(&id) {
            Some(size) => *size,
            None => *sizes.entry(id).or_insert(journal.stored(id)?),
        };
        owners.entry(owner).or_default().push((Thing::Session(id), size));
    }
    kept.retain(|owner, _| owners.contains_key(owner));
    // What was left behind until now is among what was found.
    ledger.drop_left(left);
    for (owner, oldest_first) in owners {
        let mine = kept.entry(owner).or_insert_with(|| RetainedUsage {
            permit: ledger.keep(owner, NAME, Amounts::default()).spare(),
            bytes: 0,
        });
        let room = ledger.room(owner, Kind::Journal);
        mine.bytes = oldest_first.iter().map(|(_, size)| size).sum();
        for (thing, size) in oldest_first {
            if mine.bytes <= room {
                break;
            }
            match thing {
                Thing::Session(id) => {
                    journal.forget(id).await?;
                    tracing::info!(session = %id, owner, "the journal of a removed session was too much");
                }
                Thing::Job(id) => {
                    journal.forget_job(id).await?;
                    tracing::info!(job = %id, owner, "the record of a job that has ended was too much");
                }
                Thing::Artifacts(id, path) => {
                    let _ = std::fs::remove_file(path);
                    tracing::info!(job = %id, owner, "the files of a job were too much");
                }
            }
            mine.bytes -= size;
        }
        // It fits, or there is none left.
        let _ = mine.permit.gauge().measure(Kind::Journal, mine.bytes);
    }
    Ok(())
}
