//! Sessions: create, list, show, remove, and requests that act on a session as a whole.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use futures_util::future::join_all;
use serde_json::json;

use super::requests::{SessionRequest, SessionsQuery, WaitQuery};
use crate::actors::calls::{call_promptly, try_call};
use crate::actors::directory::ListedSession;
use crate::actors::replay;
use crate::actors::session::messages::{SessionMsg, SessionRef};
use crate::actors::session::removers::Remover;
use crate::actors::supervisor::messages::SupervisorMsg;
use crate::control::app::App;
use crate::control::body::{JsonBody, Query};
use crate::control::caller::Caller;
use crate::control::idempotency::{Key, NewTarget};
use crate::control::problems::ApiResult;
use crate::protocol::api::{
    Done, Interrupted, NewSession, ReplayReport, SessionList, SessionView, Undo, Undone, VariableList,
    VariablesFilter,
};
use crate::protocol::ids::SessionId;
use crate::protocol::labels;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Receipt;
use crate::protocol::values::is_identifier;

pub const PATH: &str = "/v1/sessions";

pub async fn create(
    State(app): State<App>,
    Caller { principal, .. }: Caller,
    idempotency: Option<Extension<Key>>,
    JsonBody(request, memory): JsonBody<NewSession>,
) -> ApiResult<(StatusCode, Json<SessionView>)> {
    let (id, request) = (SessionId::fresh(), Box::new(request));
    let key = idempotency.map(|Extension(Key(key))| key);
    if let Some(key) = &key {
        // Recorded before the session exists, so that a repeated request finds the session even if the daemon dies
        // meanwhile.
        let target = json!(NewTarget { new_session: id });
        app.journal.aim(principal, key, Some(&target)).await?;
    }
    let memory = Some(memory);
    let message = |reply_to| SupervisorMsg::Create {
        id,
        owner: principal,
        request,
        nested: false,
        job: None,
        base: None,
        memory,
        reply_to,
    };
    let made = try_call(&app.supervisor, message).await;
    if let (Err(_), Some(key)) = (&made, &key)
        && let Err(error) = app.journal.aim_at_nothing(principal, key, id).await
    {
        tracing::warn!(%error, "a key is kept for a session that was not made");
    }
    Ok((StatusCode::CREATED, Json(made?)))
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    query: SessionsQuery,
) -> ApiResult<Json<SessionList>> {
    let owner = query.list.owner(&app, &caller)?;
    // All at once, because one of them may answer late.
    let views = app.directory.list(owner).into_iter().map(view_in_list);
    let is_wanted = |view: &SessionView| labels::has_all(&view.labels, &query.labels);
    let sessions = join_all(views).await.into_iter().flatten().filter(is_wanted).collect();
    Ok(Json(SessionList { sessions }))
}

/// A session that crashes while it answers is restarted and can be asked again; a session that ends is not listed.
async fn view_in_list(session: ListedSession) -> Result<SessionView, Problem> {
    match session.view().await {
        Err(problem) if problem.code == Code::Internal => session.view().await,
        answer => answer,
    }
}

pub async fn show(request: SessionRequest) -> ApiResult<Json<SessionView>> {
    Ok(Json(view_of(&request.session().await?).await?))
}

/// The current view of a session.
pub async fn view_of(session: &SessionRef) -> Result<SessionView, Problem> {
    call_promptly(session, |reply_to| SessionMsg::View { reply_to }).await
}

/// Answers when the journal has the removal and the name is free; with `wait`, when nothing is left.
pub async fn remove(request: SessionRequest, Query(query): Query<WaitQuery>) -> ApiResult<Json<Done>> {
    let remover = if query.wait { Remover::of_all } else { Remover::of_record };
    request.act(|reply_to| SessionMsg::Remove { remover: Some(remover(reply_to)) }).await
}

pub async fn interrupt(request: SessionRequest) -> ApiResult<Json<Interrupted>> {
    request.try_call(|reply_to| SessionMsg::Interrupt { reply_to }).await.map(Json)
}

pub async fn reset(request: SessionRequest) -> ApiResult<Json<Done>> {
    request.act(|reply_to| SessionMsg::Reset { replay: None, reply_to }).await
}

/// The longest name of a value whose attributes are asked for, and the longest beginning of theirs.
const DOTTED_BYTES: usize = 200;

pub async fn variables(
    request: SessionRequest,
    Query(which): Query<VariablesFilter>,
) -> ApiResult<Json<VariableList>> {
    let is_dotted = |of: &String| of.len() <= DOTTED_BYTES && of.split('.').all(is_identifier);
    if !which.of.iter().all(is_dotted) {
        return Err(Problem::new(Code::BadRequest, "`of` is no name, or names with dots between them").into());
    }
    if which.begins.len() > DOTTED_BYTES {
        let what = format!("`begins` has more than {DOTTED_BYTES} bytes");
        return Err(Problem::new(Code::BadRequest, what).into());
    }
    request.try_call(|reply_to| SessionMsg::Variables { which, patient: false, reply_to }).await.map(Json)
}

pub async fn receipt(request: SessionRequest) -> ApiResult<Json<Receipt>> {
    let receipt = request.try_call(|reply_to| SessionMsg::Receipt { reply_to }).await?;
    Ok(Json((*receipt).clone()))
}

pub async fn undo(
    request: SessionRequest,
    JsonBody(Undo { cells }, _charge): JsonBody<Undo>,
) -> ApiResult<Json<Undone>> {
    if cells == 0 {
        return Err(Problem::new(Code::BadRequest, "`cells` has to be at least 1").into());
    }
    request.try_call(|reply_to| SessionMsg::Undo { cells, reply_to }).await.map(Json)
}

/// Replays a session's cells, which takes as long as the cells do.
pub async fn replay(request: SessionRequest) -> ApiResult<Json<ReplayReport>> {
    let (session, handles) = request.handles().await?;
    // The replay continues if the client disconnects, because half a replay is worse than the state before it.
    let replayed = tokio::spawn(async move { replay::replay(&session, &handles.log).await });
    Ok(Json(replayed.await.map_err(|error| Problem::new(Code::Internal, error.to_string()))??))
}

pub async fn freeze(request: SessionRequest) -> ApiResult<Json<Done>> {
    request.act(|reply_to| SessionMsg::Freeze { reply_to }).await
}

/// Lets an ephemeral session stay for its idle time when its last client leaves.
pub async fn linger(request: SessionRequest) -> ApiResult<Json<Done>> {
    request.act(|reply_to| SessionMsg::Linger { reply_to }).await
}

pub async fn thaw(request: SessionRequest) -> ApiResult<Json<Done>> {
    request.act(|reply_to| SessionMsg::Thaw { reply_to }).await
}
