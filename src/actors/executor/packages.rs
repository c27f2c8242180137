//! Lets the session's packages appear in its sandbox.

use std::sync::Arc;

use super::state::{ExecutorArgs, ExecutorState};
use crate::actors::calls::Reply;
use crate::config::Packages;
use crate::protocol::event::EventBody;
use crate::protocol::packages::PackageSet;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Backend;
use crate::protocol::tool_names::INSTALL_TOOL;
use crate::quota::Ledger;
use crate::sandbox::launch::{Launcher, Sandbox};
use crate::sandbox::packages::{SessionUse, check_backend};
use crate::session::outcome::CellStart;
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

/// Refuses code that can have no packages installed, not even if a person allows it.
fn check_can_install(start: &CellStart, backend: Backend, settings: &Packages) -> Result<(), Problem> {
    check_backend(backend)?;
    let allowed = &start.rules.allowed;
    // Restricted code has no commands of notebooks, such as `%pip`.
    let may = !start.rules.restricted && allowed.as_ref().is_none_or(|names| names.contains(INSTALL_TOOL));
    // What a model may do is in the rules of its ask. Where it may not, its user is told what the user may do.
    if start.ask.is_none() || !may {
        settings.check_owner_may_install()?;
    }
    if may {
        return Ok(());
    }
    Err(Problem::new(Code::Forbidden, "this code may install none")
        .hint("the session's user can, with `belljar install -s SESSION NAME`"))
}

impl ExecutorState {
    /// Why a cell can have no packages installed, if it cannot.
    pub(super) fn why_no_packages(&self, start: &CellStart) -> Option<String> {
        let backend = self.connected.as_ref()?.sandbox.backend();
        let settings = self.args.port.settings.now();
        let checked = check_can_install(start, backend, &settings.packages);
        checked.err().map(|problem| problem.message_with_hint())
    }

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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::session::rules::CellRules;

    #[test]
    fn code_that_can_have_nothing_installed_is_told_why() {
        let why = |by_owner: &str, backend, ask, rules| {
            let text = format!("[packages]\nby_owner = \"{by_owner}\"\n");
            let settings = crate::config::load_text(Path::new("c.toml"), &text).unwrap().settings.packages;
            let start = CellStart { ask, rules: Arc::new(rules), ..CellStart::default() };
            check_can_install(&start, backend, &settings).err().map(|problem| problem.message)
        };
        let of_ask = |tools: &[&str]| CellRules {
            allowed: Some(tools.iter().map(|name| (*name).to_owned()).collect()),
            ..CellRules::default()
        };
        let (may, may_not) = (|| of_ask(&[INSTALL_TOOL]), || of_ask(&["note"]));
        let restricted = || CellRules { restricted: true, ..may() };
        let docker = Backend::Docker;
        for (by_owner, ask, rules) in [
            ("auto", None, CellRules::default()),
            ("ask", None, CellRules::default()),
            ("never", Some(1), may()),
        ] {
            assert_eq!(why(by_owner, docker, ask, rules), None, "{by_owner} {ask:?}");
        }
        for (by_owner, ask, rules, what) in [
            ("never", None, CellRules::default(), "`packages.by_owner` is `never`"),
            ("auto", Some(1), may_not(), "this code may install none"),
            ("auto", Some(1), restricted(), "this code may install none"),
            ("never", Some(1), may_not(), "`packages.by_owner` is `never`"),
        ] {
            let told = why(by_owner, docker, ask, rules).unwrap();
            assert!(told.contains(what), "{by_owner} {ask:?}: {told}");
        }
        for (ask, rules) in [(None, CellRules::default()), (Some(1), may())] {
            let told = why("auto", Backend::Process, ask, rules).unwrap();
            assert!(told.contains("the backend `process`"), "{told}");
        }
    }
}
