//! Files of `/etc` that are made for each sandbox and mounted read-only, so that ordinary programs feel at home: the
//! guest, root and `nobody` have names, and `localhost` is the loopback. They name no user of the host, and hide the
//! lists that an image brings along, because a sandbox runs nothing as their users.

use std::path::{Path, PathBuf};

use crate::protocol::problem::Problem;
use crate::sandbox::folder::storage_problem;
use crate::sandbox::kernel::files::open_to_all;
use crate::sandbox::spec::{HOME, HOSTNAME};

/// The name of every guest.
const GUEST: &str = "guest";
const NOBODY: u32 = 65_534;
/// The kernel has this file unless IPv6 is switched off; then `::1` would be an address that no program can bind.
const IPV6: &str = "/proc/net/if_inet6";

/// The names of the files that every sandbox has, in the order of their names.
pub const FILES: [&str; 3] = ["group", "hosts", "passwd"];
/// Files that tell the C library to look into these, and to take all addresses that a name has. Images have their own.
pub const LOOKUP_FILES: [&str; 2] = ["host.conf", "nsswitch.conf"];

/// The folder of these files in the daemon's folder of a sandbox.
pub fn folder_in(sandbox: &Path) -> PathBuf {
    sandbox.join("etc")
}

/// Where a file appears in the sandbox.
pub fn target(name: &str) -> String {
    format!("/etc/{name}")
}

/// Writes the files for a guest with these ids, readable for all users.
pub fn write(folder: &Path, uid: u32, gid: u32) -> Result<(), Problem> {
    let write = |name: &str, text: String| {
        let path = folder.join(name);
        let written = std::fs::write(&path, text).and_then(|()| open_to_all(&path));
        written.map_err(|error| storage_problem(&path, &error))
    };
    std::fs::create_dir_all(folder).map_err(|error| storage_problem(folder, &error))?;
    write("passwd", users(uid, gid))?;
    write("group", groups(gid))?;
    write("hosts", hosts(Path::new(IPV6).exists()))?;
    write("host.conf", "multi on\n".to_owned())?;
    write("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned())
}

fn users(uid: u32, gid: u32) -> String {
    let others = [("root", 0, 0, "/root"), ("nobody", NOBODY, NOBODY, "/nonexistent")];
    let guest = format!("{GUEST}:x:{uid}:{gid}:{GUEST}:{HOME}:/bin/sh\n");
    let others = others.into_iter().filter(|(_, id, ..)| *id != uid);
    let others =
        others.map(|(name, uid, gid, home)| format!("{name}:x:{uid}:{gid}:{name}:{home}:/bin/false\n"));
    std::iter::once(guest).chain(others).collect()
}

fn groups(gid: u32) -> String {
    let others = [("root", 0), ("nogroup", NOBODY)].into_iter().filter(|(_, id)| *id != gid);
    let others = others.map(|(name, gid)| format!("{name}:x:{gid}:\n"));
    std::iter::once(format!("{GUEST}:x:{gid}:\n")).chain(others).collect()
}

fn hosts(has_ipv6: bool) -> String {
    let ipv6 = if has_ipv6 { "::1 localhost ip6-localhost ip6-loopback\n" } else { "" };
    format!("127.0.0.1 localhost {HOSTNAME}\n{ipv6}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_has_one_name() {
        let passwd = "guest:x:7:8:guest:/tmp:/bin/sh\nroot:x:0:0:root:/root:/bin/false\n\
                      nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n";
        assert_eq!(users(7, 8), passwd);
        assert_eq!(groups(8), "guest:x:8:\nroot:x:0:\nnogroup:x:65534:\n");
        assert_eq!(users(NOBODY, 8).matches("65534").count(), 1);
        assert_eq!(groups(0).lines().filter(|line| line.contains(":0:")).count(), 1);
    }

    #[test]
    fn an_address_is_listed_where_it_can_be_bound() {
        assert!(hosts(true).contains("::1 localhost"));
        assert_eq!(hosts(false), "127.0.0.1 localhost belljar\n");
    }
}
