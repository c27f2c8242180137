//! Approvals that wait for a decision by the owner of the session or an administrator.

use axum::Json;
use axum::extract::State;
use futures_util::future::join_all;

use super::requests::ListQuery;
use crate::actors::asks::messages::AsksMsg;
use crate::actors::calls::{call_part, call_promptly, try_call};
use crate::actors::session::messages::{SessionMsg, SessionRef};
use crate::control::app::App;
use crate::control::body::{JsonBody, Path, Query};
use crate::control::caller::Caller;
use crate::control::problems::{ApiResult, RefusedRequest};
use crate::protocol::api::Done;
use crate::protocol::ask::{Approval, ApprovalList, Decision};
use crate::protocol::limits::JOURNAL_TIMEOUT;
use crate::protocol::problem::{Code, Problem};

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> ApiResult<Json<ApprovalList>> {
    // All at once, because one of them may answer late.
    let pending = app.directory.list(query.owner(&app, &caller)?).into_iter().map(async |listed| {
        // A session that ends meanwhile has no approvals any more; of one that reads its journal none are known yet.
        let pending =
            listed.answer(pending(&listed.session)).await.ok().and_then(Result::ok).unwrap_or_default();
        if pending.iter().any(|approval| approval.owner != caller.principal) {
            // The administrator sees another user's code, which the session records.
            let _ = listed.session.cast(caller.acts());
        }
        pending
    });
    let mut approvals = join_all(pending).await.concat();
    approvals.sort_by(|a, b| a.asked_at.cmp(&b.asked_at));
    Ok(Json(ApprovalList { approvals }))
}

async fn pending(session: &SessionRef) -> Result<Vec<Approval>, Problem> {
    let asks = call_promptly(session, |reply_to| SessionMsg::Asks { reply_to }).await??;
    call_promptly(&asks, |reply_to| AsksMsg::Approvals { reply_to }).await
}

/// The approval's id begins with the id of its session.
pub async fn decide(
    State(app): State<App>,
    caller: Caller,
    Path(id): Path<String>,
    JsonBody(decision, memory): JsonBody<Decision>,
) -> ApiResult<Json<Done>> {
    let none = || {
        Problem::new(Code::NoSuchApproval, "nothing of this id waits for a decision")
            .hint("list what waits with `belljar approve`")
    };
    let (session, _) = id.split_once('.').ok_or_else(none)?;
    // For a session of another user the answer is the same as for an approval that does not exist.
    let session = app.session(&caller, session).await;
    let session = session.map_err(|RefusedRequest(problem)| match problem.code {
        Code::Forbidden => problem,
        _ => none(),
    })?;
    let asks = try_call(&session, |reply_to| SessionMsg::Asks { reply_to }).await?;
    let memory = Some(memory);
    let decide = |reply_to| AsksMsg::Decide { id, decision, by: caller.principal, memory, reply_to };
    // The answer comes when the journal has the decision.
    let decided = tokio::time::timeout(JOURNAL_TIMEOUT, call_part(&session, &asks, None, decide)).await;
    decided.map_err(|_| app.journal.unwritten("the decision was taken, which may be forgotten"))???;
    Ok(Json(Done {}))
}
