//! The socket through which a kernel sends or gets large data, beside the one for frames. It is there only while a
//! transfer is awaited, and a client that connects has to show the transfer's token first. A transfer that was given up may still
//! have its socket when the next one begins, which then takes the name over.
//!
//! Every process of a sandbox can reach it. What one without the token can do is hold up the transfer of its own
//! sandbox, for as long and as often as the bounds here allow.

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncReadExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::protocol::snapshot::TOKEN_DIGITS;
use crate::sandbox::backend::ConnectError;
use crate::sandbox::spec::DATA_SOCKET_NAME;
use crate::security_controls;

/// Connections without the token, after which a transfer fails.
const STRANGERS: usize = 64;
/// Connections at a time that have not shown a token yet; others wait to be accepted.
const UNDECIDED: usize = 8;
/// The time in which a connection shows its token.
const SHOW: Duration = Duration::from_secs(5);

/// Where a sandbox has its socket for data.
pub struct DataSocket {
    /// The folder of the bridge, here and in the sandbox.
    folder: PathBuf,
    seen_as: PathBuf,
    /// The number of the transfer that the name belongs to. Its lock is held while the name is made or removed.
    newest: Arc<Mutex<u64>>,
}

impl DataSocket {
    pub fn new(folder: PathBuf, seen_as: impl Into<PathBuf>) -> Self {
        Self { folder, seen_as: seen_as.into(), newest: Arc::default() }
    }

    /// Makes the socket; it goes with the answer. A sandbox has one transfer at a time: nobody finds the socket of an earlier one
    /// any more, whatever became of that.
    pub fn open(&self) -> Result<DataListener, ConnectError> {
        self.bind().map_err(ConnectError::Data)
    }

    fn bind(&self) -> std::io::Result<DataListener> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::open(&self.folder, flags, Mode::empty())?;
        // The folder is named by its descriptor, so the path may be longer than a socket address allows.
        let path = path_in(&folder);
        let mut newest = self.newest.lock();
        *newest += 1;
        // An earlier transfer or an earlier daemon may have left its socket here; only the daemon can write to this folder.
        remove(&path)?;
        let listener = UnixListener::bind(&path)?;
        // The folder above keeps other users of the host out, while the sandbox's user must be able to connect.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        let place = Place { folder, number: *newest, newest: Arc::clone(&self.newest) };
        let path_inside = self.seen_as.join(DATA_SOCKET_NAME).to_string_lossy().into_owned();
        Ok(DataListener { listener, path_inside, _place: place })
    }
}

/// The name of the socket in the folder; without it no further process connects.
struct Place {
    folder: OwnedFd,
    number: u64,
    newest: Arc<Mutex<u64>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let newest = self.newest.lock();
        // A later transfer has taken the name over.
        if *newest != self.number {
            return;
        }
        if let Err(error) = remove(&path_in(&self.folder)) {
            tracing::warn!(%error, "a socket for data stays");
        }
    }
}

/// A socket that waits for one kernel. Dropping it removes the socket.
pub struct DataListener {
    listener: UnixListener,
    path_inside: String,
    _place: Place,
}

impl DataListener {
    /// The path of the socket as processes of the sandbox see it.
    pub fn path_inside(&self) -> &str {
        &self.path_inside
    }

    /// The connection that shows the token first, `limit` at most from now. All others are hung up on.
    pub async fn accept(self, token: &str, limit: Duration) -> Result<UnixStream, ConnectError> {
        let mut strangers = 0;
        let accepted = tokio::time::timeout(limit, self.wanted(token, &mut strangers)).await;
        if strangers > 0 {
            // Code in the sandbox may connect as often as it likes, and must not fill the log by doing so.
            tracing::warn!(strangers, "strangers on a socket for data were hung up on");
        }
        accepted.map_err(|_| match strangers {
            0 => ConnectError::NoData(limit),
            _ => ConnectError::ForeignDataPeers(strangers),
        })?
    }

    async fn wanted(&self, token: &str, strangers: &mut usize) -> Result<UnixStream, ConnectError> {
        let mut undecided = JoinSet::new();
        loop {
            tokio::select! {
                connection = self.listener.accept(), if undecided.len() < UNDECIDED => {
                    let (stream, _) = connection.map_err(ConnectError::Data)?;
                    undecided.spawn(tokio::time::timeout(SHOW, authenticated(stream, token.to_owned())));
                }
                Some(connection) = undecided.join_next() => {
                    if let Ok(Ok(Some(stream))) = connection {
                        return Ok(stream);
                    }
                    *strangers += 1;
                    if *strangers >= STRANGERS && security_controls::holds("data_strangers_are_counted") {
                        return Err(ConnectError::ForeignDataPeers(*strangers));
                    }
                }
            }
        }
    }
}

/// The stream, if the token and the end of its line come first. Nothing that follows them is read.
async fn authenticated(mut stream: UnixStream, token: String) -> Option<UnixStream> {
    let mut line = [0; TOKEN_DIGITS + 1];
    stream.read_exact(&mut line).await.ok()?;
    let is_right = line.split_last() == Some((&b'\n', token.as_bytes()));
    (is_right || !security_controls::holds("data_token")).then_some(stream)
}

fn path_in(folder: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}/{DATA_SOCKET_NAME}", folder.as_raw_fd()).into()
}

