//! How much of the quotas a user takes.

use axum::Json;
use axum::extract::State;
use serde::Deserialize;

use super::App;
use crate::control::body::Query;
use crate::control::peer::Peer;
use crate::control::problems::ApiResult;
use crate::protocol::api::QuotaView;
use crate::protocol::problem::{Code, Problem};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaQuery {
    /// Another user, by name or number; for administrators only.
    user: Option<String>,
}

pub async fn show(
    State(app): State<App>,
    peer: Peer,
    Query(query): Query<QuotaQuery>,
) -> ApiResult<Json<QuotaView>> {
    let uid = match query.user {
        None => peer.uid,
        Some(user) => {
            let none = || Problem::new(Code::BadRequest, "there is no such user");
            let uid = app.identities.named(&user, &peer).await;
            if uid != Some(peer.uid) {
                peer.require_admin(&app.settings.admin.group, "see what others have")?;
            }
            uid.ok_or_else(none)?
        }
    };
    let who = app.identities.of(uid).await?;
    if uid != peer.uid {
        app.ledger.set_limits(uid, app.settings.quota.of(uid, who.name.as_deref(), &who.groups));
    }
    Ok(Json(QuotaView { uid, user: who.name.clone(), quotas: app.ledger.usage(uid) }))
}
