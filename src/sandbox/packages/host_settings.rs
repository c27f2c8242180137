//! How the host's own `pip` and `uv` are configured: variables of the daemon's environment, and files of the two.

use serde::Deserialize;
use std::path::{Path, PathBuf};

use super::index;

/// Variables of the host's tools that name more indexes. Installations ask a single one, because anybody can publish a
/// private package's name with a higher version in a public index, and tools that ask both would install that.
const MORE_INDEXES: [&str; 3] = ["PIP_EXTRA_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX"];
const AUTHORITIES: [&str; 3] = ["SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"];

/// What the host's own tools are configured with.
pub struct HostSettings<'a> {
    env: &'a (dyn Fn(&str) -> Option<String> + Sync),
    files: HostFiles,
}

/// What the files of the host's tools say.
#[derive(Default)]
pub struct HostFiles {
    /// The settings of `pip` by key; those of later files count.
    pip: Vec<(String, String)>,
    /// The index that `uv` uses instead of its own.
    uv_index: Option<String>,
    /// Whether a file of `uv` names more indexes.
    uv_names_more: bool,
}

/// What is read of a settings file of `uv`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct UvFile {
    index: Vec<UvIndex>,
    index_url: Option<String>,
    extra_index_url: Option<toml::Value>,
    pip: UvPip,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct UvIndex {
    url: String,
    /// Whether it stands in place of `uv`'s own, and not beside it.
    default: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct UvPip {
    index_url: Option<String>,
    extra_index_url: Option<toml::Value>,
}

impl<'a> HostSettings<'a> {
    pub fn new(env: &'a (dyn Fn(&str) -> Option<String> + Sync), files: HostFiles) -> Self {
        Self { env, files }
    }

    /// The first of these variables that has a value.
    pub fn env(&self, names: &[&str]) -> Option<String> {
        names.iter().find_map(|name| (self.env)(name).filter(|value| !value.trim().is_empty()))
    }

    pub fn pip(&self, key: &str) -> Option<String> {
        self.files.pip.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.clone())
    }

    /// The index that the host's tools are configured with; variables go before files, and `uv` before `pip`.
    pub fn index(&self) -> Option<String> {
        let variables = ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL"];
        self.env(&variables).or_else(|| self.files.uv_index.clone()).or_else(|| self.pip("index-url"))
    }

    /// The file of certificates that the host's tools are to trust.
    pub fn authorities(&self) -> Option<PathBuf> {
        self.env(&AUTHORITIES).or_else(|| self.pip("cert")).map(PathBuf::from)
    }

    /// The settings of the host's tools that installations do not follow.
    pub fn not_followed(&self) -> Vec<&'static str> {
        let mut found: Vec<_> = MORE_INDEXES.into_iter().filter(|name| self.env(&[name]).is_some()).collect();
        if self.pip("extra-index-url").is_some() {
            found.push("`extra-index-url` of `pip`");
        }
        if self.files.uv_names_more {
            found.push("more indexes in a file of `uv`");
        }
        if self.authorities().is_none() {
            found.extend(self.env(&["SSL_CERT_DIR"]).map(|_| "SSL_CERT_DIR"));
            found.extend(self.env(&["UV_NATIVE_TLS"]).filter(|value| is_yes(value)).map(|_| "UV_NATIVE_TLS"));
        }
        found
    }
}

impl HostFiles {
    /// Reads the files that the environment leads to. `read` gives the text of a file, and may take as long as the disk
    /// does. A variable without a value leads nowhere.
    pub fn read(env: &dyn Fn(&str) -> Option<String>, read: &dyn Fn(&Path) -> Option<String>) -> Self {
        let env = |name: &str| env(name).filter(|value| !value.trim().is_empty());
        let texts = pip_files(&env).into_iter().filter_map(|file| read(&file));
        let pip = texts.flat_map(|text| pip_settings(&text)).collect();
        let uv: Vec<String> = uv_files(&env).into_iter().filter_map(|file| read(&file)).collect();
        let uv_names_more = uv.iter().any(|text| uv_names_more(text));
        Self { pip, uv_index: uv.iter().find_map(|text| uv_index(text)), uv_names_more }
    }
}

/// The folder of the daemon's user for settings.
fn config_folder(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let of_home = || env("HOME").map(|home| Path::new(&home).join(".config"));
    env("XDG_CONFIG_HOME").map(PathBuf::from).or_else(of_home)
}

