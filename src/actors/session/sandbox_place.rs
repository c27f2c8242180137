//! Where a session begins: its workspace, its user id, and a sandbox of the pool if one fits.

use serde_json::{Value, json};
use std::sync::Arc;
use tokio::task::JoinHandle;

use super::messages::{OwnSession, SessionMsg};
use super::state::SessionArgs;
use crate::actors::branches::beginning::Files;
use crate::actors::launch::SandboxPlace;
use crate::actors::pool::{Pool, WaitingSandbox};
use crate::panics::spawn_reporting;
use crate::protocol::mounts::{FolderMount, VolumeMount};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, ImageFact, Receipt};
use crate::quota::Gauge;
use crate::sandbox::kernel::files as kernel_files;
use crate::sandbox::launch::{Launcher, SandboxRequest, UserSlot};
use crate::sandbox::spec::Choice;
use crate::sandbox::workspace::own_user::MountedFolder;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::{Workspace, disk};
use crate::store::{Journal, SessionRecord};

/// What a session asks for before its place can be made.
struct PlaceRequest {
    record: SessionRecord,
    is_new: bool,
    /// The session begins without a sandbox, if it can.
    lazy: bool,
    /// The user id of a session that was there before.
    previous_slot: Option<UserSlot>,
    /// The backend in which the session began.
    began: Option<Choice>,
    backend: Backend,
    wanted: SandboxRequest,
    /// The owner's own folder.
    folder: Option<String>,
    volumes: Vec<VolumeMount>,
    mounts: Vec<FolderMount>,
    /// The files that a new workspace begins with.
    files: Option<Files>,
    gauge: Gauge,
    journal: Journal,
    launcher: Arc<Launcher>,
    pool: Pool,
}

/// Creates the workspace in a task, because that depends on how the engine maps users, and the engine may be
/// slow. `began` is the receipt of the last sandbox: a session never goes on in another backend, where it would be
/// isolated otherwise and have another image.
pub(super) fn make_place(myself: &OwnSession, args: &SessionArgs, began: Option<&Receipt>) -> JoinHandle<()> {
    let request = PlaceRequest {
        record: args.record(),
        is_new: args.before.is_none(),
        lazy: args.lazy,
        // Reserved at once, so that no other session gets it meanwhile.
        previous_slot: args.before.and_then(|before| before.slot).map(|uid| args.launcher.slots.keep(uid)),
        began: began.map(|receipt| Choice { backend: receipt.backend, why: receipt.chosen.clone() }),
        backend: args.backend,
        wanted: args.wanted.clone(),
        folder: args.workspace.clone(),
        volumes: args.volumes.clone(),
        mounts: args.mounts.clone(),
        files: args.carried.files.clone().filter(|_| args.before.is_none()),
        gauge: args.gauge.clone(),
        journal: args.journal.clone(),
        launcher: Arc::clone(&args.launcher),
        pool: args.pool.clone(),
    };
    let session = myself.clone();
    spawn_reporting(make_filled(request), move |made| {
        let panicked =
            || Err(Problem::new(Code::Internal, "the workspace could not be made: an internal error"));
        let _ = session.cast(SessionMsg::Placed(Box::new(made.unwrap_or_else(panicked))));
    })
}

/// Makes the place, with the files that its workspace begins with.
async fn make_filled(mut request: PlaceRequest) -> Result<SandboxPlace, Problem> {
    let Some(files) = request.files.take() else { return make(request).await };
    let (launcher, gauge) = (Arc::clone(&request.launcher), request.gauge.clone());
    let place = make(request).await?;
    match files.fill(&place.workspace, &launcher.settings.sandbox, gauge).await {
        Ok(()) => Ok(place),
        Err(problem) => {
            let SandboxPlace { workspace, ready, .. } = place;
            if let Some(ready) = ready {
                ready.sandbox.undo().await;
            }
            if let Err(error) = workspace.remove().await {
                tracing::warn!(%error, path = %workspace.path.display(), "a workspace is left to the next start");
            }
            Err(problem)
        }
    }
}

