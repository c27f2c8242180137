//! `belljar vars`: the variables of a session.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{Table, or_dash, size};
use crate::cli::render::screen::Screen;
use crate::protocol::api::VariableList;
use crate::protocol::event::phrases::as_before;
use crate::protocol::frames::Variable;
use crate::protocol::text::clipped;

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
    screen.table(&table(list))?;
    let hidden = list.total.saturating_sub(list.variables.len() as u64);
    if hidden > 0 { screen.note(&format!("… and {hidden} more")) } else { Ok(()) }
}

fn table(list: &VariableList) -> Table {
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
