//! The socket to which the kernel of a sandbox on this host connects. Exactly one connection is accepted at a time, from
//! exactly one process; after that the socket refuses all connections.

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};

use crate::sandbox::backend::ConnectError;
use crate::sandbox::spec::BRIDGE_SOCKET_NAME;
use crate::security_controls;

pub struct BridgeSocket {
    folder: PathBuf,
    /// The socket while it waits for the kernel.
    listener: Mutex<Option<UnixListener>>,
}

impl BridgeSocket {
    /// The socket of a sandbox that is about to start. It is bound at once, because the kernel connects as soon as it
    /// runs.
    pub fn bind(folder: &Path) -> Result<Self, ConnectError> {
        let listener = bind(folder).map_err(ConnectError::Socket)?;
        Ok(Self { folder: folder.to_owned(), listener: Mutex::new(Some(listener)) })
    }

    /// The socket of a sandbox that runs already. It is bound when the kernel's connection is wanted.
    pub fn unbound(folder: PathBuf) -> Self {
        Self { folder, listener: Mutex::default() }
    }

    /// Accepts one connection of the process with this pid, and hangs up on all others. After it the system refuses
    /// further attempts, until the next call.
    pub async fn accept(&self, pid: i32, limit: Duration) -> Result<UnixStream, ConnectError> {
        let bound = self.listener.lock().take();
        let listener = bound.map_or_else(|| bind(&self.folder), Ok).map_err(ConnectError::Socket)?;
        let mut foreign_peers = 0_u64;
        let wanted = async {
            loop {
                let (stream, _) = listener.accept().await.map_err(ConnectError::Socket)?;
                let peer = stream.peer_cred().map_err(ConnectError::Socket)?;
                if peer.pid() == Some(pid) || !security_controls::holds("bridge_is_for_pid_1") {
                    return Ok(stream);
                }
                // Code in the sandbox may connect as often as it likes, and must not fill the log by doing so.
                foreign_peers += 1;
                if foreign_peers == 1 || !security_controls::holds("strangers_are_logged_once") {
                    tracing::warn!(peer = ?peer.pid(), wanted = pid, "a stranger on a bridge was hung up on");
                }
            }
        };
        let accepted = tokio::time::timeout(limit, wanted).await;
        if foreign_peers > 1 {
            tracing::warn!(
                strangers = foreign_peers,
                wanted = pid,
                "more strangers on a bridge were hung up on"
            );
        }
        accepted.map_err(|_| match foreign_peers {
            0 => ConnectError::NoKernel(limit),
            _ => ConnectError::ForeignPeers(limit),
        })?
    }
}

/// Binds the socket in the folder. The folder is named by its descriptor, so the path may be longer than a socket
/// address allows.
fn bind(folder: &Path) -> std::io::Result<UnixListener> {
    let handle = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{BRIDGE_SOCKET_NAME}", handle.as_raw_fd());
    // An earlier daemon may have left its socket here; only the daemon can write to this folder.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&path)?;
    // The folder above keeps other users of the host out, while the sandbox's user must be able to connect.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::Arc;

    #[tokio::test]
    async fn only_the_expected_process_is_let_in_and_only_once() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("x".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();

        let stranger = BridgeSocket::bind(&deep).unwrap();
        let handle = std::fs::File::open(&deep).unwrap();
        let path = format!("/proc/self/fd/{}/{BRIDGE_SOCKET_NAME}", handle.as_raw_fd());
        let _client = UnixStream::connect(&path).await.unwrap();
        let refused = stranger.accept(pid + 1, Duration::from_millis(50)).await;
        assert!(matches!(refused, Err(ConnectError::ForeignPeers(_))));

        std::fs::remove_file(&path).unwrap();
        let listener = BridgeSocket::bind(&deep).unwrap();
        let _client = UnixStream::connect(&path).await.unwrap();
        listener.accept(pid, Duration::from_secs(5)).await.unwrap();
        let second = UnixStream::connect(&path).await.unwrap_err();
        assert_eq!(second.kind(), std::io::ErrorKind::ConnectionRefused);
    }

    /// A log in memory.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn however_many_strangers_come_the_log_has_two_lines_of_them() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let _guard = tracing::subscriber::set_default(subscriber.finish());
        let folder = tempfile::tempdir().unwrap();
        let listener = BridgeSocket::bind(folder.path()).unwrap();
        let strangers: Vec<_> = (0..100)
            .map(|_| std::os::unix::net::UnixStream::connect(folder.path().join(BRIDGE_SOCKET_NAME)).unwrap())
            .collect();
        let pid = i32::try_from(std::process::id()).unwrap();
        let refused = listener.accept(pid + 1, Duration::from_millis(500)).await;
        assert!(matches!(refused, Err(ConnectError::ForeignPeers(_))));
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert!(lines[0].contains("a stranger on a bridge"), "{text}");
        assert!(lines[1].contains("more strangers") && lines[1].contains("strangers=100"), "{text}");
        drop(strangers);
    }
}
