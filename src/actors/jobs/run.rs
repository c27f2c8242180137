//! Runs one job from its sandbox to its verdict.

use std::io::{BufReader, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

use super::messages::{JobsMsg, JobsRef, StartedJob};
use super::{script, verdict};
use crate::actors::calls::{call, lost, try_call};
use crate::actors::results;
use crate::actors::session::install_request::InstallRequest;
use crate::actors::session::messages::{CellRequest, CellStatus, Handles, SessionMsg, SessionRef};
use crate::actors::session::removers::Remover;
use crate::actors::supervisor::messages::{ForJob, SupervisorMsg, SupervisorRef};
use crate::protocol::api::NewSession;
use crate::protocol::ids::{CellNumber, JobId, SessionId};
use crate::protocol::job::{JobEnd, JobReceipt, NewJob};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::receipt::Receipt;
use crate::protocol::result::{ExecutionResult, Mode};
use crate::quota::{Amounts, Gauge, Ledger, Permit};
use crate::sandbox::attest::isolation_line;
use crate::sandbox::launch::Launcher;
use crate::sandbox::workspace::files::{self, Upload};
use crate::sandbox::workspace::job_files::{self, Gathered};
use crate::sandbox::workspace::owner::WorkKind;
use crate::security_controls;
use crate::session::rules::CellRules;
use crate::store::{EventLog, JobRecord};

/// The one cell of a job.
pub const CELL: CellNumber = 1;

/// The suffix of a file that is still being written.
pub const UNFINISHED: &str = ".unfinished";

pub struct JobRun {
    pub jobs: JobsRef,
    pub supervisor: SupervisorRef,
    pub launcher: Arc<Launcher>,
    pub ledger: Ledger,
    pub record: JobRecord,
    pub input: PathBuf,
    pub artifacts: PathBuf,
    pub cancel: CancellationToken,
    /// Cancelled when the actor that this works for ends; the next actor repeats the work.
    pub lifetime: CancellationToken,
    /// Cancelled when the daemon shuts down; the next one resumes the job.
    pub shutdown: CancellationToken,
    /// The session that an earlier daemon made for the job.
    pub resume: Option<SessionRef>,
}

/// The number of internal errors after which a job is given up.
const TRIES: usize = 3;

/// Why an attempt to run a job gave no end of it.
enum NoEnd {
    /// Its session was refused for want of room: of its user, or of this machine.
    NoRoom(Problem),
    Failed(Problem),
}

impl From<Problem> for NoEnd {
    fn from(problem: Problem) -> Self {
        Self::Failed(problem)
    }
}

impl NoEnd {
    fn of_creation(problem: Problem) -> Self {
        if problem.code == Code::QuotaExceeded { Self::NoRoom(problem) } else { Self::Failed(problem) }
    }
}

impl JobRun {
    /// Runs the job. `sandbox_permit` has the resources that are reserved for its sandbox.
    pub async fn go(self, sandbox_permit: Option<Permit>) {
        let lifetime = self.lifetime.clone();
        tokio::select! {
            biased;
            () = lifetime.cancelled() => {}
            () = self.run_and_judge(sandbox_permit) => {}
        }
    }

    async fn run_and_judge(self, sandbox_permit: Option<Permit>) {
        let id = self.record.view.id;
        let outcome = tokio::select! {
            biased;
            () = self.cancel.cancelled() => Ok(verdict::cancelled("")),
            outcome = self.run_to_the_end(sandbox_permit) => outcome,
        };
        let end = match outcome {
            Err(_) if self.shutdown.is_cancelled() => None,
            Err(NoEnd::NoRoom(problem)) => {
                // The next attempt finds its session by the id of the job, so what is left of this one's goes first.
                remove(&self.supervisor, id).await;
                let _ = self.jobs.cast(JobsMsg::NoRoom { id, problem });
                return;
            }
            Err(NoEnd::Failed(problem)) => Some(verdict::of_problem(&problem)),
            Ok(end) => Some(end),
        };
        if let Some(end) = &end {
            // Written before the sandbox, the only other source, is removed. With a full disk it is written
            // later; if the actor has died, its successor finds the end again.
            let end = Box::new(end.clone());
            match try_call(&self.jobs, |reply_to| JobsMsg::Judged { id, end, reply_to }).await {
                Err(problem) if problem.code != Code::Storage => return,
                Ok(()) | Err(_) => {}
            }
            remove(&self.supervisor, id).await;
        }
        let _ = self.jobs.cast(JobsMsg::Done { id, end });
    }

    /// Retries after internal errors: a session that panics over a request carries on, so the steps that were
    /// not done are requested again.
    async fn run_to_the_end(&self, sandbox_permit: Option<Permit>) -> Result<JobEnd, NoEnd> {
        let mut outcome = self.run(self.resume.clone(), sandbox_permit).await;
        for _ in 1..TRIES {
            if !matches!(&outcome, Err(NoEnd::Failed(problem)) if problem.code == Code::Internal) {
                break;
            }
            let session = session_of(&self.supervisor, self.record.view.id).await;
            outcome = self.run(session, None).await;
        }
        outcome
    }

    async fn run(
        &self,
        session: Option<SessionRef>,
        sandbox_permit: Option<Permit>,
    ) -> Result<JobEnd, NoEnd> {
        let session = match session {
            Some(session) => session,
            None => self.make(sandbox_permit).await?,
        };
        let handles = try_call(&session, |reply_to| SessionMsg::Handles { reply_to }).await?;
        let standing = call(&session, |reply_to| SessionMsg::CellStatus { cell: CELL, reply_to }).await?;
        if standing == CellStatus::Unknown {
            self.start(&session, &handles).await?;
        }
        let result = self.result(&session, &handles.log).await?;
        let begun = handles.workspace.access(WorkKind::Look, script::has_begun).await?;
        let mut end = verdict::of_result(&result, begun);
        if !begun {
            return Ok(end);
        }
        match self.gather(&handles).await {
            Ok(gathered) => {
                (end.artifacts, end.artifacts_cut) = (gathered.files, gathered.cut);
            }
            Err(error) => {
                tracing::warn!(%error, job = %self.record.view.id, "artifacts cannot be kept");
                end.artifacts_cut = true;
            }
        }
        Ok(end)
    }

    /// Makes a fresh session that clients cannot see.
    async fn make(&self, sandbox_permit: Option<Permit>) -> Result<SessionRef, NoEnd> {
        let (job, view) = (&self.record.job, &self.record.view);
        let request = Box::new(request(job));
        let job = Some(ForJob { id: view.id, sandbox_permit });
        let (id, owner) = (SessionId::fresh(), view.owner);
        let create = |reply_to| SupervisorMsg::Create {
            id,
            owner,
            request,
            nested: false,
            job,
            base: None,
            memory: None,
            reply_to,
        };
        try_call(&self.supervisor, create).await.map_err(NoEnd::of_creation)?;
        let session = session_of(&self.supervisor, view.id).await;
        session.ok_or_else(|| NoEnd::Failed(Problem::new(Code::SandboxFailed, "its sandbox has just ended")))
    }

    async fn start(&self, session: &SessionRef, handles: &Handles) -> Result<(), Problem> {
        self.install(session).await?;
        let receipt = try_call(session, |reply_to| SessionMsg::Receipt { reply_to }).await?;
        let open_room = handles.upload_room(&self.launcher.settings.sandbox);
        let no_packages = self.launcher.settings.packages.check_owner_may_install().err();
        let order = script::order(&self.record.job, no_packages.as_ref());
        let file = tokio::fs::File::open(&self.input).await.map_err(|error| {
            Problem::new(Code::Storage, format!("the files of the job cannot be read: {error}"))
        })?;
        let file = file.into_std().await;
        let brought = handles.workspace.access(WorkKind::Transfer, move |root| {
            let upload_room = open_room(root)?;
            files::read_tar(root, "", BufReader::new(file), &upload_room)?;
            let mut upload = Upload::begin(root, script::ORDER, &upload_room)?;
            upload.write(order.as_bytes())?;
            upload.finish()
        });
        brought.await??;
        let _ = session.cast(SessionMsg::FilesChanged);
        // In the journal first: a job that the journal shows as waiting is run from the start by the next
        // daemon.
        let started = StartedJob { session: handles.log.session(), receipt: self.receipt(&receipt) };
        let id = self.record.view.id;
        try_call(&self.jobs, |reply_to| JobsMsg::Started { id, started: Box::new(started), reply_to })
            .await?;
        let timeout = Duration::try_from_secs_f64(self.record.view.timeout_s).unwrap_or_default();
        let request = CellRequest {
            rules: Some(Arc::new(CellRules { allowed: Some([].into()), ..CellRules::default() })),
            ..CellRequest::new(script::CODE.to_owned(), Mode::Main, timeout)
        };
        try_call(session, |reply_to| SessionMsg::Run { request, reply_to }).await.map(drop)
    }

    /// Installs the packages that the job is to begin with. Nothing of the image is in use yet, so other versions may
    /// stand before its own.
    async fn install(&self, session: &SessionRef) -> Result<(), Problem> {
        if self.record.job.with.is_empty() {
            return Ok(());
        }
        let requirements = self.launcher.settings.packages.wanted_by_owner(&self.record.job.with)?;
        let message = |reply_to| {
            SessionMsg::Install(InstallRequest { requirements, replace: true, sources: false, reply_to })
        };
        try_call(session, message).await.map(drop)
    }

    fn receipt(&self, receipt: &Receipt) -> Option<JobReceipt> {
        let before = self.record.view.receipt.as_ref()?;
        Some(JobReceipt {
            backend: receipt.backend,
            image: receipt.image.clone(),
            python: receipt.python.clone(),
            isolation: isolation_line(receipt),
            seccomp_profile: receipt.seccomp_profile.clone(),
            limits: Some(receipt.limits.clone()),
            ..before.clone()
        })
    }

    /// Waits for the end of the cell, which an earlier daemon may have started, also while the disk does not take it.
    async fn result(&self, session: &SessionRef, log: &EventLog) -> Result<Arc<ExecutionResult>, Problem> {
        loop {
            match results::result_of(session, log, CELL).await {
                Err(problem) if problem.code == Code::Storage => {}
                outcome => return outcome,
            }
        }
    }

    async fn gather(&self, handles: &Handles) -> std::io::Result<Gathered> {
        let patterns = self.record.job.artifacts.clone();
        if patterns.is_empty() {
            return Ok(Gathered::default());
        }
        // The daemon creates this file, because the owner of the workspace could not. It gets its final name
        // when it is complete, and is deleted if this is cancelled before.
        let folder = self.artifacts.parent().unwrap_or(&self.artifacts);
        let (out, unfinished) = tempfile::Builder::new().suffix(UNFINISHED).tempfile_in(folder)?.into_parts();
        let (owner, name) = (self.record.view.owner, format!("job {}", self.record.view.id));
        // The bytes count from now on, not only after the next look over the stored files, and for as long as
        // the thread, which cannot be cancelled, writes.
        let stored = self.ledger.keep(owner, &name, Amounts::default());
        let gathered = handles.workspace.access(WorkKind::Transfer, move |root| {
            let gathered = job_files::gather(root, &patterns, ChargedWriter { out, gauge: stored.gauge() });
            gathered.map(|gathered| (gathered, stored))
        });
        let gathered = gathered.await.map_err(|problem| std::io::Error::other(problem.message))?;
        let (gathered, stored) = gathered?;
        if !gathered.files.is_empty() {
            unfinished.persist(&self.artifacts)?;
            stored.leave(&name, Kind::Journal);
        }
        Ok(gathered)
    }
}

/// A file of the daemon that is charged to a user: bytes above the quota are not written.
struct ChargedWriter<W> {
    out: W,
    gauge: Gauge,
}

impl<W: Write> Write for ChargedWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if security_controls::holds("artifact_charge") {
            let charged = self.gauge.grow(Kind::Journal, bytes.len() as u64);
            charged.map_err(|refusal| std::io::Error::other(refusal.sentence()))?;
        }
        // All charged bytes are written.
        self.out.write_all(bytes).map(|()| bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

/// The session request for a job.
pub fn request(job: &NewJob) -> NewSession {
    NewSession {
        backend: job.backend,
        image: job.image.clone(),
        memory_bytes: job.memory_bytes,
        cpus: job.cpus,
        preload: Some(Vec::new()),
        ..NewSession::default()
    }
}

pub async fn session_of(supervisor: &SupervisorRef, job: JobId) -> Option<SessionRef> {
    let sessions = call(supervisor, |reply_to| SupervisorMsg::OfJobs { reply_to }).await.ok()?;
    sessions.into_iter().find(|(of, _)| *of == job).map(|(_, session)| session)
}

/// Ends a job whose task panicked, which would otherwise run for ever.
pub async fn given_up(jobs: JobsRef, supervisor: SupervisorRef, id: JobId) {
    remove(&supervisor, id).await;
    let _ = jobs.cast(JobsMsg::Done { id, end: Some(verdict::of_problem(&lost())) });
}

/// Removes the session of a job, if it exists.
pub async fn remove(supervisor: &SupervisorRef, job: JobId) {
    if let Some(session) = session_of(supervisor, job).await {
        let removed =
            try_call(&session, |reply_to| SessionMsg::Remove { remover: Some(Remover::of_all(reply_to)) })
                .await;
        if let Err(problem) = removed {
            tracing::warn!(%job, problem = problem.message, "the sandbox of a job is left to the next start");
        }
    }
}
