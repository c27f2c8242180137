//! The routes, one file per resource.

mod approvals;
mod asks;
pub mod cells;
mod client_tools;
mod events;
mod files;
mod jobs;
mod machine;
pub mod sessions;

use axum::body::HttpBody;
use axum::extract::{FromRequestParts, MatchedPath, Request, State};
use axum::http::Method;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use http_body_util::BodyExt;
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio_util::sync::CancellationToken;

use super::body::{Path, charged};
use super::idempotency::{self, InWork};
use super::identity::Identities;
use super::key_accounts::KeyAccounts;
use super::peer::{Peer, UserSlots};
use super::problems::{ApiResult, Refused};
use super::sse::{self, Until};
use super::unread;
use crate::actors::calls::{Reply, ask};
use crate::actors::directory::Directory;
use crate::actors::jobs::{Inputs, JobsMsg};
use crate::actors::llm::Models;
use crate::actors::restarted::Restarted;
use crate::actors::session::messages::{Handles, SessionMsg, SessionRef};
use crate::actors::supervisor::messages::SupervisorRef;
use crate::config::Settings;
use crate::controls;
use crate::memory::SMALL_BYTES;
use crate::protocol::api::Done;
use crate::protocol::ids::Seq;
use crate::protocol::problem::{Code, Problem};
use crate::quota::Ledger;
use crate::sandbox::launch::Launcher;
use crate::store::{EventLog, Journal};
use crate::tools::Registry;

/// The shared state of all handlers.
#[derive(Clone)]
pub struct App {
    pub supervisor: SupervisorRef,
    pub directory: Directory,
    pub jobs: Restarted<JobsMsg>,
    pub inputs: Inputs,
    pub launcher: Arc<Launcher>,
    pub settings: Arc<Settings>,
    pub shutdown: CancellationToken,
    /// Cancelled when a client asks the daemon to stop.
    pub stop: CancellationToken,
    /// Whether the daemon also removes all sandboxes when it ends.
    pub remove_all: Arc<AtomicBool>,
    pub journal: Journal,
    pub in_work: InWork,
    pub key_accounts: KeyAccounts,
    pub uploads: UserSlots,
    pub models: Models,
    /// The tools of every session.
    pub tools: Arc<Registry>,
    pub ledger: Ledger,
    pub identities: Identities,
}

impl App {
    pub fn router(self) -> Router {
        Router::new()
            .route("/openapi.json", get(machine::openapi))
            .route("/v1/health", get(machine::health))
            .route("/v1/version", get(machine::version))
            .route("/v1/shutdown", post(machine::shut_down))
            .route("/v1/images", get(machine::images).post(machine::pull))
            .route("/v1/job-inputs", put(jobs::receive))
            .route("/v1/jobs", get(jobs::list).post(jobs::submit))
            .route("/v1/jobs/{job}", get(jobs::show).delete(jobs::forget))
            .route("/v1/jobs/{job}/cancel", post(jobs::cancel))
            .route("/v1/jobs/{job}/events", get(jobs::events))
            .route("/v1/jobs/{job}/artifacts", get(jobs::artifacts))
            .route("/v1/models", get(asks::models))
            .route("/v1/tools", get(asks::tools))
            .route("/v1/quota", get(machine::quota))
            .route("/v1/approvals", get(approvals::list))
            .route("/v1/approvals/{approval}", post(approvals::decide))
            .route(sessions::PATH, get(sessions::list).post(sessions::create))
            .route("/v1/sessions/{session}", get(sessions::show).delete(sessions::remove))
            .route("/v1/sessions/{session}/cells", post(cells::run))
            .route("/v1/sessions/{session}/cells/{cell}", get(cells::show))
            .route("/v1/sessions/{session}/asks", get(asks::list).post(asks::start))
            .route("/v1/sessions/{session}/asks/{ask}", get(asks::show))
            .route("/v1/sessions/{session}/asks/{ask}/cancel", post(asks::cancel))
            .route("/v1/sessions/{session}/history", get(asks::history))
            .route("/v1/sessions/{session}/plan", get(asks::plan))
            .route("/v1/sessions/{session}/tools", post(client_tools::lend))
            .route("/v1/sessions/{session}/tool-calls/{call}", post(client_tools::answer))
            .route("/v1/sessions/{session}/eval", post(cells::eval))
            .route("/v1/sessions/{session}/interrupt", post(sessions::interrupt))
            .route("/v1/sessions/{session}/reset", post(sessions::reset))
            .route("/v1/sessions/{session}/undo", post(sessions::undo))
            .route("/v1/sessions/{session}/replay", post(sessions::replay))
            .route("/v1/sessions/{session}/freeze", post(sessions::freeze))
            .route("/v1/sessions/{session}/thaw", post(sessions::thaw))
            .route("/v1/sessions/{session}/events", get(events::stream))
            .route("/v1/sessions/{session}/hold", get(events::hold))
            .route("/v1/sessions/{session}/variables", get(sessions::variables))
            .route("/v1/sessions/{session}/receipt", get(sessions::receipt))
            .route("/v1/sessions/{session}/files", get(files::get).put(files::put))
            .route("/v1/sessions/{session}/files/", get(files::get).put(files::put))
            .route(
                "/v1/sessions/{session}/files/{*path}",
                get(files::get).put(files::put).delete(files::remove),
            )
            .fallback(no_such_route)
            .method_not_allowed_fallback(no_such_route)
            .layer(axum::middleware::from_fn_with_state(self.clone(), idempotency::once))
            .layer(axum::middleware::from_fn_with_state(self.clone(), charge_answer))
            .layer(axum::middleware::from_fn(unread::read_the_rest))
            .with_state(self)
    }

