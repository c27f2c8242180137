//! The sandbox of a session, from its workspace to its end, and the events about it.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

use super::journal_waits::RemovalRecord;
use super::messages::{Handles, OwnSession, SessionMsg, WakeOutcome};
use super::refusals::base_is_lost;
use super::sandbox_place::make_place;
use super::snapshots::CHANGED;
use super::state::{SessionActorState, SessionArgs};
use crate::actors::calls::Reply;
use crate::actors::executor::actor::Executor;
use crate::actors::executor::messages::ExecutorMsg;
use crate::actors::executor::state::ExecutorArgs;
use crate::actors::launch::SandboxPlace;
use crate::actors::supervisor::messages::SupervisorMsg;
use crate::bridge::FrameGuard;
use crate::protocol::api::{SessionState, SessionView, VariableList};
use crate::protocol::event::EventBody;
use crate::protocol::exit_codes::signal_name;
use crate::protocol::frames::{LiveResources, StateAfter};
use crate::protocol::preload::Preloaded;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::receipt::{ImageFact, Receipt};
use crate::quota::{Permit, SharedPermit};
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::attest::isolation_line;
use crate::sandbox::launch::WantedImage;
use crate::session::machine::{Input, Phase};
use crate::session::notices;
use crate::session::outcome;
use crate::store::SessionRecord;

/// How long the folder of a restored session that was refused as a workspace is left alone.
const REFUSED_PLACE_PAUSE: Duration = Duration::from_secs(10);

impl SessionArgs {
    /// The arguments of the next generation, in which no caller waits for the creation any more.
    pub(super) fn again(&self) -> Self {
        Self {
            id: self.id,
            name: self.name.clone(),
            owner: self.owner,
            journal: self.journal.clone(),
            request: self.request.clone(),
            created_at: self.created_at.clone(),
            ledger: self.ledger.clone(),
            gauge: self.gauge.clone(),
            permit: None,
            nested: self.nested,
            supervisor: self.supervisor.clone(),
            directory: self.directory.clone(),
            launcher: Arc::clone(&self.launcher),
            pool: self.pool.clone(),
            tools: Arc::clone(&self.tools),
            models: self.models.clone(),
            wanted: self.wanted.clone(),
            backend: self.backend,
            workspace: self.workspace.clone(),
            idle: self.idle,
            seed: self.seed.clone(),
            job: self.job,
            preload: self.preload.clone(),
            labels: self.labels.clone(),
            volumes: self.volumes.clone(),
            mounts: self.mounts.clone(),
            ephemeral: self.ephemeral,
            lingers: self.lingers,
            lazy: self.lazy,
            carried: self.carried.clone(),
            packages_use: self.packages_use.clone(),
            policy: self.policy,
            snapshots: self.snapshots.clone(),
            snapshot_turn: self.snapshot_turn.clone(),
            base: None,
            restore_turn: self.restore_turn.clone(),
            lend_turn: self.lend_turn.clone(),
            restored: self.restored.clone(),
            created: None,
            before: self.before,
        }
    }

    pub(super) fn record(&self) -> SessionRecord {
        SessionRecord {
            id: self.id,
            owner: self.owner,
            name: self.name.clone(),
            created_at: self.created_at.clone(),
            request: self.request.clone(),
            job: self.job,
            slot: None,
        }
    }
}

impl SessionActorState {
    pub(super) fn is_current(&self, executor: ractor::ActorId) -> bool {
        self.executor.as_ref().is_some_and(|current| current.get_id() == executor)
    }

