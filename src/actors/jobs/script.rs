//! The cell of a job, which replaces its own process by the script.
//!
//! This closes the descriptors of the worker's protocol, so the script cannot answer for the cell; the
//! guardian reports how the process ended. The order file, which is deleted last, shows whether the process
//! got that far: if it ended earlier, its end is no verdict of the script.

use serde_json::json;

use super::check::required;
use crate::protocol::job::NewJob;
use crate::protocol::problem::Problem;
use crate::sandbox::workspace::Root;
use crate::sandbox::workspace::files;

/// The order file, which says what the cell has to run. The order is not in the cell's code, which the
/// journal keeps, because variables may be secrets. A script that creates this file again is considered as
/// not begun.
pub const ORDER: &str = ".belljar-job";

/// The code of the cell. It imports modules that the kernel loaded before any file of the input existed.
pub const CODE: &str = include_str!("cell.py");

/// Whether the process has become the script.
#[must_use]
pub fn has_begun(workspace: &Root<'_>) -> bool {
    !files::is_there(workspace, ORDER)
}

/// The content of the order file. `no_packages` says why `--with` is refused, if it is.
#[must_use]
pub fn order(job: &NewJob, no_packages: Option<&Problem>) -> String {
    // Python would take a name that begins with `-` for an option.
    let script = if job.script.starts_with('-') { format!("./{}", job.script) } else { job.script.clone() };
    let argv: Vec<&str> = std::iter::once(&script).chain(&job.args).map(String::as_str).collect();
    let mut env = job.env.clone();
    // Unbuffered, so that the output of a killed script is not lost in its buffer.
    env.entry("PYTHONUNBUFFERED".into()).or_insert_with(|| "1".into());
    let require = job.require.iter().filter_map(|text| required(text).ok()).map(
        |requirement| json!({"name": requirement.name, "ranges": requirement.ranges().collect::<Vec<_>>()}),
    );
    let no_packages = no_packages.map(Problem::message_with_hint).unwrap_or_default();
    json!({"argv": argv, "env": env, "require": require.collect::<Vec<_>>(), "no_packages": no_packages})
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn the_order_goes_when_the_script_begins_and_not_before() {
        for (require, exits, left) in [(&["no-such-package"][..], 1, true), (&[], 7, false)] {
            let folder = tempfile::tempdir().unwrap();
            let require = require.iter().map(|name| (*name).to_owned()).collect();
            let job = NewJob { script: "s.py".into(), require, ..NewJob::default() };
            std::fs::write(folder.path().join(ORDER), order(&job, None)).unwrap();
            std::fs::write(folder.path().join("s.py"), "import sys; sys.exit(7)").unwrap();
            let ran = std::process::Command::new("python3").args(["-c", CODE]).current_dir(&folder).output();
            assert_eq!(ran.unwrap().status.code(), Some(exits));
            let workspace = std::fs::File::open(&folder).unwrap();
            assert_eq!(has_begun(&Root::of_daemon(workspace.as_fd())), !left);
        }
    }

    #[test]
    fn what_is_required_is_held_against_versions_as_pip_does() {
        // A distribution is what its metadata says; this one stands for that of an image.
        let site = tempfile::tempdir().unwrap();
        let fits = |version: &str, ranges: &str| {
            let info = site.path().join("thing-1.dist-info");
            std::fs::create_dir_all(&info).unwrap();
            let about = format!("Metadata-Version: 2.1\nName: thing\nVersion: {version}\n");
            std::fs::write(info.join("METADATA"), about).unwrap();
            let folder = tempfile::tempdir().unwrap();
            let require = vec![format!("Thing{ranges}")];
            let job = NewJob { script: "s.py".into(), require, ..NewJob::default() };
            std::fs::write(folder.path().join(ORDER), order(&job, None)).unwrap();
            std::fs::write(folder.path().join("s.py"), "").unwrap();
            let mut python = std::process::Command::new("python3");
            let ran = python.args(["-c", CODE]).env("PYTHONPATH", site.path()).current_dir(&folder).output();
            let ran = ran.unwrap();
            let said = String::from_utf8_lossy(&ran.stderr).into_owned();
            assert!(ran.status.success() || said.contains(&format!("has `thing` {version}")), "{said}");
            ran.status.success()
        };
        for (version, ranges, wanted) in [
            ("2.1.0", "", true),
            ("2.1.0", ">=2,<3", true),
            ("2.1.0", "==2.1", true),
            ("2.1.0", "==2.*", true),
            ("2.10.0", "~=2.9", true),
            ("2.1.0+cpu", "==2.1.0", true),
            ("2.1.0", "!=2.0", true),
            ("1!1.0", ">2", true),
            ("3.0rc1", ">=2,<3", false),
            ("3.0", ">=2,<3", false),
            ("2.10", "<2.9", false),
            ("3.0", "~=2.9", false),
            ("2.1.post1", ">2.1", false),
            ("2.1.post1", ">=2.1", true),
            ("2.1.dev3", ">=2.1", false),
            ("2.1rc2", "<2.1rc10", true),
            ("2.1.0", "===2.1", false),
            ("not-a-version", ">=1", false),
        ] {
            assert_eq!(fits(version, ranges), wanted, "{version} {ranges}");
        }
    }

    #[test]
    fn a_name_is_never_an_option() {
        let folder = tempfile::tempdir().unwrap();
        let job = NewJob { script: "-h.py".into(), ..NewJob::default() };
        std::fs::write(folder.path().join(ORDER), order(&job, None)).unwrap();
        std::fs::write(folder.path().join("-h.py"), "import sys; sys.exit(3)").unwrap();
        let ran = std::process::Command::new("python3").args(["-c", CODE]).current_dir(&folder).output();
        assert_eq!(ran.unwrap().status.code(), Some(3));
    }

    #[test]
    fn words_reach_the_script_as_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let odd = "a\"b'\\\n\u{1}\u{7f}\u{2028}é😀{}%";
        let env = [("X".to_owned(), odd.to_owned())].into();
        let job = NewJob { script: "s.py".into(), args: vec![odd.into()], env, ..NewJob::default() };
        std::fs::write(folder.path().join(ORDER), order(&job, None)).unwrap();
        let script = "import os, sys; print(ascii([sys.argv[1], os.environ['X'], os.listdir()]))";
        std::fs::write(folder.path().join("s.py"), script).unwrap();
        let ran = std::process::Command::new("python3")
            .args(["-c", CODE])
            .env("PYTHONUTF8", "1")
            .current_dir(&folder)
            .output();
        let ran = ran.unwrap();
        let word = r#"'a"b\'\\\n\x01\x7f\u2028\xe9\U0001f600{}%'"#;
        assert_eq!(
            String::from_utf8(ran.stdout).unwrap().trim(),
            format!("[{word}, {word}, ['s.py']]"),
            "{}",
            String::from_utf8_lossy(&ran.stderr)
        );
    }
}
