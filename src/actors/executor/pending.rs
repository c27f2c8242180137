//! What the kernel has been asked, and what it has asked, that has no answer yet.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::task::JoinHandle;

use super::messages::Undoing;
use crate::actors::calls::Reply;
use crate::memory::Charge;
use crate::protocol::api::{Computed, VariableList, VariablesFilter};
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::sandbox::launch::CpuLimitLifted;

pub(super) enum Request {
    Variables {
        which: VariablesFilter,
        reply_to: Reply<VariableList>,
    },
    Compute(Reply<Computed>),
    Reset {
        /// The newest cell that ran before it.
        up_to: CellNumber,
        reply_to: Reply<()>,
        /// Held until the kernel has ended all of before.
        cpu_boost: Option<CpuLimitLifted>,
    },
    Undo(Reply<Undoing>),
    Preload,
    /// Answered when the kernel has told everything again that came before.
    Fence(Fence),
}

impl Request {
    pub fn fail(self, problem: Problem) {
        match self {
            Self::Variables { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::Compute(reply_to) => drop(reply_to.send(Err(problem))),
            Self::Reset { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::Undo(reply_to) => drop(reply_to.send(Err(problem))),
            // Whoever waits for the sandbox hears of it by another way.
            Self::Fence(_) | Self::Preload => {}
        }
    }
}

/// Cells that the kernel knew of and did not run any more when it said hello.
pub(super) struct Fence {
    pub ended: Vec<CellNumber>,
    /// Cells of which it may never have heard, because it was sent later ones before.
    pub unclear: Vec<CellNumber>,
    pub state_of: CellNumber,
}

/// A tool call that is being worked on. Dropping it stops the tool.
pub(super) struct CallGuard {
    task: JoinHandle<()>,
    /// What its arguments take of their owner's part of the memory.
    _memory: Option<Arc<Charge>>,
    /// A program of the host runs for it.
    pub program_runs: Arc<AtomicBool>,
}

impl CallGuard {
    pub fn new(task: JoinHandle<()>, memory: Option<Arc<Charge>>, program_runs: Arc<AtomicBool>) -> Self {
        Self { task, _memory: memory, program_runs }
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.task.abort();
    }
}
