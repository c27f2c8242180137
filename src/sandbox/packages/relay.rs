//! The installer's only way out: a socket on which it asks for connections by `CONNECT`, as a proxy takes them. The
//! daemon connects to the hosts of the index, and to those that the index names for its files, and to no others, and
//! counts all bytes.

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::file_hosts;
use super::index::{Index, host_and_port};
use crate::protocol::text::quotable;
use crate::security_controls;

/// The socket in the relay's folder.
pub const SOCKET_NAME: &str = "relay.sock";
/// Connections at the same time; further ones wait.
const CONNECTIONS: usize = 64;
/// Longest head of a request, or of a proxy's answer.
const HEAD_BYTES: usize = 8 * 1024;
/// Time for a head, and for a connection to be made.
const CONNECT: Duration = Duration::from_secs(30);
/// What the installer sends on a connection that ends when the daemon does.
const STAY: &str = "STAY";
/// What an installer wanted to reach if that is no host and port. The line itself may have a password of the index in it.
const NO_HOST: &str = "something that is no host";
const SIDE_BYTES: usize = 64 * 1024;

/// A relay that serves until it is dropped.
pub struct Relay {
    shared: Arc<Shared>,
    _serving: AbortOnDropHandle<()>,
}

struct Shared {
    index: Index,
    /// The packages that are wanted, whose pages in the index tell where their files are.
    packages: Vec<String>,
    /// The hosts of files, once an installer has wanted to reach a host that the settings do not name.
    file_hosts: OnceCell<BTreeSet<(String, u16)>>,
    /// Most bytes in both directions.
    most: u64,
    passed: AtomicU64,
    /// The first reason why something was refused.
    trouble: Mutex<Option<Trouble>>,
    /// Ends the installer.
    stop: CancellationToken,
}

/// Why the relay refused something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    Forbidden(String),
    Unreachable(String),
    TooMuch,
}

impl Relay {
    /// Binds the socket in the folder, which only the installer's sandbox sees, and serves.
    pub fn start(
        folder: &Path,
        (index, packages): (Index, Vec<String>),
        most: u64,
        stop: CancellationToken,
    ) -> std::io::Result<Self> {
        // Named by its descriptor, so that the path may be longer than a socket address allows.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(folder, flags, Mode::empty())?;
        let path = format!("/proc/self/fd/{}/{SOCKET_NAME}", handle.as_raw_fd());
        let listener = UnixListener::bind(&path)?;
        // The folder around it keeps other users out, while the installer's user must be able to connect.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        let shared = Arc::new(Shared {
            index,
            packages,
            file_hosts: OnceCell::new(),
            most,
            passed: AtomicU64::new(0),
            trouble: Mutex::default(),
            stop,
        });
        let serving = tokio::spawn(serve(listener, Arc::clone(&shared)));
        Ok(Self { shared, _serving: AbortOnDropHandle::new(serving) })
    }

    /// The bytes that were passed so far.
    pub fn passed(&self) -> u64 {
        self.shared.passed.load(Ordering::Relaxed)
    }

    pub fn trouble(&self) -> Option<Trouble> {
        self.shared.trouble.lock().clone()
    }
}

async fn serve(listener: UnixListener, shared: Arc<Shared>) {
    // Dropped with this task, which ends all connections.
    let mut connections = JoinSet::new();
    loop {
        while connections.len() >= CONNECTIONS {
            connections.join_next().await;
        }
        let Ok((client, _)) = listener.accept().await else { return };
        let shared = Arc::clone(&shared);
        connections.spawn(async move { shared.connection(client).await });
        while connections.try_join_next().is_some() {}
    }
}

