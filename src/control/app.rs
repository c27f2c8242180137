//! The state that all handlers share.

use axum::response::Response;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio_util::sync::CancellationToken;

use super::answer_charges::AnswerCharges;
use super::caller::Caller;
use super::config_in_use::ConfigInUse;
use super::problems::ApiResult;
use super::request_slots::RequestSlots;
use super::requests_in_progress::RequestsInProgress;
use super::sse::{self, Until};
use super::user_lookup::UserLookup;
use crate::actors::directory::Directory;
use crate::actors::jobs::{Inputs, JobsMsg};
use crate::actors::llm::Models;
use crate::actors::pool::Pool;
use crate::actors::restarting_actor::RestartingActor;
use crate::actors::supervisor::messages::SupervisorRef;
use crate::config::Settings;
use crate::protocol::ids::Seq;
use crate::quota::Ledger;
use crate::sandbox::launch::Launcher;
use crate::store::snapshots::SnapshotStore;
use crate::store::{EventLog, Journal};
use crate::tools::Registry;

#[derive(Clone)]
pub struct App {
    pub supervisor: SupervisorRef,
    pub directory: Directory,
    pub jobs: RestartingActor<JobsMsg>,
    pub inputs: Inputs,
    pub launcher: Arc<Launcher>,
    /// The saved variables of all sessions.
    pub snapshots: SnapshotStore,
    pub pool: Pool,
    pub settings: Arc<Settings>,
    pub shutdown: CancellationToken,
    /// Cancelled when a client asks the daemon to stop.
    pub stop: CancellationToken,
    /// Whether the daemon also removes all sandboxes when it ends.
    pub remove_all: Arc<AtomicBool>,
    pub journal: Journal,
    pub in_work: RequestsInProgress,
    pub answer_charges: AnswerCharges,
    pub uploads: RequestSlots,
    pub models: Models,
    /// The tools of every session.
    pub tools: Arc<Registry>,
    pub ledger: Ledger,
    pub users: UserLookup,
    pub config: Arc<ConfigInUse>,
}

impl App {
    /// The settings in use, with what has changed since the daemon was started.
    pub(super) fn live(&self) -> Arc<Settings> {
        self.launcher.live.now()
    }

    /// Streams events of a session to the caller.
    pub(super) fn stream(
        &self,
        caller: &Caller,
        log: Arc<EventLog>,
        after: Seq,
        until: Until,
    ) -> ApiResult<Response> {
        let (shutdown, pool) = (self.shutdown.clone(), self.ledger.memory(caller.principal));
        Ok(sse::respond(log, after, until, shutdown, pool, None)?)
    }
}
