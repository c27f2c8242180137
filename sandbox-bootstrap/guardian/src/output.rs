//! Counts a cell's output and decides what of it is forwarded.

use std::collections::VecDeque;

use crate::limits::OUTPUT_FRAME_BYTES;

/// The streams of a runner, as the bridge numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout = 1,
    Stderr = 2,
}

pub const STREAMS: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

impl Stream {
    /// The place of the stream in arrays with one element for each stream.
    pub fn place(self) -> usize {
        self as usize - 1
    }

    /// The header of an output frame.
    pub fn header(self, cell: u64) -> [u8; 9] {
        let mut header = [self as u8; 9];
        header[1..].copy_from_slice(&cell.to_be_bytes());
        header
    }
}

/// Bytes that were dropped between the first and the last ones of a cell.
#[derive(Debug, PartialEq, Eq)]
pub struct Gap {
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
}

/// Forwards the first bytes of a cell and holds back the last ones until its end.
///
/// What lies between is dropped and counted. Both streams share the bounds.
#[derive(Debug)]
pub struct OutputMeter {
    head_left: u64,
    tail_bytes: usize,
    /// Oldest first.
    tail: VecDeque<(Stream, Vec<u8>)>,
    tail_held: usize,
    dropped: [u64; 2],
}

impl OutputMeter {
    pub fn new(head_bytes: u64, tail_bytes: usize) -> Self {
        Self { head_left: head_bytes, tail_bytes, tail: VecDeque::new(), tail_held: 0, dropped: [0; 2] }
    }

    /// The part of the data that is to be forwarded now.
    pub fn take<'a>(&mut self, stream: Stream, data: &'a [u8]) -> &'a [u8] {
        let now = usize::try_from(self.head_left).unwrap_or(usize::MAX).min(data.len());
        self.head_left -= now as u64;
        if now < data.len() {
            self.hold(stream, &data[now..]);
        }
        &data[..now]
    }

    fn hold(&mut self, stream: Stream, data: &[u8]) {
        match self.tail.back_mut() {
            // So that many short writes are few frames.
            Some((newest, held)) if *newest == stream && held.len() + data.len() <= OUTPUT_FRAME_BYTES => {
                held.extend_from_slice(data);
            }
            _ => self.tail.push_back((stream, data.to_vec())),
        }
        self.tail_held += data.len();
        while self.tail_held > self.tail_bytes {
            let Some((stream, oldest)) = self.tail.front_mut() else { break };
            let dropped = (self.tail_held - self.tail_bytes).min(oldest.len());
            oldest.drain(..dropped);
            self.dropped[stream.place()] += dropped as u64;
            self.tail_held -= dropped;
            if oldest.is_empty() {
                self.tail.pop_front();
            }
        }
    }

    /// What was dropped, if anything was, and what was held back.
    pub fn finish(self) -> (Option<Gap>, VecDeque<(Stream, Vec<u8>)>) {
        let [stdout_bytes, stderr_bytes] = self.dropped;
        let gap = (stdout_bytes + stderr_bytes > 0).then_some(Gap { stdout_bytes, stderr_bytes });
        (gap, self.tail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_and_the_last_bytes_are_kept_and_the_rest_is_counted() {
        let mut meter = OutputMeter::new(10, 4);
        assert_eq!(meter.take(Stream::Stdout, b"01234567"), b"01234567");
        assert_eq!(meter.take(Stream::Stderr, b"abcdef"), b"ab");
        assert_eq!(meter.take(Stream::Stdout, b"XYZ"), b"");
        let (gap, tail) = meter.finish();
        assert_eq!(gap, Some(Gap { stdout_bytes: 0, stderr_bytes: 3 }));
        assert_eq!(tail, [(Stream::Stderr, b"f".to_vec()), (Stream::Stdout, b"XYZ".to_vec())]);
    }

    #[test]
    fn what_fits_has_no_gap() {
        let mut meter = OutputMeter::new(2, 4);
        assert_eq!(meter.take(Stream::Stdout, b"abcdef"), b"ab");
        let (gap, tail) = meter.finish();
        assert_eq!((gap, tail), (None, [(Stream::Stdout, b"cdef".to_vec())].into()));
    }

    #[test]
    fn headers_name_stream_and_cell() {
        assert_eq!(Stream::Stderr.header(258), [2, 0, 0, 0, 0, 0, 0, 1, 2]);
    }
}