impl Shared {
    async fn connection(&self, mut client: UnixStream) {
        let Ok(Some(head)) = tokio::time::timeout(CONNECT, head_of(&mut client)).await else { return };
        let line = head.lines().next().unwrap_or_default();
        if line == STAY {
            self.stop.cancelled().await;
            return;
        }
        match self.connect(line).await {
            Ok(server) => {
                if client.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await.is_ok() {
                    self.pass(client, server).await;
                }
            }
            Err(trouble) => {
                let status = if matches!(trouble, Trouble::Forbidden(_)) {
                    "403 Forbidden"
                } else {
                    "502 Bad Gateway"
                };
                self.trouble.lock().get_or_insert(trouble);
                let _ = client
                    .write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes())
                    .await;
            }
        }
    }

    async fn connect(&self, line: &str) -> Result<TcpStream, Trouble> {
        let target =
            line.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).unwrap_or_default();
        let (host, port) = host_and_port(target).ok_or_else(|| Trouble::Forbidden(NO_HOST.into()))?;
        let is_named = self.index.permits(&host, port);
        if !is_named
            && security_controls::holds("installers_reach_the_index_only")
            && !self.file_hosts().await.contains(&(host.clone(), port))
        {
            return Err(Trouble::Forbidden(format!("{host}:{port}")));
        }
        let unreachable =
            |error: &dyn std::fmt::Display| Trouble::Unreachable(format!("{host}:{port}: {error}"));
        let connected = async {
            let learnt =
                if is_named { None } else { Some(file_hosts::addresses(&self.index, &host, port).await?) };
            let Some(proxy) = self.index.proxy_for(&host) else {
                return match learnt {
                    Some(addresses) => TcpStream::connect(&addresses[..]).await,
                    None => TcpStream::connect((host.as_str(), port)).await,
                };
            };
            let mut stream = TcpStream::connect((proxy.host.as_str(), proxy.port)).await?;
            let authorization =
                proxy.authorization.as_ref().map(|value| format!("Proxy-Authorization: {value}\r\n"));
            let authorization = authorization.unwrap_or_default();
            let request =
                format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{authorization}\r\n");
            stream.write_all(request.as_bytes()).await?;
            let answer = head_of(&mut stream).await.unwrap_or_default();
            let status = answer.split(' ').nth(1).unwrap_or_default();
            if status == "200" {
                return Ok(stream);
            }
            Err(std::io::Error::other(format!("the proxy answers {}", quotable(status))))
        };
        match tokio::time::timeout(CONNECT, connected).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(unreachable(&error)),
            Err(_) => Err(unreachable(&"it does not answer")),
        }
    }

    async fn file_hosts(&self) -> &BTreeSet<(String, u16)> {
        let learn = || file_hosts::learn(&self.index, &self.packages, &self.passed);
        self.file_hosts.get_or_init(learn).await
    }

    async fn pass(&self, client: UnixStream, server: TcpStream) {
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_server, mut to_server) = server.into_split();
        tokio::join!(
            self.one_way(&mut from_client, &mut to_server),
            self.one_way(&mut from_server, &mut to_client)
        );
    }

    async fn one_way(&self, source: &mut (impl AsyncRead + Unpin), target: &mut (impl AsyncWrite + Unpin)) {
        let mut bytes = vec![0; SIDE_BYTES];
        while let Ok(read @ 1..) = source.read(&mut bytes).await {
            let before = self.passed.fetch_add(read as u64, Ordering::Relaxed);
            if before.saturating_add(read as u64) > self.most
                && security_controls::holds("downloads_are_bounded")
            {
                *self.trouble.lock() = Some(Trouble::TooMuch);
                self.stop.cancel();
                return;
            }
            if target.write_all(&bytes[..read]).await.is_err() {
                break;
            }
        }
        let _ = target.shutdown().await;
    }
}

