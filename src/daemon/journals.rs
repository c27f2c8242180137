//! Charges users for what their removed sessions and ended jobs leave in the journal and for the artifacts of their
//! jobs. If that is too much, the oldest go before their time, so that no user can fill the disk by creating and
//! removing sessions.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::actors::directory::Directory;
use crate::actors::jobs;
use crate::panics::spawn_restarting;
use crate::protocol::ids::{JobId, SessionId};
use crate::protocol::principal::Principal;
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Ledger, Permit};
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::disk;
use crate::store::{Journal, JournalError};

/// The time between two checks.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The shortest time between two checks, even while quotas are full.
const CHECKS_APART: Duration = Duration::from_millis(200);
/// The name under which these bytes appear in a user's quota.
const NAME: &str = "removed sessions and ended jobs";

struct RetainedUsage {
    permit: Permit,
    bytes: u64,
}

enum Retained {
    Session(SessionId),
    Job(JobId),
    Artifacts(JobId, PathBuf),
}

/// Keeps the retained data within the quotas: at intervals, and whenever it leaves no room for a new charge.
pub fn watch(launcher: &Arc<Launcher>, journal: &Journal, ledger: &Ledger, directory: &Directory) {
    let (launcher, journal) = (Arc::clone(launcher), journal.clone());
    let (ledger, directory) = (ledger.clone(), directory.clone());
    let (cache, books) = (Arc::clone(&launcher), ledger.clone());
    spawn_restarting("the quotas of packages", move || {
        Arc::clone(&cache).keep_packages_within_quotas(books.clone())
    });
    spawn_restarting("the quotas of what is kept", move || {
        keep_within_quotas(Arc::clone(&launcher), journal.clone(), ledger.clone(), directory.clone())
    });
}

async fn keep_within_quotas(launcher: Arc<Launcher>, journal: Journal, ledger: Ledger, directory: Directory) {
    // The size of a removed session does not change any more, so it is measured once.
    let mut sizes = HashMap::new();
    let mut retained = BTreeMap::new();
    loop {
        let reserve = launcher.settings.sandbox.disk_reserve_bytes;
        let short = disk::short_at(&launcher.paths.workspaces_dir(), reserve);
        let artifacts = jobs::artifacts(&launcher);
        let outcome =
            enforce_quotas(&journal, &ledger, &directory, artifacts, short, &mut sizes, &mut retained).await;
        if let Err(error) = outcome {
            tracing::warn!(%error, "the journals of removed sessions cannot be looked at");
        }
        let _ = tokio::time::timeout(CHECK_EVERY, ledger.wait_until_crowded(Kind::Journal)).await;
        tokio::time::sleep(CHECKS_APART).await;
    }
}

