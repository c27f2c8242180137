//! `[quota]`, `[machine]`, `[user.NAME]` and `[group.NAME]`.

use toml::de::DeValue;

use super::agent::Named;
use super::entry::Entry;
use super::layer::{Bytes, FromToml};
use super::load_packages::own_package_names;
use super::quota::{Limits, Quota};
use super::reader::Reader;
use crate::packages::requirement::NameRules;
use crate::protocol::quota::{Kind, Unit};

/// More CPUs than any machine has.
const MAX_CPUS: f64 = 1_000_000.0;

/// A number of CPUs as written in the file, in thousandths.
struct Millicpus(u64);

impl FromToml for Millicpus {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked right before")]
    fn from_toml(value: &DeValue<'_>) -> Result<Self, String> {
        let cpus = f64::from_toml(value)?;
        if (0.0..=MAX_CPUS).contains(&cpus) {
            Ok(Self((cpus * 1000.0).round() as u64))
        } else {
            Err(format!("`{cpus}` is no number of CPUs"))
        }
    }
}

/// The configuration keys of one kind: the limit per user and the limit of the machine.
fn keys(kind: Kind) -> (&'static str, &'static str) {
    match kind {
        Kind::Sessions => ("quota.sessions", "machine.sessions"),
        Kind::Cells => ("quota.cells", "machine.cells"),
        Kind::Memory => ("quota.memory", "machine.memory"),
        Kind::Cpus => ("quota.cpus", "machine.cpus"),
        Kind::Processes => ("quota.processes", "machine.processes"),
        Kind::Workspace => ("quota.workspace", "machine.workspace"),
        Kind::Journal => ("quota.journal", "machine.journal"),
        Kind::Tokens => ("quota.tokens", "machine.tokens"),
        Kind::Jobs => ("quota.jobs", "machine.jobs"),
        Kind::DaemonMemory => ("quota.daemon_memory", "machine.daemon_memory"),
    }
}

impl Reader<'_> {
    /// What is said of single users, and of groups: their limits, and the packages that they may install.
    pub fn users_and_groups(&mut self) -> [(Named<Limits>, Named<NameRules>); 2] {
        let read = |entry: &mut Entry<'_, '_>| Some((overrides(entry), own_package_names(entry)));
        [self.named("user", "user.*", read), self.named("group", "group.*", read)].map(|found| {
            found.into_iter().map(|(name, (limits, names))| ((name.clone(), limits), (name, names))).unzip()
        })
    }

    pub fn quota(&mut self, users: Named<Limits>, groups: Named<Limits>) -> Quota {
        let (mut everyone, mut machine) = (Vec::new(), Vec::new());
        for kind in Kind::ALL {
            let (of_user, of_machine) = keys(kind);
            let (user, all) = (self.amount(kind, of_user), self.amount(kind, of_machine));
            if let (Some(user), Some(all)) = (user, all) {
                self.ordered(of_user, of_machine, user <= all);
            }
            everyone.extend(user.map(|limit| (kind, limit)));
            machine.extend(all.map(|limit| (kind, limit)));
        }
        Quota {
            everyone: everyone.into_iter().collect(),
            machine: machine.into_iter().collect(),
            users,
            groups,
        }
    }

    fn amount(&mut self, kind: Kind, key: &'static str) -> Option<u64> {
        match kind.unit() {
            Unit::Count => self.optional(key),
            Unit::Bytes => self.optional::<Bytes>(key).map(|bytes| bytes.0),
            Unit::Millicpus => self.optional::<Millicpus>(key).map(|cpus| cpus.0),
        }
    }
}

fn overrides(entry: &mut Entry<'_, '_>) -> Limits {
    let mut amount = |kind: Kind| match kind.unit() {
        Unit::Count => entry.optional(kind.name()),
        Unit::Bytes => entry.optional::<Bytes>(kind.name()).map(|bytes| bytes.0),
        Unit::Millicpus => entry.optional::<Millicpus>(kind.name()).map(|cpus| cpus.0),
    };
    Kind::ALL.into_iter().filter_map(|kind| Some((kind, amount(kind)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::super::load::load_text;
    use super::*;
    use crate::protocol::principal::Principal;
    use std::path::Path;

    fn with(text: &str) -> Result<Quota, String> {
        load_text(Path::new("config.toml"), text)
            .map(|loaded| loaded.settings.quota)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_default_quotas_are_the_ones_documented() {
        let quota = with("").unwrap();
        let everyone = [
            (Kind::Sessions, 32),
            (Kind::Cells, 16),
            (Kind::Memory, 64 << 30),
            (Kind::Cpus, 64_000),
            (Kind::Processes, 8192),
            (Kind::Workspace, 32 << 30),
            (Kind::Journal, 32 << 30),
            (Kind::Tokens, 20_000_000),
            (Kind::Jobs, 1000),
            (Kind::DaemonMemory, 256 << 20),
        ];
        assert_eq!(quota.everyone, everyone.into_iter().collect());
        let machine = [(Kind::Sessions, 64), (Kind::Cells, 64), (Kind::Processes, 16_384)];
        assert_eq!(quota.machine, machine.into_iter().collect());
    }

    #[test]
    fn a_users_own_come_before_the_largest_of_its_groups() {
        let quota = with(
            "[user.alice]\nsessions = 50\ncpus = 1.5\n[user.1000]\njobs = 0\n\
             [group.students]\nsessions = 2\ncells = 3\n[group.staff]\ncells = 9\n",
        )
        .unwrap();
        let groups = ["students".to_owned(), "staff".to_owned(), "unheard-of".to_owned()];
        let alice = quota.of(Principal::new(1000), Some("alice"), &groups);
        let of = |limits: &Limits, kind| limits.get(kind).unwrap();
        assert_eq!(
            (of(&alice, Kind::Sessions), of(&alice, Kind::Cells), of(&alice, Kind::Cpus)),
            (50, 9, 1500)
        );
        let nameless = quota.of(Principal::new(1000), None, &groups);
        assert_eq!((of(&nameless, Kind::Jobs), of(&nameless, Kind::Sessions)), (0, 2));
        assert_eq!(quota.of(Principal::new(1001), Some("bob"), &[]), quota.everyone);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_line() {
        let error = with(
            "[user.alice]\nmemroy = 3\n[quota]\nmemory = \"lots\"\ncpus = -1\n[machine]\nsessions = 4\n",
        )
        .unwrap_err();
        insta::assert_snapshot!(error, @r"
        the configuration has 4 problems:
          config.toml:2: `user.alice.memroy`: there is no such key; did you mean `memory`?
          config.toml:4: `quota.memory`: invalid size `lots`: a number is missing; use `KiB`, `MiB`, `GiB` or `TiB`, as in `512MiB`
          config.toml:5: `quota.cpus`: `-1` is no number of CPUs
          config.toml:7: `machine.sessions`: it is less than `quota.sessions`
        ");
    }
}