/// The text up to an empty line; a byte at a time, because what follows belongs to another reader.
async fn head_of(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut bytes = Vec::new();
    while !bytes.ends_with(b"\r\n\r\n") {
        if bytes.len() >= HEAD_BYTES {
            return None;
        }
        bytes.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// What the relay answers first, and the connection.
    async fn asked(folder: &Path, request: &str) -> (String, UnixStream) {
        let mut client = UnixStream::connect(folder.join(SOCKET_NAME)).await.unwrap();
        client.write_all(format!("{request}\r\n\r\n").as_bytes()).await.unwrap();
        let answer = head_of(&mut client).await.unwrap_or_default();
        (answer.lines().next().unwrap_or_default().to_owned(), client)
    }

    /// A relay to hosts that the pages of the index name.
    fn learnt(folder: &Path, index: Index, hosts: &[(&str, u16)]) -> Relay {
        let relay = Relay::start(folder, (index, Vec::new()), 1000, CancellationToken::new()).unwrap();
        let hosts = hosts.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect();
        relay.shared.file_hosts.set(hosts).unwrap();
        relay
    }

    #[tokio::test]
    async fn hosts_inside_that_an_index_outside_names_are_refused_with_a_proxy_and_without_one() {
        let (inside, proxy) = (
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        );
        let port = inside.local_addr().unwrap().port();
        let proxy_port = proxy.local_addr().unwrap().port();
        let hosts = [("localhost", port), ("127.0.0.1", port), ("198.51.100.2", 443)];
        let outside = || Index::of_hosts(&[("198.51.100.1", 443)]);
        for (index, refused) in [(outside(), 2), (outside().behind_proxy(proxy_port), 3)] {
            let folder = tempfile::tempdir().unwrap();
            let relay = learnt(folder.path(), index, &hosts);
            for (host, port) in &hosts[..refused] {
                let (answer, _) = asked(folder.path(), &format!("CONNECT {host}:{port} HTTP/1.1")).await;
                assert_eq!(answer, "HTTP/1.1 502 Bad Gateway", "{host}");
            }
            let trouble = format!("{:?}", relay.trouble());
            assert!(trouble.contains("localhost") && trouble.contains("packages.hosts"), "{trouble}");
        }
        // An index that is there itself reaches it, through the proxy by its name.
        let folder = tempfile::tempdir().unwrap();
        let here = Index::of_hosts(&[("127.0.0.1", 443)]).behind_proxy(proxy_port);
        let _relay = learnt(folder.path(), here, &hosts);
        let serve = async {
            let (mut client, _) = proxy.accept().await.unwrap();
            let head = head_of(&mut client).await.unwrap();
            client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            head
        };
        let ask = format!("CONNECT localhost:{port} HTTP/1.1");
        let ((answer, _), head) = tokio::join!(asked(folder.path(), &ask), serve);
        assert_eq!(answer, "HTTP/1.1 200 Connected");
        assert!(head.starts_with(&format!("CONNECT localhost:{port} ")), "nothing came before: {head}");
    }

    #[tokio::test]
    async fn only_hosts_of_the_index_are_reached_and_bytes_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let (index, other) = (
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        );
        let (port, closed) = (index.local_addr().unwrap().port(), other.local_addr().unwrap().port());
        let stop = CancellationToken::new();
        let allowed = Index::of_hosts(&[("localhost", port)]);
        let relay = Relay::start(folder.path(), (allowed, Vec::new()), 100, stop.clone()).unwrap();
        for request in [
            format!("CONNECT localhost:{closed} HTTP/1.1"),
            format!("CONNECT 127.0.0.1:{port} HTTP/1.1"),
            format!("GET http://localhost:{port}/ HTTP/1.1"),
            "CONNECT".to_owned(),
        ] {
            let (answer, _) = asked(folder.path(), &request).await;
            assert_eq!(answer, "HTTP/1.1 403 Forbidden", "{request}");
        }
        assert_eq!(relay.trouble(), Some(Trouble::Forbidden(format!("localhost:{closed}"))));
        let (answer, mut client) = asked(folder.path(), &format!("CONNECT LOCALHOST:{port} HTTP/1.1")).await;
        assert_eq!(answer, "HTTP/1.1 200 Connected");
        let (mut server, _) = index.accept().await.unwrap();
        client.write_all(b"hello").await.unwrap();
        let mut said = [0; 5];
        server.read_exact(&mut said).await.unwrap();
        assert_eq!((&said, relay.passed()), (b"hello", 5));
        // What is more than it may be ends the installer.
        let mut waits = UnixStream::connect(folder.path().join(SOCKET_NAME)).await.unwrap();
        waits.write_all(b"STAY\r\n\r\n").await.unwrap();
        server.write_all(&[0; 96]).await.unwrap();
        stop.cancelled().await;
        assert_eq!(waits.read(&mut said).await.unwrap(), 0, "and says so to it");
    }
}