async fn make(request: PlaceRequest) -> Result<SandboxPlace, Problem> {
    let PlaceRequest {
        mut record,
        is_new,
        lazy,
        previous_slot,
        began,
        backend,
        wanted,
        folder,
        volumes,
        mounts,
        journal,
        launcher,
        pool,
        ..
    } = request;
    let goes_on = began.is_some();
    let choice = match began {
        Some(choice) => choice,
        None => launcher.choose(backend, &wanted.image).await?,
    };
    let has_mounts = !volumes.is_empty() || !mounts.is_empty();
    if has_mounts && choice.backend == Backend::Process {
        return Err(Problem::new(Code::BadRequest, "a plain process has no volumes and mounts")
            .hint("choose another `--backend`, or leave `--volume` and `--mount` out"));
    }
    let later = if is_new && lazy { known_image(&launcher, &choice, &wanted).await? } else { None };
    let runs_as_owner = folder.is_some() || has_mounts;
    // A later sandbox of a session is always started anew: the workspace has its user id and its files. So is one with
    // an environment of its own, which the first process of a sandbox begins with.
    let waiting = if is_new && later.is_none() && !runs_as_owner && wanted.env.is_empty() {
        pool.claim(&launcher, &choice, &wanted, record.job.is_none()).await
    } else {
        None
    };
    let slot = match (runs_as_owner, previous_slot, &waiting) {
        (true, _, _) | (false, None, Some(_)) => None,
        (false, Some(previous_slot), _) => Some(previous_slot),
        (false, None, None) => Some(launcher.slots.take()?),
    };
    if is_new {
        if let Some(image) = &later {
            fix_place(&mut record.request, choice.backend, image);
        }
        record.slot = slot.as_ref().map(|slot| slot.uid).or(waiting.as_ref().map(WaitingSandbox::uid));
        if let Err(problem) = note(&launcher, &journal, &record).await {
            if let Some(waiting) = waiting {
                waiting.discard().await;
            }
            return Err(problem);
        }
    }
    let (path, owner) = (launcher.paths.workspaces_dir().join(record.id.to_string()), record.owner);
    if let Some(waiting) = waiting {
        return waiting.given_to(owner, path, choice).await;
    }
    let mapping = launcher.backend(choice.backend).user_mapping().await;
    let mapping =
        mapping.map_err(|problem| if goes_on { only_there(choice.backend, problem) } else { problem })?;
    let (service, bytes) = (launcher.service, launcher.settings.sandbox.workspace_bytes);
    if let Some(slot) = slot {
        let uid = slot.uid;
        let make = move || Workspace::managed(path, service, mapping, choice, uid, bytes);
        let workspace = folders::run(owner, WorkKind::Look, None, make).await??.paid_by(owner);
        return Ok(SandboxPlace { workspace, slot: Some(slot), ready: None, later });
    }
    let open = move || {
        let (private, accounts) = (private_folders(&launcher), &launcher.accounts);
        let of_caller = |folder: &str, choice| {
            Workspace::of_caller(folder.as_ref(), service, mapping, choice, owner, &private, accounts)
        };
        let mut folders = Vec::new();
        for FolderMount { folder, target } in mounts {
            let folder = of_caller(&folder, choice.clone())?;
            folders.push(MountedFolder { target, writable: false, volume: None, folder });
        }
        for VolumeMount { name, target, read_only } in volumes {
            let path = launcher.volumes.path(owner, &name);
            let folder = Workspace::volume(path, service, mapping, choice.clone(), owner, accounts)?;
            let folder = folder.filled(launcher.volumes.fill_level(owner, &name));
            folders.push(MountedFolder { target, writable: !read_only, volume: Some(name), folder });
        }
        let workspace = match folder {
            Some(folder) => of_caller(&folder, choice)?,
            None => Workspace::managed_for(path, service, mapping, choice, owner, bytes, accounts)?,
        };
        workspace.beside(folders)
    };
    let workspace = folders::run(owner, WorkKind::Look, None, open).await??;
    Ok(SandboxPlace { workspace, slot: None, ready: None, later })
}

/// The image of a session that begins without a sandbox; none if no sandbox of it was made here yet, since the
/// packages in it, of which a model is told at once, are found by its first sandbox.
async fn known_image(
    launcher: &Launcher,
    choice: &Choice,
    wanted: &SandboxRequest,
) -> Result<Option<ImageFact>, Problem> {
    let image = launcher.backend(choice.backend).resolve_image(wanted, &|_| {}).await?;
    Ok(kernel_files::packages(&launcher.paths.kernel_dir(), &image.id).map(|_| image))
}

/// Puts the place of a session that begins without a sandbox into its record: the next daemon would choose anew, and the
/// session may have been told of what the image has.
fn fix_place(request: &mut Value, backend: Backend, image: &ImageFact) {
    let Some(request) = request.as_object_mut() else { return };
    request.insert("backend".to_owned(), json!(backend));
    let named = request.entry("image").or_insert(Value::Null);
    if named.is_null() {
        *named = json!(image.reference);
    }
}

/// Writes the new session down. First in the journal: nothing may exist that the next daemon would not find.
async fn note(launcher: &Launcher, journal: &Journal, record: &SessionRecord) -> Result<(), Problem> {
    disk::check_at(&launcher.paths.workspaces_dir(), launcher.settings.sandbox.disk_reserve_bytes)?;
    journal.create_session(record).await.map_err(Problem::from)
}

/// The daemon's own folders, in which no workspace may be.
fn private_folders(launcher: &Launcher) -> Vec<std::path::PathBuf> {
    let paths = &launcher.paths;
    [Some(paths.home()), paths.socket().parent()].into_iter().flatten().map(ToOwned::to_owned).collect()
}

/// The problem of a session whose backend is away.
fn only_there(backend: Backend, problem: Problem) -> Problem {
    let message =
        format!("{}; the session began in `{}` and goes on only there", problem.message, backend.name());
    Problem { message, ..problem }
}
