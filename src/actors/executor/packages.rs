//! Lets the session's packages appear in its sandbox.

use std::sync::Arc;

use super::state::{ExecutorArgs, ExecutorState};
use crate::actors::calls::Reply;
use crate::protocol::event::EventBody;
use crate::protocol::packages::PackageSet;
use crate::protocol::principal::Principal;
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
        let made_by = (sandbox.backend(), sandbox.image());
        let shown = launcher.show_packages(owner, made_by, &set, sandbox.shown(), &ledger).await;
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
        let (owner, ledger) = (self.args.owner, self.args.ledger.clone());
        tokio::spawn(async move {
            let made_by = (sandbox.backend(), sandbox.image());
            let shown = launcher.show_packages(owner, made_by, &set, sandbox.shown(), &ledger).await;
            let _ = reply_to.send(shown);
        });
    }
}
