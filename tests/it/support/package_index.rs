//! A package index that a test starts on loopback, with a certificate of its own.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Daemon, ScriptServer, docker};

pub struct PackageIndex {
    server: ScriptServer,
    folder: tempfile::TempDir,
}

impl PackageIndex {
    /// An index with a real `uv`.
    pub fn start() -> Self {
        Self::with_uv(uv_wheels().to_str().expect("UTF-8"))
    }

    /// An index whose `uv` looks around in its sandbox, says what it saw, and fails.
    pub fn with_spy() -> Self {
        Self::with_uv("fake")
    }

    /// Without any `uv`.
    pub fn without_uv() -> Self {
        Self::with_uv("none")
    }

    /// Makes an image that has the spy as its own `uv`, where installers look first; gone with the answer.
    pub fn image_with_spy(&self) -> SpyImage {
        let (name, tree) =
            (format!("bj-spy-{}:1", uuid::Uuid::new_v4().simple()), self.folder.path().join("usr"));
        let program = tree.join("libexec/belljar/uv");
        std::fs::create_dir_all(program.parent().expect("a folder")).expect("a folder");
        std::fs::copy(self.folder.path().join("spy"), &program).expect("a file");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        let container = docker(["create", "belljar/base", "true"]);
        docker(["cp", tree.to_str().expect("UTF-8"), &format!("{container}:/")]);
        docker(["commit", &container, &name]);
        docker(["rm", &container]);
        SpyImage(name)
    }

    /// Makes an image without a `uv`; gone with the answer.
    pub fn image_without_uv() -> SpyImage {
        let name = format!("bj-no-uv-{}:1", uuid::Uuid::new_v4().simple());
        let uv = "/usr/libexec/belljar/uv";
        let container =
            docker(["run", "-d", "--user=0", "--network=none", "--entrypoint=rm", "belljar/base", uv]);
        assert_eq!(docker(["wait", &container]), "0");
        docker(["commit", "--change", "ENTRYPOINT []", &container, &name]);
        docker(["rm", &container]);
        SpyImage(name)
    }

    fn with_uv(uv: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
        let server = ScriptServer::start("package_index.py", [folder.path().as_os_str(), OsStr::new(uv)]);
        Self { server, folder }
    }

    /// The configuration of a daemon that uses it; `more` are lines of `[packages]`.
    pub fn config(&self, more: &str) -> String {
        format!("[packages]\nindex = \"https://localhost:{}/simple\"\n{more}", self.server.port)
    }

    /// A daemon that uses and trusts it.
    pub fn daemon(&self, more: &str) -> Daemon {
        self.daemon_with(&self.config(more))
    }

    fn daemon_with(&self, config: &str) -> Daemon {
        let authorities = self.folder.path().join("ca.pem");
        let authorities = authorities.to_str().expect("UTF-8");
        // What could not be removed at once is removed soon.
        let environment = [
            ("SSL_CERT_FILE", authorities),
            ("BELLJAR_TEST_SECRET", "1"),
            ("NO_PROXY", "localhost"),
            ("BELLJAR_PERIODS", "reaper:2"),
        ];
        Daemon::with_environment(config, &environment)
    }

    /// What would tell where packages came from: the index, its certificate and a way there.
    pub fn traces(&self) -> Vec<String> {
        let authorities = self.folder.path().join("ca.pem");
        let certificate = std::fs::read_to_string(&authorities).expect("a certificate");
        let line = certificate.lines().nth(2).expect("base64").to_owned();
        let (index, file) = (format!("localhost:{}", self.server.port), authorities.display().to_string());
        vec![index, file, line, "HTTPS_PROXY".into(), "https_proxy".into()]
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

    /// Whether it has no more than the first version of each package.
    pub fn first_versions_only(&self, only: bool) {
        let path = self.folder.path().join("first");
        if only {
            std::fs::write(path, "").expect("a file")
        } else {
            std::fs::remove_file(path).expect("gone")
        }
    }

    /// From now on files come at some megabytes a second.
    pub fn trickle(&self) {
        std::fs::write(self.folder.path().join("trickle"), "").expect("a file");
    }

    /// From now on its pages lead to files on another host.
    pub fn elsewhere(&self) {
        std::fs::write(self.folder.path().join("elsewhere"), "").expect("a file");
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

    /// Ends the index, so that no request reaches it any more.
    pub fn stop(&mut self) {
        self.server.stop();
    }
}

pub struct SpyImage(pub String);

impl Drop for SpyImage {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rmi", "-f", &self.0]).output();
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
