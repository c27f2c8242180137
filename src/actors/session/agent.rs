//! The session's part in asks: its tools, and the variables that an ask provides.

use serde_json::{Map, Value, json};
use std::sync::Arc;

use super::messages::{OwnSession, SessionMsg, SessionRef};
use super::state::Common;
use super::state::{SessionActorState, SessionArgs};
use crate::actors::asks::actor::Asks;
use crate::actors::asks::messages::AsksRef;
use crate::actors::asks::port::{LastResult, Port, PortCaller};
use crate::actors::asks::state::AsksArgs;
use crate::actors::calls::Reply;
use crate::actors::executor::messages::Command;
use crate::memory::Charge;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Backend;
use crate::protocol::tool::NewClientTools;
use crate::sandbox::kernel::files as kernel_files;
use crate::security_controls;
use crate::session::restore::RecalledAsks;
use crate::store::EventLog;
use crate::tools::{self, ClientTools, Lease, Registry, RegistryError};

pub(super) async fn spawn_asks(
    myself: &OwnSession,
    args: &SessionArgs,
    log: &Arc<EventLog>,
    clients: &ClientTools,
    common: &Common,
    before: RecalledAsks,
) -> Result<AsksRef, ractor::SpawnErr> {
    let (own, lent) = (Arc::clone(&args.tools), clients.clone());
    let (image_id, kernels) = (Arc::clone(&common.image_id), args.launcher.paths.kernel_dir());
    let packages = move || {
        let image_id = image_id.lock().clone();
        image_id.and_then(|id| kernel_files::packages(&kernels, &id)).unwrap_or_default()
    };
    Asks::spawn(AsksArgs {
        session: myself.clone(),
        supervisor: args.supervisor.clone(),
        directory: args.directory.clone(),
        id: args.id,
        name: args.name.clone(),
        owner: args.owner,
        accounts: args.launcher.accounts.clone(),
        quotas: args.ledger.clone(),
        log: Arc::clone(log),
        settings: args.launcher.live.clone(),
        models: args.models.clone(),
        tools: Arc::new(move || lent.added_to(&own)),
        packages: Arc::new(packages),
        image: args.wanted.image.name().map(ToOwned::to_owned),
        // `Backend::Process`, the only backend without isolation, is used only if the request names it.
        contained: args.backend != Backend::Process,
        before,
    })
    .await
}

/// Notifies the session whenever a client starts or stops lending tools.
pub(super) fn watch_clients(myself: &SessionRef, clients: &ClientTools) {
    let (session, mut changes) = (myself.clone(), clients.changes());
    tokio::spawn(async move {
        while changes.changed().await.is_ok() {
            if session.cast(SessionMsg::ToolsChanged).is_err() {
                return;
            }
        }
    });
}

impl SessionActorState {
    pub(super) fn tools(&self) -> Arc<Registry> {
        self.clients.added_to(&self.args.tools)
    }

    pub(super) fn port(&self) -> Port {
        let live = &self.args.launcher.live;
        Port {
            session: self.myself.clone(),
            asks: self.asks.clone(),
            supervisor: self.args.supervisor.clone(),
            directory: self.args.directory.clone(),
            owner: self.args.owner,
            accounts: self.args.launcher.accounts.clone(),
            language: live.now().agent.language,
            image: self.args.wanted.image.name().map(ToOwned::to_owned),
            settings: live.clone(),
            last_result: LastResult::default(),
            caller: PortCaller::Model(None),
        }
    }

    pub(super) fn tool_context(&self) -> tools::Context {
        let wanted = &self.args.wanted;
        tools::Context::new(json!({
            "session": self.args.name,
            "workspace": crate::sandbox::spec::WORKSPACE,
            "memory_bytes": wanted.memory_bytes,
            "cpus": wanted.cpus,
            "pids": wanted.pids,
            "network": "none",
            "cell_timeout_s": self.args.launcher.settings.cells.timeout.as_secs_f64(),
        }))
    }

