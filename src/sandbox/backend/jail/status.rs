//! What bubblewrap writes about a jail: one JSON document per line, into a file in the sandbox's folder, so that the
//! next daemon can read the pid, and later the exit code, too.

use serde::Deserialize;
use std::path::{Path, PathBuf};

use crate::sandbox::attest::facts::read_small;

const NAME: &str = "status";

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Status {
    /// The pid of the jail's first process on the host.
    pub child_pid: Option<i32>,
    /// The inode of the jail's pid namespace, by which its process is recognised.
    pub pid_namespace: Option<u64>,
    pub exit_code: Option<i64>,
}

pub fn file(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

pub fn read(folder: &Path) -> Status {
    read_small(&file(folder)).map(|text| parse(&text)).unwrap_or_default()
}

fn parse(text: &str) -> Status {
    let documents = text.lines().filter_map(|line| serde_json::from_str::<Status>(line).ok());
    documents.fold(Status::default(), |known, next| Status {
        child_pid: known.child_pid.or(next.child_pid).filter(|pid| *pid > 1),
        pid_namespace: known.pid_namespace.or(next.pid_namespace),
        exit_code: known.exit_code.or(next.exit_code),
    })
}

impl Status {
    /// The pid, if its process is still in the pid namespace that was made for the jail.
    pub fn living(&self) -> Option<i32> {
        let (pid, namespace) = (self.child_pid?, self.pid_namespace?);
        (namespace_of(pid)? == namespace).then_some(pid)
    }
}

fn namespace_of(pid: i32) -> Option<u64> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_and_exit_code_are_read_as_they_come() {
        let start = "{ \"child-pid\": 7, \"ipc-namespace\": 3, \"pid-namespace\": 4026532330 }\n";
        let status = parse(start);
        assert_eq!((status.child_pid, status.pid_namespace), (Some(7), Some(4_026_532_330)));
        assert_eq!(parse(&format!("{start}{{ \"exit-code\": 137 }}\n")).exit_code, Some(137));
        assert_eq!(parse("{ \"child-pid\": 1 }\n{ \"chi"), Status::default());
    }

    #[test]
    fn a_pid_of_another_namespace_is_somebody_else() {
        let own = i32::try_from(std::process::id()).unwrap();
        let here = Status { child_pid: Some(own), pid_namespace: namespace_of(own), exit_code: None };
        assert_eq!(here.living(), Some(own));
        assert_eq!(Status { pid_namespace: Some(1), ..here }.living(), None);
    }
}