/// The files of `pip` in the order in which it reads them.
fn pip_files(env: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/xdg/pip/pip.conf"), PathBuf::from("/etc/pip.conf")];
    files.extend(env("HOME").map(|home| Path::new(&home).join(".pip/pip.conf")));
    files.extend(config_folder(env).map(|config| config.join("pip/pip.conf")));
    files.extend(env("PIP_CONFIG_FILE").map(PathBuf::from));
    files
}

/// The settings in a file of `pip`.
fn pip_settings(text: &str) -> Vec<(String, String)> {
    let mut section = String::new();
    let mut found = Vec::new();
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            name.trim().clone_into(&mut section);
        } else if let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with(['#', ';']))
            && matches!(section.as_str(), "global" | "install")
        {
            found.push((key.trim().replace('_', "-"), value.trim().to_owned()));
        }
    }
    found
}

/// The files of `uv`, of which the first that says something counts.
fn uv_files(env: &dyn Fn(&str) -> Option<String>) -> Vec<PathBuf> {
    if env("UV_NO_CONFIG").is_some_and(|value| is_yes(&value)) {
        return Vec::new();
    }
    if let Some(only) = env("UV_CONFIG_FILE") {
        return vec![PathBuf::from(only)];
    }
    let mut files: Vec<PathBuf> =
        config_folder(env).map(|config| config.join("uv/uv.toml")).into_iter().collect();
    files.extend(["/etc/xdg/uv/uv.toml", "/etc/uv/uv.toml"].map(PathBuf::from));
    files
}

/// Whether `uv` reads the value of a variable as a yes.
fn is_yes(value: &str) -> bool {
    ["y", "yes", "t", "true", "on", "1"].iter().any(|word| value.trim().eq_ignore_ascii_case(word))
}

/// The index that `uv pip` uses by a file of `uv`; none if the file names none in place of `uv`'s own, or cannot be read. One
/// that only `uv` itself can use is passed over: this host may have it for other work.
fn uv_index(text: &str) -> Option<String> {
    let UvFile { index, index_url, pip, .. } = toml::from_str(text).ok()?;
    let default = index.into_iter().find(|index| index.default).map(|index| index.url);
    [pip.index_url, default, index_url].into_iter().flatten().find(|url| match index::parsed(url) {
        Ok(_) => true,
        Err(why) => {
            tracing::warn!(why, "a package index in a settings file of `uv` is not used for installations");
            false
        }
    })
}

