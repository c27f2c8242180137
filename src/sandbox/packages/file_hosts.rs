//! The hosts that an index has its files on, where those are not its own: they stand in the links of its pages. The daemon
//! reads one itself when an installer wants to reach a host that is not named in the settings.

use reqwest::header::{ACCEPT, HeaderValue};
use reqwest::{Client, Url};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::index::{AUTHORITIES_BYTES, HTTPS, Index, Proxy};
use crate::security_controls;

/// Pages that are read, one after the other, until one has links to files.
const PAGES: usize = 4;
/// Bytes of a page that are read; its first links say enough.
const PAGE_BYTES: usize = 256 * 1024;
/// Most hosts of an index.
const HOSTS: usize = 4;
/// Time for all of it.
const WITHIN: Duration = Duration::from_secs(20);
/// Endings of the files that packages come as.
const FILES: [&str; 3] = [".whl", ".tar.gz", ".zip"];

/// The hosts that the index names for the files of these packages; none if it cannot be asked, or if the settings say
/// where its files are. What is read counts in `passed`.
pub async fn learn(index: &Index, packages: &[String], passed: &AtomicU64) -> BTreeSet<(String, u16)> {
    if !index.learns_hosts {
        return BTreeSet::new();
    }
    let read = async {
        let client = client(index).await?;
        for name in packages.iter().take(PAGES) {
            let hosts = page(&client, index, name, passed).await.map(|(url, text)| hosts_in(&text, &url));
            if let Some(hosts) = hosts.filter(|hosts| !hosts.is_empty()) {
                return Some(hosts);
            }
        }
        None
    };
    tokio::time::timeout(WITHIN, read).await.ok().flatten().unwrap_or_default()
}

/// A client that goes where the installer would go: through the proxy of the host, trusting what the host trusts.
async fn client(index: &Index) -> Option<Client> {
    // If another client has installed the provider already, it is the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder().redirect(reqwest::redirect::Policy::none()).no_proxy();
    if let Some(path) = &index.authorities {
        let is_small = tokio::fs::metadata(path).await.ok()?.len() <= AUTHORITIES_BYTES;
        let text = if is_small { tokio::fs::read(path).await.ok()? } else { Vec::new() };
        builder = builder.tls_certs_merge(reqwest::Certificate::from_pem_bundle(&text).ok()?);
    }
    if let Some(Proxy { host, port, authorization }) = index.proxy_for(index.host()) {
        let mut proxy = reqwest::Proxy::all(format!("http://{host}:{port}")).ok()?;
        if let Some(value) = authorization {
            proxy = proxy.custom_http_auth(HeaderValue::from_str(value).ok()?);
        }
        builder = builder.proxy(proxy);
    }
    builder.build().ok()
}

