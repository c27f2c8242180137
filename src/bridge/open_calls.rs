//! The tool calls in flight, each with its cell. Their number is bounded.

use std::collections::HashMap;

use crate::protocol::ids::CellNumber;
use crate::protocol::limits::TOOL_CALLS_IN_FLIGHT;

/// `H` is a handle that stops its call when it is dropped.
#[derive(Debug)]
pub struct OpenCalls<H> {
    open: HashMap<u64, OpenCall<H>>,
}

#[derive(Debug)]
pub struct OpenCall<H> {
    pub cell: Option<CellNumber>,
    pub name: String,
    pub handle: H,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The id is in use: a kernel that repeats ids is broken or hostile.
    Duplicate,
    TooMany,
}

impl<H> Default for OpenCalls<H> {
    fn default() -> Self {
        Self { open: HashMap::new() }
    }
}

impl<H> OpenCalls<H> {
    /// Whether a call with this id may begin.
    pub fn admit(&self, call: u64) -> Result<(), Refusal> {
        if self.open.contains_key(&call) {
            return Err(Refusal::Duplicate);
        }
        if self.open.len() >= TOOL_CALLS_IN_FLIGHT {
            return Err(Refusal::TooMany);
        }
        Ok(())
    }

    pub fn begin(&mut self, call: u64, cell: Option<CellNumber>, name: String, handle: H) {
        self.open.insert(call, OpenCall { cell, name, handle });
    }

    /// `None` for a call that was cancelled meanwhile; the caller drops its answer.
    pub fn end(&mut self, call: u64) -> Option<OpenCall<H>> {
        self.open.remove(&call)
    }

    pub fn handles(&self) -> impl Iterator<Item = &H> {
        self.open.values().map(|call| &call.handle)
    }

    /// Removes the calls of a cell that ended, and returns them in the order of their ids.
    pub fn cancel_cell(&mut self, cell: CellNumber) -> Vec<(u64, OpenCall<H>)> {
        let mut cancelled: Vec<_> = self.open.extract_if(|_, call| call.cell == Some(cell)).collect();
        cancelled.sort_unstable_by_key(|(id, _)| *id);
        cancelled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_bounded_unique_and_end_with_their_cell() {
        let mut calls = OpenCalls::default();
        for id in 0..TOOL_CALLS_IN_FLIGHT as u64 {
            calls.admit(id).unwrap();
            calls.begin(id, Some(id % 2), "t".into(), ());
        }
        assert_eq!(calls.admit(0), Err(Refusal::Duplicate));
        assert_eq!(calls.admit(9999), Err(Refusal::TooMany));
        assert_eq!(calls.cancel_cell(1).len(), TOOL_CALLS_IN_FLIGHT / 2);
        assert!(calls.end(1).is_none());
        assert!(calls.end(2).is_some());
        assert_eq!(calls.admit(1), Ok(()));
    }
}
