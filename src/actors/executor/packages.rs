//! Lets the session's packages appear in its sandbox.

use std::sync::Arc;

use super::state::{ExecutorArgs, ExecutorState};
use crate::actors::calls::Reply;
use crate::protocol::event::EventBody;
use crate::protocol::packages::PackageSet;
use crate::protocol::principal::Principal;
use crate::quota::Ledger;
use crate::sandbox::launch::{Launcher, Sandbox};
use crate::sandbox::packages::SessionUse;
use crate::store::EventLog;

/// The packages that a new sandbox begins with, or that one has that is attached to.
pub(super) struct FirstPackages {
    owner: Principal,
    /// None if the session has none.
    set: Option<PackageSet>,
    used: SessionUse,
    ledger: Ledger,
    launcher: Arc<Launcher>,
    log: Arc<EventLog>,
}

impl FirstPackages {
    pub fn of(args: &ExecutorArgs) -> Self {
        let (launcher, log) = (Arc::clone(&args.launcher), Arc::clone(&args.log));
        let (set, used) = (args.packages.clone(), args.packages_use.clone());
        Self { owner: args.owner, set, used, ledger: args.ledger.clone(), launcher, log }
    }

    /// Charges what an earlier daemon let appear in the sandbox, and lets appear what it did not come to. The charge
    /// needs neither the cache nor the index.
    pub async fn take_over_in(self, sandbox: &Sandbox) {
        let (set, packages) = (self.set.as_ref(), sandbox.packages());
        let session = &self.used.session;
        match self.launcher.take_over_packages(self.owner, set, packages, &self.ledger, session).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(problem) => {
                tracing::warn!(%problem, sandbox = %sandbox.id(), "the packages of a sandbox are not charged");
            }
        }
        self.show_in(sandbox).await;
    }

    /// Lets them appear before any code runs. A sandbox without them is still of use, and the event says why.
    pub async fn show_in(self, sandbox: &Sandbox) {
        let Self { owner, set: Some(set), used, ledger, launcher, log } = self else { return };
        let made_by = (sandbox.backend(), sandbox.image());
        let shown = launcher.show_packages(owner, made_by, &set, sandbox.packages(), &ledger, &used).await;
        if let Err(problem) = shown {
            log.append(EventBody::PackagesMissing { reason: problem.message });
        }
    }
}

impl ExecutorState {
    /// Lets packages appear in the sandbox that runs.
    pub(super) fn show_packages(&mut self, set: PackageSet, reply_to: Reply<()>) {
        self.args.packages = Some(set.clone());
        let Some(connected) = &self.connected else {
            // The next sandbox begins with them.
            let _ = reply_to.send(Ok(()));
            return;
        };
        let (sandbox, launcher) = (Arc::clone(&connected.sandbox), Arc::clone(&self.args.launcher));
        let (owner, ledger, used) =
            (self.args.owner, self.args.ledger.clone(), self.args.packages_use.clone());
        tokio::spawn(async move {
            let made_by = (sandbox.backend(), sandbox.image());
            let shown =
                launcher.show_packages(owner, made_by, &set, sandbox.packages(), &ledger, &used).await;
            let _ = reply_to.send(shown);
        });
    }
}
