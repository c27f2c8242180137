//! The sessions that the supervisor owns.

use ractor::RpcReplyPort;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Semaphore;

use super::messages::ForJob;
use crate::actors::branches::beginning::Beginning;
use crate::actors::calls::Reply;
use crate::actors::directory::Directory;
use crate::actors::llm::Models;
use crate::actors::pool::Pool;
use crate::actors::session::messages::{SessionMsg, SessionRef};
use crate::actors::turns::UserTurns;
use crate::memory::Charge;
use crate::protocol::api::{NewSession, SessionView};
use crate::protocol::ids::{JobId, SessionId, SessionName};
use crate::protocol::principal::Principal;
use crate::protocol::quota::Kind;
use crate::quota::{Ledger, Permit};
use crate::sandbox::built_images::ImageUse;
use crate::sandbox::launch::Launcher;
use crate::sandbox::volumes::VolumeUse;
use crate::store::Journal;
use crate::store::snapshots::SnapshotStore;
use crate::tools;

/// The most journals that sessions of all users read at once. What is read is needed, so it may overdraw the memory of
/// its user; a few at once overdraw no machine.
pub const RESTORES_AT_ONCE: usize = 4;
/// The most clients of all users whose tools are taken at once. A client makes that as long as schemas can make it, also
/// with tools that are refused in the end.
const LENDS_AT_ONCE: usize = 4;

/// The most snapshots of all users that are taken at once: packing, compressing and writing them is work.
const SNAPSHOTS_AT_ONCE: usize = 2;

/// The name under which the data of removed sessions appears in a user's quota.
const REMOVED: &str = "removed sessions";

pub struct SupervisorArgs {
    pub journal: Journal,
    pub launcher: Arc<Launcher>,
    pub pool: Pool,
    pub tools: Arc<tools::Registry>,
    pub models: Models,
    pub ledger: Ledger,
    /// Written by the supervisor; request handlers and asks read it without asking the supervisor.
    pub directory: Directory,
    /// A place for each journal that is read at once; `RESTORES_AT_ONCE` of them.
    pub restores: Arc<Semaphore>,
    pub snapshots: SnapshotStore,
}

pub struct SupervisorState {
    pub(super) args: SupervisorArgs,
    pub(super) sessions: BTreeMap<SessionId, Entry>,
    pub(super) restore_turns: UserTurns,
    pub(super) lend_turns: UserTurns,
    pub(super) snapshot_turns: UserTurns,
    pub(super) shutting_down: Option<Vec<RpcReplyPort<()>>>,
    /// Requests for sessions that get the room of the owner's removed ones.
    pub(super) waiting: Vec<Creation>,
}

/// A request for a session.
pub(super) struct Creation {
    pub(super) id: SessionId,
    pub(super) owner: Principal,
    pub(super) request: NewSession,
    pub(super) nested: bool,
    pub(super) job: Option<ForJob>,
    pub(super) base: Option<Box<Beginning>>,
    /// The charge for the client's request, until the session has its own.
    pub(super) memory: Option<Charge>,
    pub(super) reply_to: Reply<SessionView>,
}

pub(super) struct Entry {
    pub(super) owner: Principal,
    pub(super) name: SessionName,
    /// The job that the session serves: its owner sees the job instead of the session.
    pub(super) job: Option<JobId>,
    pub(super) session: SessionRef,
    pub(super) permit: Permit,
    /// Whether the session is gone for clients, and only what is left of it is being removed.
    pub(super) is_removed: bool,
    /// The memory charged for the session's seed.
    pub(super) _seed: Charge,
    /// No volume of the session is removed while the session is there.
    pub(super) _volumes: Option<VolumeUse>,
    /// Nor is the image that it named, if its owner built that.
    pub(super) _image: Option<ImageUse>,
}

impl SupervisorState {
    pub(super) fn new(args: SupervisorArgs) -> Self {
        let restore_turns = UserTurns::new(Arc::clone(&args.restores));
        let lend_turns = UserTurns::new(Arc::new(Semaphore::new(LENDS_AT_ONCE)));
        Self {
            args,
            sessions: BTreeMap::new(),
            restore_turns,
            lend_turns,
            snapshot_turns: UserTurns::new(Arc::new(Semaphore::new(SNAPSHOTS_AT_ONCE))),
            shutting_down: None,
            waiting: Vec::new(),
        }
    }

    pub(super) fn of(&self, owner: Principal) -> impl Iterator<Item = (&SessionId, &Entry)> {
        self.sessions.iter().filter(move |(_, entry)| entry.owner == owner && entry.job.is_none())
    }

    /// Frees the name of a session that the journal has as removed. What is left of it keeps its quotas.
    pub(super) fn removed(&mut self, id: SessionId) {
        if let Some(entry) = self.sessions.get_mut(&id) {
            entry.is_removed = true;
        }
        self.args.directory.hide(id);
    }

    /// Forgets a session that leaves nothing behind, so its whole charge is released.
    pub(super) fn not_created(&mut self, id: SessionId) {
        self.args.directory.remove(id);
        if let Some(entry) = self.sessions.remove(&id) {
            let _ = entry.session.cast(SessionMsg::Remove { remover: None });
        }
        self.answer_shutdown();
    }

    /// Forgets a session whose log stays on the disk.
    pub(super) fn forget(&mut self, id: SessionId) {
        // Removed from the directory last: at any time, a reader finds the session there or its leftover
        // charge.
        if let Some(entry) = self.sessions.remove(&id) {
            entry.permit.leave(REMOVED, Kind::Journal);
        }
        self.args.directory.remove(id);
        self.answer_shutdown();
    }

    pub(super) fn forget_actor(&mut self, actor: ractor::ActorId) {
        let ended = self.sessions.iter().find(|(_, entry)| entry.session.get_id() == actor);
        if let Some(id) = ended.map(|(id, _)| *id) {
            self.forget(id);
        }
    }

    pub(super) fn answer_shutdown(&mut self) {
        if self.sessions.is_empty()
            && let Some(waiting) = &mut self.shutting_down
        {
            for reply_to in waiting.drain(..) {
                let _ = reply_to.send(());
            }
        }
    }
}
