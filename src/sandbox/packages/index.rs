//! Where packages come from: the configured index, or the one that the host's own `pip` and `uv` use, with the host's
//! proxy and certificates. All of it is read when it is needed and kept nowhere.

use base64::Engine as _;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::Duration;

use super::host_settings::{HostFiles, HostSettings};
use crate::config::Packages as Settings;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::text::{clipped, one_line};
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::security_controls;

/// Largest file of certificates, and of `pip`'s settings.
pub const AUTHORITIES_BYTES: u64 = 8 * 1024 * 1024;
/// Time for the host's Python to say which index its `pip` uses.
const ASK_PIP: Duration = Duration::from_secs(10);
/// Prints the index that `pip` uses where nothing is configured, and the host that has its files.
const PIP_DEFAULTS: &str =
    "from pip._internal.models.index import PyPI; print(PyPI.simple_url, PyPI.file_storage_domain)";
pub const HTTPS: u16 = 443;

/// Characters of an installer's own words that reach a person.
const WORDS_CHARS: usize = 4_000;
/// What stands in texts for a password.
const HIDDEN: &str = "****";
/// That settings of the host are not followed is in the log once.
static TOLD: Once = Once::new();

/// A package index with the way there.
#[derive(Clone, PartialEq, Eq)]
pub struct Index {
    /// With the password of the index, if it has one: only the installer is given this.
    pub url: String,
    /// The name of its own host.
    host: String,
    /// The password in all its spellings.
    secrets: Vec<String>,
    /// Names and ports that may be connected to.
    hosts: BTreeSet<(String, u16)>,
    /// Whether its pages say where its files are, because the settings do not.
    pub learns_hosts: bool,
    /// Certificates that the host trusts, if it names them.
    pub authorities: Option<PathBuf>,
    proxy: Option<Proxy>,
    /// Hosts that are reached without the proxy.
    direct: Vec<String>,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

/// An HTTP proxy of the host.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    pub host: String,
    pub port: u16,
    /// The value of `Proxy-Authorization`.
    pub authorization: Option<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

/// The URL of an index and the name of its host, or why it cannot be used.
pub(super) fn parsed(url: &str) -> Result<(reqwest::Url, String), &'static str> {
    let url = reqwest::Url::parse(url.trim()).map_err(|_| "its URL cannot be read")?;
    let host = url.host_str().filter(|_| url.scheme() == "https").ok_or("it is not `https://`")?;
    let host = host.to_ascii_lowercase();
    Ok((url, host))
}

impl Index {
    /// The index that the settings or the host name, for an installation of this user.
    pub async fn find(settings: &Settings, owner: Principal) -> Result<Self, Problem> {
        Self::find_with(settings, owner, read_small).await
    }

    /// `read` gives the text of a file, and may take as long as the disk does.
    async fn find_with(
        settings: &Settings,
        owner: Principal,
        read: impl Fn(&Path) -> Option<String> + Send + 'static,
    ) -> Result<Self, Problem> {
        let env = |name: &str| std::env::var(name).ok();
        let files = folders::run(owner, WorkKind::Look, None, move || HostFiles::read(&env, &read)).await?;
        let host = HostSettings::new(&env, files);
        let not_followed = host.not_followed();
        if !not_followed.is_empty() {
            TOLD.call_once(|| {
                tracing::warn!(settings = %not_followed.join(", "), "installations do not follow these settings of the host");
            });
        }
        if let Some(index) = Self::configured(settings, &host)? {
            return Ok(index);
        }
        let (url, files) = ask_pip().await.ok_or_else(|| {
            Problem::new(
                Code::InstallFailed,
                "no package index is configured, and this host has no `pip` to ask",
            )
            .hint("set `packages.index` in the configuration, or `PIP_INDEX_URL` for the daemon")
        })?;
        Self::at(&url, &[files], settings, &host)
    }

    fn configured(settings: &Settings, host: &HostSettings<'_>) -> Result<Option<Self>, Problem> {
        let url = settings.index.clone().or_else(|| host.index());
        url.map(|url| Self::at(&url, &[], settings, host)).transpose()
    }

