//! Volumes: create, list, remove.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;

use crate::control::app::App;
use crate::control::body::{JsonBody, Path};
use crate::control::caller::Caller;
use crate::control::problems::ApiResult;
use crate::protocol::api::{Done, NewVolume, VolumeList, VolumeView};
use crate::protocol::ids::VolumeName;
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::disk;

#[derive(Deserialize)]
pub struct VolumeParameter {
    volume: VolumeName,
}

pub async fn create(
    State(app): State<App>,
    Caller { principal, .. }: Caller,
    JsonBody(NewVolume { name }, _charge): JsonBody<NewVolume>,
) -> ApiResult<(StatusCode, Json<VolumeView>)> {
    let settings = &app.settings.sandbox;
    disk::check_at(&app.launcher.paths.volumes_dir(), settings.disk_reserve_bytes)?;
    let (volumes, ledger) = (app.launcher.volumes.clone(), app.ledger.clone());
    let most = settings.workspace_bytes;
    let made = whole(async move { volumes.create(&ledger, principal, &name, most).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

pub async fn list(State(app): State<App>, caller: Caller) -> ApiResult<Json<VolumeList>> {
    Ok(Json(VolumeList { volumes: app.launcher.volumes.list(caller.principal) }))
}

/// Answers when the name is free; the files are removed after that.
pub async fn remove(
    State(app): State<App>,
    caller: Caller,
    Path(VolumeParameter { volume }): Path<VolumeParameter>,
) -> ApiResult<Json<Done>> {
    let volumes = app.launcher.volumes.clone();
    whole(async move { volumes.remove(caller.principal, &volume).await }).await?;
    Ok(Json(Done {}))
}

/// Does the work to its end, also if the client does not wait for it.
async fn whole<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> Result<T, Problem> {
    let ended = tokio::spawn(work).await;
    ended.unwrap_or_else(|_| Err(Problem::new(Code::Internal, "an internal error ended the work")))
}
