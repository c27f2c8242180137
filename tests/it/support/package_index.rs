//! A package index that a test starts on loopback, with a certificate of its own.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::Daemon;

pub struct PackageIndex {
    child: Child,
    folder: tempfile::TempDir,
    port: String,
}

impl PackageIndex {
    /// With a real `uv`.
    pub fn start() -> Self {
        Self::with_uv(uv_wheels().to_str().expect("UTF-8"))
    }

    /// Whose `uv` looks around in its sandbox, says what it saw, and fails.
    pub fn with_spy() -> Self {
        Self::with_uv("fake")
    }

    fn with_uv(uv: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/support/package_index.py");
        let mut child = Command::new("python3")
            .arg(script)
            .arg(folder.path())
            .arg(uv)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut port = String::new();
        BufReader::new(child.stdout.take().expect("stdout")).read_line(&mut port).expect("a port");
        Self { child, folder, port: port.trim().to_owned() }
    }

    /// The configuration of a daemon that uses it; `more` are lines of `[packages]`.
    pub fn config(&self, more: &str) -> String {
        format!("[packages]\nindex = \"https://localhost:{}/simple\"\n{more}", self.port)
    }

    /// A daemon that uses and trusts it.
    pub fn daemon(&self, more: &str) -> Daemon {
        self.daemon_with(&self.config(more))
    }

    fn daemon_with(&self, config: &str) -> Daemon {
        let authorities = self.folder.path().join("ca.pem");
        let authorities = authorities.to_str().expect("UTF-8");
        let environment =
            [("SSL_CERT_FILE", authorities), ("BELLJAR_TEST_SECRET", "1"), ("NO_PROXY", "localhost")];
        Daemon::with_environment(config, &environment)
    }

    /// The paths that were asked for.
    pub fn requests(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.path().join("requests")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Whether files are withheld.
    pub fn slow(&self, slow: bool) {
        let path = self.folder.path().join("slow");
        if slow {
            std::fs::write(path, "").expect("a file")
        } else {
            std::fs::remove_file(path).expect("gone")
        }
    }

    /// From now on it has other content under the same versions.
    pub fn change(&self) {
        std::fs::write(self.folder.path().join("changed"), "").expect("a file");
    }

    /// From now on it answers only with this user and password.
    pub fn ask_for(&self, user_and_password: &str) {
        std::fs::write(self.folder.path().join("password"), user_and_password).expect("a file");
    }

    /// A daemon that uses it with user and password, as a URL has them.
    pub fn daemon_as(&self, who: &str) -> Daemon {
        let config = self.config("").replace("https://", &format!("https://{who}@"));
        self.daemon_with(&config)
    }

    /// Nobody reaches it any more.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for PackageIndex {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A folder with a wheel of `uv`, which is fetched once from where this machine gets its packages.
fn uv_wheels() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("uv-wheels");
    let is_there = || {
        let mut entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        entries.any(|entry| entry.file_name().to_string_lossy().ends_with(".whl"))
    };
    if !is_there() {
        // Other tests may do the same at the same time.
        let draft = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
        let fetched = Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "uv", "--dest"])
            .arg(draft.path())
            .status()
            .expect("python3");
        assert!(fetched.success(), "a wheel of `uv` is needed for tests of packages");
        let _ = std::fs::rename(draft.keep(), &folder);
        assert!(is_there(), "no wheel in {}", folder.display());
    }
    folder
}
