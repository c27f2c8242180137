//! What an installer says that it made, read as the word of a guest: bounded, and every name and version checked.

use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;

use super::requirement::{is_version, normalised};
use crate::protocol::packages::{InstalledPackage, PackageVersion, ReplacedPackage};
use crate::security_controls;

/// Largest report of an installer.
pub const REPORT_BYTES: u64 = 1024 * 1024;
/// Largest list of what is being fetched, and the packages of it that are told of.
pub const PROGRESS_BYTES: u64 = 64 * 1024;
const FETCHED_AT_ONCE: usize = 4;
/// Most packages of one set.
pub const PACKAGES: usize = 1_000;
/// Longest name of a platform or a Python version.
const FACT_BYTES: usize = 64;

/// The report of an installer that was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub python: String,
    pub platform: String,
    pub outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Installed {
        in_image: Vec<PackageVersion>,
        replaced: Vec<ReplacedPackage>,
    },
    /// The words are as the guest wrote them, and may have secrets in them.
    Failed {
        kind: FailureKind,
        words: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No versions fit together, or a package is not there, or has no wheel.
    NotFound,
    /// There is no `uv`, and the index has none.
    NoInstaller,
    Other,
}

/// A package that an installer is fetching, with its size.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct FetchedPackage {
    pub name: String,
    pub bytes: u64,
}

/// The packages that an installer says it is fetching; what makes no sense is left out.
#[must_use]
pub fn fetching(text: &str) -> Vec<FetchedPackage> {
    let all: Vec<FetchedPackage> = serde_json::from_str(text).unwrap_or_default();
    let named = all.into_iter().filter_map(|FetchedPackage { name, bytes }| {
        normalised(&name).map(|name| FetchedPackage { name, bytes })
    });
    named.take(FETCHED_AT_ONCE).collect()
}

#[derive(Deserialize)]
struct RawReport {
    python: String,
    platform: String,
    #[serde(default)]
    present: Vec<PackageVersion>,
    #[serde(default)]
    replaced: Vec<ReplacedPackage>,
    failure: Option<RawFailure>,
}

#[derive(Deserialize)]
struct RawFailure {
    kind: String,
    text: String,
}

impl Report {
    /// None if the text is no report.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let raw: RawReport = serde_json::from_str(text).ok()?;
        let is_fact = |text: &str| {
            !text.is_empty()
                && text.len() <= FACT_BYTES
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        if !is_fact(&raw.python) || !is_fact(&raw.platform) {
            return None;
        }
        let outcome = if let Some(RawFailure { kind, text }) = raw.failure {
            let kind = match kind.as_str() {
                "not_found" => FailureKind::NotFound,
                "no_installer" => FailureKind::NoInstaller,
                _ => FailureKind::Other,
            };
            Outcome::Failed { kind, words: text }
        } else {
            let is_package = |name: &str, version: &str| normalised(name).is_some() && is_version(version);
            let sound = raw.present.iter().all(|package| is_package(&package.name, &package.version))
                && raw
                    .replaced
                    .iter()
                    .all(|replaced| is_package(&replaced.name, &replaced.has) && is_version(&replaced.wants));
            if !sound || raw.present.len() > PACKAGES || raw.replaced.len() > PACKAGES {
                return None;
            }
            Outcome::Installed { in_image: raw.present, replaced: raw.replaced }
        };
        Some(Self { python: raw.python, platform: raw.platform, outcome })
    }
}

/// The name and the version in the name of a folder with a package's metadata, as in `polars_x-1.0.dist-info`.
#[must_use]
pub fn of_metadata_folder(name: &str) -> Option<PackageVersion> {
    let (name, version) = name.strip_suffix(".dist-info")?.rsplit_once('-')?;
    let name = normalised(name)?;
    is_version(version).then(|| PackageVersion { name, version: version.to_owned() })
}

/// The key of a set of packages: the same packages for another image, Python or platform are another set, and so are
/// other files under the same versions. So is a set beside which code of packages may have run (`built`): that code can
/// have added files that no list names.
#[must_use]
pub fn set_key(
    image_id: &str,
    python: &str,
    platform: &str,
    packages: &BTreeSet<InstalledPackage>,
    built: bool,
) -> String {
    let mut digest = Sha256::new();
    let mut add = |text: &str| {
        digest.update(text.as_bytes());
        digest.update([0]);
    };
    [image_id, python, platform].into_iter().for_each(&mut add);
    for package in packages {
        add(&package.name);
        add(&package.version);
        if security_controls::holds("package_keys_have_hashes") {
            add(&package.sha256);
        }
    }
    if built && security_controls::holds("package_keys_say_built") {
        add("built");
    }
    hex::encode(&digest.finalize()[..16])
}

