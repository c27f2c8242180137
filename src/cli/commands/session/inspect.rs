//! Commands that show sessions: all of them, one of them, its variables.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::client::http::escaped_path;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{Table, age, or_dash, size, word};
use crate::cli::render::screen::Screen;
use crate::protocol::api::{SessionLimits, SessionList, SessionView, VariableList};
use crate::protocol::event::phrases::as_before;
use crate::protocol::frames::Variable;
use crate::protocol::labels;
use crate::protocol::principal::Principal;
use crate::protocol::text::{clipped, one_line};

/// List your sessions.
#[derive(Debug, Args)]
pub(in crate::cli) struct Ps {
    /// List the sessions of all users, for administrators. They name one of another user as `NAME@USER`, or by its id.
    #[arg(long)]
    all: bool,
    /// List only those with this label; can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = labels::parse)]
    label: Vec<(String, String)>,
}

impl Ps {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let wanted = self
            .label
            .iter()
            .map(|(key, value)| format!("&label={}", escaped_path(&format!("{key}={value}"))));
        let path = format!("/v1/sessions?all={}{}", self.all, wanted.collect::<String>());
        let answer = context.client().get(&path).await?;
        context.show(&answer, |screen, list: SessionList| match list.sessions.as_slice() {
            [] if !self.label.is_empty() => screen.note("no session has these labels"),
            [] => screen.note("no sessions; make one with `belljar new`"),
            sessions => screen.table(&session_table(sessions, self.all)),
        })
    }
}

fn session_table(sessions: &[SessionView], of_all: bool) -> Table {
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
pub(in crate::cli) fn owner(user: Principal) -> String {
    let account = nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(user.uid())).ok().flatten();
    account.map_or_else(|| user.to_string(), |account| account.name)
}

pub(in crate::cli) fn state(session: &SessionView) -> String {
    let word = word(&session.state);
    if session.queued > 0 { format!("{word} +{}", session.queued) } else { word }
}

/// Show one session.
#[derive(Debug, Args)]
pub(in crate::cli) struct Show {
    #[command(flatten)]
    pub session: SessionArg,
}

impl Show {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let path = self.session.path("")?;
        let answer = context.client().get(&path).await?;
        context.show(&answer, |screen, session| screen.facts(&facts(&session)))
    }
}

fn facts(session: &SessionView) -> Vec<(&'static str, String)> {
    let none = || "none yet".to_owned();
    let limits = &session.limits;
    let mut state = state(session);
    if let Some(cell) = session.running {
        state = format!("{state}, cell {cell} runs");
    }
    if let Some(cell) = session.wakes_as_after {
        state = format!("{state}, wakes with the variables as after cell {cell}");
    }
    let mut facts = vec![
        ("name", session.name.to_string()),
        ("id", session.id.to_string()),
        ("state", state),
        ("backend", session.backend.name().to_owned()),
        (
            "image",
            session.image.as_ref().map_or_else(none, |image| format!("{} ({})", image.reference, image.id)),
        ),
        ("python", session.python.clone().unwrap_or_else(none)),
        ("isolation", session.isolation.clone().unwrap_or_else(none)),
        ("memory", memory(limits)),
        ("cpus", limits.cpus.to_string()),
        ("processes", limits.pids.to_string()),
        ("workspace", session.workspace.clone()),
        ("cells", session.cells.to_string()),
        ("created", session.created_at.clone()),
        ("idle", format!("{} of {}", age(session.idle_for_s), age(limits.idle_s))),
    ];
    if !session.labels.is_empty() {
        let labels: Vec<_> = session.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        facts.push(("labels", labels.join(", ")));
    }
    for volume in &session.volumes {
        let access = if volume.read_only { ", read-only" } else { "" };
        facts.push(("volume", format!("{} at {}{access}", volume.name, volume.target)));
    }
    for mount in &session.mounts {
        facts.push(("mount", format!("{} at {}, read-only", one_line(&mount.folder), mount.target)));
    }
    if !session.env.is_empty() {
        facts.push(("environment", session.env.join(", ")));
    }
    facts
}

/// `1 GiB, and 512 MiB for checkpoints`
pub(in crate::cli) fn memory(limits: &SessionLimits) -> String {
    match limits.checkpoint_bytes {
        0 => size(limits.memory_bytes),
        reserve => format!("{}, and {} for checkpoints", size(limits.memory_bytes), size(reserve)),
    }
}

/// Characters of a value's preview that are shown, so that it fits in a row.
const VALUE_CHARS: usize = 60;

/// List the variables of a session.
#[derive(Debug, Args)]
pub(in crate::cli) struct Vars {
    #[command(flatten)]
    session: SessionArg,
    /// Also those whose name begins with `_`.
    #[arg(long)]
    private: bool,
}

impl Vars {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let path = self.session.path(&format!("/variables?private={}", self.private))?;
        let answer = context.client().get(&path).await?;
        context.show(&answer, |screen, list| show_variables(screen, &list))
    }
}

pub(in crate::cli) fn show_variables(screen: &mut Screen, list: &VariableList) -> Result<(), Failure> {
    if let Some(cell) = list.as_before {
        screen.note(&as_before(cell))?;
    }
    if list.variables.is_empty() {
        return screen.note("no variables");
    }
    screen.table(&variable_table(list))?;
    let hidden = list.total.saturating_sub(list.variables.len() as u64);
    if hidden > 0 { screen.note(&format!("… and {hidden} more")) } else { Ok(()) }
}

fn variable_table(list: &VariableList) -> Table {
    let cells = |variable: &Variable| {
        [
            clipped(&variable.name, VALUE_CHARS),
            clipped(&variable.type_name, VALUE_CHARS),
            or_dash(variable.bytes.map(size)),
            or_dash(variable.shape.clone()),
            clipped(&variable.preview, VALUE_CHARS),
        ]
    };
    Table::new(["NAME", "TYPE", "SIZE", "SHAPE", "VALUE"], list.variables.iter().map(cells))
}

#[cfg(test)]
mod ps_tests {
    use super::*;
    use crate::protocol::api::SessionState;
    use crate::protocol::ids::{SessionId, SessionName};
    use crate::protocol::labels::Labels;
    use crate::protocol::receipt::{Backend, ImageFact};

    #[test]
    fn sessions_are_shown_as_a_table() {
        let session = |name: &str, state, queued, image: Option<&str>| SessionView {
            id: SessionId::fresh(),
            name: SessionName::parse(name).unwrap(),
            owner: Principal::new(1000),
            state,
            backend: Backend::Docker,
            image: image.map(|reference| ImageFact { reference: reference.into(), id: "sha256:0".into() }),
            python: image.map(|_| "3.12.4".into()),
            isolation: None,
            limits: SessionLimits {
                memory_bytes: 1 << 30,
                checkpoint_bytes: 512 << 20,
                cpus: 1.0,
                pids: 256,
                idle_s: 3600,
            },
            preloaded: None,
            labels: Labels::new(),
            env: Vec::new(),
            volumes: Vec::new(),
            mounts: Vec::new(),
            workspace: "/w".into(),
            cells: 12,
            running: None,
            queued,
            wakes_as_after: None,
            created_at: String::new(),
            idle_for_s: 300,
            last_event: 1,
            load: None,
        };
        let table = session_table(
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
