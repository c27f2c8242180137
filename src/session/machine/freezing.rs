//! Freezing and thawing, as far as the machine of a session decides it.

use super::{Effect, Phase, SessionMachine};
use crate::protocol::event::EventBody;

impl<W> SessionMachine<W> {
    pub(super) fn freeze(&mut self, out: &mut Vec<Effect<W>>) {
        if !std::mem::replace(&mut self.frozen, true) {
            self.freezes += 1;
            out.push(Effect::Append(EventBody::Frozen));
        }
    }

    /// Takes back a freeze that failed, unless a newer one has followed it.
    pub(super) fn freeze_failed(&mut self, number: u64, out: &mut Vec<Effect<W>>) {
        if number == self.freezes && self.not_frozen(out) {
            self.run_written(out);
        }
    }

    /// Thaws the sandbox before it gets a request. Frames that are sent meanwhile wait in its socket.
    pub(super) fn thaw(&mut self, out: &mut Vec<Effect<W>>) {
        if !self.not_frozen(out) {
            return;
        }
        if self.phase != Phase::None {
            out.push(Effect::Thaw);
        }
        self.run_written(out);
    }

    /// Marks the sandbox as not frozen. True if it was frozen.
    fn not_frozen(&mut self, out: &mut Vec<Effect<W>>) -> bool {
        let was = std::mem::take(&mut self.frozen);
        if was {
            out.push(Effect::Append(EventBody::Thawed));
        }
        was
    }
}