    pub(super) fn start_sandbox(&mut self) -> Result<(), Problem> {
        let unplaced = || Problem::new(Code::Internal, "a sandbox without a workspace");
        let workspace = self.workspace.clone().ok_or_else(unplaced)?;
        self.saving.late_reset = None;
        let attach = self.take_attach();
        let permit = self.sandbox_permit(attach.is_some())?;
        if attach.is_none() {
            let image = self.args.wanted.image.name().unwrap_or("default").to_owned();
            self.log.append(EventBody::SandboxStarting { backend: workspace.choice.backend, image });
        }
        let args = ExecutorArgs {
            session: self.myself.clone(),
            launcher: Arc::clone(&self.args.launcher),
            workspace,
            wanted: self.args.wanted.clone(),
            seed: self.args.seed.clone(),
            preload: self.args.preload.clone(),
            tools: self.tools(),
            asks: self.asks.clone(),
            context: self.tool_context(),
            port: self.port(),
            client_rules: Arc::clone(&self.client_rules),
            inherited: self.inherited(),
            recorder: Arc::clone(&self.recorder),
            log: Arc::clone(&self.log),
            ready: self.ready_ahead.take().filter(|_| attach.is_none()),
            attach,
            permit: Some(SharedPermit::new(permit)),
            gauge: self.args.workspace.is_none().then(|| self.args.gauge.clone()),
            memory: self.args.ledger.memory(self.args.owner),
            owner: self.args.owner,
            ledger: self.args.ledger.clone(),
            packages: self.packages.set.clone(),
            packages_use: self.args.packages_use.clone(),
            snapshots: self.args.snapshots.clone(),
            wakes: self.wakes(),
            too_slow: self.rebuilding.too_slow().map(str::to_owned),
            restore_turn: self.args.restore_turn.clone(),
        };
        let no_executor = |error| Problem::new(Code::Internal, format!("no executor: {error}"));
        self.executor = Some(Executor::spawn(args).map_err(no_executor)?);
        Ok(())
    }

    /// The memory and CPUs of a sandbox while it exists. A sandbox of an earlier daemon has them already.
    fn sandbox_permit(&mut self, attached: bool) -> Result<Permit, Problem> {
        if let Some(permit) = self.args.permit.take() {
            return Ok(permit);
        }
        let amounts = self.args.wanted.amounts(&self.args.launcher.settings.sandbox);
        let (owner, name) = (self.args.owner, self.args.name.as_str());
        if attached {
            return Ok(self.args.ledger.keep(owner, name, amounts));
        }
        Ok(self.args.ledger.take(owner, name, amounts)?)
    }

    /// Measures the workspace while there is no sandbox whose executor would do so.
    pub(super) fn measure_workspace(&self) {
        let Some(workspace) = self.workspace.clone().filter(|_| self.args.workspace.is_none()) else {
            return;
        };
        let (gauge, most) = (self.args.gauge.clone(), self.args.launcher.settings.sandbox.workspace_bytes);
        tokio::spawn(async move {
            match workspace.measure().await {
                Ok(Ok((folder, _))) => {
                    let _ = folder.record(most, |counted| gauge.measure(Kind::Workspace, counted));
                }
                Ok(Err(error)) => tracing::warn!(%error, "a workspace cannot be measured"),
                Err(problem) => tracing::warn!(problem = problem.message, "a workspace cannot be measured"),
            }
        });
    }

    pub(super) fn placed(&mut self, outcome: Result<SandboxPlace, Problem>) {
        match outcome {
            Ok(SandboxPlace { workspace, slot, ready, later }) => {
                self.workspace = Some(Arc::new(workspace));
                (self.slot, self.ready_ahead) = (slot, ready);
                if self.args.before.is_some() {
                    self.is_placed();
                    return;
                }
                self.measure_workspace();
                self.give_handles();
                if !self.machine.is_ending() {
                    let made = EventBody::SessionCreated { name: self.args.name.to_string() };
                    let created = if later.is_some() { self.args.created.take() } else { None };
                    if let Some((image, created)) = later.zip(created) {
                        self.begin_without_sandbox(&image, made, created);
                    } else {
                        self.log.append(made);
                        self.note_base();
                    }
                    if let Some(set) = self.args.carried.packages.take() {
                        let (set, cached, resets) = (Box::new(set), true, false);
                        self.log.append(EventBody::PackagesInstalled { set, cached, resets });
                    }
                }
                // The files are in the workspace.
                self.args.carried.files = None;
                self.apply(Input::Placed);
            }
            Err(problem) => {
                for reply_to in std::mem::take(&mut self.waiting_for_handles) {
                    let _ = reply_to.send(Err(problem.clone()));
                }
                self.refuse_deferred(&problem);
                if self.args.before.is_some() {
                    // The engine may not be reachable yet. Until it is, the session keeps its past.
                    tracing::warn!(session = %self.args.id, problem = problem.message, "a session cannot go on yet");
                    // A folder that is refused stays so until its owner changes it, and looking at it is work.
                    if problem.code == Code::Forbidden {
                        self.place_again = Some(Instant::now() + REFUSED_PLACE_PAUSE);
                    }
                } else {
                    let failed = self.sandbox_failed(problem);
                    self.apply(failed);
                }
            }
        }
    }

