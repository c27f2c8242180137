//! Requests to the kernel, and tool calls of the kernel, that have no answer yet.

use serde_json::{Map, Value};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::messages::UndoneState;
use crate::actors::calls::Reply;
use crate::memory::Charge;
use crate::protocol::api::{Computed, VariableList, VariablesFilter};
use crate::protocol::ids::CellNumber;
use crate::protocol::problem::Problem;
use crate::protocol::saved_state::BoundRules;
use crate::sandbox::launch::CpuLimitLifted;
use crate::session::restore::Wake;
use crate::session::rules::CallOrigin;
use crate::tools::ToolFuture;

pub(super) enum Request {
    Variables {
        which: VariablesFilter,
        reply_to: Reply<VariableList>,
    },
    Compute(Reply<Computed>),
    Reset {
        /// The newest cell that ran before the reset.
        up_to: CellNumber,
        /// The variables that are to be there after it.
        base: Option<Box<Wake>>,
        /// The rules of what the session began with, if they hold after it.
        inherited: Option<Box<BoundRules>>,
        reply_to: Reply<()>,
        /// Held until the kernel has ended all earlier processes.
        cpu_boost: Option<CpuLimitLifted>,
    },
    Undo(Reply<UndoneState>),
    Preload,
    /// A reset after a snapshot that could not be loaded.
    Unload,
    /// Answered when the kernel has sent all unacknowledged frames again.
    Fence(Fence),
}

impl Request {
    pub fn fail(self, problem: Problem) {
        match self {
            Self::Variables { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::Compute(reply_to) => drop(reply_to.send(Err(problem))),
            Self::Reset { reply_to, .. } => drop(reply_to.send(Err(problem))),
            Self::Undo(reply_to) => drop(reply_to.send(Err(problem))),
            // The session learns of these failures from another message.
            Self::Fence(_) | Self::Preload | Self::Unload => {}
        }
    }
}

/// Cells that the kernel knew of, but no longer ran when it said hello.
pub(super) struct Fence {
    pub ended: Vec<CellNumber>,
    /// Cells that the kernel may never have received, because later ones were sent before them.
    pub unclear: Vec<CellNumber>,
    pub state_of: CellNumber,
}

/// A running tool call. Dropping it stops the tool.
pub(super) struct CallGuard {
    task: JoinHandle<()>,
    /// The memory charged for the arguments to the owner's share.
    _memory: Option<Arc<Charge>>,
    /// Whether a program of the host runs for the call.
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

/// Who makes a call.
#[derive(Clone, Copy)]
pub struct CallSource {
    pub cell: Option<CellNumber>,
    pub origin: CallOrigin,
    /// Whether the call has waited for a person in an earlier daemon. The journal does not say whether a program made it.
    pub has_waited: bool,
}

/// A call of a tool that the session does not have, because its client has not come back yet.
pub struct HeldCall {
    pub source: CallSource,
    pub name: String,
    pub arguments: Map<String, Value>,
    pub memory: Option<Arc<Charge>>,
    /// Gets the work once it can be done; the task of the call waits for it.
    pub ready: oneshot::Sender<ToolFuture>,
}
