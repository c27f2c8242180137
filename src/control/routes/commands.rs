//! Commands: programs that run in a session's sandbox beside its cells. They are queued, recorded and shown as cells are.

use axum::response::Response;
use axum::{Extension, Json};
use std::sync::Arc;

use super::cells;
use super::requests::{AnswerQuery, SessionRequest};
use crate::actors::calls::call_promptly;
use crate::actors::session::messages::{CellRequest, SessionMsg};
use crate::control::body::{JsonBody, Path, Query};
use crate::control::idempotency::Key;
use crate::control::problems::ApiResult;
use crate::protocol::api::Done;
use crate::protocol::command::{CommandList, NewCommand};
use crate::protocol::ids::CellNumber;
use crate::protocol::timeout::Timeouts;
use crate::session::machine::EndCommand;

pub async fn run(
    request: SessionRequest,
    Query(query): Query<AnswerQuery>,
    idempotency: Option<Extension<Key>>,
    JsonBody(body, memory): JsonBody<NewCommand>,
) -> ApiResult<Response> {
    let Timeouts { default, most } = request.app.settings.cells.timeouts();
    let (query, default) =
        if body.background { (AnswerQuery { wait: false, stream: false }, most) } else { (query, default) };
    let timeout = Timeouts { default, most }.checked(body.timeout_s)?;
    let memory = Some(Arc::new(memory));
    let command = CellRequest { memory, ..CellRequest::command(body.checked()?, timeout) };
    cells::submit(request, query, idempotency, command).await
}

pub async fn list(request: SessionRequest) -> ApiResult<Json<CommandList>> {
    let session = request.session().await?;
    Ok(Json(call_promptly(&session, |reply_to| SessionMsg::Commands { reply_to }).await?))
}

pub async fn interrupt(
    request: SessionRequest,
    Path((_, cell)): Path<(String, CellNumber)>,
) -> ApiResult<Json<Done>> {
    request.act(|reply_to| SessionMsg::EndCommand { cell, how: EndCommand::Interrupt, reply_to }).await
}

pub async fn kill(
    request: SessionRequest,
    Path((_, cell)): Path<(String, CellNumber)>,
) -> ApiResult<Json<Done>> {
    request.act(|reply_to| SessionMsg::EndCommand { cell, how: EndCommand::Kill, reply_to }).await
}
