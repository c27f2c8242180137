//! Asks, the conversation, the plan, models and tools.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::requests::{AnswerQuery, SessionRequest};
use crate::actors::asks::client::call_asks;
use crate::actors::asks::messages::AsksMsg;
use crate::actors::asks::port::ended;
use crate::actors::asks::spec::default_model;
use crate::actors::calls::{PROMPT, lives, try_call};
use crate::actors::session::messages::{SessionMsg, SessionRef};
use crate::control::app::App;
use crate::control::body::{JsonBody, Path, Query};
use crate::control::problems::{ApiResult, RefusedRequest};
use crate::control::sse::Until;
use crate::protocol::ask::{
    AskList, AskNumber, AskView, History, ModelList, ModelView, NewAsk, PlanView, ToolList,
};
use crate::protocol::problem::{Code, Problem};
use crate::store::EventLog;

/// Waits until an ask has ended. If the asks actor dies meanwhile, the ask continues in its successor, and so does the
/// wait.
async fn until_ended(session: &SessionRef, log: &EventLog, number: AskNumber) -> ApiResult<AskView> {
    loop {
        let asks = try_call(session, |reply_to| SessionMsg::Asks { reply_to }).await?;
        match ended(&asks, log, number, |_| {}).await {
            Err(_) if !lives(&asks) && lives(session) => {}
            outcome => return outcome.map_err(RefusedRequest),
        }
    }
}

/// Answers with the stream of the ask's events, with the ask when it has ended, or with the ask as it is.
async fn answer(
    SessionRequest { app, caller, .. }: &SessionRequest,
    session: &SessionRef,
    query: &AnswerQuery,
    (status, view): (StatusCode, AskView),
) -> ApiResult<Response> {
    if !query.stream && !query.wait {
        return Ok((status, Json(view)).into_response());
    }
    let log = try_call(session, |reply_to| SessionMsg::Handles { reply_to }).await?.log;
    if query.stream {
        return app.stream(caller, log, view.events_after, Until::AskEnd(view.ask));
    }
    Ok(Json(until_ended(session, &log, view.ask).await?).into_response())
}

pub async fn start(
    request: SessionRequest,
    Query(query): Query<AnswerQuery>,
    JsonBody(new, memory): JsonBody<NewAsk>,
) -> ApiResult<Response> {
    if query.wait && query.stream {
        return Err(Problem::new(Code::BadRequest, "`wait` and `stream` exclude each other").into());
    }
    let session = request.session().await?;
    let (new, memory) = (Box::new(new), Some(memory));
    let start = |reply_to| AsksMsg::Start { new, outer: None, memory, reply_to };
    let view = call_asks(&session, None, start).await??;
    answer(&request, &session, &query, (StatusCode::ACCEPTED, view)).await
}

pub async fn list(request: SessionRequest) -> ApiResult<Json<AskList>> {
    let list = |reply_to| AsksMsg::List { reply_to };
    Ok(Json(AskList { asks: call_asks(&request.session().await?, Some(PROMPT), list).await? }))
}

pub async fn show(
    request: SessionRequest,
    Path((_, number)): Path<(String, AskNumber)>,
    Query(query): Query<AnswerQuery>,
) -> ApiResult<Response> {
    let session = request.session().await?;
    let view = |reply_to| AsksMsg::View { ask: number, reply_to };
    let view = call_asks(&session, Some(PROMPT), view).await?;
    let view = view.ok_or_else(|| Problem::new(Code::NoSuchAsk, format!("there is no ask {number}")))?;
    answer(&request, &session, &query, (StatusCode::OK, view)).await
}

pub async fn cancel(
    request: SessionRequest,
    Path((_, number)): Path<(String, AskNumber)>,
) -> ApiResult<Json<AskView>> {
    let cancel = |reply_to| AsksMsg::Cancel { ask: number, reply_to };
    Ok(Json(call_asks(&request.session().await?, None, cancel).await??))
}

pub async fn history(request: SessionRequest) -> ApiResult<Json<History>> {
    let history = |reply_to| AsksMsg::History { reply_to };
    Ok(Json(History { messages: call_asks(&request.session().await?, Some(PROMPT), history).await? }))
}

pub async fn plan(request: SessionRequest) -> ApiResult<Json<PlanView>> {
    let plans = |reply_to| AsksMsg::Plans { reply_to };
    Ok(Json(PlanView { versions: call_asks(&request.session().await?, Some(PROMPT), plans).await? }))
}

pub async fn models(State(app): State<App>) -> Json<ModelList> {
    let settings = app.live();
    let default = default_model(&settings);
    let view = |(name, model): (&String, &crate::config::Model)| ModelView {
        name: name.clone(),
        provider: model.provider.name().to_owned(),
        model: model.model.clone(),
        default: default == Some(name.as_str()),
        missing_key: app.models.missing_key(name),
    };
    Json(ModelList { models: settings.models.iter().map(view).collect() })
}

pub async fn tools(State(app): State<App>) -> Json<ToolList> {
    Json(ToolList { tools: app.tools.model_tools(app.live().agent.language) })
}