    fn at(
        url: &str,
        more_hosts: &[String],
        settings: &Settings,
        host: &HostSettings<'_>,
    ) -> Result<Self, Problem> {
        let wrong = |what: &str| {
            Problem::new(Code::InstallFailed, format!("the package index cannot be used: {what}"))
                .hint("set `packages.index` to an `https://` URL")
        };
        let (parsed, name) = parsed(url).map_err(wrong)?;
        let port = parsed.port().unwrap_or(HTTPS);
        let mut hosts = BTreeSet::from([(name.clone(), port)]);
        hosts.extend(settings.hosts.iter().chain(more_hosts).filter_map(|host| host_and_port(host)));
        let proxy = host
            .env(&["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "PIP_PROXY"])
            .or_else(|| host.pip("proxy"));
        let proxy = proxy
            .map(|proxy| Proxy::parse(&proxy).ok_or_else(|| wrong("the host's proxy is no `http://` URL")));
        let direct = host.env(&["NO_PROXY", "no_proxy"]).unwrap_or_default();
        Ok(Self {
            url: parsed.to_string(),
            host: name,
            secrets: secrets_of(&parsed),
            hosts,
            learns_hosts: settings.hosts.is_empty(),
            authorities: host.authorities(),
            proxy: proxy.transpose()?,
            direct: direct.split(',').map(|host| host.trim().to_ascii_lowercase()).collect(),
        })
    }

    /// An index for tests, of which only these hosts may be reached.
    #[cfg(test)]
    pub fn of_hosts(hosts: &[(&str, u16)]) -> Self {
        let host = hosts.first().map(|(host, _)| (*host).to_owned()).unwrap_or_default();
        let hosts = hosts.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect();
        Self {
            url: String::new(),
            host,
            secrets: Vec::new(),
            hosts,
            learns_hosts: true,
            authorities: None,
            proxy: None,
            direct: Vec::new(),
        }
    }

    /// The same behind a proxy on loopback.
    #[cfg(test)]
    pub fn behind_proxy(self, port: u16) -> Self {
        Self { proxy: Some(Proxy { host: "127.0.0.1".to_owned(), port, authorization: None }), ..self }
    }

    #[cfg(test)]
    pub fn with_password(password: &str) -> Self {
        Self { secrets: vec![password.to_owned()], ..Self::of_hosts(&[("a.test", 443)]) }
    }

    /// A text of an installer without the password of the index.
    pub fn without_secrets(&self, text: &str) -> String {
        if !security_controls::holds("index_password_is_hidden") {
            return text.to_owned();
        }
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, HIDDEN))
    }

    /// The same for the beginning of a text that was cut, perhaps within the password: that part of it is hidden, too.
    pub fn without_secrets_in_head(&self, head: &str) -> String {
        // Half of a character at the cut is shown by this sign.
        let head = head.trim_end_matches(char::REPLACEMENT_CHARACTER);
        // Whole ones first: the end of one may look like the beginning of another.
        let head = self.without_secrets(head);
        let cut_within = |secret: &String| {
            let starts = secret.char_indices().map(|(end, _)| end).skip(1);
            starts.filter(|end| head.ends_with(&secret[..*end])).max()
        };
        let cut = self.secrets.iter().filter_map(cut_within).max().unwrap_or(0);
        let is_hidden = cut > 0 && security_controls::holds("index_password_is_hidden");
        if is_hidden { format!("{}{HIDDEN}", &head[..head.len() - cut]) } else { head }
    }

