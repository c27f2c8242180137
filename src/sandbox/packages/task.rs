//! The folders of one installation: what the installer is told, what it makes, and what the daemon takes of that.

use std::collections::BTreeSet;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use super::cache::{Answer, UserCache};
use super::index::{AUTHORITIES_BYTES, Index};
use super::relay::{SOCKET_NAME, Trouble};
use super::tree::{self, Bounds, Copied};
use super::wanted::WantedPackages;
use crate::packages::requirement::{NameRules, not_permitted};
use crate::packages::resolved::{FailureKind, Outcome, REPORT_BYTES, Report, set_key};
use crate::protocol::packages::InstalledPackage;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::spec::{Errand, ErrandMount, KERNEL_DIR};

const TASK_DIR: &str = "/belljar/task";
const OUTPUT_DIR: &str = "/belljar/output";
const RELAY_DIR: &str = "/belljar/relay";
/// The folder in an installer's output that has the program `uv`, if it had to fetch it.
const TOOLS: &str = "tools";
pub const UV: &str = "uv";
/// Longest time without a byte of the index.
const IDLE_S: u64 = 60;
/// Largest `uv`.
pub const UV_BYTES: u64 = 128 * 1024 * 1024;

/// The folders of one installation.
pub struct Task {
    /// The installer's read-only input folder.
    told: PathBuf,
    pub output: PathBuf,
    pub relay: PathBuf,
    /// Whether the installer was given a `uv`, so that it has to fetch none.
    pub has_uv: bool,
}

/// What an installer is to do, as text.
pub fn request(wanted: &WantedPackages, index: &Index) -> String {
    let request = serde_json::json!({
        "requirements": wanted.all(),
        "superseded": wanted.superseded(),
        "pinned": wanted.pinned(),
        "index": index.url,
        "replace": wanted.replace,
        "sources": wanted.builds_sources(),
        "idle_s": IDLE_S,
    });
    request.to_string()
}

impl Task {
    /// Makes the folders in `draft`. The installer gets the program `uv` of its user's cache, if it is there, and the
    /// certificates that it shall trust.
    pub fn make(
        draft: &Path,
        cache: &UserCache,
        request: &str,
        authorities: Option<&Path>,
    ) -> std::io::Result<Self> {
        let folder = |name: &str, mode: u32| {
            let path = draft.join(name);
            std::fs::DirBuilder::new().mode(mode).create(&path)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
            Ok::<_, std::io::Error>(path)
        };
        let (uv, has_uv) = (cache.uv(), cache.has_uv());
        let made = Self {
            told: folder("task", 0o755)?,
            output: folder("output", 0o700)?,
            relay: folder("relay", 0o711)?,
            has_uv,
        };
        made.tell("task.json", request.as_bytes(), 0o644)?;
        if let Some(authorities) = authorities {
            let is_small = std::fs::metadata(authorities)?.len() <= AUTHORITIES_BYTES;
            let text = if is_small { std::fs::read(authorities)? } else { Vec::new() };
            made.tell("ca.pem", &text, 0o644)?;
        }
        if has_uv {
            std::fs::hard_link(uv, made.told.join(UV))?;
        }
        Ok(made)
    }

    fn tell(&self, name: &str, content: &[u8], mode: u32) -> std::io::Result<()> {
        let path = self.told.join(name);
        std::fs::write(&path, content)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))
    }

    pub fn errand(
        &self,
        kernel_dir: &Path,
        limit: Duration,
        stop: CancellationToken,
        index: &Index,
    ) -> Errand {
        let index = index.clone();
        let script = format!("{KERNEL_DIR}/install.py");
        let socket = format!("{RELAY_DIR}/{SOCKET_NAME}");
        let mount =
            |source: &Path, target, writable| ErrandMount { source: source.to_owned(), target, writable };
        Errand {
            command: ["python3", "-I", "-B", &script, TASK_DIR, OUTPUT_DIR, &socket]
                .map(str::to_owned)
                .into(),
            mounts: vec![
                mount(kernel_dir, KERNEL_DIR, false),
                mount(&self.told, TASK_DIR, false),
                mount(&self.relay, RELAY_DIR, false),
                mount(&self.output, OUTPUT_DIR, true),
            ],
            limit,
            stop,
            hide: Box::new(move |said, is_cut| {
                if is_cut { index.without_secrets_in_head(said) } else { index.without_secrets(said) }
            }),
        }
    }
}

