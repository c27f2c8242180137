//! `belljar ps`: list the sessions.

use clap::Args;

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{Table, age, or_dash, word};
use crate::protocol::api::{SessionList, SessionView};

/// List your sessions.
#[derive(Debug, Args)]
pub(in crate::cli) struct Ps {
    /// List the sessions of all users, for administrators. They name one of another user as `NAME@USER`, or by its id.
    #[arg(long)]
    all: bool,
}

impl Ps {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let path = if self.all { "/v1/sessions?all=true" } else { "/v1/sessions" };
        let answer = context.client().get(path).await?;
        context.show(&answer, |screen, list: SessionList| match list.sessions.as_slice() {
            [] => screen.note("no sessions; make one with `belljar new`"),
            sessions => screen.table(&table(sessions, self.all)),
        })
    }
}

fn table(sessions: &[SessionView], of_all: bool) -> Table {
    let heads = ["OWNER", "ID", "NAME", "STATE", "BACKEND", "IMAGE", "PYTHON", "CELLS", "IDLE"];
    let cells = |session: &SessionView| {
        [
            owner(session.owner),
            session.id.to_string(),
            session.name.to_string(),
            state(session),
            session.backend.name().to_owned(),
            or_dash(session.image.as_ref().map(|image| image.reference.clone())),
            or_dash(session.python.clone()),
            session.cells.to_string(),
            age(session.idle_for_s),
        ]
    };
    Table::new(heads, sessions.iter().map(cells)).without_first(if of_all { 0 } else { 2 })
}

/// The name of a user, or the number if this host has no name for it.
pub(in crate::cli) fn owner(uid: u32) -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)).ok().flatten();
    user.map_or_else(|| uid.to_string(), |user| user.name)
}

pub(in crate::cli) fn state(session: &SessionView) -> String {
    let word = word(&session.state);
    if session.queued > 0 { format!("{word} +{}", session.queued) } else { word }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::api::{SessionLimits, SessionState};
    use crate::protocol::ids::{SessionId, SessionName};
    use crate::protocol::receipt::{Backend, ImageFact};

    #[test]
    fn sessions_are_shown_as_a_table() {
        let session = |name: &str, state, queued, image: Option<&str>| SessionView {
            id: SessionId::fresh(),
            name: SessionName::parse(name).unwrap(),
            owner: 1000,
            state,
            backend: Backend::Docker,
            image: image.map(|reference| ImageFact { reference: reference.into(), id: "sha256:0".into() }),
            python: image.map(|_| "3.12.4".into()),
            isolation: None,
            limits: SessionLimits { memory_bytes: 1 << 30, cpus: 1.0, pids: 256, idle_s: 3600 },
            preloaded: None,
            workspace: "/w".into(),
            cells: 12,
            running: None,
            queued,
            created_at: String::new(),
            idle_for_s: 300,
            last_event: 1,
            load: None,
        };
        let table = table(
            &[
                session("data", SessionState::Busy, 2, Some("python:3.12")),
                session("a-longer-name", SessionState::Starting, 0, None),
            ],
            false,
        );
        insta::assert_snapshot!(table.lines().join("\n"), @r#"
        NAME           STATE     BACKEND  IMAGE        PYTHON  CELLS  IDLE
        data           busy +2   docker   python:3.12  3.12.4  12     5m
        a-longer-name  starting  docker   -            -       12     5m
        "#);
    }
}
