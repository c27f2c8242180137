//! Packages of sessions.

use axum::Json;

use super::requests::SessionRequest;
use crate::actors::session::install_request::InstallRequest;
use crate::actors::session::messages::SessionMsg;
use crate::control::body::JsonBody;
use crate::control::problems::ApiResult;
use crate::packages::requirement::parse_all;
use crate::protocol::packages::{InstalledPackages, NewPackages};

/// Installs packages, which takes as long as the downloads do.
pub async fn install(
    request: SessionRequest,
    JsonBody(NewPackages { packages, reset }, _charge): JsonBody<NewPackages>,
) -> ApiResult<Json<InstalledPackages>> {
    let requirements = parse_all(&packages, &request.app.settings.packages.names)?;
    let message = |reply_to| SessionMsg::Install(InstallRequest { requirements, replace: reset, reply_to });
    request.try_call(message).await.map(Json)
}
