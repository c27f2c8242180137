//! Approvals that wait for a decision by the owner of the session or an administrator.

use axum::Json;
use axum::extract::State;

use super::{App, ListQuery};
use crate::actors::asks::messages::AsksMsg;
use crate::actors::calls::{ask, call_part, call_promptly};
use crate::actors::directory::Listed;
use crate::actors::session::messages::SessionMsg;
use crate::control::body::{JsonBody, Path, Query};
use crate::control::peer::Peer;
use crate::control::problems::{ApiResult, Refused};
use crate::protocol::api::Done;
use crate::protocol::ask::{ApprovalList, Decision};
use crate::protocol::limits::JOURNAL_TIMEOUT;
use crate::protocol::problem::{Code, Problem};

pub async fn list(
    State(app): State<App>,
    peer: Peer,
    Query(query): Query<ListQuery>,
) -> ApiResult<Json<ApprovalList>> {
    let mut approvals = Vec::new();
    for Listed { session, .. } in app.directory.list(query.owner(&app, &peer)?) {
        // A session that ends meanwhile has no approvals any more.
        let Ok(Ok(asks)) = call_promptly(&session, |reply_to| SessionMsg::Asks { reply_to }).await else {
            continue;
        };
        if let Ok(pending) = call_promptly(&asks, |reply_to| AsksMsg::Approvals { reply_to }).await {
            if pending.iter().any(|approval| approval.owner != peer.uid) {
                // The administrator sees another user's code, which the session records.
                let _ = session.cast(SessionMsg::ActedOn { admin: peer.uid, act: peer.act.clone() });
            }
            approvals.extend(pending);
        }
    }
    approvals.sort_by(|a, b| a.asked_at.cmp(&b.asked_at));
    Ok(Json(ApprovalList { approvals }))
}

/// The approval's id begins with the id of its session.
pub async fn decide(
    State(app): State<App>,
    peer: Peer,
    Path(id): Path<String>,
    JsonBody(decision, _charge): JsonBody<Decision>,
) -> ApiResult<Json<Done>> {
    let none = || {
        Problem::new(Code::NoSuchApproval, "nothing of this id waits for a decision")
            .hint("list what waits with `belljar approve`")
    };
    let (session, _) = id.split_once('.').ok_or_else(none)?;
    // For a session of another user the answer is the same as for an approval that does not exist.
    let session = app.session(&peer, session).await;
    let session = session.map_err(|Refused(problem)| match problem.code {
        Code::Forbidden => problem,
        _ => none(),
    })?;
    let asks = ask(&session, |reply_to| SessionMsg::Asks { reply_to }).await?;
    let decide = |reply_to| AsksMsg::Decide { id, decision, by: peer.uid, reply_to };
    // The answer comes when the journal has the decision.
    let decided = tokio::time::timeout(JOURNAL_TIMEOUT, call_part(&session, &asks, None, decide)).await;
    decided.map_err(|_| {
        Problem::new(Code::Storage, "the decision was taken, and cannot be written into the journal yet")
            .hint("free some space where the daemon's home is")
    })???;
    Ok(Json(Done {}))
}
