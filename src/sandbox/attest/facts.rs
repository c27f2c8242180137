//! What the host's kernel reports about a process: parsers of `/proc`, for attestation.

use std::path::Path;

pub use crate::processes::read_small;
use crate::protocol::receipt::ProcessFact;
use crate::sandbox::workspace::owner::NO_GROUP;

/// Parses `/proc/<pid>/status`.
pub fn parse_status(pid: i32, status: &str) -> Option<ProcessFact> {
    let field = |name: &str| {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':').map(str::trim))
    };
    let first = |name: &str| field(name)?.split_whitespace().next();
    Some(ProcessFact {
        pid,
        uid: first("Uid")?.parse().ok()?,
        gid: first("Gid")?.parse().ok()?,
        groups: Some(field("Groups")?.split_whitespace().map_while(|gid| gid.parse().ok()).collect()),
        cap_eff: field("CapEff")?.to_owned(),
        cap_bnd: field("CapBnd")?.to_owned(),
        no_new_privs: field("NoNewPrivs")? == "1",
        seccomp: field("Seccomp")?.parse().ok()?,
        apparmor: None,
    })
}

/// A row of `/proc/<pid>/limits`; `unlimited` is the largest number.
pub fn parse_limit(limits: &str, row: &str) -> Option<u64> {
    let rest = limits.lines().find_map(|line| line.strip_prefix(row))?;
    match rest.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// The bytes that a process may lock in memory, and keep in message queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ceilings {
    pub locked_memory: u64,
    pub message_queues: u64,
}

/// Parses the text of `/proc/<pid>/limits`.
pub fn parse_ceilings(limits: &str) -> Option<Ceilings> {
    Some(Ceilings {
        locked_memory: parse_limit(limits, "Max locked memory")?,
        message_queues: parse_limit(limits, "Max msgqueue size")?,
    })
}

/// Reads a process's facts from `/proc`.
pub fn process(pid: i32) -> Option<ProcessFact> {
    let folder = format!("/proc/{pid}");
    let mut fact = parse_status(pid, &read_small(&Path::new(&folder).join("status")).ok()?)?;
    fact.apparmor = read_small(&Path::new(&folder).join("attr/current"))
        .ok()
        .map(|text| text.trim_end_matches(['\n', '\0']).to_owned())
        .filter(|text| !text.is_empty());
    Some(fact)
}

/// The primary group of a user by `/etc/passwd`; `NO_GROUP` if the user is not listed.
pub fn primary_group(uid: u32) -> u32 {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    group_in(&users, uid).unwrap_or(NO_GROUP)
}

fn group_in(users: &str, uid: u32) -> Option<u32> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':').skip(2);
        (fields.next()?.parse() == Ok(uid)).then(|| fields.next()?.parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_and_limits_are_read() {
        let status = "Name:\tpython3\nUid:\t200001\t200001\t200001\t200001\nGid:\t200001\t1\t1\t1\nGroups:\t42 105 \nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        let fact = parse_status(7, status).unwrap();
        assert_eq!((fact.uid, fact.gid, fact.seccomp, fact.no_new_privs), (200_001, 200_001, 2, true));
        assert_eq!(fact.groups, Some(vec![42, 105]));
        assert_eq!(parse_status(7, "Name:\tx\n"), None);

        let limits = "Limit                     Soft Limit           Hard Limit           Units     \nMax file size             unlimited            unlimited            bytes     \nMax open files            1024                 1024                 files     \n";
        assert_eq!(parse_limit(limits, "Max open files"), Some(1024));
        assert_eq!(parse_limit(limits, "Max file size"), Some(u64::MAX));
        assert_eq!(parse_limit(limits, "Max core file size"), None);
        assert_eq!(parse_ceilings(limits), None);
        let more = "Max locked memory         65536                65536                bytes     \nMax msgqueue size         0                    0                    bytes     \n";
        assert_eq!(parse_ceilings(more), Some(Ceilings { locked_memory: 65536, message_queues: 0 }));
    }

    #[test]
    fn the_group_of_a_user_is_found() {
        let users = "root:x:0:0:root:/root:/bin/sh\nbroken\nann:x:1000:1001::/home/ann:/bin/sh\n";
        assert_eq!([0, 1000, 7].map(|uid| group_in(users, uid)), [Some(0), Some(1001), None]);
    }
}