/// The beginning of the page of a package, with its address.
async fn page(client: &Client, index: &Index, package: &str, passed: &AtomicU64) -> Option<(Url, String)> {
    let url = Url::parse(&format!("{}/{package}/", index.url.trim_end_matches('/'))).ok()?;
    let mut answer = client.get(url.clone()).header(ACCEPT, "text/html").send().await.ok()?;
    if !answer.status().is_success() {
        return None;
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = answer.chunk().await.ok()? {
        passed.fetch_add(chunk.len() as u64, Ordering::Relaxed);
        let left = PAGE_BYTES - bytes.len();
        bytes.extend_from_slice(&chunk[..left.min(chunk.len())]);
        if chunk.len() >= left {
            break;
        }
    }
    Some((url, String::from_utf8_lossy(&bytes).into_owned()))
}

/// The hosts in the links of a page that lead to files of packages, with the usual port or that of the index.
fn hosts_in(page: &str, address: &Url) -> BTreeSet<(String, u16)> {
    let links = page.split("href=").skip(1).filter_map(|rest| {
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        rest[1..].split_once(quote).map(|(link, _)| link)
    });
    let mut hosts = BTreeSet::new();
    for url in links.filter_map(|link| address.join(link).ok()) {
        let is_file = FILES.iter().any(|ending| url.path().ends_with(ending));
        let port = url.port().unwrap_or(HTTPS);
        let is_usual = port == HTTPS || Some(port) == address.port();
        if let Some(host) = url.host_str().filter(|_| is_file && is_usual && url.scheme() == "https") {
            hosts.insert((host.to_ascii_lowercase(), port));
        }
        if hosts.len() >= HOSTS {
            break;
        }
    }
    hosts
}

/// Where a host is that only the index names. It must not lead into the daemon's own machine and network, which the index
/// has no business with, but to addresses of a kind that the index itself has. Behind a proxy the name is looked up here,
/// too: one that this machine does not know could lead anywhere there.
pub async fn addresses(index: &Index, host: &str, port: u16) -> std::io::Result<Vec<SocketAddr>> {
    if !security_controls::holds("file_hosts_are_outside") {
        return Ok(tokio::net::lookup_host((host, port)).await?.collect());
    }
    if index.proxy_for(host).is_some() && host.parse::<IpAddr>().is_ok() {
        return Err(refused("by its address, which may be another machine for the proxy"));
    }
    let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    let mut kinds: BTreeSet<Kind> = found.iter().map(|address| kind(address.ip())).collect();
    kinds.remove(&Kind::Outside);
    if kinds.is_empty() {
        return Ok(found);
    }
    let of_index = tokio::net::lookup_host((index.host(), HTTPS)).await?;
    let of_index: BTreeSet<Kind> = of_index.map(|address| kind(address.ip())).collect();
    if kinds.is_subset(&of_index) {
        Ok(found)
    } else {
        Err(refused("and it is in the network of this machine"))
    }
}

fn refused(why: &str) -> std::io::Error {
    std::io::Error::other(format!("the index names it, {why}; `packages.hosts` can name it, too"))
}

/// What an address leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Outside,
    /// A private network.
    Private,
    LinkLocal,
    Loopback,
    /// This machine, by an address that others may know, too.
    Own,
    Unspecified,
    Multicast,
    /// What no host of the internet has: addresses for tests, for protocols, and for later.
    Reserved,
}

fn kind(address: IpAddr) -> Kind {
    let address = unwrapped(address);
    let kind = match address {
        IpAddr::V4(ip) => kind_of_v4(ip),
        IpAddr::V6(ip) => kind_of_v6(ip),
    };
    // A socket has only addresses of its own machine.
    let is_own = || UdpSocket::bind((address, 0)).is_ok();
    if matches!(kind, Kind::Outside | Kind::Private) && is_own() { Kind::Own } else { kind }
}

/// The IPv4 address that an IPv6 address stands for, where it does: as it is mapped, translated, tunnelled, or written in
/// the old way.
fn unwrapped(address: IpAddr) -> IpAddr {
    let IpAddr::V6(ip) = address.to_canonical() else { return address.to_canonical() };
    let (high, low) = match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => (high, low),
        [0, 0, 0, 0, 0, 0, high, low] if !ip.is_loopback() && !ip.is_unspecified() => (high, low),
        _ => return address,
    };
    IpAddr::V4(Ipv4Addr::from_bits((u32::from(high) << 16) | u32::from(low)))
}

fn kind_of_v4(ip: Ipv4Addr) -> Kind {
    match ip.octets() {
        [0, ..] => Kind::Unspecified,
        [127, ..] => Kind::Loopback,
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] | [100, 64..=127, ..] => Kind::Private,
        [169, 254, ..] => Kind::LinkLocal,
        [192, 0, 0, _] | [198, 18 | 19, ..] | [240..=255, ..] => Kind::Reserved,
        [224..=239, ..] => Kind::Multicast,
        _ => Kind::Outside,
    }
}

