//! Lets the session's packages appear in its sandbox.

use std::path::PathBuf;
use std::sync::Arc;

use super::state::{ExecutorArgs, ExecutorState};
use crate::actors::calls::Reply;
use crate::protocol::event::EventBody;
use crate::protocol::packages::PackageSet;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::quota::Ledger;
use crate::sandbox::launch::{Launcher, Sandbox};
use crate::store::EventLog;

/// The packages that a new sandbox begins with.
pub(super) struct FirstPackages {
    owner: Principal,
    set: PackageSet,
    ledger: Ledger,
    launcher: Arc<Launcher>,
    log: Arc<EventLog>,
}

impl FirstPackages {
    /// None if the session has none.
    pub fn of(args: &ExecutorArgs) -> Option<Self> {
        let (launcher, log) = (Arc::clone(&args.launcher), Arc::clone(&args.log));
        let set = args.packages.clone()?;
        Some(Self { owner: args.owner, set, ledger: args.ledger.clone(), launcher, log })
    }

    /// Lets them appear before any code runs. A sandbox without them is still of use, and the event says why.
    pub async fn show_in(self, sandbox: &Sandbox) {
        let Self { owner, set, ledger, launcher, log } = self;
        let (backend, image) = (sandbox.backend(), sandbox.image());
        let files = launcher.package_files(owner, backend, image, &set, &ledger).await;
        let shown =
            files.and_then(|files| sandbox.show_packages(&files, &set.key).map_err(|error| failed(&error)));
        if let Err(problem) = shown {
            log.append(EventBody::PackagesMissing { reason: problem.message });
        }
    }
}

impl ExecutorState {
    /// Lets packages appear in the sandbox that runs.
    pub(super) fn show_packages(&mut self, set: PackageSet, reply_to: Reply<()>) {
        let Some(connected) = &self.connected else {
            // The next sandbox begins with them.
            self.args.packages = Some(set);
            let _ = reply_to.send(Ok(()));
            return;
        };
        let (sandbox, launcher, owner) =
            (Arc::clone(&connected.sandbox), Arc::clone(&self.args.launcher), self.args.owner);
        self.args.packages = Some(set.clone());
        tokio::task::spawn_blocking(move || {
            let cache = launcher.packages.of(owner).map_err(|error| failed(&error));
            let files: Result<PathBuf, Problem> = cache.and_then(|cache| {
                cache.files(&set.key).ok_or_else(|| {
                    Problem::new(Code::InstallFailed, "the packages are not in the cache any more")
                        .hint("install them again, or raise `packages.cache`")
                })
            });
            let shown = files
                .and_then(|files| sandbox.show_packages(&files, &set.key).map_err(|error| failed(&error)));
            let _ = reply_to.send(shown);
        });
    }
}

fn failed(error: &std::io::Error) -> Problem {
    Problem::new(Code::Storage, format!("the packages cannot be put into the sandbox: {error}"))
}
