//! Makes sessions that begin with a snapshot of another one.

use std::sync::Arc;

use super::beginning::{Beginning, Carried};
use crate::actors::calls::try_call;
use crate::actors::directory::Directory;
use crate::actors::session::messages::SessionMsg;
use crate::actors::session::restore;
use crate::actors::snapshots::{RoomOnDisk, SessionBase, SnapshotRoom};
use crate::actors::supervisor::messages::{SupervisorMsg, SupervisorRef};
use crate::config::Settings;
use crate::protocol::api::{NewSession, SessionView};
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{SessionId, SessionName};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::saved_state::{BaseSource, BoundRules};
use crate::protocol::snapshot::SnapshotRecord;
use crate::quota::Ledger;
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::store::snapshots::{SnapshotCharge, SnapshotError, SnapshotLimits, SnapshotStore};
use crate::store::{Journal, Overdraft};

/// The name of the snapshot in its user's quota, as long as its session has none.
const NAME: &str = "variables of a new session";

/// What it takes to make such sessions.
#[derive(Clone)]
pub struct SessionMaker {
    pub supervisor: SupervisorRef,
    pub directory: Directory,
    pub launcher: Arc<Launcher>,
    pub settings: Arc<Settings>,
    pub ledger: Ledger,
    pub journal: Journal,
    pub snapshots: SnapshotStore,
}

/// Puts a snapshot into the store for a new session.
pub(super) type PutSnapshot = Box<
    dyn FnOnce(
            &SnapshotStore,
            SessionId,
            SnapshotLimits,
            Arc<dyn SnapshotCharge>,
        ) -> Result<SnapshotRecord, SnapshotError>
        + Send,
>;

/// What a new session begins with of another one.
pub(super) struct NewBase {
    pub source: BaseSource,
    /// The rules of all code that comes from there.
    pub bound: BoundRules,
    /// Puts the variables in place; none if the session begins without any.
    pub put: Option<PutSnapshot>,
}

impl SessionMaker {
    pub(super) fn limits(&self) -> SnapshotLimits {
        let most = self.settings.snapshots.max_bytes;
        SnapshotLimits { bytes: most, stored_bytes: most }
    }

    /// Makes a session. Its snapshot is in the store, and charged, before the session is; the session takes the charge
    /// over.
    pub(super) async fn make(
        &self,
        owner: Principal,
        request: NewSession,
        carried: Carried,
        base: Option<NewBase>,
    ) -> Result<SessionView, Problem> {
        let id = SessionId::fresh();
        let by = request.name.as_ref().map_or(NAME, SessionName::as_str);
        let room = Arc::new(SnapshotRoom::keep(&self.ledger, owner, by, 0));
        let base = match base {
            None => None,
            Some(NewBase { source, bound, put }) => {
                let snapshot = match put {
                    None => None,
                    Some(put) => Some(self.put(owner, id, &room, put).await?),
                };
                Some(SessionBase { source, snapshot, bound, room })
            }
        };
        let message = |reply_to| SupervisorMsg::Create {
            id,
            owner,
            request: Box::new(request),
            nested: false,
            job: None,
            base: Some(Box::new(Beginning { variables: base, carried })),
            memory: None,
            reply_to,
        };
        let made = try_call(&self.supervisor, message).await;
        if made.is_err() {
            self.drop_snapshots(id).await;
        }
        made
    }

    /// A refusal if a new session could not load the variables that it was to begin with. It has begun without them, which is
    /// not what was asked for.
    pub(super) async fn check_loaded(&self, owner: Principal, view: &SessionView) -> Result<(), Problem> {
        let made = self.directory.find(owner, &view.id.to_string(), false);
        let gone = || Problem::new(Code::NoSuchSession, "the session has just ended");
        let session = made.ok_or_else(gone)?.session;
        let handles = try_call(&session, |reply_to| SessionMsg::Handles { reply_to }).await?;
        let log = &handles.log;
        let take = |failed: &mut Option<String>, event: Event| {
            if let EventBody::WakeFailed { reason, .. } = event.body {
                *failed = Some(reason);
            }
            Ok(())
        };
        match restore::fold(log, (0, log.newest()), Overdraft::Refused, None, take).await? {
            None => Ok(()),
            Some(reason) => Err(Problem::new(
                Code::SnapshotFailed,
                format!("the variables with which the session was to begin could not be loaded: {reason}"),
            )
            .hint("see whether its image and its packages are those that the variables were made with")),
        }
    }

    /// Puts the variables of a new session into the store, on a thread of their owner.
    async fn put(
        &self,
        owner: Principal,
        id: SessionId,
        room: &Arc<SnapshotRoom>,
        put: PutSnapshot,
    ) -> Result<SnapshotRecord, Problem> {
        let (store, limits) = (self.snapshots.clone(), self.limits());
        let charge = RoomOnDisk::new(room, &self.launcher);
        let placed = folders::run(owner, WorkKind::Transfer, None, move || {
            charge.check()?;
            put(&store, id, limits, Arc::new(charge)).map_err(Problem::from)
        });
        let placed = placed.await.and_then(|placed| placed);
        if placed.is_err() {
            self.drop_snapshots(id).await;
        }
        placed
    }

    async fn drop_snapshots(&self, id: SessionId) {
        let store = self.snapshots.clone();
        let removed = tokio::task::spawn_blocking(move || store.remove_session(id)).await;
        if let Ok(Err(error)) = removed {
            tracing::warn!(%error, session = %id, "the snapshot of a session that was not made is left to the next start");
        }
    }

    /// Removes a session that was made, because something else failed.
    pub(super) fn take_back(&self, owner: Principal, view: &SessionView) {
        if let Some(made) = self.directory.find(owner, &view.id.to_string(), false) {
            let _ = made.session.cast(SessionMsg::Remove { remover: None });
        }
    }
}
