//! Starts the actors of sessions: of new ones, and of those that an earlier daemon left.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use super::admission::Admitted;
use super::messages::{SupervisorMsg, SupervisorRef};
use super::state::{Creation, Entry, SupervisorState};
use crate::actors::amounts;
use crate::actors::branches::beginning::Beginning;
use crate::actors::calls::Reply;
use crate::actors::directory::{ListedSession, RestoringSession};
use crate::actors::journal_charges::seed_bytes;
use crate::actors::session::actor::Session;
use crate::actors::session::journal_waits::{RemovalRecord, forget};
use crate::actors::session::state::{PriorSession, SessionArgs};
use crate::actors::snapshots::{SessionSnapshots, SnapshotRoom};
use crate::memory::{Charge, MemoryPurpose};
use crate::protocol::api::{NewSession, SessionView};
use crate::protocol::clock;
use crate::protocol::ids::{JobId, SessionId, SessionName, VolumeName};
use crate::protocol::preload::Preload;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::saved_state::SnapshotPolicy;
use crate::quota::Permit;
use crate::sandbox::built_images::ImageUse;
use crate::sandbox::launch::SandboxRequest;
use crate::sandbox::packages::SessionUse;
use crate::sandbox::volumes::VolumeUse;
use crate::security_controls;
use crate::store::{JournalError, SessionRecord};

/// The most requests of all users that wait for the end of removed sessions.
const CREATIONS_WAITING: usize = 256;

/// What a new session has, but a restored one does not.
struct Begin {
    reply_to: Reply<SessionView>,
    first: Permit,
    seed: Charge,
    nested: bool,
    volumes: VolumeUse,
    image: Option<ImageUse>,
    base: Option<Box<Beginning>>,
}

/// Where a session comes from.
enum Origin {
    New(Box<Begin>),
    /// An earlier daemon had it; its snapshots take so much of the disk.
    Earlier {
        stored_bytes: u64,
    },
}

impl SupervisorState {
    /// Makes a session, or refuses it. One for which only the quota has no room waits for the end of the owner's removed
    /// sessions, so that a client can remove one and make another at once.
    pub(super) fn create(&mut self, myself: &SupervisorRef, creation: Creation) {
        let Creation { id, owner, request, nested, job, base, memory, reply_to } = creation;
        let (job, sandbox_permit) = job.map_or((None, None), |job| (Some(job.id), job.sandbox_permit));
        let admitted = self.admit(id, owner, &request, job, sandbox_permit);
        let Admitted { name, wanted, idle, permit, first, seed, image } = match admitted {
            Ok(admitted) => admitted,
            Err(problem) => {
                if problem.code == Code::QuotaExceeded && job.is_none() && self.may_wait(owner) {
                    self.waiting.push(Creation {
                        id,
                        owner,
                        request,
                        nested,
                        job: None,
                        base,
                        memory,
                        reply_to,
                    });
                } else {
                    let _ = reply_to.send(Err(problem));
                }
                return;
            }
        };
        let volumes = match self.use_volumes(owner, id, &name, &request) {
            Ok(volumes) => volumes,
            Err(problem) => {
                let _ = reply_to.send(Err(problem));
                return;
            }
        };
        let record = SessionRecord {
            id,
            owner,
            name,
            created_at: clock::now(),
            request: serde_json::to_value(&request).unwrap_or_default(),
            job,
            slot: None,
        };
        self.spawn_session(
            myself,
            record,
            request,
            (wanted, idle),
            permit,
            Origin::New(Box::new(Begin { reply_to, first, seed, nested, volumes, image, base })),
        );
    }

    /// Whether a removed session of the user still holds what a new one needs.
    fn may_wait(&self, owner: Principal) -> bool {
        self.waiting.len() < CREATIONS_WAITING && self.of(owner).any(|(_, entry)| entry.is_removed)
    }

    /// Tries the requests again that wait for room, because a session has ended.
    pub(super) fn create_waiting(&mut self, myself: &SupervisorRef) {
        for creation in std::mem::take(&mut self.waiting) {
            self.create(myself, creation);
        }
    }