/// The length of the `uv` that an installer fetched, if it had to: one that is there is not replaced by what a guest
/// wrote.
pub fn fetched_uv(output: &Path, had_uv: bool) -> Option<u64> {
    let length = (!had_uv).then(|| tree::file_bytes(&output.join(TOOLS), UV).ok()).flatten();
    length.filter(|length| *length <= UV_BYTES)
}

/// Copies what the installer made to `target`, and beside that the `uv` of this length that it fetched.
pub fn take(
    output: &Path,
    target: &Path,
    uv: Option<u64>,
    bounds: Bounds,
    (image_id, built): (&str, bool),
    rules: &[NameRules],
    explain: impl Fn(FailureKind, &str) -> Problem,
) -> Result<(Answer, Copied), Problem> {
    let broken = |error: std::io::Error| {
        Problem::new(Code::InstallFailed, format!("what the installer made cannot be used: {error}"))
    };
    let text = tree::read_text(output, "report.json", REPORT_BYTES).map_err(broken)?;
    let report =
        Report::parse(&text).ok_or_else(|| broken(std::io::Error::other("its report cannot be read")))?;
    let (in_image, replaced) = match report.outcome {
        Outcome::Installed { in_image, replaced } => (in_image, replaced),
        Outcome::Failed { kind, words } => return Err(explain(kind, &words)),
    };
    if let Some(length) = uv {
        tree::copy_file(&output.join(TOOLS), UV, &target.with_file_name(UV), length).map_err(broken)?;
    }
    std::fs::DirBuilder::new().mode(0o700).create(target).map_err(broken)?;
    let copied = tree::copy(&output.join("site"), &target.join("site"), bounds).map_err(broken)?;
    check_names(&copied.packages, rules)?;
    let packages: BTreeSet<_> = copied.packages.iter().cloned().collect();
    let key = |python: &str, platform: &str| set_key(image_id, python, platform, &packages, built);
    let key = (!packages.is_empty()).then(|| key(&report.python, &report.platform));
    let (packages, bytes) = (copied.packages.clone(), copied.bytes);
    let answer = Answer { key, packages, bytes, in_image, replaced, pinned: Vec::new() };
    Ok((answer, copied))
}

/// Also what was not named, but is needed by what was, may not be denied.
pub fn check_names(packages: &[InstalledPackage], rules: &[NameRules]) -> Result<(), Problem> {
    let is_tolerated = |name: &str| rules.iter().all(|rules| rules.tolerates(name));
    let denied = packages.iter().find(|package| !is_tolerated(&package.name));
    denied.map_or(Ok(()), |denied| Err(not_permitted(&denied.name)))
}

/// What a person is told when an installer could not do its work.
pub fn failure(kind: FailureKind, words: &str, trouble: Option<&Trouble>) -> Problem {
    let (message, hint) = match (kind, trouble) {
        (_, Some(Trouble::Forbidden(host))) => (
            format!(
                "the installer wanted to reach `{host}`, which is not among the hosts of the package index: {words}"
            ),
            "name the host in `packages.hosts`".to_owned(),
        ),
        (_, Some(Trouble::Unreachable(what))) => (
            format!("the package index cannot be reached: {what}"),
            "look at the network, at `packages.index`, and at the proxy of the daemon".to_owned(),
        ),
        (FailureKind::NotFound, _) => (
            format!("the packages cannot be installed: {words}"),
            "look at names and versions; what has only a source needs `belljar install --sources`, where `packages.sources` allows it"
                .to_owned(),
        ),
        (FailureKind::NoInstaller, _) => (
            format!("there is nothing to install packages with: {words}"),
            "use an image that has `uv`, or an index that has it".to_owned(),
        ),
        (FailureKind::Other, _) => {
            (format!("the packages could not be installed: {words}"), "try again later".to_owned())
        }
    };
    Problem::new(Code::InstallFailed, message).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uv_is_taken_only_from_an_installer_that_was_given_none() {
        for had_uv in [false, true] {
            let home = tempfile::tempdir().unwrap();
            let (output, target) = (home.path().join("output"), home.path().join("made"));
            for folder in ["tools", "site"] {
                std::fs::create_dir_all(output.join(folder)).unwrap();
            }
            std::fs::write(output.join("tools/uv"), "a program").unwrap();
            let report = r#"{"python": "3.12.1", "platform": "linux-x86_64"}"#;
            std::fs::write(output.join("report.json"), report).unwrap();
            let bounds = Bounds { bytes: 100_000, files: 100 };
            let explain = |kind, words: &str| failure(kind, words, None);
            take(&output, &target, fetched_uv(&output, had_uv), bounds, ("image", false), &[], explain)
                .unwrap();
            assert_eq!(home.path().join("uv").exists(), !had_uv);
        }
    }
}