fn remove(path: &std::path::Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use tokio::io::AsyncWriteExt as _;

    const TOKEN: &str = "00112233445566778899aabbccddeeff";
    /// Longer than anything takes on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(30);
    const SOON: Duration = Duration::from_millis(200);

    /// A folder with a path that no socket address could have, and the socket in it.
    fn place() -> (tempfile::TempDir, PathBuf, DataSocket) {
        let top = tempfile::tempdir().unwrap();
        let folder = top.path().join("x".repeat(120));
        std::fs::create_dir(&folder).unwrap();
        let socket = DataSocket::new(folder.clone(), "/belljar/bridge");
        (top, folder, socket)
    }

    async fn connect(folder: &std::path::Path) -> std::io::Result<UnixStream> {
        let folder = OwnedFd::from(std::fs::File::open(folder).unwrap());
        UnixStream::connect(path_in(&folder)).await
    }

    async fn says(folder: &std::path::Path, words: &str) -> UnixStream {
        let mut stream = connect(folder).await.unwrap();
        stream.write_all(words.as_bytes()).await.unwrap();
        stream
    }

    #[tokio::test]
    async fn the_process_with_the_token_gets_through_and_what_it_says_next_is_not_lost() {
        let (_top, folder, socket) = place();
        let listener = socket.open().unwrap();
        assert_eq!(listener.path_inside(), "/belljar/bridge/data.sock");
        let mut client = says(&folder, &format!("{TOKEN}\nP and more")).await;
        let mut stream = listener.accept(TOKEN, PATIENCE).await.unwrap();
        let mut next = [0; 10];
        stream.read_exact(&mut next).await.unwrap();
        assert_eq!(&next, b"P and more");
        stream.write_all(b"back").await.unwrap();
        let mut back = [0; 4];
        client.read_exact(&mut back).await.unwrap();
        assert_eq!(&back, b"back");
        assert!(!folder.join(DATA_SOCKET_NAME).exists(), "it is there only while a transfer is awaited");
        assert!(connect(&folder).await.is_err());
    }

    #[tokio::test]
    async fn who_has_another_token_is_hung_up_on() {
        let (_top, folder, socket) = place();
        let almost = TOKEN.replace('f', "e");
        for words in [format!("{almost}\n"), format!("{TOKEN} "), format!("\n{TOKEN}"), "x\n".repeat(20)] {
            let listener = socket.open().unwrap();
            let mut stranger = says(&folder, &words).await;
            let refused = listener.accept(TOKEN, SOON).await;
            assert!(matches!(refused, Err(ConnectError::ForeignDataPeers(1))), "{words:?}");
            let mut nothing = [0; 1];
            assert!(matches!(stranger.read(&mut nothing).await, Ok(0) | Err(_)), "{words:?}");
        }
    }

    #[tokio::test]
    async fn strangers_and_slow_peers_do_not_stand_in_the_way() {
        let (_top, folder, socket) = place();
        let listener = socket.open().unwrap();
        let mut others = Vec::new();
        for _ in 0..UNDECIDED - 1 {
            others.push(connect(&folder).await.unwrap());
        }
        others.push(says(&folder, &"0".repeat(TOKEN_DIGITS + 1)).await);
        let accepted = tokio::spawn(listener.accept(TOKEN, PATIENCE));
        let begun = Instant::now();
        let _client = says(&folder, &format!("{TOKEN}\n")).await;
        accepted.await.unwrap().unwrap();
        assert!(begun.elapsed() < SHOW, "it waited for a peer that says nothing");
    }

    #[tokio::test]
    async fn a_crowd_of_strangers_ends_the_transfer() {
        let (_top, folder, socket) = place();
        let listener = socket.open().unwrap();
        let accepted = tokio::spawn(listener.accept(TOKEN, PATIENCE));
        let crowd = async {
            loop {
                let Ok(mut stream) = connect(&folder).await else { break };
                let _ = stream.write_all(&[b'0'; TOKEN_DIGITS + 1]).await;
            }
        };
        tokio::time::timeout(PATIENCE, crowd).await.expect("the socket goes");
        assert!(matches!(accepted.await.unwrap(), Err(ConnectError::ForeignDataPeers(STRANGERS))));
    }

    #[tokio::test]
    async fn a_kernel_that_does_not_come_is_not_waited_for_longer() {
        let (_top, folder, socket) = place();
        let refused = socket.open().unwrap().accept(TOKEN, SOON).await;
        assert!(matches!(refused, Err(ConnectError::NoData(_))));
        assert!(!folder.join(DATA_SOCKET_NAME).exists());
    }

    #[tokio::test]
    async fn a_transfer_begins_whatever_became_of_the_one_before() {
        let (_top, folder, socket) = place();
        // The socket of a daemon that died.
        std::fs::write(folder.join(DATA_SOCKET_NAME), "").unwrap();
        // It is given up, and its task has not ended yet.
        let given_up = socket.open().unwrap();
        let mut late = says(&folder, &format!("{TOKEN}\n")).await;
        let next = socket.open().unwrap();
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "there is one socket for all of them");
        drop(given_up);
        let mut nothing = [0; 1];
        assert!(matches!(late.read(&mut nothing).await, Ok(0) | Err(_)), "the earlier kernel is hung up on");
        let other = TOKEN.replace('f', "e");
        let _client = says(&folder, &format!("{other}\n")).await;
        next.accept(&other, PATIENCE).await.unwrap();
        assert!(!folder.join(DATA_SOCKET_NAME).exists(), "the last one takes the name away");
    }

    #[tokio::test]
    async fn a_socket_that_cannot_be_made_does_not_stand_in_the_way() {
        let (_top, folder, socket) = place();
        drop(socket.open().unwrap());
        assert!(!folder.join(DATA_SOCKET_NAME).exists());
        let gone = DataSocket::new(folder.join("gone"), "/belljar/bridge");
        for _ in 0..2 {
            let Err(ConnectError::Data(error)) = gone.open().map(drop) else { panic!("there is no folder") };
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        }
    }
}
