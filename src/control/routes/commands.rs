//! Commands: programs that run in a session's sandbox beside its cells. They are queued, recorded and shown as cells are.

use axum::response::Response;
use axum::{Extension, Json};
use std::sync::Arc;

use super::cells;
use super::requests::{AnswerQuery, SessionRequest};
use crate::actors::calls::call_promptly;
use crate::actors::executor::messages::ToTerminal;
use crate::actors::session::messages::{CellRequest, SessionMsg};
use crate::control::body::{JsonBody, Path, Query};
use crate::control::idempotency::Key;
use crate::control::problems::ApiResult;
use crate::protocol::api::Done;
use crate::protocol::command::{CommandList, EndCommand, NewCommand, TerminalSize, Typed};
use crate::protocol::ids::CellNumber;
use crate::protocol::timeout::Timeouts;

pub async fn run(
    request: SessionRequest,
    Query(query): Query<AnswerQuery>,
    idempotency: Option<Extension<Key>>,
    JsonBody(body, memory): JsonBody<NewCommand>,
) -> ApiResult<Response> {
    let Timeouts { default, most } = request.app.settings.cells.timeouts();
    let query = if body.background { AnswerQuery { wait: false, stream: false } } else { query };
    let default = if body.background || body.tty.is_some() { most } else { default };
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

pub async fn type_into(
    request: SessionRequest,
    Path((_, cell)): Path<(String, CellNumber)>,
    JsonBody(typed, _charge): JsonBody<Typed>,
) -> ApiResult<Json<Done>> {
    let what = ToTerminal::Typed(typed.checked()?);
    request.act(|reply_to| SessionMsg::ToTerminal { cell, what, reply_to }).await
}

pub async fn resize(
    request: SessionRequest,
    Path((_, cell)): Path<(String, CellNumber)>,
    JsonBody(size, _charge): JsonBody<TerminalSize>,
) -> ApiResult<Json<Done>> {
    let what = ToTerminal::Resized(size);
    request.act(|reply_to| SessionMsg::ToTerminal { cell, what, reply_to }).await
}
