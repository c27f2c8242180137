//! The watch over a running installer: its progress, and what it has written so far.

use parking_lot::Mutex;
use std::path::Path;
use std::time::Duration;

use super::install_budget::InstallBudget;
use super::relay::Relay;
use super::task::Task;
use super::tree;
use crate::packages::resolved::{FetchedPackage, PROGRESS_BYTES, fetching};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::backend::Progress;
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::disk as host_disk;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::usage::{DiskUsage, measure_of_guest};

/// Time between two looks at what an installer has written.
const PAUSE: Duration = Duration::from_millis(500);
/// Time for a look, with its wait for a thread.
const PATIENCE: Duration = Duration::from_secs(20);
/// Looks in a row that are late before an installer is stopped. One may be late because the machine is busy.
const LATE_LOOKS: u32 = 2;

impl Launcher {
    /// Reports the progress, and returns when an installer has to be stopped: it has written more than it may, the disk
    /// is full, or what it wrote cannot be counted in time.
    pub(super) async fn watch(
        &self,
        owner: Principal,
        task: &Task,
        guest_uid: u32,
        relay: &Relay,
        budget: InstallBudget,
        progress: Progress<'_>,
    ) -> Problem {
        let told = &Mutex::new((0, Vec::new()));
        let look = || {
            let (folder, home) = (task.output.clone(), self.paths.home().to_owned());
            let reserve = self.settings.sandbox.disk_reserve_bytes;
            let look = move || {
                host_disk::check_at(&home, reserve)?;
                look_at(&folder, guest_uid, budget)?;
                let text = tree::read_text(&folder, "progress.json", PROGRESS_BYTES).unwrap_or_default();
                Ok(fetching(&text))
            };
            let begun = folders::begin(owner, WorkKind::Watch, None, look);
            async move {
                let outcome: Result<Vec<FetchedPackage>, Problem> = begun?.await?;
                let now = (relay.passed(), outcome?);
                let mut told = told.lock();
                if *told != now {
                    progress(status(now.0, &now.1));
                    *told = now;
                }
                Ok::<(), Problem>(())
            }
        };
        first_problem(look, PAUSE, PATIENCE).await
    }
}

/// How far an installer is: what it is fetching, with the sizes, and how much has come in all.
fn status(passed: u64, fetching: &[FetchedPackage]) -> String {
    let downloaded = format!("{} downloaded", size(passed));
    if fetching.is_empty() {
        return downloaded;
    }
    let named: Vec<String> =
        fetching.iter().map(|package| format!("{} ({})", package.name, size(package.bytes))).collect();
    format!("fetching {}; {downloaded}", named.join(", "))
}

fn size(bytes: u64) -> String {
    const MIB: u64 = 1024 * 1024;
    if bytes < MIB {
        return format!("{} KiB", bytes / 1024);
    }
    format!("{}.{} MiB", bytes / MIB, bytes % MIB * 10 / MIB)
}

/// Looks again and again until a look finds a problem, or too many are late. A late one goes on beside the next one.
async fn first_problem<F: Future<Output = Result<(), Problem>>>(
    mut look: impl FnMut() -> F,
    pause: Duration,
    patience: Duration,
) -> Problem {
    let mut late = 0;
    while late < LATE_LOOKS {
        tokio::time::sleep(pause).await;
        match tokio::time::timeout(patience, look()).await {
            Ok(Ok(())) => late = 0,
            Ok(Err(problem)) => return problem,
            Err(_) => late += 1,
        }
    }
    folders::late(patience)
}

/// What an installer has written, or a refusal if that is more than it may, or not known.
pub fn look_at(folder: &Path, guest_uid: u32, budget: InstallBudget) -> Result<DiskUsage, Problem> {
    let used = measure_of_guest(folder, guest_uid).map_err(|error| {
        let what = format!("what the installer wrote cannot be measured: {error}");
        Problem::new(Code::Storage, what).hint("look at the disk of the daemon's home")
    })?;
    if budget.is_exceeded_by(&used) {
        let bounds = budget.packages;
        let what = format!("the packages take more than {} bytes or {} files", bounds.bytes, bounds.files);
        return Err(too_large(what));
    }
    Ok(used)
}

pub fn too_large(what: String) -> Problem {
    Problem::new(Code::TooLarge, what).hint(
        "name fewer packages, remove files, or raise `packages.download`, `packages.unpacked`, `packages.files` or `quota.workspace`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn the_progress_names_packages_and_sizes() {
        assert_eq!(status(2048, &[]), "2 KiB downloaded");
        let package = |name: &str, bytes| FetchedPackage { name: name.into(), bytes };
        let told = status(13_000_000, &[package("polars", 36_909_875), package("tiny", 4096)]);
        assert_eq!(told, "fetching polars (35.1 MiB), tiny (4 KiB); 12.3 MiB downloaded");
    }

    #[test]
    fn an_installer_is_stopped_for_too_much_and_for_what_cannot_be_measured() {
        let home = tempfile::tempdir().unwrap();
        let uid = rustix::process::getuid().as_raw();
        let settings =
            crate::config::load_text("c.toml".as_ref(), "[packages]\nfiles = 2\n").unwrap().settings;
        let budget = InstallBudget::new(&settings.packages, 0, true);
        std::fs::write(home.path().join("a"), "").unwrap();
        look_at(home.path(), uid, budget).unwrap();
        for name in ["b", "c"] {
            std::fs::write(home.path().join(name), "").unwrap();
        }
        assert_eq!(look_at(home.path(), uid, budget).unwrap_err().code, Code::TooLarge);
        assert_eq!(look_at(&home.path().join("none"), uid, budget).unwrap_err().code, Code::Storage);
    }

    #[tokio::test]
    async fn one_late_look_is_forgiven_and_two_in_a_row_are_not() {
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            let is_late = matches!(looks.get(), 2 | 4 | 5);
            async move { if is_late { std::future::pending().await } else { Ok(()) } }
        };
        let problem = first_problem(look, Duration::ZERO, Duration::from_millis(50)).await;
        assert_eq!((problem.code, looks.get()), (Code::Storage, 5), "{problem:?}");
    }
}
