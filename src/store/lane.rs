//! The bytes of events that wait to be written, counted per user. The daemon stops reading from the sandboxes of a user
//! who fills the queue in front of the journal, so other users wait behind at most that user's share of it.

use tokio::sync::watch;

/// Bytes of one user that may wait before the daemon stops reading from that user's sandboxes.
pub(super) const LANE_BYTES: usize = 8 * 1024 * 1024;

#[derive(Debug)]
pub(super) struct WriteBacklog {
    waiting: watch::Sender<usize>,
}

impl Default for WriteBacklog {
    fn default() -> Self {
        Self { waiting: watch::Sender::new(0) }
    }
}

impl WriteBacklog {
    pub fn enter(&self, bytes: usize) {
        // Tasks wait only for the backlog to shrink, so growth does not wake them.
        self.waiting.send_if_modified(|waiting| {
            *waiting = waiting.saturating_add(bytes);
            false
        });
    }

    pub fn leave(&self, bytes: usize) {
        self.waiting.send_modify(|waiting| *waiting = waiting.saturating_sub(bytes));
    }

    pub fn is_full(&self) -> bool {
        *self.waiting.borrow() > LANE_BYTES
    }

    pub fn watch(&self) -> watch::Receiver<usize> {
        self.waiting.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_full_lane_has_room_again_when_its_bytes_are_written() {
        let lane = WriteBacklog::default();
        lane.enter(LANE_BYTES + 1);
        assert!(lane.is_full());
        let mut watch = lane.watch();
        lane.leave(1);
        watch.changed().await.unwrap();
        assert!(!lane.is_full());
    }
}