/// Deletes what is too much. `short` is how many bytes the disk lacks.
async fn enforce_quotas(
    journal: &Journal,
    ledger: &Ledger,
    directory: &Directory,
    artifacts: Vec<(JobId, PathBuf, u64)>,
    mut short: u64,
    sizes: &mut HashMap<SessionId, u64>,
    retained: &mut BTreeMap<Principal, RetainedUsage>,
) -> Result<(), JournalError> {
    let left = ledger.left_until_now();
    let mut owners: BTreeMap<Principal, Vec<(Retained, u64)>> = BTreeMap::new();
    // Artifacts come first: they are larger, and losing them costs less than losing records and events.
    for (id, path, size) in artifacts {
        if let Some(record) = journal.job(id)? {
            owners.entry(record.view.owner).or_default().push((Retained::Artifacts(id, path), size));
        }
    }
    let scanned = journal.clone();
    let (ended, mut removed) = blocking(move || Ok((scanned.ended_jobs()?, scanned.removed()?))).await?;
    for (owner, id, size) in ended {
        owners.entry(owner).or_default().push((Retained::Job(id), size));
    }
    // While a session is being taken down, it still writes to its journal, and its own charge covers that.
    removed.retain(|(_, id)| !directory.lists(*id));
    let ids: HashSet<SessionId> = removed.iter().map(|(_, id)| *id).collect();
    sizes.retain(|id, _| ids.contains(id));
    for (owner, id) in removed {
        let size = if let Some(size) = sizes.get(&id) {
            *size
        } else {
            let scanned = journal.clone();
            *sizes.entry(id).or_insert(blocking(move || scanned.stored(id)).await?)
        };
        owners.entry(owner).or_default().push((Retained::Session(id), size));
    }
    retained.retain(|owner, _| owners.contains_key(owner));
    // The charges left behind by ended sessions and jobs are now covered by what was found.
    ledger.drop_left(left);
    // When the disk is short, those who have the most give first, before the work of all users comes to a stop.
    let left: u64 = owners.values().flatten().map(|(_, size)| size).sum();
    if left < short {
        // All of it would not help, so it is not lost for nothing.
        short = 0;
    }
    let mut owners: Vec<_> = owners.into_iter().collect();
    owners.sort_by_key(|(_, things)| Reverse(things.iter().map(|(_, size)| size).sum::<u64>()));
    for (owner, oldest_first) in owners {
        let mine = retained.entry(owner).or_insert_with(|| RetainedUsage {
            permit: ledger.keep(owner, NAME, Amounts::default()).spare(),
            bytes: 0,
        });
        let allowed = ledger.available_for_spare(owner, Kind::Journal);
        mine.bytes = oldest_first.iter().map(|(_, size)| size).sum();
        for (thing, size) in oldest_first {
            if mine.bytes <= allowed && short == 0 {
                break;
            }
            match thing {
                Retained::Session(id) => {
                    journal.forget(id).await?;
                    tracing::info!(session = %id, owner = owner.uid(), "the journal of a removed session was too much");
                }
                Retained::Job(id) => {
                    journal.forget_job(id).await?;
                    tracing::info!(job = %id, owner = owner.uid(), "the record of a job that has ended was too much");
                }
                Retained::Artifacts(id, path) => {
                    let _ = std::fs::remove_file(path);
                    tracing::info!(job = %id, owner = owner.uid(), "the files of a job were too much");
                }
            }
            mine.bytes -= size;
            short = short.saturating_sub(size);
        }
        // The rest fits now, or nothing is left, so the result does not matter.
        let _ = mine.permit.gauge().measure(Kind::Journal, mine.bytes);
    }
    Ok(())
}

/// Runs queries that take long on a thread for them.
async fn blocking<T: Send + 'static>(
    query: impl FnOnce() -> Result<T, JournalError> + Send + 'static,
) -> Result<T, JournalError> {
    tokio::task::spawn_blocking(query).await.unwrap_or(Err(JournalError::Closed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;
    use crate::protocol::event::EventBody;
    use crate::protocol::ids::SessionName;
    use crate::store::SessionRecord;

    const FEW: usize = 10;
    const MANY: usize = 1_000;

    /// A removed session with that many events, and its size.
    async fn removed(journal: &Journal, owner: Principal, events: usize) -> (SessionId, u64) {
        let id = SessionId::fresh();
        let record = SessionRecord {
            id,
            owner,
            name: SessionName::parse("a").unwrap(),
            created_at: "2026-01-01T00:00:00.000Z".into(),
            request: serde_json::json!({}),
            job: None,
            slot: None,
        };
        journal.create_session(&record).await.unwrap();
        let log = journal.log(id).unwrap();
        for _ in 0..events {
            log.append(EventBody::Reset);
        }
        log.flushed().await;
        journal.remove_session(id).await.unwrap();
        (id, journal.stored(id).unwrap())
    }

    /// Otherwise what users have removed keeps the disk short until the work of all of them stops.
    #[tokio::test]
    async fn on_a_short_disk_removed_sessions_go_those_of_the_largest_user_first() {
        let home = tempfile::tempdir().unwrap();
        let journal = Journal::open(home.path()).unwrap();
        let settings = load_text(&home.path().join("config.toml"), "").unwrap().settings;
        let (ledger, directory) = (Ledger::new(&settings.quota), Directory::default());
        let (small, _) = removed(&journal, Principal::ANN, FEW).await;
        let (first, size) = removed(&journal, Principal::BOB, MANY).await;
        let (second, _) = removed(&journal, Principal::BOB, MANY).await;
        let (mut sizes, mut retained) = (HashMap::new(), BTreeMap::new());
        let left = || {
            let mut left: Vec<SessionId> = journal.removed().unwrap().into_iter().map(|(_, id)| id).collect();
            left.sort();
            left
        };
        let mut all = [small, first, second];
        all.sort();
        for (short, expected) in [
            (0, all.to_vec()),
            // All of it would not help.
            (u64::MAX, all.to_vec()),
            (size, all.into_iter().filter(|id| *id != first).collect()),
            (1, vec![small]),
        ] {
            enforce_quotas(&journal, &ledger, &directory, Vec::new(), short, &mut sizes, &mut retained)
                .await
                .unwrap();
            assert_eq!(left(), expected, "{short} bytes short");
        }
    }
}