    /// Answers the request that created a session whose sandbox is started by what needs one first.
    fn begin_without_sandbox(&mut self, image: &ImageFact, made: EventBody, created: Reply<SessionView>) {
        self.common.image_is(&image.id);
        self.args.wanted.first_image = Some(image.clone());
        // The room of a sandbox is taken when there is one.
        self.args.permit = None;
        if self.deferred.is_empty() {
            self.machine.begin_without_sandbox();
        }
        let myself = self.myself.clone();
        let log = Arc::clone(&self.log);
        let _together = log.together();
        self.is_made(&myself, made, SessionState::Asleep, created);
        self.note_base();
    }

    /// The workspace of a restored session is ready, so the session can continue.
    pub(super) fn is_placed(&mut self) {
        self.measure_workspace();
        self.give_handles();
        let attaches = self.machine.is_attaching();
        if !attaches {
            self.restored = None;
        }
        self.apply(Input::Placed);
        if !attaches {
            self.resume_deferred();
        }
    }

    fn give_handles(&mut self) {
        for reply_to in std::mem::take(&mut self.waiting_for_handles) {
            if let Some(handles) = self.handles() {
                let _ = reply_to.send(Ok(handles));
            }
        }
    }

    pub(super) fn handles(&self) -> Option<Handles> {
        let gauge = self.args.workspace.is_none().then(|| self.args.gauge.clone());
        self.workspace.clone().map(|workspace| Handles { log: Arc::clone(&self.log), workspace, gauge })
    }

    pub(super) fn sandbox_ready(
        &mut self,
        myself: &OwnSession,
        receipt: Receipt,
        preloaded: Option<Preloaded>,
        woken: Option<WakeOutcome>,
    ) {
        if self.machine.phase() != Phase::Starting {
            return;
        }
        let ready = EventBody::SandboxReady {
            backend: receipt.backend,
            image: receipt.image.clone(),
            python: receipt.python.clone(),
            isolation: isolation_line(&receipt),
            receipt: Box::new(receipt.clone()),
            preloaded: preloaded.clone(),
        };
        self.preloaded = preloaded;
        self.args.launcher.expect(&receipt.sandbox);
        self.cgroup = Cgroup::of_sandbox(&receipt);
        self.common.image_is(&receipt.image.id);
        self.receipt = Some(Arc::new(receipt));
        self.keep_image();
        // With one commit: a sandbox with the variables of a snapshot is never taken for one without.
        let log = Arc::clone(&self.log);
        let _together = log.together();
        self.saving.states.take(&ready);
        match self.args.created.take() {
            Some(created) => self.is_made(myself, ready, SessionState::Idle, created),
            None => {
                self.log.append(ready);
            }
        }
        let reset = self.saving.late_reset.take();
        if let Some(woken) = woken {
            self.woken(woken, reset.is_some());
        }
        if reset.is_none() {
            // Where it could not be loaded, the replay knows already.
            self.base_is_there(Ok(()));
        }
        if let Some(reset) = reset {
            self.saving.states.take(&reset);
            self.log.append(reset);
            self.reset_late();
        }
        self.apply(Input::SandboxReady);
        if self.saving.states.is_unsaved() {
            // The snapshot was removed while it was loaded.
            self.apply(Input::Unsaved);
        }
        self.rebuild();
    }

    /// Answers the request that created the session, once the event that says so is written.
    fn is_made(
        &self,
        myself: &OwnSession,
        made: EventBody,
        state: SessionState,
        created: Reply<SessionView>,
    ) {
        let view = SessionView { state, ..self.view() };
        let session = myself.any_generation().clone();
        let late = self.log.unwritten("the session was not made");
        let (journal, id) = (self.args.journal.clone(), self.args.id);
        // Without this event the next daemon considers the session as never made, and removes it.
        self.append_and(made, move |is_written| {
            if is_written {
                let _ = created.send(Ok(view));
                return;
            }
            // The event still gets into the journal when the disk works again. So the removal is recorded
            // before the client learns that there is no session: only then are its name and its idempotency
            // key free for the next attempt.
            let mut noted = RemovalRecord::begin(&journal, id);
            tokio::spawn(async move {
                noted.is_written().await;
                let _ = session.cast(SessionMsg::Remove { remover: None });
                let _ = created.send(Err(late));
            });
        });
    }