fn kind_of_v6(ip: Ipv6Addr) -> Kind {
    let [first, second, third, ..] = ip.segments();
    match first {
        _ if ip.is_unspecified() => Kind::Unspecified,
        _ if ip.is_loopback() => Kind::Loopback,
        // Also networks of sites, as they once were, and networks whose addresses a site translates as it likes.
        0xfc00..=0xfdff | 0xfec0..=0xfeff => Kind::Private,
        0x64 if (second, third) == (0xff9b, 1) => Kind::Private,
        0xfe80..=0xfebf => Kind::LinkLocal,
        0xff00.. => Kind::Multicast,
        // Tunnels to an IPv4 address that is written in another way.
        0x2001 if second == 0 => Kind::Reserved,
        _ => Kind::Outside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn the_hosts_of_files_are_read_from_a_page() {
        let address = Url::parse("https://index.test/simple/bell/").unwrap();
        let page = r#"<a href="https://Files.test/a/bell-1-py3-none-any.whl#sha256=0">x</a>
            <a href='https://other.test:8443/bell-1.tar.gz'>x</a> <a href="../../files/bell-2.whl">x</a>
            <a href="http://plain.test/bell.whl"> <a href="https://home.test/"> <a href="//inner.test/b.zip"> <a href="https://e.test/x.whl"#;
        let hosts = hosts_in(page, &address);
        let expected = [("files.test", 443), ("index.test", 443), ("inner.test", 443)];
        assert_eq!(hosts, expected.map(|(host, port)| (host.to_owned(), port)).into());
        // Of other ports only that of the index.
        let at_port = Url::parse("https://index.test:8443/simple/bell/").unwrap();
        assert!(hosts_in(page, &at_port).contains(&("other.test".to_owned(), 8443)));
        let many: Vec<String> = (0..100).map(|n| format!("<a href=\"https://h{n}.test/x.whl\">")).collect();
        let many = many.concat();
        assert_eq!(hosts_in(&many, &address).len(), HOSTS);
        assert_eq!(hosts_in("href=\u{e9} href=", &address), BTreeSet::new());
    }

    #[tokio::test]
    async fn what_is_read_of_the_index_counts() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut index = Index::of_hosts(&[("127.0.0.1", 443)]);
        index.url = format!("http://{}/simple", server.local_addr().unwrap());
        let page = "<a href=\"https://files.test/bell-1.whl\">x</a>";
        let serve = async {
            let (mut client, _) = server.accept().await.unwrap();
            let mut request = [0; 1024];
            assert!(client.read(&mut request).await.unwrap() > 0);
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{page}", page.len());
            client.write_all(answer.as_bytes()).await.unwrap();
            client
        };
        let (passed, packages) = (AtomicU64::new(0), ["bell".to_owned()]);
        let (hosts, _open) = tokio::join!(learn(&index, &packages, &passed), serve);
        assert_eq!(hosts, BTreeSet::from([("files.test".to_owned(), 443)]));
        assert_eq!(passed.load(Ordering::Relaxed), page.len() as u64);
        index.learns_hosts = false;
        assert_eq!(
            learn(&index, &packages, &passed).await,
            BTreeSet::new(),
            "the settings say where its files are"
        );
        assert_eq!(passed.into_inner(), page.len() as u64);
    }

    #[tokio::test]
    async fn an_index_outside_names_no_host_inside() {
        let indexes = ["198.51.100.1", "127.0.0.1", "10.9.9.9", "169.254.1.1"];
        let indexes = indexes.map(|host| Index::of_hosts(&[(host, 443)]));
        // Each host is for the index of its own kind, and for no other.
        for (host, of_kind) in [
            ("localhost", 1),
            ("127.0.0.1", 1),
            ("::1", 1),
            ("::ffff:127.0.0.1", 1),
            ("64:ff9b::7f00:1", 1),
            ("10.1.2.3", 2),
            ("100.64.0.1", 2),
            ("fd12:3456::1", 2),
            ("fec0::1", 2),
            ("2002:a01:203::1", 2),
            ("::10.1.2.3", 2),
            ("169.254.169.254", 3),
            ("fe80::1", 3),
        ] {
            for (number, index) in indexes.iter().enumerate() {
                let is_there = addresses(index, host, 443).await.is_ok();
                assert_eq!(is_there, number == of_kind, "{host} for {}", index.host());
            }
        }
        for host in [
            "0.0.0.0",
            "::",
            "192.0.0.8",
            "198.18.0.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "ff02::1",
        ] {
            for index in &indexes {
                assert!(addresses(index, host, 443).await.is_err(), "{host} for {}", index.host());
            }
        }
        for host in ["198.51.100.2", "64:ff9b::c633:6402", "2001:db8::1"] {
            assert!(addresses(&indexes[0], host, 443).await.is_ok(), "{host}");
        }
    }

    #[test]
    fn the_machines_own_addresses_are_inside() {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // Nothing is sent: the kernel says which address it would send from, if it has a way there.
        if socket.connect("198.51.100.1:9").is_ok() {
            let own = socket.local_addr().unwrap().ip();
            assert!(matches!(kind(own), Kind::Own | Kind::Loopback | Kind::LinkLocal), "{own}");
        }
        assert_eq!(kind("198.51.100.1".parse().unwrap()), Kind::Outside);
    }
}