/// The name under which the answer to a request is kept: for the same image, the same requirements have the same
/// answer until it is removed. What code of packages had a hand in is no answer for others.
#[must_use]
pub fn request_key(image_id: &str, requirements: &BTreeSet<String>, sources: bool) -> String {
    let mut digest = Sha256::new();
    digest.update(image_id.as_bytes());
    if sources {
        digest.update([1]);
    }
    for requirement in requirements {
        digest.update([0]);
        digest.update(requirement.as_bytes());
    }
    hex::encode(&digest.finalize()[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_checked_before_it_is_believed() {
        let report = |rest: &str| {
            Report::parse(&format!(r#"{{"python": "3.12.1", "platform": "linux-x86_64"{rest}}}"#))
        };
        let installed = report(r#", "present": [{"name": "numpy", "version": "2.1"}]"#).unwrap();
        let in_image = vec![PackageVersion { name: "numpy".into(), version: "2.1".into() }];
        assert_eq!(installed.outcome, Outcome::Installed { in_image, replaced: Vec::new() });
        let failed = report(r#", "failure": {"kind": "not_found", "text": "no\u001b[31m"}"#).unwrap();
        assert!(matches!(failed.outcome, Outcome::Failed { kind: FailureKind::NotFound, .. }));
        for wrong in [
            r#", "present": [{"name": "../x", "version": "1"}]"#,
            r#", "present": [{"name": "x", "version": "$(id)"}]"#,
            r#", "replaced": [{"name": "x", "has": "1", "wants": "\n"}]"#,
        ] {
            assert_eq!(report(wrong), None, "{wrong}");
        }
        assert_eq!(Report::parse(r#"{"python": "3/12", "platform": "x"}"#), None);
        assert_eq!(Report::parse("[]"), None);
    }

    #[test]
    fn what_is_being_fetched_is_checked_before_it_is_told() {
        let told = fetching(r#"[{"name": "Polars", "bytes": 7}, {"name": "x\u001b[31m", "bytes": 1}]"#);
        assert_eq!(told, [FetchedPackage { name: "polars".into(), bytes: 7 }]);
        let many: Vec<String> = (0..9).map(|n| format!(r#"{{"name": "a{n}", "bytes": 1}}"#)).collect();
        assert_eq!(fetching(&format!("[{}]", many.join(","))).len(), FETCHED_AT_ONCE);
        for wrong in ["", "{}", r#"[{"name": "a", "bytes": -1}]"#, "[1]"] {
            assert_eq!(fetching(wrong), [], "{wrong}");
        }
    }

    #[test]
    fn names_of_metadata_folders_are_read() {
        let found = of_metadata_folder("Polars_Runtime.32-2.1.0.dist-info").unwrap();
        assert_eq!((found.name.as_str(), found.version.as_str()), ("polars-runtime-32", "2.1.0"));
        for wrong in ["x", "x.dist-info", "-1.dist-info", "x-.dist-info", "x-1.egg-info", "a b-1.dist-info"] {
            assert_eq!(of_metadata_folder(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn keys_differ_with_the_image_the_python_each_package_and_its_hash_and_whether_it_was_built() {
        let set = |version: &str, sha256: &str| {
            let (name, version, sha256) = ("a".to_owned(), version.to_owned(), sha256.to_owned());
            BTreeSet::from([InstalledPackage { name, version, sha256 }])
        };
        let keys = [
            set_key("i", "3.12.1", "linux-x86_64", &set("1", "x"), false),
            set_key("j", "3.12.1", "linux-x86_64", &set("1", "x"), false),
            set_key("i", "3.13.1", "linux-x86_64", &set("1", "x"), false),
            set_key("i", "3.12.1", "linux-aarch64", &set("1", "x"), false),
            set_key("i", "3.12.1", "linux-x86_64", &set("2", "x"), false),
            set_key("i", "3.12.1", "linux-x86_64", &set("1", "y"), false),
            set_key("i", "3.12.1", "linux-x86_64", &set("1", "x"), true),
        ];
        let distinct: BTreeSet<&String> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }
}
