//! The control socket: created here or passed in by systemd. A stale socket is replaced; a socket that another daemon
//! serves, or any other file, is left alone.

use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

use super::{DaemonError, trust};
use crate::config::Paths;

/// The group whose members may use a system daemon.
const GROUP: &str = "belljar";

/// Removes the socket at the end, if this process created it and it was not replaced.
pub struct SocketGuard {
    made: Option<BoundSocket>,
}

struct BoundSocket {
    path: PathBuf,
    inode: u64,
}

impl SocketGuard {
    /// `named` is a group that must exist.
    pub fn bind(paths: &Paths, named: Option<&str>) -> Result<(UnixListener, Self), DaemonError> {
        let group = if paths.system() { group_id(named.unwrap_or(GROUP)) } else { None };
        if let (Some(name), None) = (named, group) {
            let problem =
                format!("there is no group `{name}`\n\nhint: make it with `groupadd --system {name}`");
            return Err(DaemonError::Config(problem));
        }
        if let Some(listener) = handed_over()? {
            return Ok((listener, Self { made: None }));
        }
        let path = paths.socket();
        make_parent(path, paths.system())?;
        trust::check_above(path, "set `BELLJAR_SOCKET`")?;
        clear_stale(path)?;
        let failed = |error: std::io::Error| {
            DaemonError::Start(format!(
                "the socket `{}` cannot be made: {error}\n\nhint: a socket's path has at most 107 characters; set `BELLJAR_SOCKET`",
                path.display()
            ))
        };
        let listener = UnixListener::bind(path).map_err(failed)?;
        if let Some(gid) = group {
            std::os::unix::fs::lchown(path, None, Some(gid)).map_err(failed)?;
        }
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
        let inode = std::fs::symlink_metadata(path).map_err(failed)?.ino();
        Ok((listener, Self { made: Some(BoundSocket { path: path.to_owned(), inode }) }))
    }
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        let Some(made) = &self.made else { return };
        if std::fs::symlink_metadata(&made.path).is_ok_and(|found| found.ino() == made.inode) {
            let _ = std::fs::remove_file(&made.path);
        }
    }
}

/// The socket of `belljar.socket`. It stays when the daemon ends, and systemd determines who may use it.
fn handed_over() -> Result<Option<UnixListener>, DaemonError> {
    let failed = |error: std::io::Error| {
        DaemonError::Start(format!("the socket that was handed over cannot be used: {error}"))
    };
    let Some(listener) = listenfd::ListenFd::from_env().take_unix_listener(0).map_err(failed)? else {
        return Ok(None);
    };
    listener.set_nonblocking(true).map_err(failed)?;
    UnixListener::from_std(listener).map(Some).map_err(failed)
}

fn make_parent(socket: &Path, system: bool) -> Result<(), DaemonError> {
    let Some(parent) = socket.parent() else { return Ok(()) };
    // Users of a system daemon have to reach its socket; the permissions of the socket itself control access.
    let mode = if system { 0o755 } else { 0o700 };
    let made = std::fs::DirBuilder::new().recursive(true).mode(mode).create(parent);
    made.map_err(|error| {
        DaemonError::Start(format!("the folder `{}` cannot be made: {error}", parent.display()))
    })
}

fn clear_stale(path: &Path) -> Result<(), DaemonError> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(DaemonError::Start(format!(
            "`{}` is in the way and is no socket\n\nhint: remove it, or set `BELLJAR_SOCKET`",
            path.display()
        )));
    }
    if let Ok(stream) = std::os::unix::net::UnixStream::connect(path) {
        let pid = rustix::net::sockopt::socket_peercred(&stream)
            .map_or_else(|_| "unknown".into(), |peer| peer.pid.as_raw_nonzero().to_string());
        return Err(DaemonError::AlreadyRunning { location: path.display().to_string(), pid });
    }
    std::fs::remove_file(path).map_err(|error| {
        DaemonError::Start(format!("the stale socket `{}` cannot be removed: {error}", path.display()))
    })
}

fn group_id(name: &str) -> Option<u32> {
    nix::unistd::Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw())
}