    pub(super) fn seed(&mut self, values: Map<String, Value>, anew: bool) {
        let names: Vec<String> = if anew { values.keys().cloned().collect() } else { Vec::new() };
        self.saving.states.gives(names.iter());
        self.args.seed.extend(values);
        self.configure(names);
    }

    /// Sends the present seed and tools to the kernel; its present worker assigns the variables named in
    /// `given`.
    pub(super) fn configure(&self, given: Vec<String>) {
        let (seed, tools) = (self.args.seed.clone(), self.tools());
        self.command(Command::Configure { seed, tools, given });
    }

    /// Defers requests about the sandbox until the earlier sandbox is attached or found to be gone, because
    /// its state is unknown until then.
    pub(super) fn ready_for(&mut self, message: SessionMsg) -> Option<SessionMsg> {
        let about_sandbox = matches!(
            message,
            SessionMsg::Undo { .. }
                | SessionMsg::Freeze { .. }
                | SessionMsg::Receipt { .. }
                | SessionMsg::Interrupt { .. }
        );
        if about_sandbox && self.machine.is_attaching() && !self.machine.is_ending() {
            self.defer(message, usize::MAX);
            return None;
        }
        // The start of a sandbox is written down. A cell was checked and charged when it was queued.
        let wants_sandbox = matches!(
            message,
            SessionMsg::Variables { .. } | SessionMsg::Compute { .. } | SessionMsg::Install(_)
        );
        if wants_sandbox
            && self.executor.is_none()
            && let Err(problem) = self.can_write()
        {
            message.refuse(problem);
            return None;
        }
        Some(message)
    }

    /// Keeps a request until there is a sandbox, unless more than `most` wait already. A request whose client is gone
    /// is dropped when another comes, so that the connections of clients bound the number of those that wait.
    pub(super) fn defer(&mut self, message: SessionMsg, most: usize) -> bool {
        self.deferred.retain(|waiting| {
            !waiting.is_forsaken() || !security_controls::holds("requests_keep_their_charge")
        });
        let has_room = self.deferred.len() < most;
        if has_room {
            self.deferred.push(message);
        } else {
            let problem = Problem::new(Code::Busy, "the session has no sandbox yet");
            message.refuse(problem.hint("try again when it is there"));
        }
        has_room
    }

    /// Handles the requests that waited for a sandbox.
    pub(super) fn resume_deferred(&mut self) {
        for message in std::mem::take(&mut self.deferred) {
            let _ = self.myself.any_generation().cast(message);
        }
    }

    pub(super) fn refuse_deferred(&mut self, problem: &Problem) {
        for message in std::mem::take(&mut self.deferred) {
            message.refuse(problem.clone());
        }
    }

    /// Takes the tools of a client, one client of the owner at a time. Their schemas are compiled on a blocking thread.
    pub(super) fn lend(&self, new: NewClientTools, memory: Charge, reply_to: Reply<Lease>) {
        let (clients, others) = (self.clients.clone(), Arc::clone(&self.args.tools));
        let (turn, pool) = (self.args.lend_turn.clone(), self.args.ledger.memory(self.args.owner));
        let session = self.myself.any_generation().clone();
        tokio::spawn(async move {
            let turn = turn.take().await;
            if reply_to.is_closed() {
                return;
            }
            let register = move || clients.register(new, &others, &pool);
            let registered = tokio::task::spawn_blocking(register).await;
            drop((turn, memory));
            // Without an answer the caller learns that the request was lost.
            if let Ok(registered) = registered {
                // Told before the client knows, so that the cell that it sends next finds the tools.
                let _ = session.cast(SessionMsg::ToolsChanged);
                let _ = reply_to.send(registered.map_err(not_lent));
            }
        });
    }
}

fn not_lent(error: RegistryError) -> Problem {
    let problem = Problem::new(Code::BadRequest, error.to_string());
    match error {
        RegistryError::NoRoom(no_room) => no_room.into(),
        RegistryError::Collision(_) => problem.hint(
            "call it otherwise; names of Belljar's own tools are taken also where these are not allowed",
        ),
        RegistryError::BadName(_) | RegistryError::BadSchema { .. } | RegistryError::Unknown { .. } => {
            problem
        }
    }
}
