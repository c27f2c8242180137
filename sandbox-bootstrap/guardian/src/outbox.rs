//! The frames to the daemon: numbered, kept until they are acknowledged, sent again on a new connection.
//!
//! Frames are numbered from 1 in the order they were made; hellos are not counted. They wait in a queue, also while no
//! daemon is there, and once sent they are kept until the daemon says that it has dealt with them. After a reconnect,
//! frames that it has not dealt with are sent again. So none is lost and none comes twice.

use std::collections::VecDeque;

use crate::limits::{BRIDGE_QUEUE_HIGH, BRIDGE_QUEUE_LOW, Limits};

pub struct Outbox {
    /// Frames that were not sent yet.
    queue: VecDeque<Vec<u8>>,
    /// Bytes of these, and of the one that is partly sent.
    queued: usize,
    /// Frames that were sent and not acknowledged yet.
    sent: VecDeque<Vec<u8>>,
    /// Bytes of these.
    held: usize,
    /// The number of the newest frame that was sent whole.
    sent_count: u64,
    /// Bytes that may wait together, sent or not.
    pub held_most: usize,
    /// Whether so much waits that nothing more should be made.
    pub pressed: bool,
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            queued: 0,
            sent: VecDeque::new(),
            held: 0,
            sent_count: 0,
            held_most: Limits::default().unacknowledged_bytes,
            pressed: false,
        }
    }
}

impl Outbox {
    pub fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Queues a frame.
    pub fn keep(&mut self, frame: Vec<u8>) {
        self.queued += frame.len();
        self.queue.push_back(frame);
        self.press();
    }

    /// Counts a frame as queued that the caller has begun to send.
    pub fn begin(&mut self, frame: &[u8]) {
        self.queued += frame.len();
        self.press();
    }

    /// The next frame to send; it counts as queued until it was sent whole.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        self.queue.pop_front()
    }

    /// A frame that was taken, or begun, is sent whole.
    pub fn finish(&mut self, frame: Vec<u8>) {
        self.queued -= frame.len();
        self.keep_sent(frame);
    }

    /// A frame that was taken, or begun, could not be sent whole: the next connection gets it first.
    pub fn put_back(&mut self, frame: Vec<u8>) {
        self.queue.push_front(frame);
    }

    /// A frame that did not have to wait is sent.
    pub fn keep_sent(&mut self, frame: Vec<u8>) {
        self.held += frame.len();
        self.sent.push_back(frame);
        self.sent_count += 1;
        self.press();
    }

    /// The daemon has dealt with that many frames for good. False if so many were never sent.
    ///
    /// A restarted daemon may know of fewer frames than were once acknowledged: frames without an effect leave no trace
    /// in its journal.
    pub fn acknowledge(&mut self, received: u64) -> bool {
        if received > self.sent_count {
            return false;
        }
        for _ in self.forgotten()..received {
            self.held -= self.sent.pop_front().map_or(0, |frame| frame.len());
        }
        self.relieve();
        true
    }

    /// How many frames were acknowledged and are never sent again.
    pub fn forgotten(&self) -> u64 {
        self.sent_count - self.sent.len() as u64
    }

    /// Puts the frames that the daemon has not dealt with before all others again.
    pub fn send_again(&mut self) {
        self.sent_count -= self.sent.len() as u64;
        self.queued += self.held;
        self.held = 0;
        while let Some(frame) = self.sent.pop_back() {
            self.queue.push_front(frame);
        }
    }

    fn press(&mut self) {
        if self.queued > BRIDGE_QUEUE_HIGH || self.queued + self.held > self.held_most {
            self.pressed = true;
        }
    }

    pub fn relieve(&mut self) {
        if self.queued < BRIDGE_QUEUE_LOW && self.queued + self.held <= self.held_most {
            self.pressed = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(outbox: &mut Outbox, names: &[u8]) {
        for name in names {
            outbox.keep_sent(vec![*name]);
        }
    }

    #[test]
    fn frames_that_were_not_dealt_with_come_again_before_the_queue() {
        let mut outbox = Outbox::default();
        sent(&mut outbox, b"abc");
        outbox.keep(vec![b'd']);
        assert!(outbox.acknowledge(1));
        outbox.send_again();
        assert_eq!(outbox.forgotten(), 1);
        let mut again = Vec::new();
        while let Some(frame) = outbox.take() {
            again.push(frame[0]);
            outbox.finish(frame);
        }
        assert_eq!(again, b"bcd");
        assert!(outbox.acknowledge(4) && !outbox.acknowledge(5));
        assert_eq!((outbox.forgotten(), outbox.held, outbox.queued), (4, 0, 0));
    }

    #[test]
    fn fewer_than_were_acknowledged_change_nothing() {
        let mut outbox = Outbox::default();
        sent(&mut outbox, b"abc");
        assert!(outbox.acknowledge(2) && outbox.acknowledge(0));
        assert_eq!(outbox.forgotten(), 2);
    }

    #[test]
    fn a_frame_that_was_partly_sent_is_the_first_of_the_next_connection() {
        let mut outbox = Outbox::default();
        sent(&mut outbox, b"a");
        outbox.keep(vec![b'b']);
        outbox.keep(vec![b'c']);
        let partly = outbox.take().unwrap();
        outbox.put_back(partly);
        outbox.send_again();
        assert_eq!(outbox.queue, [vec![b'a'], vec![b'b'], vec![b'c']]);
    }

    #[test]
    fn pressure_rises_with_what_waits_and_falls_when_it_is_acknowledged() {
        let mut outbox = Outbox { held_most: 100, ..Outbox::default() };
        outbox.keep_sent(vec![0; 60]);
        assert!(!outbox.pressed);
        outbox.keep_sent(vec![0; 60]);
        assert!(outbox.pressed);
        assert!(outbox.acknowledge(1));
        assert!(!outbox.pressed);
    }
}
