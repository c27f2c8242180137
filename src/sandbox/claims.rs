//! The sandboxes that belong to a session or a launch, so that the reaper does not remove them.

use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::ids::SandboxId;

/// Time between two checks whether all sandboxes are released.
const LET_GO_POLL: Duration = Duration::from_millis(20);

#[derive(Default)]
pub struct Claims {
    /// Sandboxes that this process holds or is making.
    live: Mutex<BTreeSet<SandboxId>>,
    /// Sandboxes that belong to a session by its journal, whether this process holds them at the moment or not.
    expected: Mutex<BTreeSet<SandboxId>>,
}

/// An entry in the list of live sandboxes. Dropping it removes the entry.
pub struct Claim {
    claims: Arc<Claims>,
    sandbox: SandboxId,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.live.lock().remove(&self.sandbox);
    }
}

impl Claims {
    pub fn claim(self: &Arc<Self>, sandbox: &SandboxId) -> Claim {
        self.live.lock().insert(sandbox.clone());
        Claim { claims: Arc::clone(self), sandbox: sandbox.clone() }
    }

    pub fn is_live(&self, sandbox: &str) -> bool {
        let sandbox = SandboxId(sandbox.to_owned());
        self.live.lock().contains(&sandbox) || self.expected.lock().contains(&sandbox)
    }

    pub fn expect(&self, sandbox: &SandboxId) {
        self.expected.lock().insert(sandbox.clone());
    }

    pub fn forgo(&self, sandbox: &SandboxId) {
        self.expected.lock().remove(sandbox);
    }

    /// Waits until this process holds and makes no sandbox.
    pub async fn all_let_go(&self) {
        while !self.live.lock().is_empty() {
            tokio::time::sleep(LET_GO_POLL).await;
        }
    }
}
