//! Collects the facts. Nothing here fails: a fact that cannot be determined is missing from the result.

use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::fs::{Access, access, statvfs};
use tokio::time::timeout;

use super::engine;
use super::facts::{Cgroups, Config, Daemon, Facts, FreeSpace, Home, Namespaces, SocketFacts};
use super::facts::{OTHERS_WRITE, PERMISSIONS, ProcessesOfOthers, SocketFile};
use super::machine::SWITCHES;
use crate::cli::context::Context;
use crate::config;
use crate::project_quotas;

/// Time for a program to print its version.
const PROGRAM: Duration = Duration::from_secs(5);
/// A daemon that does not answer within this time counts as not running.
const DAEMON: Duration = Duration::from_secs(10);
/// Characters of a program's version.
const VERSION_CHARS: usize = 80;
/// Characters of a program's error message.
const SAID_CHARS: usize = 300;
const STICKY: u32 = 0o1000;

pub async fn facts(context: &Context) -> Facts {
    let config = configuration(context);
    let host = std::env::var("DOCKER_HOST").ok();
    let allowed =
        config.settings.as_ref().map(|settings| settings.sandbox.images.clone()).unwrap_or_default();
    let (engine, images) = match engine::socket(host.as_deref()) {
        Ok(socket) => match engine::examine(&socket).await {
            Ok(engine) => (Ok(engine), engine::images(&socket, &allowed).await),
            Err(trouble) => (Err(trouble), Vec::new()),
        },
        Err(trouble) => (Err(trouble), Vec::new()),
    };
    Facts {
        root: config::is_system(),
        kernel: line("/proc/sys/kernel/osrelease"),
        cgroups: cgroups(),
        namespaces: Namespaces {
            max: number("/proc/sys/user/max_user_namespaces"),
            clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
            apparmor_restricts: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        },
        seccomp: Path::new("/proc/sys/kernel/seccomp/actions_avail").exists(),
        bubblewrap: version_of("bwrap").await,
        jail_trouble: jail_trouble().await,
        sysctls: SWITCHES.iter().filter_map(|switch| Some((switch.name, sysctl(switch.name)?))).collect(),
        crypto_sockets: crypto_sockets().await,
        processes: line("/proc/self/mounts").map_or(ProcessesOfOthers::Shown, |table| processes(&table)),
        engine,
        config,
        images,
        home: home(context.paths.home()),
        socket: socket_file(context.paths.socket()),
        daemon: timeout(DAEMON, daemon(context)).await.ok().flatten(),
        closed: context.closed.clone(),
    }
}

fn line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn number(path: &str) -> Option<u64> {
    line(path)?.parse().ok()
}

/// `user.max_pid_namespaces` is a file below `/proc/sys`.
fn sysctl(name: &str) -> Option<u64> {
    number(&format!("/proc/sys/{}", name.replace('.', "/")))
}

/// Whether the module is there, or a dry run says which file would be loaded.
async fn crypto_sockets() -> bool {
    if Path::new("/sys/module/algif_aead").exists() {
        return true;
    }
    let mut command = tokio::process::Command::new("modprobe");
    command.args(["--dry-run", "--verbose", "algif_aead"]).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(PROGRAM, command.output()).await;
    output.is_ok_and(|output| output.is_ok_and(|output| output.stdout.starts_with(b"insmod")))
}

/// What the last of the mounts at `/proc` shows users of the processes of others.
fn processes(mounts: &str) -> ProcessesOfOthers {
    let options = |row: &str| {
        let mut fields = row.split(' ').skip(1);
        let is_proc = (fields.next(), fields.next()) == (Some("/proc"), Some("proc"));
        is_proc.then(|| fields.next().unwrap_or_default().to_owned())
    };
    let hides = |option: &str| option.strip_prefix("hidepid=").is_some_and(|how| !matches!(how, "0" | "off"));
    match mounts.lines().filter_map(options).next_back() {
        Some(options) if options.split(',').any(hides) => ProcessesOfOthers::Hidden,
        Some(_) | None => ProcessesOfOthers::Shown,
    }
}

