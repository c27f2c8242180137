//! Volumes: create, list, remove, and their files. Administrators see and remove those of other users, as `NAME@USER`.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use std::sync::Arc;

use super::files;
use super::requests::ListQuery;
use crate::control::app::App;
use crate::control::body::{JsonBody, Path, Query};
use crate::control::caller::Caller;
use crate::control::problems::ApiResult;
use crate::protocol::api::{Done, NewVolume, VolumeList, VolumeView};
use crate::protocol::ids::VolumeName;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Backend;
use crate::protocol::text::quotable;
use crate::sandbox::spec::{Choice, UserMapping};
use crate::sandbox::volumes::VolumeTransfer;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::upload_room::UploadRoom;
use crate::sandbox::workspace::{Root, Workspace, disk};
use crate::security_controls;

#[derive(Deserialize)]
pub struct VolumeParameter {
    /// `NAME`, or `NAME@USER` for administrators.
    volume: String,
}

#[derive(Deserialize)]
pub struct FileParameter {
    volume: VolumeName,
    #[serde(default)]
    path: String,
}

pub async fn create(
    State(app): State<App>,
    Caller { principal, .. }: Caller,
    JsonBody(NewVolume { name }, _charge): JsonBody<NewVolume>,
) -> ApiResult<(StatusCode, Json<VolumeView>)> {
    let settings = &app.settings.sandbox;
    disk::check_at(&app.launcher.paths.volumes_dir(), settings.disk_reserve_bytes)?;
    let made = app.launcher.volumes.create(&app.ledger, principal, &name, settings.workspace_bytes).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> ApiResult<Json<VolumeList>> {
    let owner = query.owner(&app, &caller)?;
    Ok(Json(VolumeList { volumes: app.launcher.volumes.list(owner) }))
}

/// Answers when the name is free; the files are removed after that.
pub async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(VolumeParameter { volume }): Path<VolumeParameter>,
) -> ApiResult<Json<Done>> {
    let (owner, name) = named(&app, &caller, &volume).await?;
    app.launcher.volumes.remove(owner, &name).await?;
    if owner != caller.principal {
        tracing::info!(admin = %caller.principal, %owner, volume = %name, "an administrator removed a volume");
    }
    Ok(Json(Done {}))
}

/// The owner and the name of a volume that the caller may remove.
async fn named(app: &App, caller: &Caller, key: &str) -> Result<(Principal, VolumeName), Problem> {
    let none = || {
        Problem::new(Code::NoSuchVolume, format!("there is no volume `{}`", quotable(key)))
            .hint("`belljar volume ls` lists yours, and with `--all` those of all users, for administrators")
    };
    let (name, owner) = match key.split_once('@') {
        None => (key, Some(caller.principal)),
        Some((name, user)) => (name, app.users.named(user, caller).await),
    };
    let reaches = |owner: &Principal| {
        caller.reaches(*owner) || !security_controls::holds("volumes_are_removed_by_their_owners")
    };
    let owner = owner.filter(reaches).ok_or_else(none)?;
    Ok((owner, VolumeName::parse(name).map_err(|_| none())?))
}

/// The folder of a volume of the caller, to work in with the caller's own rights.
async fn open(
    app: &App,
    caller: &Caller,
    name: &VolumeName,
) -> Result<(VolumeTransfer, Arc<Workspace>), Problem> {
    let (launcher, owner) = (Arc::clone(&app.launcher), caller.principal);
    let transfer = launcher.volumes.transfer(owner, name)?;
    let (path, fill_level) = (launcher.volumes.path(owner, name), Arc::clone(&transfer.fill_level));
    let open = move || {
        let choice = Choice { backend: Backend::Auto, why: String::new() };
        let (service, accounts) = (launcher.service, &launcher.accounts);
        Workspace::volume(path, service, UserMapping::Same, choice, owner, accounts)
    };
    let folder = folders::run(owner, WorkKind::Look, None, open).await??;
    Ok((transfer, Arc::new(folder.filled(fill_level))))
}

pub async fn get_file(
    State(app): State<App>,
    caller: Caller,
    Path(FileParameter { volume, path }): Path<FileParameter>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let (transfer, folder) = open(&app, &caller, &volume).await?;
    files::send(folder, &path, &headers, transfer).await
}

pub async fn put_file(
    State(app): State<App>,
    caller: Caller,
    Path(FileParameter { volume, path }): Path<FileParameter>,
    request: Request,
) -> ApiResult<Json<Done>> {
    let limits = &app.settings.sandbox;
    let (most, reserve) = (limits.workspace_bytes, limits.disk_reserve_bytes);
    let (transfer, folder) = match open(&app, &caller, &volume).await {
        Ok((transfer, folder)) => {
            let (fill_level, gauge) = (Arc::clone(&transfer.fill_level), transfer.gauge.clone());
            let open_room =
                move |root: &Root<'_>| UploadRoom::open(root, fill_level, most, reserve, Some(gauge));
            (Some(transfer), Ok((open_room, folder)))
        }
        Err(problem) => (None, Err(problem.into())),
    };
    files::take(&app, &caller, folder, path, request, transfer).await?;
    Ok(Json(Done {}))
}

pub async fn remove_file(
    State(app): State<App>,
    caller: Caller,
    Path(FileParameter { volume, path }): Path<FileParameter>,
) -> ApiResult<Json<Done>> {
    let (transfer, folder) = open(&app, &caller, &volume).await?;
    let path = crate::sandbox::workspace::files::clean(&path)?;
    let most = app.settings.sandbox.workspace_bytes;
    files::delete(&folder, Some(transfer.gauge.clone()), path, most).await?;
    Ok(Json(Done {}))
}