    /// The caller's session of that name or id. Administrators also reach sessions of other users, as `NAME@USER` or by
    /// id; each such access is recorded in the session's events.
    pub async fn session(&self, peer: &Peer, key: &str) -> ApiResult<SessionRef> {
        let none = || no_such_session(key);
        let (owner, name, of_all) = match key.split_once('@') {
            None => (peer.uid, key, peer.admin),
            Some((name, user)) => {
                let owner =
                    self.identities.named(user, peer).await.filter(|owner| *owner == peer.uid || peer.admin);
                (owner.ok_or_else(none)?, name, false)
            }
        };
        let found = self.directory.find(owner, name, of_all).ok_or_else(none)?;
        let roots = found.owner == ROOT && peer.uid != ROOT;
        if roots && !peer.looks_or_stops && controls::holds("only_root_acts_in_sessions_of_root") {
            return Err(Problem::new(Code::Forbidden, "only root has something done in a session of root")
                .hint("look at it, interrupt it or remove it; or make a session of your own")
                .into());
        }
        if found.owner != peer.uid {
            let acted = SessionMsg::ActedOn { admin: peer.uid, act: peer.act.clone() };
            // The session records this before it handles the request itself, because messages of one sender keep their
            // order.
            let _ = found.session.cast(acted);
        }
        Ok(found.session)
    }

    /// Streams events of a session to the caller.
    fn stream(&self, peer: &Peer, log: Arc<EventLog>, after: Seq, until: Until) -> ApiResult<Response> {
        let (shutdown, pool) = (self.shutdown.clone(), self.ledger.memory(peer.uid));
        Ok(sse::respond(log, after, until, shutdown, pool, None)?)
    }
}

/// A request about one session: who asks, and how the path names the session.
pub struct SessionRequest {
    pub app: App,
    pub peer: Peer,
    key: String,
}

#[derive(Deserialize)]
struct SessionParameter {
    session: String,
}

impl FromRequestParts<App> for SessionRequest {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Refused> {
        let peer = Peer::from_request_parts(parts, app).await?;
        let Path(SessionParameter { session: key }) = Path::from_request_parts(parts, app).await?;
        Ok(Self { app: app.clone(), peer, key })
    }
}

impl SessionRequest {
    /// Finds the session. To be called once in a request, because each access by an administrator is recorded.
    pub async fn session(&self) -> ApiResult<SessionRef> {
        self.app.session(&self.peer, &self.key).await
    }

    /// Asks the session, whose answer takes as long as the work does.
    pub async fn ask<T: Send + 'static>(&self, message: impl FnOnce(Reply<T>) -> SessionMsg) -> ApiResult<T> {
        Ok(ask(&self.session().await?, message).await?)
    }

    /// Has the session do something that has no answer but its end.
    pub async fn act(&self, message: impl FnOnce(Reply<()>) -> SessionMsg) -> ApiResult<Json<Done>> {
        self.ask(message).await?;
        Ok(Json(Done {}))
    }

    pub async fn handles(&self) -> ApiResult<(SessionRef, Handles)> {
        let session = self.session().await?;
        let handles = ask(&session, |reply_to| SessionMsg::Handles { reply_to }).await?;
        Ok((session, handles))
    }
}

/// Whether the answer waits for the end.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitQuery {
    #[serde(default)]
    wait: bool,
}

/// Whether the answer waits for the end, or is the stream of events until then.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerQuery {
    #[serde(default)]
    wait: bool,
    #[serde(default)]
    stream: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// Lists what all users have; for administrators only.
    #[serde(default)]
    all: bool,
}

impl ListQuery {
    /// The user whose things are listed; `None` for all users.
    fn owner(&self, app: &App, peer: &Peer) -> Result<Option<u32>, Problem> {
        if self.all {
            peer.require_admin(&app.settings.admin.group, "see what others have")?;
        }
        Ok((!self.all).then_some(peer.uid))
    }
}

fn no_such_session(key: &str) -> Problem {
    let shown: String = key.chars().take(100).collect::<String>().escape_default().to_string();
    let hint = match shown.split_once('@') {
        Some(_) => "list all with `belljar ps --all`, if you are an administrator".to_owned(),
        None => format!("make it with `belljar new {shown}`, or list yours with `belljar ps`"),
    };
    Problem::new(Code::NoSuchSession, format!("there is no session `{shown}`")).hint(hint)
}

