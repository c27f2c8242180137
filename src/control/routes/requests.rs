//! What several routes read from a request.

use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::Deserialize;

use crate::actors::calls::{Reply, try_call};
use crate::actors::session::messages::{Handles, SessionMsg, SessionRef};
use crate::control::app::App;
use crate::control::body::{Path, Query};
use crate::control::caller::Caller;
use crate::control::problems::{ApiResult, RefusedRequest};
use crate::protocol::api::Done;
use crate::protocol::labels;
use crate::protocol::limits::LABELS;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};

/// A request about one session: who asks, and how the path names the session.
pub struct SessionRequest {
    pub app: App,
    pub caller: Caller,
    key: String,
}

#[derive(Deserialize)]
struct SessionParameter {
    session: String,
}

impl FromRequestParts<App> for SessionRequest {
    type Rejection = RefusedRequest;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, RefusedRequest> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let Path(SessionParameter { session: key }) = Path::from_request_parts(parts, app).await?;
        Ok(Self { app: app.clone(), caller, key })
    }
}

impl SessionRequest {
    /// Finds the session. To be called once in a request, because each access by an administrator is recorded.
    pub async fn session(&self) -> ApiResult<SessionRef> {
        self.app.session(&self.caller, &self.key).await
    }

    /// Asks the session, whose answer takes as long as the work does.
    pub async fn try_call<T: Send + 'static>(
        &self,
        message: impl FnOnce(Reply<T>) -> SessionMsg,
    ) -> ApiResult<T> {
        Ok(try_call(&self.session().await?, message).await?)
    }

    /// Has the session do something that has no answer but its end.
    pub async fn act(&self, message: impl FnOnce(Reply<()>) -> SessionMsg) -> ApiResult<Json<Done>> {
        self.try_call(message).await?;
        Ok(Json(Done {}))
    }

    pub async fn handles(&self) -> ApiResult<(SessionRef, Handles)> {
        let session = self.session().await?;
        let handles = try_call(&session, |reply_to| SessionMsg::Handles { reply_to }).await?;
        Ok((session, handles))
    }
}

/// Whether the answer waits for the end.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WaitQuery {
    #[serde(default)]
    pub(super) wait: bool,
}

/// Whether the answer waits for the end, or is the stream of events until then.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerQuery {
    #[serde(default)]
    pub(super) wait: bool,
    #[serde(default)]
    pub(super) stream: bool,
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
    pub(super) fn owner(&self, app: &App, caller: &Caller) -> Result<Option<Principal>, Problem> {
        if self.all {
            caller.require_admin(&app.live().admin.group, "see what others have")?;
        }
        Ok((!self.all).then_some(caller.principal))
    }
}

/// Which sessions are listed. A label can be named several times, which a plain struct cannot express.
pub struct SessionsQuery {
    pub(super) list: ListQuery,
    /// Only sessions with all these labels.
    pub(super) labels: Vec<(String, String)>,
}

impl SessionsQuery {
    fn read(parameters: Vec<(String, String)>) -> Result<Self, String> {
        let mut query = Self { list: ListQuery { all: false }, labels: Vec::new() };
        for (name, value) in parameters {
            match name.as_str() {
                "all" => query.list.all = value.parse().map_err(|_| "`all` is `true` or `false`")?,
                "label" if query.labels.len() < LABELS => query.labels.push(labels::parse(&value)?),
                "label" => return Err(format!("more than {LABELS} labels are named")),
                _ => return Err(format!("`{}` is no parameter of this list", name.escape_default())),
            }
        }
        Ok(query)
    }
}

impl FromRequestParts<App> for SessionsQuery {
    type Rejection = RefusedRequest;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, RefusedRequest> {
        let Query(parameters) = Query::from_request_parts(parts, app).await?;
        let wrong = |message| Problem::new(Code::BadRequest, message).hint("see `GET /openapi.json`").into();
        Self::read(parameters).map_err(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::routes::{events, machine};

    /// Pieces of query strings, right and wrong.
    const PIECES: &str = "(all|label|after|follow|wait|stream|user|x|%|%0|%41|%ff|\\+|=|&|;|#|true|false|1|-1|1e9|\\PC|99999999999999999999){0,12}";

    proptest::proptest! {
        #[test]
        fn every_query_string_is_taken_or_refused(query in PIECES) {
            let Ok(uri) = axum::http::Uri::try_from(format!("/v1/x?{query}")) else { return Ok(()) };
            drop(axum::extract::Query::<AnswerQuery>::try_from_uri(&uri));
            drop(axum::extract::Query::<WaitQuery>::try_from_uri(&uri));
            drop(axum::extract::Query::<events::EventsQuery>::try_from_uri(&uri));
            drop(axum::extract::Query::<machine::QuotaQuery>::try_from_uri(&uri));
            drop(axum::extract::Query::<ListQuery>::try_from_uri(&uri));
            if let Ok(axum::extract::Query(parameters)) = axum::extract::Query::try_from_uri(&uri) {
                drop(SessionsQuery::read(parameters));
            }
        }
    }
}