    /// The beginning of what an installer says, for a sentence that quotes it. The password is hidden before the text is
    /// cut, so that no part of it is left, and again when marks that are not shown no longer divide it.
    pub fn quoted(&self, words: &str) -> String {
        let shown = one_line(&self.without_secrets(words));
        clipped(&self.without_secrets(&shown), WORDS_CHARS)
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// Whether a password or a token is needed to read it.
    pub fn has_password(&self) -> bool {
        !self.secrets.is_empty()
    }

    /// Whether the settings name the host, so that the installer may connect there.
    pub fn permits(&self, host: &str, port: u16) -> bool {
        self.hosts.contains(&(host.to_ascii_lowercase(), port))
    }

    /// The proxy through which a host is reached.
    pub fn proxy_for(&self, host: &str) -> Option<&Proxy> {
        let host = host.to_ascii_lowercase();
        let is_direct = self.direct.iter().any(|name| {
            let name = name.trim_start_matches('.');
            name == "*" || (!name.is_empty() && (host == name || host.ends_with(&format!(".{name}"))))
        });
        self.proxy.as_ref().filter(|_| !is_direct)
    }
}

impl Proxy {
    fn parse(url: &str) -> Option<Self> {
        let with_scheme = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let url = reqwest::Url::parse(&with_scheme).ok().filter(|url| url.scheme() == "http")?;
        let authorization = (!url.username().is_empty()).then(|| format!("Basic {}", basic(&url)));
        Some(Self { host: url.host_str()?.to_owned(), port: url.port_or_known_default()?, authorization })
    }
}

fn decoded(text: &str) -> String {
    percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned()
}

/// User and password as a header has them.
fn basic(url: &reqwest::Url) -> String {
    let user = format!("{}:{}", decoded(url.username()), decoded(url.password().unwrap_or_default()));
    base64::engine::general_purpose::STANDARD.encode(user)
}

/// What must not be told of an index: its password as it is, as the URL has it, and as a header has it. A name without
/// a password is often a token.
fn secrets_of(url: &reqwest::Url) -> Vec<String> {
    let secret = url.password().unwrap_or(url.username());
    let mut all = vec![secret.to_owned(), decoded(secret), basic(url)];
    all.retain(|_| !secret.is_empty());
    // The longest first, so that no part of it is left.
    all.sort_by_key(|text| std::cmp::Reverse(text.len()));
    all.dedup();
    all
}

/// `host` or `host:port`.
pub fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (text, HTTPS),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let is_host = !host.is_empty() && host.len() <= 253 && host.chars().all(allowed);
    is_host.then(|| (host.to_ascii_lowercase(), port))
}

/// The text of a file of the host, unless it is large.
fn read_small(path: &Path) -> Option<String> {
    let is_small = std::fs::metadata(path).is_ok_and(|file| file.len() <= AUTHORITIES_BYTES);
    is_small.then(|| std::fs::read_to_string(path).ok()).flatten()
}

