//! Health, version, the API's description, and shutdown.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use super::App;
use crate::control::body::JsonBody;
use crate::control::peer::Peer;
use crate::control::problems::ApiResult;
use crate::protocol::api::{Done, Health, HealthStatus, Shutdown, Version};
use crate::protocol::limits::BRIDGE_VERSION;
use crate::protocol::problem::{Code, Problem};

pub async fn health(State(app): State<App>, peer: Peer) -> ApiResult<Json<Health>> {
    let seen = (!peer.admin).then_some(peer.uid);
    let sessions = app.directory.list(seen).len();
    let mut problems = app.launcher.troubles().await;
    let journal = app.journal.healthy().err();
    problems.extend(journal.map(|trouble| format!("the journal cannot be written: {trouble}")));
    let status = if problems.is_empty() { HealthStatus::Ok } else { HealthStatus::Degraded };
    Ok(Json(Health { status, problems, sessions }))
}

pub async fn version(State(app): State<App>) -> Json<Version> {
    Json(Version {
        version: env!("CARGO_PKG_VERSION").into(),
        pid: std::process::id(),
        bridge: BRIDGE_VERSION,
        home: app.launcher.paths.home().display().to_string(),
        engine: app.launcher.docker.version().await.ok(),
    })
}

pub async fn openapi() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], include_str!("../../../config/openapi.json"))
        .into_response()
}

/// Stops the daemon. Sandboxes keep running for the next daemon, unless the request says to remove them.
pub async fn shut_down(
    State(app): State<App>,
    peer: Peer,
    JsonBody(body, _charge): JsonBody<Shutdown>,
) -> ApiResult<Json<Done>> {
    if !peer.admin && peer.uid != app.launcher.service.uid {
        return Err(Problem::new(
            Code::Forbidden,
            "only the daemon's own user, root and administrators may stop it",
        )
        .into());
    }
    app.remove_all.store(body.remove, std::sync::atomic::Ordering::Relaxed);
    app.stop.cancel();
    Ok(Json(Done {}))
}
