//! Commands that have something done to a session as a whole: interrupt, reset, undo, freeze, thaw, remove.

use clap::Args;
use serde_json::{Value, json};

use crate::cli::args::SessionArg;
use crate::cli::client::session_key::SessionKey;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::screen::Screen;
use crate::protocol::api::{Interrupted, SessionList, Undo as Request, Undone};
use crate::protocol::ask::{AskNumber, AskOutcome, AskView};
use crate::protocol::exit_codes as exit;
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Code;

/// Stop all processes of a session's sandbox; `thaw`, or the next work in it, lets them go on.
#[derive(Debug, Args)]
pub(in crate::cli) struct Freeze {
    #[command(flatten)]
    session: SessionArg,
}

/// Let the processes of a frozen sandbox go on.
#[derive(Debug, Args)]
pub(in crate::cli) struct Thaw {
    #[command(flatten)]
    session: SessionArg,
}

impl Freeze {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().post_empty(&self.session.path("/freeze")?).await?;
        context.show(&answer, |_, _: Value| Ok(()))
    }
}

impl Thaw {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().post_empty(&self.session.path("/thaw")?).await?;
        context.show(&answer, |_, _: Value| Ok(()))
    }
}

/// Interrupt the running cell of a session, whose variables are kept, or a background cell, or a command.
#[derive(Debug, Args)]
pub(in crate::cli) struct Interrupt {
    #[command(flatten)]
    session: SessionArg,
    /// Cancel the ask of this number, with what runs for it.
    #[arg(long, value_name = "N", conflicts_with = "command")]
    ask: Option<AskNumber>,
    /// Interrupt the command of this number, which is killed if it does not end.
    #[arg(long, value_name = "N")]
    command: Option<CellNumber>,
    /// Interrupt the background cell of this number; if it does not end, the session goes back to before it.
    #[arg(long, value_name = "N", conflicts_with_all = ["ask", "command"])]
    cell: Option<CellNumber>,
}

impl Interrupt {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        if let Some(command) = self.command {
            let path = self.session.path(&format!("/commands/{command}/interrupt"))?;
            let answer = context.client().post_empty(&path).await?;
            return context
                .show(&answer, |screen, _: Value| screen.note(&format!("interrupting command {command}")));
        }
        if let Some(cell) = self.cell {
            let path = self.session.path(&format!("/cells/{cell}/interrupt"))?;
            let answer = context.client().post_empty(&path).await?;
            return context
                .show(&answer, |screen, _: Value| screen.note(&format!("interrupting cell {cell}")));
        }
        let Some(ask) = self.ask else {
            let answer = context.client().post_empty(&self.session.path("/interrupt")?).await?;
            return context.show(&answer, |screen, interrupted: Interrupted| match interrupted.cell {
                Some(cell) => screen.note(&format!("interrupting cell {cell}")),
                None => screen.note(
                    "no cell is running; `--command N` interrupts a command, `--cell N` a background cell",
                ),
            });
        };
        let answer = context.client().post_empty(&self.session.path(&format!("/asks/{ask}/cancel"))?).await?;
        context.show(&answer, |screen, view: AskView| match view.end.map(|end| end.outcome) {
            Some(AskOutcome::Cancelled) => screen.note(&format!("ask {ask} is cancelled")),
            _ => screen.note(&format!("ask {ask} had ended already")),
        })
    }
}

/// Forget all variables of a session; its files remain.
#[derive(Debug, Args)]
pub(in crate::cli) struct Reset {
    #[command(flatten)]
    session: SessionArg,
}

impl Reset {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let note = format!("the variables of `{session}` are gone; its files remain");
        let answer = context.client().post_empty(&self.session.path("/reset")?).await?;
        context.show(&answer, |screen, _: Value| screen.note(&note))
    }
}

/// Go back to the variables of some cells ago; files are not rewound.
#[derive(Debug, Args)]
pub(in crate::cli) struct Undo {
    #[command(flatten)]
    session: SessionArg,
    /// How many cells to take back.
    #[arg(short = 'n', long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    cells: u64,
}

impl Undo {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let path = self.session.path("/undo")?;
        match context.client().post(&path, &Request { cells: self.cells }).await {
            Ok(answer) => context.show(&answer, |screen, undone| show_undone(screen, &undone)),
            Err(failure) if failure.problem.is_some() => Err(failure),
            Err(failure) => {
                Err(failure
                    .hint("`belljar logs` shows whether the cells were undone; look before you repeat it"))
            }
        }
    }
}

pub(in crate::cli) fn show_undone(screen: &mut Screen, undone: &Undone) -> Result<(), Failure> {
    screen.note(&match undone.state_of {
        0 => "the variables are as at the start".to_owned(),
        cell => format!("the variables are as after cell {cell}"),
    })?;
    undone.files_changed.iter().try_for_each(|file| screen.note(&format!("not rewound: {file}")))?;
    undone.note.iter().try_for_each(|note| screen.warn(note))
}

/// Remove sessions with their sandboxes and managed workspaces.
#[derive(Debug, Args)]
pub(in crate::cli) struct Rm {
    /// The sessions.
    #[arg(value_parser = SessionKey::parse, required_unless_present = "all", conflicts_with = "all")]
    names: Vec<SessionKey>,
    /// All of yours.
    #[arg(long)]
    all: bool,
}

impl Rm {
    /// Removes all sessions that it can, also if one of them fails.
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let client = context.client();
        let names = if self.all {
            let list: SessionList = client.get("/v1/sessions").await?.parse()?;
            list.sessions.into_iter().map(|session| session.name.into()).collect()
        } else {
            self.names
        };
        let mut removed = Vec::new();
        let mut first_failure = None;
        for name in names {
            match client.delete(&format!("/v1/sessions/{name}?wait=true")).await {
                Ok(_) if context.json => removed.push(name),
                Ok(_) => context.screen.line(name.as_str())?,
                Err(mut failure) => {
                    // The hint would be to make the session, which is no help here.
                    if failure.has_code(Code::NoSuchSession) {
                        failure.hint = None;
                    }
                    if let Some(earlier) = first_failure.replace(failure) {
                        context.screen.failure(&earlier, context.json);
                    }
                }
            }
        }
        if context.json {
            context.screen.json(&json!({ "removed": removed }))?;
        }
        first_failure.map_or(Ok(exit::SUCCESS), Err)
    }
}
