//! Routes that do not concern a single session: health, version, the API's description, shutdown and quotas.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use crate::control::app::App;
use crate::control::body::{JsonBody, Query};
use crate::control::caller::Caller;
use crate::control::problems::ApiResult;
use crate::protocol::api::{Done, Health, HealthStatus, QuotaView, Shutdown, Version};
use crate::protocol::config::{ConfigReloaded, ConfigView};
use crate::protocol::limits::BRIDGE_VERSION;
use crate::protocol::problem::{Code, Problem};

pub async fn health(State(app): State<App>, caller: Caller) -> ApiResult<Json<Health>> {
    let seen = (!caller.admin).then_some(caller.principal);
    let sessions = app.directory.list(seen).len();
    let mut problems = app.launcher.troubles().await;
    problems.extend(app.journal.healthy().err().map(|trouble| trouble.to_string()));
    let status = if problems.is_empty() { HealthStatus::Ok } else { HealthStatus::Degraded };
    let serves_all = app.is_run_by(&caller);
    // What waits, and how often it is asked for, tells of other users.
    let pool = if serves_all { app.pool.view().await } else { None };
    Ok(Json(Health { status, problems, sessions, pool }))
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
    caller: Caller,
    JsonBody(body, _charge): JsonBody<Shutdown>,
) -> ApiResult<Json<Done>> {
    only_who_runs_it(&app, &caller, "stop it")?;
    app.remove_all.store(body.remove, std::sync::atomic::Ordering::Relaxed);
    app.stop.cancel();
    Ok(Json(Done {}))
}

fn only_who_runs_it(app: &App, caller: &Caller, what: &str) -> Result<(), Problem> {
    if app.is_run_by(caller) {
        return Ok(());
    }
    let message = format!("only the daemon's own user, root and administrators may {what}");
    Err(Problem::new(Code::Forbidden, message))
}

pub async fn config(State(app): State<App>, caller: Caller) -> ApiResult<Json<ConfigView>> {
    only_who_runs_it(&app, &caller, "see its configuration")?;
    Ok(Json(app.config.view()))
}

pub async fn reload(State(app): State<App>, caller: Caller) -> ApiResult<Json<ConfigReloaded>> {
    only_who_runs_it(&app, &caller, "have it read its configuration")?;
    // It continues if the client disconnects: half of it would leave models that do not fit the settings.
    let reloaded = tokio::spawn(async move { app.reload().await });
    Ok(Json(reloaded.await.map_err(|error| Problem::new(Code::Internal, error.to_string()))??))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaQuery {
    /// Another user, by name or number; for administrators only.
    user: Option<String>,
}

pub async fn quota(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<QuotaQuery>,
) -> ApiResult<Json<QuotaView>> {
    let owner = match query.user {
        None => caller.principal,
        Some(user) => {
            let none = || Problem::new(Code::BadRequest, "there is no such user");
            let named = app.users.named(&user, &caller).await;
            if named != Some(caller.principal) {
                caller.require_admin(&app.live().admin.group, "see what others have")?;
            }
            named.ok_or_else(none)?
        }
    };
    let who = app.users.of(owner).await?;
    if owner != caller.principal {
        app.ledger.set_limits(owner, app.live().quota.of(owner, who.name.as_deref(), &who.groups));
    }
    Ok(Json(QuotaView { uid: owner, user: who.name.clone(), quotas: app.ledger.usage(owner) }))
}