/// A middleware for all routes: charges a large answer until the client has read it. Streams have charges of their own.
async fn charge_answer(
    State(app): State<App>,
    peer: Peer,
    request: Request,
    next: Next,
) -> ApiResult<Response> {
    let response = next.run(request).await;
    let is_large = response.body().size_hint().exact().is_some_and(|bytes| bytes > SMALL_BYTES);
    if !is_large {
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    let unread = |error: axum::Error| Problem::new(Code::Internal, error.to_string());
    let bytes = body.collect().await.map_err(unread)?.to_bytes();
    Ok(Response::from_parts(parts, charged(&app.ledger.memory(peer.uid), bytes)?))
}

/// The uid of root.
const ROOT: u32 = 0;

/// Whether a request neither runs nor changes anything that may run, judged by its route. The programs of tools run as
/// the owner of the session, so a caller who runs code in a session of root acts as root, and an administrator need not
/// be root.
fn looks_or_stops(method: &Method, route: &str) -> bool {
    let below = route.strip_prefix("/v1/sessions/{session}");
    match (method, below) {
        (&Method::GET, _) => true,
        (&Method::DELETE, Some(below)) => below.is_empty(),
        (&Method::POST, Some(below)) => {
            matches!(below, "/interrupt" | "/reset" | "/undo" | "/freeze" | "/thaw" | "/asks/{ask}/cancel")
        }
        _ => false,
    }
}

/// The record of a request by an administrator. Both ends of a long path are kept, so that nothing can be hidden behind
/// a long prefix.
fn act(method: &Method, path: &str) -> String {
    let chars: Vec<char> = path.chars().collect();
    if chars.len() <= ACT_CHARS {
        return format!("{method} {path}");
    }
    let (head, tail) = (&chars[..ACT_CHARS / 2], &chars[chars.len() - ACT_CHARS / 2..]);
    format!("{method} {}…{}", String::from_iter(head), String::from_iter(tail))
}

/// Characters of the path that are kept in the record.
const ACT_CHARS: usize = 200;

async fn no_such_route(method: Method, uri: axum::http::Uri) -> Refused {
    let path: String = uri.path().chars().take(200).collect();
    Problem::new(Code::NoSuchRoute, format!("there is no `{method} {}`", path.escape_default()))
        .hint("see `GET /openapi.json`")
        .into()
}

impl FromRequestParts<App> for Peer {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Refused> {
        let peer = parts.extensions.get::<Peer>().cloned();
        let peer = peer.ok_or_else(|| Problem::new(Code::Internal, "a connection without a peer"))?;
        let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
        let looks_or_stops = looks_or_stops(&parts.method, route);
        Ok(Self { act: act(&parts.method, parts.uri.path()), looks_or_stops, ..peer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces of query strings, right and wrong.
    const PIECES: &str = "(all|after|follow|wait|stream|user|x|%|%0|%41|%ff|\\+|=|&|;|#|true|false|1|-1|1e9|\\PC|99999999999999999999){0,12}";

    proptest::proptest! {
        #[test]
        fn every_query_string_is_taken_or_refused(query in PIECES) {
            let Ok(uri) = axum::http::Uri::try_from(format!("/v1/x?{query}")) else { return Ok(()) };
            drop(axum::extract::Query::<AnswerQuery>::try_from_uri(&uri));
            drop(axum::extract::Query::<WaitQuery>::try_from_uri(&uri));
            drop(axum::extract::Query::<events::EventsQuery>::try_from_uri(&uri));
            drop(axum::extract::Query::<machine::QuotaQuery>::try_from_uri(&uri));
            drop(axum::extract::Query::<ListQuery>::try_from_uri(&uri));
        }
    }

    #[test]
    fn only_what_runs_nothing_is_looking_or_stopping() {
        let below = |method: Method, below: &str| {
            looks_or_stops(&method, &format!("/v1/sessions/{{session}}{below}"))
        };
        for stops in ["/interrupt", "/reset", "/undo", "/freeze", "/thaw", "/asks/{ask}/cancel"] {
            assert!(below(Method::POST, stops), "{stops}");
        }
        assert!(below(Method::GET, "/events") && below(Method::DELETE, ""));
        for runs in ["/cells", "/eval", "/asks", "/replay", "/tools", "/tool-calls/{call}", ""] {
            assert!(!below(Method::POST, runs), "{runs}");
        }
        for method in [Method::PUT, Method::DELETE] {
            assert!(!below(method, "/files/{*path}"));
        }
        assert!(!looks_or_stops(&Method::POST, "/v1/approvals/{id}"));
        assert!(!looks_or_stops(&Method::DELETE, ""), "what no route serves");
    }

    #[test]
    fn the_end_of_a_long_path_is_noted_too() {
        assert_eq!(act(&Method::GET, "/v1/sessions/a"), "GET /v1/sessions/a");
        let long = format!("/v1/sessions/{}/files/keep.txt", "é".repeat(500));
        let noted = act(&Method::DELETE, &long);
        assert!(noted.ends_with("/files/keep.txt") && noted.starts_with("DELETE /v1/sessions/é"), "{noted}");
        assert!(noted.chars().count() <= ACT_CHARS + "DELETE …".len(), "{noted}");
    }
}
