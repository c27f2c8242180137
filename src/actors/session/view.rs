//! A session as its owner sees it.

use super::{SandboxPhase, SessionActorState};
use crate::protocol::api::{SessionLimits, SessionState, SessionView};
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::attest::isolation_line;

impl SessionActorState {
    pub(super) fn view(&self) -> SessionView {
        let wanted = &self.args.wanted;
        SessionView {
            id: self.args.id,
            name: self.args.name.clone(),
            owner: self.args.owner,
            state: match (&self.sandbox, self.queue.foremost()) {
                (SandboxPhase::None, _) => SessionState::Asleep,
                (SandboxPhase::Starting(_), _) => SessionState::Starting,
                (SandboxPhase::Ready { .. }, _) if self.frozen => SessionState::Frozen,
                (SandboxPhase::Ready { .. }, Some(_)) => SessionState::Busy,
                (SandboxPhase::Ready { .. }, None) => SessionState::Idle,
            },
            backend: self.receipt.as_ref().map_or(self.args.backend, |receipt| receipt.backend),
            image: self.receipt.as_ref().map(|receipt| receipt.image.clone()),
            python: self.receipt.as_ref().map(|receipt| receipt.python.clone()),
            isolation: self.receipt.as_deref().map(isolation_line),
            limits: SessionLimits {
                memory_bytes: wanted.memory_bytes,
                cpus: wanted.cpus,
                pids: wanted.pids,
                idle_s: self.args.idle.as_secs(),
            },
            preloaded: self.preloaded.clone(),
            workspace: self.workspace.as_ref().map(|w| w.path.display().to_string()).unwrap_or_default(),
            cells: self.cells,
            running: self.queue.foremost(),
            queued: self.queue.waiting(),
            created_at: self.args.created_at.clone(),
            idle_for_s: self.active_at.elapsed().as_secs(),
            last_event: self.log.newest(),
            load: match &self.sandbox {
                SandboxPhase::Ready { .. } => self.cgroup.as_ref().and_then(Cgroup::load),
                SandboxPhase::None | SandboxPhase::Starting(_) => None,
            },
        }
    }
}