/// The index that the host's `pip` uses by itself, and the host of its files.
async fn ask_pip() -> Option<(String, String)> {
    let mut command = tokio::process::Command::new("python3");
    command.args(["-c", PIP_DEFAULTS]).current_dir("/").kill_on_drop(true).stdin(std::process::Stdio::null());
    let output = tokio::time::timeout(ASK_PIP, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    let (url, files) = text.trim().split_once(' ')?;
    Some((url.to_owned(), files.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::host_settings::tests::files;
    use super::*;

    fn settings(text: &str) -> Settings {
        crate::config::load_text(Path::new("c.toml"), text).unwrap().settings.packages
    }

    fn configured(text: &str, env: &[(&str, &str)], pip: &str) -> Result<Option<Index>, Problem> {
        let env = |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Index::configured(&settings(text), &HostSettings::new(&env, files(pip, "")))
    }

    #[test]
    fn the_settings_go_before_the_hosts_own_and_only_named_hosts_are_permitted() {
        assert_eq!(configured("", &[], "").unwrap(), None);
        let mine =
            "[packages]\nindex = \"https://a.test/simple\"\nhosts = [\"files.test\", \"b.test:8443\"]\n";
        let index = configured(mine, &[("PIP_INDEX_URL", "https://c.test/")], "").unwrap().unwrap();
        assert!(
            index.permits("a.test", 443) && index.permits("FILES.test", 443) && index.permits("b.test", 8443)
        );
        for (host, port) in
            [("c.test", 443), ("a.test", 80), ("b.test", 443), ("x.a.test", 443), ("127.0.0.1", 443)]
        {
            assert!(!index.permits(host, port), "{host}:{port}");
        }
        assert!(!index.learns_hosts, "the settings say where its files are");
        let by_pip =
            configured("", &[], "[global]\nindex-url = https://d.test:8/s\ncert=/ca\n[x]\nproxy=http://n")
                .unwrap();
        let by_pip = by_pip.unwrap();
        assert!(by_pip.learns_hosts);
        assert!(by_pip.permits("d.test", 8) && by_pip.proxy_for("d.test").is_none());
        assert_eq!(by_pip.authorities, Some("/ca".into()));
    }

    #[test]
    fn a_proxy_is_used_but_for_hosts_that_go_without_one() {
        let env = [
            ("UV_INDEX_URL", "https://a.test/simple"),
            ("HTTPS_PROXY", "http://user:p%40ss@proxy.test:3128"),
            ("NO_PROXY", "inner.test, .local"),
        ];
        let index = configured("", &env, "").unwrap().unwrap();
        let proxy = index.proxy_for("a.test").unwrap();
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.test", 3128));
        assert_eq!(proxy.authorization.as_deref(), Some("Basic dXNlcjpwQHNz"));
        for host in ["inner.test", "x.inner.test", "y.local"] {
            assert_eq!(index.proxy_for(host), None, "{host}");
        }
    }

    #[test]
    fn the_password_of_an_index_is_in_no_text() {
        let env = [("PIP_INDEX_URL", "https://me:p%40ss-w0rd@a.test/simple")];
        let index = configured("", &env, "").unwrap().unwrap();
        assert!(index.permits("a.test", 443));
        let said = "https://me:p%40ss-w0rd@a.test/ p@ss-w0rd bWU6cEBzcy13MHJk fine";
        assert_eq!(index.without_secrets(said), "https://me:****@a.test/ **** **** fine");
        assert!(!format!("{index:?}").contains("ss-w0rd"));
        let cut = index.quoted(&format!("{}p@ss-w0rd and more", "x".repeat(WORDS_CHARS - 5)));
        assert!(cut.ends_with("x****…"), "{cut}");
        assert_eq!(index.quoted("p@ss\u{1b}[0m-w0rd\nfine"), "**** fine");
        let token = configured("", &[("PIP_INDEX_URL", "https://t0ken@a.test/")], "").unwrap().unwrap();
        assert_eq!(token.without_secrets("t0ken"), "****");
        let plain = configured("", &[("PIP_INDEX_URL", "https://a.test/")], "").unwrap().unwrap();
        assert_eq!(plain.without_secrets("fine"), "fine");
    }

    #[test]
    fn a_password_that_a_text_was_cut_within_is_hidden_however_often_it_stands_there() {
        let env = [("PIP_INDEX_URL", "https://me:pässword@a.test/simple")];
        let index = configured("", &env, "").unwrap().unwrap();
        assert_eq!(index.without_secrets_in_head("pässwordpässwordpäss"), "************");
        assert_eq!(index.without_secrets_in_head("fine p\u{fffd}"), "fine ****");
        // What only looks like its beginning is hidden, too, and all else is as it was.
        assert_eq!(index.without_secrets_in_head("pässword is fine"), "**** is fine");
        let plain = configured("", &[("PIP_INDEX_URL", "https://a.test/")], "").unwrap().unwrap();
        assert_eq!(plain.without_secrets_in_head("fine"), "fine");
        // The end of a password that is its beginning, too.
        let env = [("PIP_INDEX_URL", "https://me:abra-cad-abra@a.test/simple")];
        let index = configured("", &env, "").unwrap().unwrap();
        assert_eq!(index.without_secrets_in_head("x abra-cad-abra"), "x ****");
        assert_eq!(index.without_secrets_in_head("x abra-cad-abra abra-c"), "x **** ****");
    }

    #[tokio::test]
    async fn settings_of_the_host_are_read_on_no_thread_of_the_runtime() {
        let runtime = std::thread::current().id();
        let read = move |path: &Path| {
            assert_ne!(std::thread::current().id(), runtime, "{}", path.display());
            None
        };
        let mine = settings("[packages]\nindex = \"https://a.test/simple\"\n");
        assert!(Index::find_with(&mine, Principal::ANN, read).await.unwrap().permits("a.test", 443));
    }

    #[test]
    fn an_index_without_encryption_is_refused() {
        for url in ["http://a.test/", "ftp://a.test/", "a.test", ""] {
            let env = [("PIP_INDEX_URL", url)];
            assert!(!matches!(configured("", &env, ""), Ok(Some(_))), "{url}");
        }
    }
}
