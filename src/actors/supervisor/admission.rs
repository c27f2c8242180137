//! Which sessions are admitted: a request is checked, completed by the settings, and charged.

use std::time::Duration;

use super::state::SupervisorState;
use crate::actors::amounts;
use crate::actors::journal_charges::{ROOM_TO_BEGIN_BYTES, seed_bytes};
use crate::config::{self, MIN_MEMORY_BYTES, show_size};
use crate::memory::{Charge, MemoryPurpose};
use crate::protocol::api::{Checkpointing, NewSession};
use crate::protocol::ids::{JobId, SessionId, SessionName};
use crate::protocol::preload::Preload;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::values;
use crate::protocol::{environment, labels, mounts};
use crate::quota::Permit;
use crate::sandbox::built_images::ImageUse;
use crate::sandbox::launch::{SandboxRequest, WantedImage};

/// A session is refused if the user has more than this many times the quota on the disk, removed sessions
/// included. Data of removed sessions above the quota is deleted within moments.
const REMOVED_TOLERANCE: u64 = 2;

/// The checked and completed values of a request for a session.
pub(super) struct Admitted {
    pub(super) name: SessionName,
    pub(super) wanted: SandboxRequest,
    pub(super) idle: Duration,
    pub(super) permit: Permit,
    /// The resources of the first sandbox, reserved before the session is made.
    pub(super) first: Permit,
    pub(super) seed: Charge,
    /// Keeps the image from being removed before the session has it.
    pub(super) image: Option<ImageUse>,
}

impl SupervisorState {
    /// Checks everything before anything is created.
    pub(super) fn admit(
        &self,
        id: SessionId,
        owner: Principal,
        request: &NewSession,
        job: Option<JobId>,
        sandbox_permit: Option<Permit>,
    ) -> Result<Admitted, Problem> {
        if self.shutting_down.is_some() {
            return Err(Problem::new(Code::ShuttingDown, "the daemon is going down"));
        }
        let settings = &self.args.launcher.settings;
        let name = match &request.name {
            Some(name) => name.clone(),
            None => fresh_name(),
        };
        if self.of(owner).any(|(_, entry)| entry.name == name && !entry.is_removed) {
            return Err(Problem::new(Code::SessionExists, format!("there is a session `{name}` already"))
                .hint(format!(
                    "use it with `belljar exec -s {name}`, or remove it with `belljar rm {name}`"
                )));
        }
        let sandbox = &settings.sandbox;
        let built = &self.args.launcher.built_images;
        let (wanted_image, image) =
            built.wanted_by(owner, id, &name, request.image.as_deref(), &sandbox.images);
        let (wanted, idle) = self.completed(wanted_image, request, job);
        let (least, most) = (MIN_MEMORY_BYTES, sandbox.max_memory_bytes);
        within("memory", wanted.memory_bytes, least, most, show_size)?;
        cpus_within(wanted.cpus, sandbox.max_cpus)?;
        within("pids", wanted.pids, MIN_PIDS, MAX_PIDS, |pids| pids.to_string())?;
        values::check_names(&request.seed)?;
        if let Err(message) = Preload::parse(request.preload.as_deref().unwrap_or_default()) {
            return Err(Problem::new(Code::BadRequest, message)
                .hint("name modules one by one, or a family: `stdlib`, `third-party`"));
        }
        let wrong = |message: String| Problem::new(Code::BadRequest, message);
        environment::check(&request.env).map_err(wrong)?;
        labels::check(&request.labels).map_err(wrong)?;
        mounts::check(&request.volumes, &request.mounts).map_err(wrong)?;
        if idle.is_zero() {
            return Err(Problem::new(Code::BadRequest, "`idle_s` has to be at least 1"));
        }
        self.args.journal.healthy()?;
        let ledger = &self.args.ledger;
        ledger.tolerates(owner, Kind::Journal, REMOVED_TOLERANCE)?;
        let record = serde_json::to_value(request).unwrap_or_default();
        let permit = ledger.take(owner, name.as_str(), amounts::of_session(job, &record))?;
        permit.gauge().fits(Kind::Journal, ROOM_TO_BEGIN_BYTES)?;
        let first = match sandbox_permit {
            Some(permit) => permit,
            None => ledger.take(owner, name.as_str(), wanted.amounts(&settings.sandbox))?,
        };
        let seed = ledger.memory(owner).try_charge(MemoryPurpose::Seeds, seed_bytes(&request.seed))?;
        Ok(Admitted { name, wanted, idle, permit, first, seed, image })
    }

    /// What the request leaves open, from the settings.
    pub(super) fn completed(
        &self,
        image: WantedImage,
        request: &NewSession,
        job: Option<JobId>,
    ) -> (SandboxRequest, Duration) {
        let settings = &self.args.launcher.settings;
        let idle = request
            .idle_s
            .map_or(settings.sessions.idle, |seconds| Duration::from_secs(seconds.min(MAX_IDLE.as_secs())));
        (SandboxRequest { image, ..sandbox_request(&settings.sandbox, request, job.is_some()) }, idle)
    }
}

/// The request, completed by the settings, but for its image: what a name stands for depends on who asks.
pub(in crate::actors) fn sandbox_request(
    settings: &config::Sandbox,
    request: &NewSession,
    is_job: bool,
) -> SandboxRequest {
    let checkpointing = request.checkpointing.unwrap_or(settings.checkpointing);
    // A job has no earlier state to return to.
    let has_checkpoints = !is_job && checkpointing != Checkpointing::Off;
    SandboxRequest {
        image: WantedImage::Any,
        first_image: None,
        memory_bytes: request.memory_bytes.unwrap_or(settings.memory_bytes),
        cpus: request.cpus.unwrap_or(settings.cpus),
        pids: request.pids.unwrap_or(settings.pids),
        checkpoints: if has_checkpoints { settings.checkpoints } else { 0 },
        checkpoints_at_rest: checkpointing == Checkpointing::Idle,
        keep_cwd: request.keep_cwd,
        env: request.env.clone(),
    }
}

/// Enough for the guardian, the worker and a few processes of the user.
const MIN_PIDS: u64 = 16;
const MAX_PIDS: u64 = 32_768;
const MIN_CPUS: f64 = 0.05;
const MAX_IDLE: Duration = Duration::from_secs(30 * 24 * 3600);

fn within(
    what: &str,
    value: u64,
    least: u64,
    most: u64,
    show: impl Fn(u64) -> String,
) -> Result<(), Problem> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Problem::new(Code::BadRequest, format!("{what} of {} is not possible", show(value))).hint(format!(
        "use {} to {}",
        show(least),
        show(most)
    )))
}

fn cpus_within(value: f64, most: f64) -> Result<(), Problem> {
    if value >= MIN_CPUS && value <= most {
        return Ok(());
    }
    Err(Problem::new(Code::BadRequest, format!("{value} CPUs are not possible"))
        .hint(format!("use {MIN_CPUS} to {most}")))
}

fn fresh_name() -> SessionName {
    let hex = uuid::Uuid::new_v4().simple().to_string();
    let short: String = hex.chars().take(8).collect();
    // The name is always valid, so the fallback is never reached.
    SessionName::parse(&format!("s-{short}")).unwrap_or_else(|_| fresh_name())
}