/// Whether a file of `uv` names indexes beside the one that counts.
fn uv_names_more(text: &str) -> bool {
    toml::from_str(text).is_ok_and(|UvFile { index, extra_index_url, pip, .. }| {
        index.iter().any(|index| !index.default) || extra_index_url.or(pip.extra_index_url).is_some()
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// What `pip`'s only file says, with the index of `uv`'s.
    pub fn files(pip: &str, uv: &str) -> HostFiles {
        HostFiles { pip: pip_settings(pip), uv_index: uv_index(uv), uv_names_more: uv_names_more(uv) }
    }

    fn read(env: &[(&str, &str)], files: &[(&str, &str)]) -> HostFiles {
        let of = |pairs: &[(&str, &str)], wanted: &str| {
            pairs.iter().find(|(name, _)| *name == wanted).map(|(_, value)| (*value).to_owned())
        };
        HostFiles::read(&|name| of(env, name), &|path| of(files, path.to_str()?))
    }

    #[test]
    fn the_index_of_uv_is_the_one_in_place_of_its_own() {
        for (text, index) in [
            ("[[index]]\nurl = \"https://more.test/\"\n", None),
            (
                "[[index]]\nname = \"more\"\nurl = \"https://more.test/\"\n[[index]]\nurl = \"https://a.test/\"\ndefault = true\n",
                Some("https://a.test/"),
            ),
            ("native-tls = true\nindex-url = \"https://a.test/\"\n", Some("https://a.test/")),
            ("[pip]\nindex-url = \"https://a.test/\"\nextra-index-url = [\"x\"]\n", Some("https://a.test/")),
            (
                "index-url = \"https://a.test/\"\n[pip]\nindex-url = \"https://b.test/\"\n",
                Some("https://b.test/"),
            ),
            ("index-url = \"http://a.test/\"\n", None),
            ("index-url = \"file:///srv/wheels\"\n", None),
            ("index-url = \"https://a.test/\"\n[pip]\nindex-url = \"../wheels\"\n", Some("https://a.test/")),
            ("index-url = 7\n", None),
            ("no settings", None),
            ("", None),
        ] {
            assert_eq!(uv_index(text).as_deref(), index, "{text}");
        }
    }

    #[test]
    fn files_are_those_that_the_tools_would_read() {
        let uv = |host: &str| format!("index-url = \"https://{host}.test/\"\n");
        let (own, all, named) = (uv("own"), uv("all"), uv("named"));
        let files = [
            ("/h/.config/uv/uv.toml", own.as_str()),
            ("/etc/uv/uv.toml", all.as_str()),
            ("/named.toml", named.as_str()),
            ("/etc/pip.conf", "[global]\nindex-url = https://machine.test/\ncert = /ca\n"),
            ("/h/.config/pip/pip.conf", "[global]\nindex-url = https://mine.test/\n"),
        ];
        let found = |env: &[(&str, &str)]| read(env, &files).uv_index.unwrap_or_default();
        assert_eq!(found(&[("HOME", "/h")]), "https://own.test/");
        assert_eq!(found(&[("HOME", "/h"), ("XDG_CONFIG_HOME", "/x")]), "https://all.test/");
        assert_eq!(found(&[]), "https://all.test/");
        assert_eq!(found(&[("HOME", "/h"), ("UV_CONFIG_FILE", "/named.toml")]), "https://named.test/");
        assert_eq!(found(&[("HOME", "/h"), ("UV_CONFIG_FILE", "")]), "https://own.test/");
        for yes in ["1", "true", "TRUE", "Yes", "y", "T", "on"] {
            assert_eq!(found(&[("HOME", "/h"), ("UV_NO_CONFIG", yes)]), "", "{yes}");
        }
        for no in ["0", "no", "off", ""] {
            assert_eq!(found(&[("HOME", "/h"), ("UV_NO_CONFIG", no)]), "https://own.test/", "{no}");
        }
        let none = |_: &str| None::<String>;
        let host = HostSettings::new(&none, read(&[("HOME", "/h"), ("UV_NO_CONFIG", "1")], &files));
        assert_eq!(host.index().as_deref(), Some("https://mine.test/"));
        assert_eq!(host.pip("cert").as_deref(), Some("/ca"));
    }

    #[test]
    fn variables_go_before_files_and_uv_before_pip() {
        let (pip, uv) = ("[global]\nindex-url = https://pip.test/\n", "index-url = \"https://uv.test/\"\n");
        let index = |env: &[(&str, &str)], uv: &str| {
            let env =
                |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            HostSettings::new(&env, files(pip, uv)).index()
        };
        assert_eq!(
            index(&[("PIP_INDEX_URL", "https://env.test/")], uv).as_deref(),
            Some("https://env.test/")
        );
        assert_eq!(index(&[("PIP_INDEX_URL", " ")], uv).as_deref(), Some("https://uv.test/"));
        assert_eq!(index(&[], "").as_deref(), Some("https://pip.test/"));
    }

    #[test]
    fn what_is_not_followed_is_told() {
        let told = |env: &[(&str, &str)], pip: &str, uv: &str| {
            let env =
                |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            HostSettings::new(&env, files(pip, uv)).not_followed()
        };
        let one = "[[index]]\nurl = \"https://a.test/\"\ndefault = true\n";
        let none: [&str; 0] = [];
        assert_eq!(
            told(&[("UV_INDEX", " "), ("UV_NATIVE_TLS", "false")], "[global]\ncert = /ca\n", one),
            none
        );
        let more = "[[index]]\nurl = \"https://b.test/\"\n";
        let told_all = told(
            &[("PIP_EXTRA_INDEX_URL", "https://b.test/"), ("SSL_CERT_DIR", "/certs"), ("UV_NATIVE_TLS", "1")],
            "[global]\nextra-index-url =\n    https://b.test/\n",
            more,
        );
        let all = [
            "PIP_EXTRA_INDEX_URL",
            "`extra-index-url` of `pip`",
            "more indexes in a file of `uv`",
            "SSL_CERT_DIR",
            "UV_NATIVE_TLS",
        ];
        assert_eq!(told_all, all);
        for uv in ["extra-index-url = [\"x\"]\n", "[pip]\nextra-index-url = [\"x\"]\n"] {
            assert_eq!(told(&[], "", uv), ["more indexes in a file of `uv`"], "{uv}");
        }
        // Where a file names the certificates, no folder of them counts.
        assert_eq!(told(&[("SSL_CERT_FILE", "/ca"), ("SSL_CERT_DIR", "/certs")], "", ""), none);
    }
}
