//! Who may do what: which sessions a caller reaches, what an administrator may have done in them, and the record of it.

use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::Method;
use axum::http::request::Parts;

use super::app::App;
use super::peer::Peer;
use super::problems::{ApiResult, RefusedRequest};
use crate::actors::session::messages::{SessionMsg, SessionRef};
use crate::protocol::problem::{Code, Problem};
use crate::security_controls;

/// Characters of the path that are kept in the record.
const ACT_CHARS: usize = 200;

impl App {
    /// The caller's session of that name or id. Administrators also reach sessions of other users, as `NAME@USER` or by
    /// id; each such access is recorded in the session's events.
    pub async fn session(&self, peer: &Peer, key: &str) -> ApiResult<SessionRef> {
        let none = || no_such_session(key);
        let (owner, name, of_all) = match key.split_once('@') {
            None => (peer.principal, key, peer.admin),
            Some((name, user)) => {
                let owner = self.identities.named(user, peer).await.filter(|owner| peer.reaches(*owner));
                (owner.ok_or_else(none)?, name, false)
            }
        };
        let found = self.directory.find(owner, name, of_all).ok_or_else(none)?;
        let roots = found.owner.is_root() && !peer.principal.is_root();
        if roots && !peer.looks_or_stops && security_controls::holds("only_root_acts_in_sessions_of_root") {
            return Err(Problem::new(Code::Forbidden, "only root has something done in a session of root")
                .hint("look at it, interrupt it or remove it; or make a session of your own")
                .into());
        }
        found.answers().await;
        if found.owner != peer.principal {
            let acted = SessionMsg::ActedOn { admin: peer.principal, act: peer.act.clone() };
            // The session records this before it handles the request itself, because messages of one sender keep their
            // order.
            let _ = found.session.cast(acted);
        }
        Ok(found.session)
    }
}

fn no_such_session(key: &str) -> Problem {
    let printable_key: String = key.chars().take(100).collect::<String>().escape_default().to_string();
    let hint = match printable_key.split_once('@') {
        Some(_) => "list all with `belljar ps --all`, if you are an administrator".to_owned(),
        None => format!("make it with `belljar new {printable_key}`, or list yours with `belljar ps`"),
    };
    Problem::new(Code::NoSuchSession, format!("there is no session `{printable_key}`")).hint(hint)
}

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

impl FromRequestParts<App> for Peer {
    type Rejection = RefusedRequest;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, RefusedRequest> {
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
