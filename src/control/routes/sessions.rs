//! Sessions: create, list, show, remove, and requests that act on a session as a whole.

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::json;

use super::App;
use crate::actors::calls::{ask, call_promptly};
use crate::actors::replay;
use crate::actors::session::messages::SessionMsg;
use crate::actors::supervisor::messages::SupervisorMsg;
use crate::control::body::{JsonBody, Path, Query};
use crate::control::idempotency::{Key, NewTarget};
use crate::control::peer::Peer;
use crate::control::problems::ApiResult;
use crate::protocol::api::{
    Done, Interrupted, NewSession, ReplayReport, SessionList, SessionView, Undo, Undone, VariableList,
    VariablesFilter,
};
use crate::protocol::ids::SessionId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Receipt;

pub const PATH: &str = "/v1/sessions";

pub async fn create(
    State(app): State<App>,
    Peer { uid, .. }: Peer,
    idempotency: Option<Extension<Key>>,
    JsonBody(request, _charge): JsonBody<NewSession>,
) -> ApiResult<(StatusCode, Json<SessionView>)> {
    let (id, request) = (SessionId::fresh(), Box::new(request));
    let key = idempotency.map(|Extension(Key(key))| key);
    if let Some(key) = &key {
        // Recorded before the session exists, so that a repeated request finds the session even if the daemon dies
        // meanwhile.
        let target = json!(NewTarget { new_session: id });
        let noted = app.journal.aim(uid, key, Some(&target)).await;
        noted.map_err(Problem::from)?;
    }
    let message =
        |reply_to| SupervisorMsg::Create { id, peer: uid, request, nested: false, job: None, reply_to };
    let made = ask(&app.supervisor, message).await;
    if let (Err(_), Some(key)) = (&made, &key)
        && let Err(error) = app.journal.aim_at_nothing(uid, key, id).await
    {
        tracing::warn!(%error, "a key is kept for a session that was not made");
    }
    Ok((StatusCode::CREATED, Json(made?)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Lists what all users have; for administrators only.
    #[serde(default)]
    pub all: bool,
}

pub async fn list(
    State(app): State<App>,
    peer: Peer,
    Query(query): Query<ListQuery>,
) -> ApiResult<Json<SessionList>> {
    if query.all {
        peer.require_admin(&app.settings.admin.group, "see what others have")?;
    }
    let meant = (!query.all).then_some(peer.uid);
    // All at once, because one of them may answer late.
    let views = app.directory.list(meant).into_iter().map(async |session| {
        let view = || session.view();
        // A session that crashes while it answers is restarted and can be asked again; a session that ends is not
        // listed.
        match view().await {
            Err(problem) if problem.code == Code::Internal => view().await,
            answer => answer,
        }
    });
    let sessions = join_all(views).await.into_iter().flatten().collect();
    Ok(Json(SessionList { sessions }))
}

pub async fn show(
    State(app): State<App>,
    peer: Peer,
    Path(key): Path<String>,
) -> ApiResult<Json<SessionView>> {
    view_of(&app, &peer, &key).await.map(Json)
}

/// The current view of a session.
pub async fn view_of(app: &App, peer: &Peer, key: &str) -> ApiResult<SessionView> {
    let session = app.session(peer, key).await?;
    Ok(call_promptly(&session, |reply_to| SessionMsg::View { reply_to }).await?)
}

pub async fn remove(State(app): State<App>, peer: Peer, Path(key): Path<String>) -> ApiResult<Json<Done>> {
    let session = app.session(&peer, &key).await?;
    ask(&session, |reply_to| SessionMsg::Remove { reply_to: Some(reply_to) }).await?;
    Ok(Json(Done {}))
}

pub async fn interrupt(
    State(app): State<App>,
    peer: Peer,
    Path(key): Path<String>,
) -> ApiResult<Json<Interrupted>> {
    let session = app.session(&peer, &key).await?;
    Ok(Json(ask(&session, |reply_to| SessionMsg::Interrupt { reply_to }).await?))
}

pub async fn reset(State(app): State<App>, peer: Peer, Path(key): Path<String>) -> ApiResult<Json<Done>> {
    let session = app.session(&peer, &key).await?;
    ask(&session, |reply_to| SessionMsg::Reset { replay: None, reply_to }).await?;
    Ok(Json(Done {}))
}

pub async fn variables(
    State(app): State<App>,
    peer: Peer,
    Path(key): Path<String>,
    Query(which): Query<VariablesFilter>,
) -> ApiResult<Json<VariableList>> {
    let session = app.session(&peer, &key).await?;
    let message = |reply_to| SessionMsg::Variables { which, patient: false, reply_to };
    Ok(Json(ask(&session, message).await?))
}

pub async fn receipt(
    State(app): State<App>,
    peer: Peer,
    Path(key): Path<String>,
) -> ApiResult<Json<Receipt>> {
    let session = app.session(&peer, &key).await?;
    let receipt = ask(&session, |reply_to| SessionMsg::Receipt { reply_to }).await?;
    Ok(Json((*receipt).clone()))
}

pub async fn undo(
    State(app): State<App>,
    peer: Peer,
    Path(key): Path<String>,
    JsonBody(body, _charge): JsonBody<Undo>,
) -> ApiResult<Json<Undone>> {
    if body.cells == 0 {
        return Err(Problem::new(Code::BadRequest, "`cells` has to be at least 1").into());
    }
    let session = app.session(&peer, &key).await?;
    Ok(Json(ask(&session, |reply_to| SessionMsg::Undo { cells: body.cells, reply_to }).await?))
}

/// Replays a session's cells, which takes as long as the cells do.
pub async fn replay(
    State(app): State<App>,
    peer: Peer,
    Path(key): Path<String>,
) -> ApiResult<Json<ReplayReport>> {
    let session = app.session(&peer, &key).await?;
    let handles = ask(&session, |reply_to| SessionMsg::Handles { reply_to }).await?;
    // The replay continues if the client disconnects, because half a replay is worse than the state before it.
    let replayed = tokio::spawn(async move { replay::replay(&session, &handles.log).await });
    Ok(Json(replayed.await.map_err(|error| Problem::new(Code::Internal, error.to_string()))??))
}

pub async fn freeze(State(app): State<App>, peer: Peer, Path(key): Path<String>) -> ApiResult<Json<Done>> {
    let session = app.session(&peer, &key).await?;
    ask(&session, |reply_to| SessionMsg::Freeze { reply_to }).await?;
    Ok(Json(Done {}))
}

pub async fn thaw(State(app): State<App>, peer: Peer, Path(key): Path<String>) -> ApiResult<Json<Done>> {
    let session = app.session(&peer, &key).await?;
    ask(&session, |reply_to| SessionMsg::Thaw { reply_to }).await?;
    Ok(Json(Done {}))
}
