//! Connects the bridge to the recorder: frames of a kernel are recorded in the order of their arrival.

use serde_json::{Map, Value};
use std::sync::Arc;
use std::time::Instant;

use crate::bridge::Sink;
use crate::protocol::frames::OutputFrame;
use crate::protocol::ids::{CellNumber, SandboxId};
use crate::store::{EventLog, Recorder};

pub struct RecorderSink {
    pub recorder: Arc<Recorder>,
    pub log: Arc<EventLog>,
    pub sandbox: SandboxId,
}

impl Sink for RecorderSink {
    fn output(&mut self, frame: OutputFrame<'_>, number: u64) {
        self.recorder.output(&frame, number);
    }

    fn display(&mut self, cell: CellNumber, mime: Map<String, Value>, number: u64) {
        self.recorder.display(cell, mime, number);
    }

    fn gap(&mut self, cell: CellNumber, stdout_bytes: u64, stderr_bytes: u64, number: u64) {
        self.recorder.gap(cell, stdout_bytes, stderr_bytes, number);
    }

    fn flush_at(&self) -> Option<Instant> {
        self.recorder.flush_at()
    }

    fn flush(&mut self) {
        self.recorder.flush();
    }

    async fn wait_for_room(&self) {
        self.log.wait_for_room().await;
    }

    fn is_crowded(&self) -> bool {
        self.log.is_crowded()
    }

    /// A frame without an effect in the journal is settled when no earlier frame waits for the journal.
    fn settled(&self, number: u64) -> u64 {
        let idle = !self.recorder.is_sealed() && !self.recorder.has_pending() && self.log.lag() == 0;
        if idle { number } else { self.log.received(&self.sandbox) }
    }
}
