//! The budget of an installation, taken from its user's quota: charged before anything is written, first for what the
//! installer may write, then for the daemon's copies of what it wrote. So an installation needs no more than it takes.

use super::cache::NOTE_BYTES;
use super::charges::disk;
use super::index::AUTHORITIES_BYTES;
use super::task::UV_BYTES;
use super::tree::{Bounds, disk_bytes};
use crate::config::Packages as Settings;
use crate::protocol::quota::Kind;
use crate::quota::{Gauge, Refusal};
use crate::sandbox::workspace::usage::DiskUsage;

/// What the daemon writes for an installer, and about it: certificates and notes.
const NOTES_BYTES: u64 = AUTHORITIES_BYTES + 4 * NOTE_BYTES;
/// The least room for packages with which an installation is begun.
const LEAST_BYTES: u64 = 16 * 1024 * 1024;

/// What an installer may write.
#[derive(Clone, Copy, Debug)]
pub struct InstallBudget {
    pub packages: Bounds,
    /// For the `uv` that it may have to fetch; 0 if it is given one, or if its user has no room for one.
    uv_bytes: u64,
}

impl InstallBudget {
    /// For a user who has so many bytes left, of which half are not touched, also when the copies are made.
    pub fn new(settings: &Settings, left: u64, has_uv: bool) -> Self {
        let uv_bytes = if has_uv { 0 } else { UV_BYTES };
        let fitting = (left / 2).saturating_sub(NOTES_BYTES + 2 * uv_bytes) / 2;
        let bytes = settings.unpacked_bytes.min(fitting.max(LEAST_BYTES));
        Self { packages: Bounds { bytes, files: settings.files }, uv_bytes }
    }

    /// What is held before the installer begins.
    pub fn at_first(self) -> u64 {
        self.of_installer().saturating_add(NOTES_BYTES)
    }

    fn of_installer(self) -> u64 {
        self.packages.bytes.saturating_add(self.uv_bytes)
    }

    pub fn largest_file(self) -> u64 {
        self.packages.bytes.max(self.uv_bytes)
    }

    /// Whether an installer has written more than it may, or what cannot be seen.
    pub fn is_exceeded_by(self, used: &DiskUsage) -> bool {
        let is_too_much = used.bytes > self.of_installer() || used.entries as u64 > self.packages.files;
        used.hidden.is_some() || is_too_much
    }

    /// Adds the copies of what the installer has written to the hold, and gives what the copy of the packages may take:
    /// as much as the installer might have written, if the user has it, else what it takes by its measure. `uv` is the
    /// length of the `uv` that is copied.
    pub fn for_copies(self, hold: &Gauge, used: &DiskUsage, uv: Option<u64>) -> Result<Bounds, Refusal> {
        let beside = used.bytes + NOTES_BYTES + uv.map_or(0, disk_bytes);
        let measured = used.bytes + (used.entries as u64).saturating_mul(disk_bytes(1));
        let grown_for = |bytes: u64| {
            let missing = beside.saturating_add(bytes).saturating_sub(hold.own(Kind::Workspace));
            hold.grow(Kind::Workspace, disk(missing).get(Kind::Workspace))?;
            Ok(Bounds { bytes, ..self.packages })
        };
        grown_for(self.packages.bytes).or_else(|_| grown_for(measured.min(self.packages.bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::principal::Principal;
    use crate::quota::Ledger;

    const MIB: u64 = 1024 * 1024;

    fn settings(workspace: &str) -> crate::config::Settings {
        let text = format!("[quota]\nworkspace = \"{workspace}\"\n");
        crate::config::load_text("c.toml".as_ref(), &text).unwrap().settings
    }

    #[test]
    fn who_has_a_uv_needs_little_room_and_who_has_none_the_room_for_one() {
        let settings = settings("1GiB").packages;
        let (with, without) =
            (InstallBudget::new(&settings, 0, true), InstallBudget::new(&settings, 0, false));
        assert!(with.at_first() <= 32 * MIB, "{with:?}");
        assert_eq!(without.at_first(), with.at_first() + UV_BYTES);
        let used = DiskUsage { bytes: LEAST_BYTES + 1, ..DiskUsage::default() };
        assert!(with.is_exceeded_by(&used) && !without.is_exceeded_by(&used));
        // All that is ever held is at most half of what is left.
        for has_uv in [true, false] {
            let budget = InstallBudget::new(&settings, 1000 * MIB, has_uv);
            assert!(budget.at_first() + budget.of_installer() <= 500 * MIB, "{budget:?}");
        }
        assert_eq!(InstallBudget::new(&settings, u64::MAX, true).packages.bytes, settings.unpacked_bytes);
    }

    #[test]
    fn copies_are_charged_before_they_are_made_and_refused_without_room() {
        for (quota, fits) in [("36MiB", None), ("50MiB", Some(10)), ("100MiB", Some(16))] {
            let settings = settings(quota);
            let ledger = Ledger::new(&settings.quota);
            let budget = InstallBudget::new(&settings.packages, 0, true);
            let hold = ledger.take(Principal::ANN, "a test", disk(budget.at_first())).unwrap();
            let used = DiskUsage { bytes: 10 * MIB, ..DiskUsage::default() };
            // A workspace of the same user, which takes what is left of the smaller quotas.
            let _other = ledger.keep(Principal::ANN, "another", disk(14 * MIB));
            let bounds = budget.for_copies(&hold.gauge(), &used, None);
            assert_eq!(bounds.as_ref().ok().map(|bounds| bounds.bytes / MIB), fits, "{quota}: {bounds:?}");
            if let Ok(bounds) = bounds {
                let held = hold.gauge().own(Kind::Workspace);
                assert!(held >= used.bytes + NOTES_BYTES + bounds.bytes, "{held}");
            }
        }
    }
}
