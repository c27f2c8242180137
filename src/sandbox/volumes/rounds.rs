//! Measures all volumes again and again. The volumes of a user are measured one after the other, and those of other users do
//! not wait for them: a folder of millions of files takes long, or its file system does not answer.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::{Key, Volume, Volumes};
use crate::protocol::ids::VolumeName;
use crate::protocol::principal::Principal;
use crate::sandbox::workspace::own_user::volume_bytes;
use crate::sandbox::workspace::upload_room::MeasuringWalk;
use crate::sandbox::workspace::usage::pause_after;

/// The walks of all users at a time. Each user has one of them at most, or waits in turn for one.
const WALKS: usize = 16;

/// Measures until the volumes are dropped. `unowned` are the same volumes without the list of them. A volume may hold
/// `most` bytes.
pub(super) async fn measure_for_ever(known: Weak<Mutex<BTreeMap<Key, Volume>>>, unowned: Volumes, most: u64) {
    let walks = Arc::new(Semaphore::new(WALKS));
    let mut rounds: BTreeMap<Principal, JoinHandle<()>> = BTreeMap::new();
    while let Some(known) = known.upgrade() {
        let volumes = Volumes { known, ..unowned.clone() };
        rounds.retain(|_, round| !round.is_finished());
        let owners: BTreeSet<Principal> = volumes.known.lock().keys().map(|(owner, _)| *owner).collect();
        for owner in owners {
            let round = || tokio::spawn(volumes.clone().measure_all_of(owner, Arc::clone(&walks), most));
            rounds.entry(owner).or_insert_with(round);
        }
        drop(volumes);
        tokio::time::sleep(unowned.times.look).await;
    }
}

impl Volumes {
    /// Measures the volumes of a user once. The pause that follows is a part of it.
    async fn measure_all_of(self, owner: Principal, walks: Arc<Semaphore>, most: u64) {
        let names: Vec<VolumeName> = {
            let known = self.known.lock();
            known.keys().filter(|(of, _)| *of == owner).map(|(_, name)| name.clone()).collect()
        };
        let mut took = Duration::ZERO;
        for name in names {
            // The semaphore is never closed.
            let _place = walks.acquire().await;
            let begun = Instant::now();
            self.measure(owner, &name, most).await;
            took += begun.elapsed();
        }
        drop(self);
        tokio::time::sleep(pause_after(took)).await;
    }

    /// Measures a volume and records its size.
    async fn measure(&self, owner: Principal, name: &VolumeName, most: u64) {
        let fill_level = self.fill_level(owner, name);
        let walk = MeasuringWalk::begin(&fill_level);
        let bytes = volume_bytes(self.path(owner, name), self.service, owner, most).await;
        if let Some(bytes) = bytes {
            let bytes = bytes.saturating_add(fill_level.unlinked_bytes());
            let _ = walk.record(bytes, |counted| self.measured(owner, name, counted));
        }
    }
}