    /// Restores the sessions of the earlier daemon.
    pub(super) async fn restore(&mut self, myself: &SupervisorRef) -> Result<(), JournalError> {
        let today = clock::today();
        for spent in self.args.journal.tokens_of_day(&clock::now())? {
            self.args.ledger.spend(spent.owner, today, &spent.by, spent.tokens);
        }
        let records = self.args.journal.sessions()?;
        // The reaper removes sandboxes that are not expected, so they are expected before a session can fail.
        for record in records.iter().filter(|_| security_controls::holds("sandboxes_are_expected_first")) {
            for sandbox in self.args.journal.sandboxes(record.id)? {
                self.args.launcher.expect(&sandbox);
            }
        }
        // Reserved first, so that no session gets the user id of a session that is restored later.
        let slots = &self.args.launcher.slots;
        let _kept: Vec<_> = records.iter().filter_map(|record| Some(slots.keep(record.slot?))).collect();
        let stored = self.stored_snapshots(records.iter().map(|record| record.id).collect()).await;
        let mut unmade = Vec::new();
        for record in records {
            if !self.args.journal.was_ready(record.id)? {
                // The daemon ended while it made this session, so no client knows of it.
                RemovalRecord::begin(&self.args.journal, record.id).is_written().await;
                forget(&self.args.journal, record.id);
                unmade.push(record.id);
                continue;
            }
            let request: NewSession = serde_json::from_value(record.request.clone()).unwrap_or_default();
            // The session keeps what was allowed when it was made, even if the limits have changed since.
            let launcher = &self.args.launcher;
            let (name, allowed) = (request.image.as_deref(), &launcher.settings.sandbox.images);
            let image = launcher.built_images.wanted(record.owner, name, allowed);
            let completed = self.completed(image, &request, record.job);
            let permit = self.args.ledger.keep(
                record.owner,
                record.name.as_str(),
                amounts::of_session(record.job, &record.request),
            );
            let stored_bytes = stored.get(&record.id).copied().unwrap_or_default();
            let origin = Origin::Earlier { stored_bytes };
            self.spawn_session(myself, record, request, completed, permit, origin);
        }
        self.remove_snapshots(unmade);
        Ok(())
    }

    /// Starts a session, which takes messages at once and acts on them when it has begun.
    #[expect(clippy::too_many_lines, reason = "one field of the arguments a line")]
    fn spawn_session(
        &mut self,
        myself: &SupervisorRef,
        record: SessionRecord,
        request: NewSession,
        (wanted, idle): (SandboxRequest, Duration),
        permit: Permit,
        origin: Origin,
    ) {
        let (id, owner, name, job) = (record.id, record.owner, record.name, record.job);
        let is_new = matches!(origin, Origin::New(_));
        let snapshots = self.snapshots_of(id, owner, &name, &origin);
        let (created, first, begun_seed, nested, volumes, image, base) = match origin {
            Origin::New(begin) => {
                let Begin { reply_to, first, seed, nested, volumes, image, base } = *begin;
                (Some(reply_to), Some(first), Some(seed), nested, Some(volumes), image, base)
            }
            Origin::Earlier { .. } => {
                // Its sandbox may run, so it is paid for before others can take its room.
                let permit = self.sandbox_permit(id, owner, &name, &wanted);
                let names = names_of_volumes(&request);
                let volumes = self.args.launcher.volumes.use_again(owner, id, &name, names);
                let images = &self.args.launcher.built_images;
                let image = images.use_again(owner, id, &name, request.image.as_deref());
                (None, permit, None, false, Some(volumes), image, None)
            }
        };
        let Beginning { variables: base, carried } = base.map(|base| *base).unwrap_or_default();
        // The packages of another session are found in the cache as those of an earlier daemon are.
        let packages_use = if is_new && carried.packages.is_none() {
            SessionUse::none(name.clone())
        } else {
            let unread = self.args.launcher.packages.unread_session(Some(owner));
            SessionUse::unread(name.clone(), unread)
        };
        let settings = &self.args.launcher.settings;
        let entries = request.preload.as_ref().unwrap_or(&settings.sessions.preload);
        let pool = self.args.ledger.memory(owner);
        // A restored session is charged for its seed without a check.
        let seed =
            begun_seed.unwrap_or_else(|| pool.charge_anyway(MemoryPurpose::Seeds, seed_bytes(&request.seed)));
        let policy = self.snapshot_policy(&request, job, nested);
        let args = SessionArgs {
            id,
            name: name.clone(),
            owner,
            journal: self.args.journal.clone(),
            request: record.request,
            created_at: record.created_at,
            before: (!is_new).then_some(PriorSession { slot: record.slot }),
            ledger: self.args.ledger.clone(),
            gauge: permit.gauge(),
            permit: first,
            nested,
            supervisor: myself.clone(),
            directory: self.args.directory.clone(),
            launcher: Arc::clone(&self.args.launcher),
            pool: self.args.pool.clone(),
            tools: Arc::clone(&self.args.tools),
            models: self.args.models.clone(),
            wanted,
            backend: request.backend.unwrap_or(self.args.launcher.settings.sandbox.backend),
            workspace: request.workspace,
            idle,
            seed: request.seed,
            job,
            // The entries were checked when the session was made.
            preload: Preload::parse(entries).unwrap_or_default(),
            labels: request.labels,
            volumes: request.volumes,
            mounts: request.mounts,
            ephemeral: request.ephemeral,
            lingers: request.lingers,
            lazy: request.lazy,
            packages_use,
            policy,
            snapshots,
            snapshot_turn: self.snapshot_turns.of(owner),
            base: base.map(Arc::new),
            carried,
            restore_turn: self.restore_turns.of(owner),
            lend_turn: self.lend_turns.of(owner),
            restored: CancellationToken::new(),
            created,
        };
        let restoring = (!is_new).then(|| RestoringSession::new(args.parked_view(), args.restored.clone()));
        // Without a session the reply port is dropped with the arguments, so the caller learns that the call failed.
        let Ok((session, begun)) = Session::spawn(args) else { return };
        let supervisor = myself.clone();
        tokio::spawn(async move {
            if let Ok(Err(error)) = begun.await {
                tracing::error!(%error, "a session could not begin");
                let _ = supervisor.cast(SupervisorMsg::NotBegun { id });
            }
        });
        let listed = ListedSession {
            owner,
            name: name.clone(),
            job,
            session: session.clone(),
            restoring,
            is_removed: false,
        };
        self.args.directory.add(id, listed);
        // The name is taken and the quota is held from here on.
        self.sessions.insert(
            id,
            Entry {
                owner,
                name,
                job,
                session,
                permit,
                is_removed: false,
                _seed: seed,
                _volumes: volumes,
                _image: image,
            },
        );
    }

