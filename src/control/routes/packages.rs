//! Packages of sessions, and those that are kept for later ones. Administrators see and remove those of other users.

use axum::Json;
use axum::extract::State;

use super::requests::{ListQuery, SessionRequest};
use crate::actors::session::install_request::InstallRequest;
use crate::actors::session::messages::SessionMsg;
use crate::control::app::App;
use crate::control::body::{JsonBody, Query};
use crate::control::caller::Caller;
use crate::control::problems::ApiResult;
use crate::protocol::packages::{ClearedPackages, InstalledPackages, KeptPackagesList, NewPackages};

/// Installs packages, which takes as long as the downloads do.
pub async fn install(
    request: SessionRequest,
    JsonBody(NewPackages { packages, reset, sources }, _charge): JsonBody<NewPackages>,
) -> ApiResult<Json<InstalledPackages>> {
    let requirements = request.app.settings.packages.wanted_by_owner(&packages)?;
    let message =
        |reply_to| SessionMsg::Install(InstallRequest { requirements, replace: reset, sources, reply_to });
    request.try_call(message).await.map(Json)
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> ApiResult<Json<KeptPackagesList>> {
    let owner = query.owner(&app, &caller)?;
    let sets = app.launcher.kept_packages(caller.principal, owner).await?;
    Ok(Json(KeptPackagesList { sets }))
}

/// Removes what nothing uses; answered when it is gone.
pub async fn clear(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> ApiResult<Json<ClearedPackages>> {
    let owner = query.owner(&app, &caller)?;
    let cleared = app.launcher.clear_packages(caller.principal, owner, &app.ledger).await?;
    if owner.is_none() {
        tracing::info!(admin = %caller.principal, ?cleared, "an administrator removed unused packages of all users");
    }
    Ok(Json(cleared))
}