    /// Fixes the image of the session, because the default image may change.
    pub(super) fn keep_image(&mut self) {
        if let Some(receipt) = &self.receipt {
            if self.args.wanted.image == WantedImage::Any {
                self.args.wanted.image = WantedImage::Named(receipt.image.reference.clone());
            }
            self.args.wanted.first_image.get_or_insert_with(|| receipt.image.clone());
        }
    }

    /// Handles that the sandbox could not be started, and gives the machine's input for it.
    pub(super) fn sandbox_failed(&mut self, problem: Problem) -> Input<Reply<VariableList>> {
        self.executor = None;
        self.base_is_there(Err(problem.clone()));
        self.refuse_deferred(&problem);
        if let Some(created) = self.args.created.take() {
            // The session never existed for a client: its name and its resources are free before the caller
            // learns of it.
            self.args.permit = None;
            let (id, problem) = (self.args.id, problem);
            let (supervisor, journal) = (self.args.supervisor.clone(), self.args.journal.clone());
            tokio::spawn(async move {
                RemovalRecord::begin(&journal, id).is_written().await;
                let _ = supervisor.cast(SupervisorMsg::NotCreated { id, problem, reply_to: created });
            });
            return Input::Remove;
        }
        Input::SandboxFailed(problem)
    }

    /// Gives up the session's claim to the sandbox; its remains are left to the reaper.
    pub(super) fn forgo_sandbox(&mut self) {
        self.executor = None;
        self.base_is_there(Err(base_is_lost()));
        self.rebuilding.stop();
        self.give_up_snapshots(CHANGED);
        self.counters = Arc::default();
        if let Some(receipt) = &self.receipt {
            self.args.launcher.forgo(&receipt.sandbox);
        }
    }

    pub(super) fn worker_replaced(
        &mut self,
        exit_code: i32,
        after: StateAfter,
        gone: LiveResources,
        frame_guard: &FrameGuard,
    ) {
        let by_signal = signal_name(exit_code).filter(|_| exit_code < 0);
        let how = by_signal.unwrap_or_else(|| format!("exit code {exit_code}"));
        let reason = format!("the process that held the variables ended between cells ({how})");
        let restored_to = match after {
            StateAfter::Restored(cell) => Some(cell),
            StateAfter::Kept | StateAfter::Lost => None,
        };
        let gone = outcome::gone(gone);
        let note = notices::worker_replaced(&reason, restored_to, gone.as_deref());
        let lost = EventBody::StateLost { reason, restored_to, gone };
        self.give_up_snapshots(CHANGED);
        self.saving.states.take(&lost);
        self.log.append_then(lost, self.applied(frame_guard), || {});
        self.apply(Input::Changed { note });
    }

    pub(super) fn tick(&mut self, myself: &OwnSession) {
        if self.workspace.is_none()
            && !self.machine.is_ending()
            && self.args.before.is_some()
            && self.making.as_ref().is_none_or(JoinHandle::is_finished)
            && self.looks_for_its_place()
        {
            self.making = Some(make_place(myself, &self.args, self.receipt.as_deref()));
        }
        if self.is_forsaken() {
            self.remove(myself, None);
            return;
        }
        if self.is_being_saved_for_a_client() {
            // Whoever waits for a snapshot uses the session.
            self.touch();
        } else {
            self.apply(Input::Tick);
        }
    }

    /// Whether only idleness and age are to be checked.
    pub(super) fn waits_for_nothing(&self) -> bool {
        self.workspace.is_some() && self.args.created.is_none() && !self.args.ephemeral
    }

    /// Whether a refused workspace is looked at again: after a pause, or at once for a caller who waits for the answer.
    fn looks_for_its_place(&self) -> bool {
        self.place_again.is_none_or(|then| then <= Instant::now())
            || !self.waiting_for_handles.is_empty()
            || !self.deferred.is_empty()
    }

    /// Removes a sandbox that is no longer used.
    pub(super) fn end_sandbox(&mut self) {
        let executor = self.executor.take();
        self.forgo_sandbox();
        let session = self.args.id;
        tokio::spawn(async move {
            let Some(executor) = executor else { return };
            let ended = executor.call(|reply_to| ExecutorMsg::Shutdown { reply_to }, None).await;
            tracing::debug!(%session, ok = ended.is_ok(), "an idle sandbox was removed");
        });
    }
}
