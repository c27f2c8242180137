//! Other users: the kernel tells the daemon who connects, so a process of that user has to.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{Response, documented, http};

#[derive(Clone, Copy)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// A supplementary group, e.g. the one that may use the engine.
    pub group: Option<u32>,
}

/// Whom requests of the tests themselves are from.
pub const ROOT: User = User { uid: 0, gid: 0, group: None };

/// The group that may use the engine.
pub fn docker_group() -> u32 {
    std::fs::metadata("/var/run/docker.sock").expect("the engine's socket").gid()
}

/// Where the relay connects.
const RELAY: &str = "BELLJAR_TEST_RELAY";

/// No test: this binary, run as another user, passes stdin to a socket and the answer to stderr.
#[test]
#[ignore = "only `http_as` runs it"]
fn relay() {
    let Some(socket) = std::env::var_os(RELAY) else { return };
    let mut stream = std::os::unix::net::UnixStream::connect(socket).expect("the daemon serves");
    stream.set_read_timeout(Some(super::SOON * 4)).expect("a timeout");
    std::io::copy(&mut std::io::stdin(), &mut stream).expect("it takes the request");
    let _ = std::io::copy(&mut stream, &mut std::io::stderr());
}

/// Arguments of `setpriv`.
fn become_user(user: User) -> [String; 3] {
    let groups = user.group.map_or_else(|| "--clear-groups".to_owned(), |group| format!("--groups={group}"));
    [format!("--reuid={}", user.uid), format!("--regid={}", user.gid), groups]
}

/// The same command in a mount namespace of its own, where the lists of users are those of a folder.
pub fn by_lists(command: &Command, lists: &Path) -> Command {
    let script = "for name in passwd group subuid; do mount --bind \"$BELLJAR_TEST_LISTS/$name\" /etc/$name || exit 97; done; exec \"$0\" \"$@\"";
    let mut wrapped = Command::new("unshare");
    wrapped.args(["--mount", "--propagation", "private", "sh", "-c", script]);
    wrapped.arg(command.get_program()).args(command.get_args()).env("BELLJAR_TEST_LISTS", lists);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

/// The machine's lists of users, with one account more.
pub fn copy_lists(folder: &Path, account: &str) {
    std::fs::create_dir_all(folder).expect("a folder");
    for name in ["passwd", "group", "subuid"] {
        let mut text = std::fs::read_to_string(Path::new("/etc").join(name)).unwrap_or_default();
        if name == "passwd" {
            text.push_str(account);
        }
        std::fs::write(folder.join(name), text).expect("a list");
    }
}

/// Connections that are opened one after the other, and the most that are kept open.
const FLOOD: usize = 10_000;
const FLOOD_KEPT: usize = 600;

/// No test: this binary, run as another user, opens connections as fast as it can.
#[test]
#[ignore = "only `flood_as` runs it"]
fn flood() {
    let Some(socket) = std::env::var_os(RELAY) else { return };
    let mut kept = std::collections::VecDeque::new();
    for _ in 0..FLOOD {
        // A full backlog is what a flood meets, and no reason to stop.
        if let Ok(stream) = std::os::unix::net::UnixStream::connect(&socket) {
            kept.push_back(stream);
        }
        if kept.len() > FLOOD_KEPT {
            kept.pop_front();
        }
    }
}

/// Ten thousand connections by a process of another user. It runs until it is through or killed.
pub fn flood_as(user: User, socket: &Path) -> std::process::Child {
    Command::new("setpriv")
        .args(become_user(user))
        .arg(std::env::current_exe().expect("this binary"))
        .args(["--exact", "support::users::flood", "--ignored"])
        .env(RELAY, socket)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("setpriv")
}

/// Connects in the name of that user: the kernel notes for whom the thread acts that connects.
pub fn connect_as(user: User, socket: &Path) -> std::io::Result<UnixStream> {
    set_thread_res_gid(None, Gid::from_raw(user.gid), None)?;
    set_thread_res_uid(None, Uid::from_raw(user.uid), None)?;
    let stream = UnixStream::connect(socket);
    set_thread_res_uid(None, Uid::ROOT, None)?;
    set_thread_res_gid(None, Gid::ROOT, None)?;
    stream
}

/// One request, sent by a process of another user.
pub fn http_as(
    user: User,
    socket: &Path,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Response {
    let mut child = Command::new("setpriv")
        .args(become_user(user))
        .arg(std::env::current_exe().expect("this binary"))
        .args(["--exact", "support::users::relay", "--ignored", "--nocapture"])
        .env(RELAY, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("setpriv");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(http::head(method, path, headers, body).as_bytes()).expect("a head");
    stdin.write_all(body).expect("a body");
    drop(stdin);
    let response = http::parse(&child.wait_with_output().expect("it ends").stderr);
    documented::check(method, path, &response);
    response
}
