//! The answers of tools to code in a sandbox, which the recorder puts in place of their markers.

use crate::store::Placeholders;
use crate::tools::{Responses, before_begun_marker, replace_markers};
use parking_lot::Mutex;

#[derive(Default)]
pub(super) struct ToolResponses(pub Mutex<Responses>);

impl Placeholders for ToolResponses {
    fn before_begun(&self, data: &[u8]) -> usize {
        if self.0.lock().is_empty() { data.len() } else { before_begun_marker(data) }
    }

    fn replaced(&self, data: &[u8], most_bytes: usize) -> Option<Vec<u8>> {
        let responses = self.0.lock();
        if responses.is_empty() {
            return None;
        }
        replace_markers(data, |call| responses.text(call), most_bytes)
    }
}
