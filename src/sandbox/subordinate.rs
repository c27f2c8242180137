//! Subordinate user ids: `/etc/subuid` lends ranges of ids to users, who can act as any of them at will. The daemon
//! does not treat such an id as a user of its own, and no guest may have one.

use std::ops::Range;
use std::path::Path;

const SUBORDINATE_IDS: &str = "/etc/subuid";
const ACCOUNTS: &str = "/etc/passwd";

#[derive(Debug, PartialEq, Eq)]
struct LentRange {
    to: String,
    ids: Range<u64>,
}

/// The user to whom an id is lent.
pub(super) fn owner_of(uid: u32) -> Option<String> {
    lent(&read(SUBORDINATE_IDS))
        .into_iter()
        .find(|lent| lent.ids.contains(&u64::from(uid)))
        .map(|lent| lent.to)
}

/// Why guests cannot have the ids of this range, if any of them already belongs to a user.
pub fn taken(first: u32, count: u32) -> Option<String> {
    taken_by(&read(SUBORDINATE_IDS), &read(ACCOUNTS), first, count)
}

fn taken_by(lists: &str, accounts: &str, first: u32, count: u32) -> Option<String> {
    let guests = u64::from(first)..u64::from(first) + u64::from(count);
    let overlaps = |lent: &LentRange| lent.ids.start < guests.end && guests.start < lent.ids.end;
    if let Some(lent) = lent(lists).into_iter().find(overlaps) {
        let Range { start, end } = lent.ids;
        let last = end.saturating_sub(1);
        return Some(format!("`{SUBORDINATE_IDS}` lends the user ids {start} to {last} to `{}`", lent.to));
    }
    accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next()?, fields.nth(1)?.parse().ok()?);
        guests.contains(&uid).then(|| format!("user id {uid} is the account `{name}`"))
    })
}

fn lent(lists: &str) -> Vec<LentRange> {
    let parse = |line: &str| {
        let mut fields = line.trim().split(':');
        let (to, first, count) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let ids = first..u64::checked_add(first, count)?;
        Some(LentRange { to: to.to_owned(), ids })
    };
    lists.lines().filter_map(parse).collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(path)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTS: &str = "ann:100000:65536\n# a remark\nbob:165536:65536\nbroken:1\n";

    #[test]
    fn ranges_are_read() {
        assert_eq!(lent(LISTS).len(), 2);
        assert_eq!(lent(LISTS)[1], LentRange { to: "bob".into(), ids: 165_536..231_072 });
    }

    #[test]
    fn a_range_that_is_somebodys_already_is_told() {
        let accounts = "root:x:0:0::/:/bin/sh\ncarl:x:500000:500000::/:/bin/sh\n";
        let taken = |first, count| taken_by(LISTS, accounts, first, count);
        assert!(taken(200_000, 10_000).is_some_and(|why| why.contains("`bob`")));
        assert!(taken(90_000, 10_001).is_some_and(|why| why.contains("`ann`")));
        assert!(taken(499_999, 2).is_some_and(|why| why.contains("`carl`")));
        for (first, count) in [(90_000, 10_000), (231_072, 10_000), (2_100_000_000, 10_000)] {
            assert_eq!(taken(first, count), None);
        }
    }
}
