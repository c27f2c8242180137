//! Requests to a session that are refused, or that nobody waits for any more.

use super::install_request::InstallRequest;
use super::messages::SessionMsg;
use crate::protocol::problem::{Code, Problem};

/// Why a replay does not begin whose sandbox ended over the variables with which it begins.
pub(super) fn base_is_lost() -> Problem {
    Problem::new(Code::SandboxFailed, "the sandbox ended before the cells ran again").hint("ask again")
}

/// The same if they cannot be loaded.
pub(super) fn base_is_unusable(reason: &str) -> Problem {
    let what = format!("the variables with which the session began could not be loaded: {reason}");
    Problem::new(Code::SnapshotFailed, what).hint("no cell was run again; the variables are as at the start")
}

/// Why no client gets a snapshot that has nothing of what the session is to have. Where a cell has told of it, a person goes on
/// without.
pub(super) fn variables_not_loaded(reason: &str) -> Problem {
    let what = format!("the variables of the session could not be loaded: {reason}");
    Problem::new(Code::SnapshotFailed, what).hint(
        "`belljar replay` runs its cells again; after any other cell, whose result tells this too, the session goes on without them",
    )
}

impl SessionMsg {
    /// Whether the caller of a request that waits is gone.
    pub(super) fn is_forsaken(&self) -> bool {
        match self {
            Self::Compute { reply_to, .. } => reply_to.is_closed(),
            Self::Install(request) => request.reply_to.is_closed(),
            Self::Undo { reply_to, .. } => reply_to.is_closed(),
            Self::TakeSnapshot { reply_to, .. } => reply_to.is_closed(),
            Self::Freeze { reply_to } => reply_to.is_closed(),
            Self::Receipt { reply_to } => reply_to.is_closed(),
            Self::Interrupt { reply_to } => reply_to.is_closed(),
            _ => false,
        }
    }

    /// Answers the request with a problem. If the answer type has no room for a problem, the port is dropped,
    /// which also tells the caller.
    pub(super) fn refuse(self, problem: Problem) {
        match self {
            Self::Own { message, .. } => message.refuse(problem),
            Self::Run { reply_to, .. } | Self::Unwritten { reply_to, .. } => {
                drop(reply_to.send(Err(problem)));
            }
            Self::Interrupt { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Variables { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::Compute { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::Install(InstallRequest { reply_to, .. }) | Self::InstallDone { reply_to, .. } => {
                drop(reply_to.send(Err(problem)));
            }
            Self::Undo { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::TakeSnapshot { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::Receipt { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Handles { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Asks { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Lend { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::PrepareReplay { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Sleep { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Hold { reply_to } => drop(reply_to.send(Err(problem))),
            Self::Freeze { reply_to }
            | Self::Thaw { reply_to }
            | Self::Linger { reply_to }
            | Self::ReplayEnded { reply_to, .. }
            | Self::Reset { reply_to, .. }
            | Self::ResetNoted { reply_to, .. }
            | Self::AnswerCall { reply_to, .. }
            | Self::EndCommand { reply_to, .. }
            | Self::RemoveSnapshot { reply_to, .. }
            | Self::ToTerminal { reply_to, .. }
            | Self::FreezeDone { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::Remove { remover } => {
                if let Some(remover) = remover {
                    remover.refuse(problem.clone());
                }
            }
            Self::Removed { removers, .. } => {
                removers.take().into_iter().for_each(|remover| remover.refuse(problem.clone()));
            }
            Self::CellStatus { .. }
            | Self::Ticket { .. }
            | Self::Commands { .. }
            | Self::View { .. }
            | Self::Given { .. }
            | Self::MayRun(_)
            | Self::ActedOn { .. }
            | Self::Seed { .. }
            | Self::Touch
            | Self::ToolsChanged
            | Self::FilesChanged
            | Self::Released
            | Self::Placed(_)
            | Self::SandboxReady { .. }
            | Self::WakeDied { .. }
            | Self::WakeInterrupted { .. }
            | Self::Rebuilt { .. }
            | Self::Snapshots { .. }
            | Self::SnapshotDone { .. }
            | Self::SnapshotNoted { .. }
            | Self::SandboxAttached { .. }
            | Self::Leave { .. }
            | Self::Left
            | Self::SandboxFailed(_)
            | Self::Input(_)
            | Self::WorkerReplaced { .. }
            | Self::UndoDone { .. }
            | Self::UndoneBefore { .. }
            | Self::CaughtUp
            | Self::CellFinished(..)
            | Self::Tick => {}
        }
    }
}