    /// When a session is saved. What nobody comes back to is not: sessions of jobs and of other sessions' code; and those that
    /// end with their last client only when it asks for that.
    fn snapshot_policy(&self, request: &NewSession, job: Option<JobId>, nested: bool) -> SnapshotPolicy {
        if job.is_some() || nested || !self.args.launcher.settings.snapshots.enabled {
            return SnapshotPolicy::Off;
        }
        // One that ends with its last client can be branched, and sleeps when that client says so.
        let default = if request.ephemeral { SnapshotPolicy::Named } else { SnapshotPolicy::default() };
        request.snapshots.unwrap_or(default)
    }

    /// The snapshots of a session. What it begins with is paid for already.
    fn snapshots_of(
        &self,
        id: SessionId,
        owner: Principal,
        name: &SessionName,
        origin: &Origin,
    ) -> SessionSnapshots {
        let keep = |bytes| Arc::new(SnapshotRoom::keep(&self.args.ledger, owner, name.as_str(), bytes));
        let room = match origin {
            Origin::New(begin) => {
                let variables = begin.base.as_ref().and_then(|base| base.variables.as_ref());
                variables.map_or_else(|| keep(0), |variables| Arc::clone(&variables.room))
            }
            Origin::Earlier { stored_bytes } => keep(*stored_bytes),
        };
        SessionSnapshots::new(self.args.snapshots.clone(), id, room, Arc::clone(&self.args.launcher))
    }

    /// What the snapshots of each session take on the disk.
    async fn stored_snapshots(&self, sessions: Vec<SessionId>) -> HashMap<SessionId, u64> {
        let store = self.args.snapshots.clone();
        let stored = move |session| match store.stored_bytes(session) {
            Ok(bytes) => (session, bytes),
            Err(error) => {
                tracing::warn!(%error, %session, "the snapshots of a session are not charged");
                store.is_not_charged(session);
                (session, 0)
            }
        };
        let all = tokio::task::spawn_blocking(move || sessions.into_iter().map(stored).collect());
        all.await.unwrap_or_default()
    }

    /// Removes the variables with which sessions were to begin that were never made. Nobody is charged for them any more.
    fn remove_snapshots(&self, sessions: Vec<SessionId>) {
        let store = self.args.snapshots.clone();
        tokio::task::spawn_blocking(move || {
            for session in sessions {
                if let Err(error) = store.remove_session(session) {
                    tracing::warn!(%error, %session, "the snapshots of a session that was not made stay for now");
                }
            }
        });
    }

    /// Keeps the volumes of a session from being removed.
    fn use_volumes(
        &self,
        owner: Principal,
        id: SessionId,
        name: &SessionName,
        request: &NewSession,
    ) -> Result<VolumeUse, Problem> {
        self.args.launcher.volumes.use_by(owner, id, name, names_of_volumes(request))
    }

    /// The amounts of the sandbox that a session of an earlier daemon has, if it has one.
    fn sandbox_permit(
        &self,
        id: SessionId,
        owner: Principal,
        name: &SessionName,
        wanted: &SandboxRequest,
    ) -> Option<Permit> {
        let sandboxes = self.args.journal.sandboxes(id).unwrap_or_default();
        let amounts = wanted.amounts(&self.args.launcher.settings.sandbox);
        (!sandboxes.is_empty()).then(|| self.args.ledger.keep(owner, name.as_str(), amounts))
    }
}

fn names_of_volumes(request: &NewSession) -> Vec<VolumeName> {
    request.volumes.iter().map(|volume| volume.name.clone()).collect()
}
