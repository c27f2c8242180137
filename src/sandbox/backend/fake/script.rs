//! What the kernels of a test do with the cells that they get.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};

use crate::protocol::frames::RefusedCode;

/// One thing that a cell does. After its last step a cell has ended well.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Print(&'static str),
    /// Calls this tool without arguments, waits for the answer and prints it.
    Call(&'static str),
    /// Waits until the test lets the cell go on.
    Wait,
    /// The kernel does not take the cell.
    Refuse(RefusedCode),
    /// The process that runs the cell dies, and another takes its place.
    Die,
    /// The kernel hangs up, although the daemon lives.
    HangUp,
    /// The sandbox ends with all that is in it.
    EndSandbox,
    /// What is loaded lacks this variable.
    Lacks(&'static str),
}

/// In the place of a cell's code: what the code of before does while a reset ends it. Tools are called, or the sandbox ends.
pub const WHILE_RESETTING: &str = "# while resetting";

/// In the place of a cell's code: what the kernel does while it packs its state, after it has sent a part of it. It waits
/// for, dies over or ends the sandbox over that.
pub const WHILE_PACKING: &str = "# while packing";

/// The same while it loads a state, which can lack something then.
pub const WHILE_LOADING: &str = "# while loading";

/// The steps of cells by their code.
#[derive(Debug, Default)]
pub(super) struct Script(Mutex<BTreeMap<String, VecDeque<Vec<Step>>>>);

impl Script {
    /// Adds what a cell with this code does the next time. The last addition holds for all later times, too.
    pub fn add(&self, code: &str, steps: &[Step]) {
        self.0.lock().entry(code.to_owned()).or_default().push_back(steps.to_vec());
    }

    /// What a cell with this code does now: nothing, if the test did not say.
    pub fn steps(&self, code: &str) -> Vec<Step> {
        let mut plays = self.0.lock();
        let Some(plays) = plays.get_mut(code) else { return Vec::new() };
        let next = if plays.len() > 1 { plays.pop_front() } else { plays.front().cloned() };
        next.unwrap_or_default()
    }
}
