//! Cells and expressions.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use std::sync::Arc;

use super::requests::{AnswerQuery, SessionRequest, WaitQuery};
use super::sessions;
use crate::actors::calls::{call_promptly, try_call};
use crate::actors::results;
use crate::actors::session::keyed_request::{KeyedRequest, Wants};
use crate::actors::session::messages::{CellRequest, CellStatus, SessionMsg, SessionRef, Ticket};
use crate::control::app::App;
use crate::control::body::{JsonBody, Path, Query};
use crate::control::caller::Caller;
use crate::control::idempotency::Key;
use crate::control::problems::ApiResult;
use crate::control::sse::Until;
use crate::protocol::api::{CellState, CellView, Eval, RunCell};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::{ExecutionResult, Mode};
use crate::security_controls;

/// Whether the path is that of requests to run a cell or a command.
pub fn is_path(path: &str) -> bool {
    path.strip_prefix(sessions::PATH)
        .is_some_and(|rest| rest.ends_with("/cells") || rest.ends_with("/commands"))
}

/// Streams the events of a cell until its end.
pub async fn events_of(
    app: &App,
    caller: &Caller,
    session: &SessionRef,
    (after, cell): (Seq, CellNumber),
) -> ApiResult<Response> {
    let handles = try_call(session, |reply_to| SessionMsg::Handles { reply_to }).await?;
    app.stream(caller, handles.log, after, Until::CellEnd(cell))
}

pub async fn run(
    request: SessionRequest,
    Query(query): Query<AnswerQuery>,
    idempotency: Option<Extension<Key>>,
    JsonBody(body, memory): JsonBody<RunCell>,
) -> ApiResult<Response> {
    if body.mode == Mode::Command {
        return Err(Problem::new(Code::BadRequest, "a cell is no command")
            .hint("`POST /v1/sessions/{session}/commands` runs one")
            .into());
    }
    let timeout = request.app.settings.cells.timeouts().checked(body.timeout_s)?;
    let memory = Some(Arc::new(memory));
    let cell = CellRequest { memory, ..CellRequest::new(body.code, body.mode, timeout) };
    submit(request, query, idempotency, cell).await
}

/// Queues a cell or a command and answers as the client wants it.
pub(super) async fn submit(
    request: SessionRequest,
    query: AnswerQuery,
    idempotency: Option<Extension<Key>>,
    cell: CellRequest,
) -> ApiResult<Response> {
    let session = request.session().await?;
    let SessionRequest { app, caller, .. } = request;
    let key = idempotency.map(|Extension(Key(key))| key);
    let wants = match query {
        AnswerQuery { stream: true, .. } => Wants::Events,
        AnswerQuery { wait: true, .. } => Wants::Result,
        AnswerQuery { .. } => Wants::Number,
    };
    let keyed = key.map(|key| KeyedRequest { owner: caller.principal, key, wants });
    let request = CellRequest { keyed, ..cell };
    let ticket = try_call(&session, |reply_to| SessionMsg::Run { request, reply_to }).await?;
    if query.stream {
        return events_of(&app, &caller, &session, (ticket.events_after, ticket.cell)).await;
    }
    if query.wait {
        return finished(&session, ticket).await;
    }
    let Ticket { cell, events_after, .. } = ticket;
    let view = CellView { cell, state: CellState::Queued, events_after, result: None };
    Ok((StatusCode::ACCEPTED, Json(view)).into_response())
}

async fn finished(session: &SessionRef, ticket: Ticket) -> ApiResult<Response> {
    Ok(Json(&*ticket.result(session).await?).into_response())
}

pub async fn show(
    request: SessionRequest,
    Path((_, cell)): Path<(String, CellNumber)>,
    Query(query): Query<WaitQuery>,
) -> ApiResult<Json<CellView>> {
    let session = request.session().await?;
    if query.wait
        && let Some(ticket) =
            call_promptly(&session, |reply_to| SessionMsg::Ticket { cell, reply_to }).await?
    {
        // The view says what became of it, also if it has no result.
        let _ = ticket.result(&session).await;
    }
    Ok(Json(view_of(&session, cell).await?))
}

/// The current view of a cell.
pub async fn view_of(session: &SessionRef, cell: CellNumber) -> ApiResult<CellView> {
    let standing = call_promptly(session, |reply_to| SessionMsg::CellStatus { cell, reply_to }).await?;
    let view = |state, events_after| CellView { cell, state, events_after, result: None };
    match standing {
        CellStatus::Queued(events_after) => Ok(view(CellState::Queued, events_after)),
        CellStatus::Running(events_after) => Ok(view(CellState::Running, events_after)),
        CellStatus::Ended => ended(session, cell).await,
        CellStatus::Unknown => Err(Problem::new(Code::NoSuchCell, format!("there is no cell {cell} yet"))
            .hint("`belljar logs` lists the cells of a session")
            .into()),
    }
}

/// Waits for the end of a cell and returns its result.
pub async fn result_of(session: &SessionRef, cell: CellNumber) -> ApiResult<Arc<ExecutionResult>> {
    let handles = try_call(session, |reply_to| SessionMsg::Handles { reply_to }).await?;
    Ok(results::result_of(session, &handles.log, cell).await?)
}

async fn ended(session: &SessionRef, cell: CellNumber) -> ApiResult<CellView> {
    let handles = try_call(session, |reply_to| SessionMsg::Handles { reply_to }).await?;
    let (events_after, result) = results::ended(&handles.log, cell).await?;
    Ok(CellView { cell, state: CellState::Done, events_after, result: Some(result) })
}

pub async fn eval(request: SessionRequest, JsonBody(body, memory): JsonBody<Eval>) -> ApiResult<Response> {
    let session = request.session().await?;
    let timeout = request.app.settings.cells.timeouts().checked(body.timeout_s)?;
    let Eval { expression, values, isolated, .. } = body;
    if isolated {
        let memory = security_controls::setting("requests_keep_their_charge", memory);
        let message = |reply_to| SessionMsg::Compute { expression, values, timeout, memory, reply_to };
        return Ok(Json(try_call(&session, message).await?).into_response());
    }
    if !values.is_empty() {
        return Err(Problem::new(Code::BadRequest, "`values` are only for `isolated` expressions")
            .hint("seed the session, or set `isolated`")
            .into());
    }
    let memory = Some(Arc::new(memory));
    let request =
        CellRequest { expression: true, memory, ..CellRequest::new(expression, Mode::Fork, timeout) };
    let ticket = try_call(&session, |reply_to| SessionMsg::Run { request, reply_to }).await?;
    finished(&session, ticket).await
}
