//! The caller of a request and what the request does: Linux reports the user id of each connection; a message
//! cannot claim it.

use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::Method;
use axum::http::request::Parts;

use super::app::App;
use super::problems::RefusedRequest;
use crate::actors::session::messages::SessionMsg;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};

/// Characters of the path that are kept in the record.
const ACT_CHARS: usize = 200;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub principal: Principal,
    /// Whether the caller may see and act on everything: root and the members of the administrators' group.
    pub admin: bool,
    /// The request, as it is recorded in the events of another user's session.
    pub act: String,
    /// Whether the request neither runs nor changes anything that may run.
    pub only_reads_or_stops: bool,
    /// Whether the request only looks or interrupts, so that its repetitions need no records of their own.
    pub only_looks_or_interrupts: bool,
}

impl Caller {
    /// A caller who has not asked for anything yet.
    pub fn new(principal: Principal, admin: bool) -> Self {
        let act = String::new();
        Self { principal, admin, act, only_reads_or_stops: false, only_looks_or_interrupts: false }
    }

    /// Tells the session of another user what the caller does in it.
    pub fn acts(&self) -> SessionMsg {
        SessionMsg::ActedOn {
            admin: self.principal,
            act: self.act.clone(),
            only_looks_or_interrupts: self.only_looks_or_interrupts,
        }
    }

    /// Whether the caller may see what `owner` has, and act on it.
    pub fn reaches(&self, owner: Principal) -> bool {
        self.admin || self.principal == owner
    }

    pub fn require_admin(&self, group: &str, what: &str) -> Result<(), Problem> {
        if self.admin {
            return Ok(());
        }
        Err(Problem::new(Code::Forbidden, format!("only administrators may {what}"))
            .hint(format!("they are root and the members of the group `{group}`")))
    }
}

/// Whether a request neither runs nor changes anything that may run, judged by its route. The programs of tools run as
/// the owner of the session, so a caller who runs code in a session of root acts as root, and an administrator need not
/// be root.
fn only_reads_or_stops(method: &Method, route: &str) -> bool {
    let below = route.strip_prefix("/v1/sessions/{session}");
    match (method, below) {
        (&Method::GET, _) => true,
        (&Method::DELETE, Some(below)) => below.is_empty(),
        (&Method::POST, Some(below)) => {
            matches!(
                below,
                "/interrupt"
                    | "/reset"
                    | "/freeze"
                    | "/thaw"
                    | "/asks/{ask}/cancel"
                    | "/commands/{cell}/interrupt"
                    | "/commands/{cell}/kill"
            )
        }
        _ => false,
    }
}

/// Whether a request only looks or interrupts, judged by its route: a path may end with the name of a user's file.
fn only_looks_or_interrupts(method: &Method, route: &str) -> bool {
    let interrupts = method == Method::POST && route.ends_with("/interrupt");
    method == Method::GET || interrupts
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

impl FromRequestParts<App> for Caller {
    type Rejection = RefusedRequest;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, RefusedRequest> {
        let caller = parts.extensions.get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Problem::new(Code::Internal, "a connection without a caller"))?;
        let route = parts.extensions.get::<MatchedPath>().map_or("", MatchedPath::as_str);
        let only_reads_or_stops = only_reads_or_stops(&parts.method, route);
        let only_looks_or_interrupts = only_looks_or_interrupts(&parts.method, route);
        let act = act(&parts.method, parts.uri.path());
        Ok(Self { act, only_reads_or_stops, only_looks_or_interrupts, ..caller })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_runs_nothing_is_looking_or_stopping() {
        let below = |method: Method, below: &str| {
            only_reads_or_stops(&method, &format!("/v1/sessions/{{session}}{below}"))
        };
        for stops in ["/interrupt", "/reset", "/freeze", "/thaw", "/asks/{ask}/cancel"] {
            assert!(below(Method::POST, stops), "{stops}");
        }
        assert!(below(Method::GET, "/events") && below(Method::DELETE, ""));
        assert!(
            below(Method::POST, "/commands/{cell}/interrupt") && below(Method::POST, "/commands/{cell}/kill")
        );
        // An undo changes what the next cells of the owner find, and may repeat some cells.
        for runs in
            ["/cells", "/commands", "/eval", "/asks", "/replay", "/undo", "/tools", "/tool-calls/{call}", ""]
        {
            assert!(!below(Method::POST, runs), "{runs}");
        }
        for method in [Method::PUT, Method::DELETE] {
            assert!(!below(method, "/files/{*path}"));
        }
        assert!(!only_reads_or_stops(&Method::POST, "/v1/approvals/{id}"));
        assert!(!only_reads_or_stops(&Method::DELETE, ""), "what no route serves");
    }

    #[test]
    fn a_file_whose_name_is_that_of_a_request_is_not_looked_at_when_it_is_changed() {
        let below = |method: Method, below: &str| {
            only_looks_or_interrupts(&method, &format!("/v1/sessions/{{session}}{below}"))
        };
        assert!(below(Method::GET, "/files/{*path}"));
        for interrupts in ["/interrupt", "/cells/{cell}/interrupt", "/commands/{cell}/interrupt"] {
            assert!(below(Method::POST, interrupts), "{interrupts}");
        }
        for method in [Method::PUT, Method::DELETE] {
            assert!(!below(method.clone(), "/files/{*path}"), "{method}");
            assert!(!below(method.clone(), "/interrupt"), "{method}");
        }
        assert!(!below(Method::POST, "/reset") && !below(Method::POST, "/commands/{cell}/kill"));
        assert!(!only_looks_or_interrupts(&Method::POST, ""), "what no route serves");
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
