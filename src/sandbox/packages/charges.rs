//! Who pays for the files of packages on the disk: the one whose cache keeps a set, and every user who has it in a
//! sandbox. A copy of a set is paid once by each of them, until its last name is gone: what a cache has removed still
//! takes its room as long as a sandbox has it.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::protocol::principal::Principal;
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Ledger, Permit, Refusal};
use crate::security_controls;

/// How packages appear in a user's quota.
pub const HOLD: &str = "installed packages";

/// What the daemon notes beside the files of a set, and wherever it links them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetNote {
    /// The id of this copy of the files, which all hard links to them share.
    pub copy: String,
    /// What files and folders take on the disk.
    pub bytes: u64,
    /// The part of it that folders take, of which every sandbox has its own.
    pub folder_bytes: u64,
}

/// The charges for copies that have a name somewhere.
#[derive(Default)]
pub struct Charges(Mutex<BTreeMap<(Principal, String), Weak<Permit>>>);

impl Charges {
    /// The user's charge for a copy; taken now if there is none yet.
    pub fn of_copy(
        &self,
        owner: Principal,
        note: &SetNote,
        take: impl FnOnce(Amounts) -> Result<Permit, Refusal>,
    ) -> Result<Arc<Permit>, Refusal> {
        let mut held = self.0.lock();
        let key = (owner, note.copy.clone());
        if let Some(permit) = held.get(&key).and_then(Weak::upgrade) {
            return Ok(permit);
        }
        let permit = Arc::new(take(disk(note.bytes))?);
        held.retain(|_, permit| permit.strong_count() > 0);
        held.insert(key, Arc::downgrade(&permit));
        Ok(permit)
    }

    /// The same for files that are there already.
    pub fn of_present_copy(&self, owner: Principal, note: &SetNote, ledger: &Ledger) -> Option<Arc<Permit>> {
        self.of_copy(owner, note, |amounts| Ok(ledger.keep(owner, HOLD, amounts))).ok()
    }
}

/// An amount of disk.
pub fn disk(bytes: u64) -> Amounts {
    Amounts::of([(Kind::Workspace, if security_controls::holds("packages_are_charged") { bytes } else { 0 })])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_paid_once_by_each_user_until_its_last_name_is_gone() {
        let settings =
            crate::config::load_text("c.toml".as_ref(), "[quota]\nworkspace = \"1000B\"\n").unwrap();
        let ledger = Ledger::new(&settings.settings.quota);
        let used = |owner| ledger.used(owner, Kind::Workspace);
        let charges = Charges::default();
        let note = |copy: &str| SetNote { copy: copy.into(), bytes: 600, folder_bytes: 0 };
        let take = |owner, copy: &str| {
            charges.of_copy(owner, &note(copy), |amounts| ledger.take(owner, HOLD, amounts))
        };
        let (first, second) = (take(Principal::ANN, "a").unwrap(), take(Principal::ANN, "a").unwrap());
        assert_eq!(used(Principal::ANN), 600);
        assert!(take(Principal::ANN, "b").is_err(), "another copy of the same packages is paid, too");
        let _other = take(Principal::BOB, "a").unwrap();
        drop(first);
        assert_eq!((used(Principal::ANN), used(Principal::BOB)), (600, 600));
        drop(second);
        assert_eq!(used(Principal::ANN), 0);
        assert!(take(Principal::ANN, "b").is_ok());
    }
}
