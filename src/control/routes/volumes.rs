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
    let volumes = &app.launcher.volumes;
    let made = volumes.create(&app.ledger, principal, &name, settings.workspace_bytes).await?;
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
    app.launcher.volumes.remove(caller.principal, &volume).await?;
    Ok(Json(Done {}))
}
