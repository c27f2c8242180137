//! A session as its owner sees it.

use std::time::Instant;

use super::state::{SessionActorState, SessionArgs};
use crate::protocol::api::{SessionLimits, SessionState, SessionView};
use crate::protocol::ids::CellNumber;
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::attest::isolation_line;
use crate::session::machine::Phase;

impl SessionActorState {
    /// The cell after which the variables were saved that a sleeping session wakes with.
    fn wakes_as_after(&self) -> Option<CellNumber> {
        let states = &self.saving.states;
        let latest = states.latest().filter(|_| self.machine.phase() == Phase::None && self.wakes())?;
        // What a session began with is of before its first cell, whatever cell of another session made it.
        let is_base = states.base().is_some_and(|base| base.id == latest.id);
        Some(if is_base { 0 } else { latest.cell })
    }

    pub(super) fn view(&self) -> SessionView {
        let queue = self.machine.queue();
        SessionView {
            id: self.args.id,
            name: self.args.name.clone(),
            owner: self.args.owner,
            state: match (self.machine.phase(), queue.foremost()) {
                (Phase::None, _) => SessionState::Asleep,
                (Phase::Starting, _) => SessionState::Starting,
                (Phase::Ready { .. }, _) if self.machine.is_frozen() => SessionState::Frozen,
                (Phase::Ready { .. }, Some(_)) => SessionState::Busy,
                (Phase::Ready { .. }, None) => SessionState::Idle,
            },
            backend: match (&self.receipt, &self.workspace) {
                (Some(receipt), _) => receipt.backend,
                (None, Some(workspace)) => workspace.choice.backend,
                (None, None) => self.args.backend,
            },
            image: self.receipt.as_ref().map(|receipt| receipt.image.clone()),
            python: self.receipt.as_ref().map(|receipt| receipt.python.clone()),
            isolation: self.receipt.as_deref().map(isolation_line),
            limits: self.args.limits(),
            preloaded: self.preloaded.clone(),
            labels: self.args.labels.clone(),
            env: self.args.wanted.env.keys().cloned().collect(),
            volumes: self.args.volumes.clone(),
            mounts: self.args.mounts.clone(),
            workspace: self.workspace.as_ref().map(|w| w.path.display().to_string()).unwrap_or_default(),
            cells: self.machine.cells(),
            running: queue.foremost(),
            queued: queue.waiting(),
            wakes_as_after: self.wakes_as_after(),
            created_at: self.args.created_at.clone(),
            idle_for_s: self.machine.idle_for(Instant::now()).as_secs(),
            last_event: self.log.newest(),
            load: self.cgroup.as_ref().filter(|_| self.machine.is_ready()).and_then(Cgroup::load),
        }
    }
}

impl SessionArgs {
    /// The view of an earlier session that has not started in this daemon, from its record.
    pub(in crate::actors) fn parked_view(&self) -> SessionView {
        SessionView {
            id: self.id,
            name: self.name.clone(),
            owner: self.owner,
            state: SessionState::Parked,
            backend: self.backend,
            image: None,
            python: None,
            isolation: None,
            limits: self.limits(),
            preloaded: None,
            labels: self.labels.clone(),
            env: self.wanted.env.keys().cloned().collect(),
            volumes: self.volumes.clone(),
            mounts: self.mounts.clone(),
            workspace: self.workspace.clone().unwrap_or_default(),
            cells: 0,
            running: None,
            queued: 0,
            wakes_as_after: None,
            created_at: self.created_at.clone(),
            idle_for_s: 0,
            last_event: 0,
            load: None,
        }
    }

    fn limits(&self) -> SessionLimits {
        SessionLimits {
            memory_bytes: self.wanted.memory_bytes,
            checkpoint_bytes: self.wanted.memory_in_all(&self.launcher.settings.sandbox)
                - self.wanted.memory_bytes,
            cpus: self.wanted.cpus,
            pids: self.wanted.pids,
            idle_s: self.idle.as_secs(),
        }
    }
}
