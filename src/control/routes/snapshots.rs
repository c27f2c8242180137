//! Snapshots of a session's variables, and sleeping on one.

use axum::Json;
use serde::Deserialize;

use super::requests::SessionRequest;
use crate::actors::calls::call_promptly;
use crate::actors::session::messages::SessionMsg;
use crate::control::body::{JsonBody, Path};
use crate::control::problems::ApiResult;
use crate::protocol::api::Done;
use crate::protocol::saved_state::{Asleep, NewSnapshot, SnapshotList};
use crate::protocol::snapshot::SnapshotRecord;

#[derive(Deserialize)]
pub struct SnapshotParameter {
    snapshot: String,
}

/// Saves the variables, and answers when they are on the disk.
pub async fn take(
    request: SessionRequest,
    JsonBody(NewSnapshot { name }, _charge): JsonBody<NewSnapshot>,
) -> ApiResult<Json<SnapshotRecord>> {
    request
        .try_call(|reply_to| SessionMsg::TakeSnapshot { name, at: None, or_newest: false, reply_to })
        .await
        .map(Json)
}

pub async fn list(request: SessionRequest) -> ApiResult<Json<SnapshotList>> {
    let session = request.session().await?;
    Ok(Json(call_promptly(&session, |reply_to| SessionMsg::Snapshots { reply_to }).await?))
}

pub async fn remove(
    request: SessionRequest,
    Path(SnapshotParameter { snapshot }): Path<SnapshotParameter>,
) -> ApiResult<Json<Done>> {
    request.act(|reply_to| SessionMsg::RemoveSnapshot { snapshot, reply_to }).await
}

/// Ends the sandbox, once its variables are saved.
pub async fn sleep(request: SessionRequest) -> ApiResult<Json<Asleep>> {
    request.try_call(|reply_to| SessionMsg::Sleep { reply_to }).await.map(Json)
}
