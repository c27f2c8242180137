//! Asks, the conversation, the plan, models and tools.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::App;
use crate::actors::asks::messages::{AsksMsg, AsksRef};
use crate::actors::asks::port::ended;
use crate::actors::asks::spec::default_model;
use crate::actors::calls::{PROMPT, ask, call_part, lives};
use crate::actors::session::messages::{Handles, SessionMsg, SessionRef};
use crate::control::body::{JsonBody, Path, Query};
use crate::control::peer::Peer;
use crate::control::problems::{ApiResult, Refused};
use crate::control::sse::{self, Until};
use crate::protocol::ask::{
    AskList, AskNumber, AskView, History, ModelList, ModelView, NewAsk, PlanView, ToolList,
};
use crate::protocol::problem::{Code, Problem};
use crate::store::EventLog;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskQuery {
    #[serde(default)]
    wait: bool,
    #[serde(default)]
    stream: bool,
}

impl App {
    async fn asks(&self, peer: &Peer, key: &str) -> ApiResult<(AsksRef, Handles, SessionRef)> {
        let session = self.session(peer, key).await?;
        let asks = ask(&session, |reply_to| SessionMsg::Asks { reply_to }).await?;
        let handles = ask(&session, |reply_to| SessionMsg::Handles { reply_to }).await?;
        Ok((asks, handles, session))
    }
}

/// Waits until an ask has ended. If the asks actor dies meanwhile, the ask continues in its successor, and so does the
/// wait.
async fn until_ended(session: &SessionRef, log: &EventLog, number: AskNumber) -> ApiResult<AskView> {
    loop {
        let asks = ask(session, |reply_to| SessionMsg::Asks { reply_to }).await?;
        match ended(&asks, log, number, |_| {}).await {
            Err(_) if !lives(&asks) && lives(session) => {}
            outcome => return outcome.map_err(Refused),
        }
    }
}

pub async fn start(
    State(app): State<App>,
    peer: Peer,
    Path(key): Path<String>,
    Query(query): Query<AskQuery>,
    JsonBody(new, _charge): JsonBody<NewAsk>,
) -> ApiResult<Response> {
    if query.wait && query.stream {
        return Err(Problem::new(Code::BadRequest, "`wait` and `stream` exclude each other").into());
    }
    let (asks, handles, session) = app.asks(&peer, &key).await?;
    let new = Box::new(new);
    let begin = |reply_to| AsksMsg::Start { new, outer: None, reply_to };
    let view: AskView = call_part(&session, &asks, None, begin).await??;
    if query.stream {
        let until = Until::AskEnd(view.ask);
        let pool = app.ledger.memory(peer.uid);
        return Ok(sse::respond(handles.log, view.events_after, until, app.shutdown.clone(), pool)?);
    }
    if query.wait {
        let view = until_ended(&session, &handles.log, view.ask).await?;
        return Ok(Json(view).into_response());
    }
    Ok((StatusCode::ACCEPTED, Json(view)).into_response())
}

async fn view_of(session: &SessionRef, asks: &AsksRef, number: AskNumber) -> ApiResult<AskView> {
    let view =
        call_part(session, asks, Some(PROMPT), |reply_to| AsksMsg::View { ask: number, reply_to }).await?;
    view.ok_or_else(|| Problem::new(Code::NoSuchAsk, format!("there is no ask {number}")).into())
}

pub async fn list(State(app): State<App>, peer: Peer, Path(key): Path<String>) -> ApiResult<Json<AskList>> {
    let (asks, _, session) = app.asks(&peer, &key).await?;
    Ok(Json(AskList {
        asks: call_part(&session, &asks, Some(PROMPT), |reply_to| AsksMsg::List { reply_to }).await?,
    }))
}

pub async fn show(
    State(app): State<App>,
    peer: Peer,
    Path((key, number)): Path<(String, AskNumber)>,
    Query(query): Query<AskQuery>,
) -> ApiResult<Response> {
    let (asks, handles, session) = app.asks(&peer, &key).await?;
    let view = view_of(&session, &asks, number).await?;
    if query.stream {
        return Ok(sse::respond(
            handles.log,
            view.events_after,
            Until::AskEnd(number),
            app.shutdown.clone(),
            app.ledger.memory(peer.uid),
        )?);
    }
    if query.wait {
        let view = until_ended(&session, &handles.log, number).await?;
        return Ok(Json(view).into_response());
    }
    Ok(Json(view).into_response())
}

pub async fn cancel(
    State(app): State<App>,
    peer: Peer,
    Path((key, number)): Path<(String, AskNumber)>,
) -> ApiResult<Json<AskView>> {
    let (asks, _, session) = app.asks(&peer, &key).await?;
    let cancel = |reply_to| AsksMsg::Cancel { ask: number, reply_to };
    Ok(Json(call_part(&session, &asks, None, cancel).await??))
}

pub async fn history(
    State(app): State<App>,
    peer: Peer,
    Path(key): Path<String>,
) -> ApiResult<Json<History>> {
    let (asks, _, session) = app.asks(&peer, &key).await?;
    Ok(Json(History {
        messages: call_part(&session, &asks, Some(PROMPT), |reply_to| AsksMsg::History { reply_to }).await?,
    }))
}

pub async fn plan(State(app): State<App>, peer: Peer, Path(key): Path<String>) -> ApiResult<Json<PlanView>> {
    let (asks, _, session) = app.asks(&peer, &key).await?;
    Ok(Json(PlanView {
        versions: call_part(&session, &asks, Some(PROMPT), |reply_to| AsksMsg::Plans { reply_to }).await?,
    }))
}

pub async fn models(State(app): State<App>) -> Json<ModelList> {
    let default = default_model(&app.settings);
    let view = |(name, model): (&String, &crate::config::Model)| ModelView {
        name: name.clone(),
        provider: model.provider.name().to_owned(),
        model: model.model.clone(),
        default: default == Some(name.as_str()),
        missing_key: app.models.missing_key(name),
    };
    Json(ModelList { models: app.settings.models.iter().map(view).collect() })
}

pub async fn tools(State(app): State<App>) -> Json<ToolList> {
    Json(ToolList { tools: app.tools.model_tools(app.settings.agent.language) })
}