/// Builds a jail with the same kinds of namespaces as real ones, and returns what went wrong.
async fn jail_trouble() -> Option<String> {
    let mut command = tokio::process::Command::new("bwrap");
    command.args(["--ro-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "--unshare-net"]);
    command.args(["--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
    // A daemon of root changes to another user id instead of using a user namespace.
    if !config::is_system() {
        command.arg("--unshare-user");
    }
    command.arg("true").stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
    match timeout(PROGRAM, command.output()).await {
        Ok(Ok(output)) if output.status.success() => None,
        Ok(Ok(output)) => Some(String::from_utf8_lossy(&output.stderr).chars().take(SAID_CHARS).collect()),
        // Another check reports that the program is missing.
        Ok(Err(_)) => None,
        Err(_) => Some(format!("it did not end within {} s", PROGRAM.as_secs())),
    }
}

fn cgroups() -> Cgroups {
    let for_jails = config::is_system() || config::has_user_manager();
    if let Some(controllers) = line("/sys/fs/cgroup/cgroup.controllers") {
        let controllers = controllers.split_whitespace().map(ToOwned::to_owned).collect();
        return Cgroups { version: Some(2), controllers, for_jails };
    }
    let controllers = line("/proc/cgroups").map(|table| mounted(&table)).unwrap_or_default();
    // A user's systemd cannot delegate control groups of version 1.
    let for_jails = for_jails && config::is_system();
    Cgroups { version: (!controllers.is_empty()).then_some(1), controllers, for_jails }
}

/// The controllers in `/proc/cgroups` that are enabled and belong to a hierarchy of version 1.
fn mounted(table: &str) -> Vec<String> {
    let row = |line: &str| {
        let mut fields = line.split_whitespace();
        let name = fields.next().filter(|name| !name.starts_with('#'))?.to_owned();
        let (hierarchy, _, enabled) = (fields.next()?, fields.next()?, fields.next()?);
        (hierarchy != "0" && enabled == "1").then_some(name)
    };
    table.lines().filter_map(row).collect()
}

/// The first line that the program prints for `--version`.
async fn version_of(program: &str) -> Option<String> {
    let mut command = tokio::process::Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = timeout(PROGRAM, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8_lossy(&output.stdout).lines().next()?.chars().take(VERSION_CHARS).collect();
    output.status.success().then_some(text)
}

fn configuration(context: &Context) -> Config {
    let named = context.config();
    let file = named.unwrap_or(context.paths.config_file()).to_owned();
    let settings = config::load(named, &context.paths).map(|loaded| Box::new(loaded.settings));
    Config { there: file.exists(), file, settings }
}

fn home(path: &Path) -> Home {
    let mode = fs::metadata(path).ok().map(|found| found.mode() & PERMISSIONS);
    let there = nearest(path);
    let free_space = statvfs(&there).ok().map(|found| FreeSpace {
        bytes: found.f_bavail.saturating_mul(found.f_frsize),
        files: (found.f_files > 0).then_some(found.f_favail),
    });
    // Only root may set project quotas.
    let project_quotas = config::is_system()
        && fs::File::open(&there).is_ok_and(|folder| project_quotas::are_enforced(folder.as_fd()));
    let writable = access(&there, Access::WRITE_OK).is_ok();
    Home { path: path.to_owned(), mode, writable, free_space, project_quotas }
}

/// The path itself, or the nearest folder above it that exists.
fn nearest(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

fn socket_file(path: &Path) -> SocketFile {
    let found = fs::symlink_metadata(path).ok().map(|found| SocketFacts {
        is_socket: found.file_type().is_socket(),
        mode: found.mode() & PERMISSIONS,
        owner: found.uid(),
        ours: found.uid() == 0 || found.uid() == rustix::process::geteuid().as_raw(),
    });
    let folder = path.parent().and_then(|folder| fs::metadata(folder).ok()).map(|folder| folder.mode());
    let open_folder = folder.is_some_and(|mode| mode & OTHERS_WRITE != 0 && mode & STICKY == 0);
    SocketFile { path: path.to_owned(), found, open_folder }
}

async fn daemon(context: &Context) -> Option<Daemon> {
    let client = context.client_of_running_daemon();
    let version = client.get("/v1/version").await.ok()?.parse().ok()?;
    let health = client.get("/v1/health").await.ok()?.parse().ok()?;
    Some(Daemon { version, health })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_mounted_controllers_count() {
        let table = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t2\t1\nmemory\t4\t17\t0\npids\t0\t1\t1\nx\n";
        assert_eq!(mounted(table), ["cpu"]);
    }

    #[test]
    fn the_options_of_proc_say_whether_processes_are_hidden() {
        let are_hidden = |mounts: &str| matches!(processes(mounts), ProcessesOfOthers::Hidden);
        let hidden = |options: &str| {
            are_hidden(&format!(
                "sysfs /sys sysfs rw,hidepid=2 0 0\nproc /proc proc rw,nosuid{options} 0 0\nproc /srv/proc proc rw 0 0"
            ))
        };
        assert!([",hidepid=1", ",hidepid=invisible", ",gid=9,hidepid=ptraceable"].into_iter().all(hidden));
        assert!(!["", ",hidepid=0", ",hidepid=off"].into_iter().any(hidden));
        let last_counts = "proc /proc proc rw,hidepid=2 0 0\nproc /proc proc rw 0 0";
        assert!(!are_hidden(last_counts) && !are_hidden(""));
    }

    #[test]
    fn a_home_that_is_yet_to_be_made_is_judged_by_the_folder_above() {
        let dir = tempfile::tempdir().unwrap();
        let found = home(&dir.path().join("a/b"));
        assert!(found.mode.is_none() && found.writable && found.free_space.is_some());
    }

    #[test]
    fn a_socket_is_no_file_of_another_kind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        assert!(socket_file(&path).found.is_none());
        fs::write(&path, "").unwrap();
        assert!(socket_file(&path).found.is_some_and(|found| !found.is_socket && found.ours));
    }
}
