//! Joins the bridge to the recorder: what a kernel sends is recorded in the order of its arrival.

use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Instant;

use crate::bridge::Sink;
use crate::protocol::frames::OutputFrame;
use crate::protocol::ids::CellNumber;
use crate::store::Recorder;

/// Frames have no numbers yet, and without a sandbox attached the recorder stores none.
const UNNUMBERED: u64 = 0;

pub struct RecorderSink(pub Arc<Recorder>);

impl Sink for RecorderSink {
    fn output(&mut self, frame: OutputFrame<'_>, number: u64) {
        self.0.output(&frame, number);
    }

    fn display(&mut self, cell: CellNumber, mime: Map<String, Value>, number: u64) {
        self.0.display(cell, mime, number);
    }

    fn gap(&mut self, cell: CellNumber, stdout_bytes: u64, stderr_bytes: u64, number: u64) {
        self.0.gap(cell, stdout_bytes, stderr_bytes, number);
    }

    fn flush_at(&self) -> Option<Instant> {
        self.0.flush_at()
    }

    fn flush(&mut self) {
        self.0.flush();
    }

    fn settled(&self, number: u64) -> u64 {
        number
    }
}
