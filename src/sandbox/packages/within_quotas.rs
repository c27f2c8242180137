//! Watches the quotas, and has unused packages removed when they are full: a task of its own, so that no slow disk of one
//! user's packages delays what else is kept within quotas.

use std::sync::Arc;
use std::time::Duration;

use super::make_room::Missing;
use crate::protocol::quota::Kind;
use crate::quota::Ledger;
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};

/// The time between two looks at the quotas.
const CHECK_EVERY: Duration = Duration::from_secs(10);
/// The shortest time between two looks, even while quotas are full.
const CHECKS_APART: Duration = Duration::from_millis(200);

impl Launcher {
    /// Removes packages that nothing uses whenever their users, or all users, have more on the disk than they may. Never
    /// ends. What is not used stands in the way of no charge, so no charge waits for this.
    pub async fn keep_packages_within_quotas(self: Arc<Self>, ledger: Ledger) {
        loop {
            let payers = self.packages.charges.payers_of_unused();
            if !payers.is_empty() && !Missing::in_quotas(&ledger, payers).is_nothing() {
                let (launcher, books) = (Arc::clone(&self), ledger.clone());
                let make_room = move || launcher.packages.make_room_in_quotas(&books);
                let daemon = self.service.principal();
                if let Err(problem) = folders::run(daemon, WorkKind::Removal, None, make_room).await {
                    tracing::warn!(%problem, "unused packages are not removed");
                }
            }
            let _ = tokio::time::timeout(CHECK_EVERY, ledger.wait_until_crowded(Kind::Workspace)).await;
            tokio::time::sleep(CHECKS_APART).await;
        }
    }
}
