//! Charges for the small files of caches, the answers and `uv`, which are counted by folder.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::cache::entries;
use super::charges::{HOLD, disk};
use super::tree;
use crate::protocol::principal::Principal;
use crate::protocol::quota::Kind;
use crate::quota::{Gauge, Ledger, Permit};

#[derive(Default)]
pub struct SmallCharges {
    holds: Mutex<BTreeMap<PathBuf, Permit>>,
    /// Held while a file is charged and written, and while files are counted. Several users write to a shared cache, and a
    /// count that does not find what another user is about to write would take the charge for it back.
    turn: Mutex<()>,
}

impl SmallCharges {
    fn hold(&self, folder: &Path, payer: Principal, ledger: &Ledger) -> Gauge {
        let mut holds = self.holds.lock();
        let permit = holds.entry(folder.to_owned()).or_insert_with(|| ledger.keep(payer, HOLD, disk(0)));
        permit.gauge()
    }

    /// Charges a new file of `bytes` and lets it be written; without room for it nothing is written.
    pub fn write(
        &self,
        (folder, payer): (&Path, Principal),
        ledger: &Ledger,
        bytes: u64,
        write: impl FnOnce() -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let _turn = self.turn.lock();
        let bytes = disk(tree::disk_bytes(bytes)).get(Kind::Workspace);
        let has_room = self.hold(folder, payer, ledger).grow(Kind::Workspace, bytes).is_ok();
        if has_room { write() } else { Ok(()) }
    }

    /// Charges what is in these folders.
    pub fn count(&self, folders: &[(PathBuf, Principal)], ledger: &Ledger) {
        let _turn = self.turn.lock();
        for (folder, payer) in folders {
            let files = entries(folder).filter_map(|file| std::fs::symlink_metadata(file).ok());
            let bytes = files.map(|file| tree::disk_bytes(file.len())).sum();
            let _ = self.hold(folder, *payer, ledger).measure(Kind::Workspace, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A count in between would find nothing, and the file would not be paid for until the next one.
    #[test]
    fn a_count_waits_for_a_file_that_is_charged_and_not_written_yet() {
        let folder = tempfile::tempdir().unwrap();
        let settings = crate::config::load_text("c.toml".as_ref(), "").unwrap().settings;
        let (ledger, small) = (Ledger::new(&settings.quota), SmallCharges::default());
        let (path, file) = (folder.path(), folder.path().join("answer"));
        let count = || small.count(&[(path.to_owned(), Principal::ANN)], &ledger);
        std::thread::scope(|scope| {
            let write = || {
                let counting = scope.spawn(count);
                std::thread::sleep(Duration::from_millis(50));
                assert!(!counting.is_finished());
                std::fs::write(&file, "x".repeat(10_000))
            };
            small.write((path, Principal::ANN), &ledger, 10_000, write).unwrap();
        });
        assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), tree::disk_bytes(10_000));
    }
}
