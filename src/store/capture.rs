//! The output of one cell as its result shows it: the head, the tail, and how many bytes are missing in between.

use std::collections::VecDeque;

use crate::protocol::limits::OUTPUT_SEGMENTS;
use crate::protocol::result::{OutputSegment, Stream};
use crate::security_controls;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputCaps {
    pub head: usize,
    pub tail: usize,
}

/// Adds without overflow, because the kernel reports these counts and the guest may forge them.
fn sum(bytes: u64, more: u64) -> u64 {
    if security_controls::holds("numbers_of_guests_saturate") {
        bytes.saturating_add(more)
    } else {
        bytes + more
    }
}

/// Output bytes tagged with their stream; only the first and the last are kept.
#[derive(Debug)]
struct HeadTail {
    caps: OutputCaps,
    head: Vec<(Stream, Vec<u8>)>,
    head_bytes: usize,
    tail: VecDeque<(Stream, VecDeque<u8>)>,
    tail_bytes: usize,
    /// Bytes that were dropped between the two.
    cut: u64,
}

impl HeadTail {
    fn new(caps: OutputCaps) -> Self {
        Self { caps, head: Vec::new(), head_bytes: 0, tail: VecDeque::new(), tail_bytes: 0, cut: 0 }
    }

    fn push(&mut self, stream: Stream, mut data: &[u8]) {
        // Once the tail has bytes, the head takes no more, because the order would be lost otherwise.
        if self.tail.is_empty() && self.cut == 0 {
            let head_left = self.caps.head - self.head_bytes;
            let (first, rest) = data.split_at(head_left.min(data.len()));
            if !first.is_empty() {
                let full = self.head.len() >= OUTPUT_SEGMENTS;
                match self.head.last_mut() {
                    Some((last, bytes)) if full || *last == stream => bytes.extend_from_slice(first),
                    _ => self.head.push((stream, first.to_vec())),
                }
                self.head_bytes += first.len();
            }
            data = rest;
        }
        if data.is_empty() {
            return;
        }
        if data.len() > self.caps.tail {
            let skip = data.len() - self.caps.tail;
            self.cut = sum(self.cut, skip as u64);
            data = data.get(skip..).unwrap_or_default();
        }
        let full = self.tail.len() >= OUTPUT_SEGMENTS;
        match self.tail.back_mut() {
            Some((last, bytes)) if full || *last == stream => bytes.extend(data),
            _ => self.tail.push_back((stream, data.iter().copied().collect())),
        }
        self.tail_bytes += data.len();
        self.trim();
    }

    /// Counts bytes that were never received.
    fn skip(&mut self, bytes: u64) {
        // The tail so far is no longer the end of the output.
        self.cut = sum(self.cut, sum(bytes, self.tail_bytes as u64));
        self.tail.clear();
        self.tail_bytes = 0;
    }

    fn trim(&mut self) {
        while self.tail_bytes > self.caps.tail {
            let excess = self.tail_bytes - self.caps.tail;
            let Some((_, oldest)) = self.tail.front_mut() else { break };
            let count = excess.min(oldest.len());
            oldest.drain(..count);
            let emptied = oldest.is_empty();
            self.tail_bytes -= count;
            self.cut = sum(self.cut, count as u64);
            if emptied {
                self.tail.pop_front();
            }
        }
    }

    /// Counts a character that was only partly cut as cut completely.
    fn settle(&mut self) {
        if self.cut == 0 {
            return;
        }
        if let Some((_, bytes)) = self.head.last_mut() {
            let whole = whole_characters(bytes);
            self.cut = sum(self.cut, (bytes.len() - whole) as u64);
            bytes.truncate(whole);
        }
        if let Some((_, bytes)) = self.tail.front_mut() {
            let partial = bytes.iter().take(3).take_while(|byte| *byte & 0xC0 == 0x80).count();
            self.cut = sum(self.cut, partial as u64);
            bytes.drain(..partial);
        }
    }

    /// Bytes are joined before they become text: a character may lie across head and tail.
    fn segments(self) -> Vec<OutputSegment> {
        let mut pieces = self.head;
        if self.cut > 0 {
            let stream = pieces.last().map_or(Stream::Stdout, |(stream, _)| *stream);
            append(&mut pieces, stream, cut_notice(self.cut).as_bytes());
        }
        for (stream, mut bytes) in self.tail {
            append(&mut pieces, stream, bytes.make_contiguous());
        }
        pieces.into_iter().map(|(stream, bytes)| OutputSegment { stream, text: lossy(&bytes) }).collect()
    }

    fn text(self) -> String {
        self.segments().into_iter().map(|segment| segment.text).collect()
    }
}

fn cut_notice(bytes: u64) -> String {
    format!("\n[… {bytes} bytes cut …]\n")
}

fn append(pieces: &mut Vec<(Stream, Vec<u8>)>, stream: Stream, data: &[u8]) {
    match pieces.last_mut() {
        Some((last, bytes)) if *last == stream => bytes.extend_from_slice(data),
        _ => pieces.push((stream, data.to_vec())),
    }
}

/// The length of `data` without an unfinished UTF-8 character at its end.
pub(super) fn whole_characters(data: &[u8]) -> usize {
    for back in 1..=data.len().min(3) {
        let index = data.len() - back;
        let byte = data.get(index).copied().unwrap_or(0);
        if byte & 0xC0 == 0x80 {
            continue;
        }
        let needed = match byte {
            0xC0..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF7 => 4,
            _ => 1,
        };
        return if needed > back { index } else { data.len() };
    }
    data.len()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Collects the output of a running cell.
#[derive(Debug)]
pub struct Capture {
    both: HeadTail,
    stdout: HeadTail,
    stderr: HeadTail,
}

/// What a result shows of the output.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Captured {
    pub stdout: String,
    pub stderr: String,
    pub output: Vec<OutputSegment>,
    pub stdout_cut: u64,
    pub stderr_cut: u64,
}

impl Capture {
    pub fn new(caps: OutputCaps) -> Self {
        Self { both: HeadTail::new(caps), stdout: HeadTail::new(caps), stderr: HeadTail::new(caps) }
    }

    pub fn is_empty(&self) -> bool {
        self.both.head_bytes == 0 && self.both.tail_bytes == 0
    }

    pub fn push(&mut self, stream: Stream, data: &[u8]) {
        self.both.push(stream, data);
        match stream {
            Stream::Stdout => self.stdout.push(stream, data),
            Stream::Stderr => self.stderr.push(stream, data),
        }
    }

    pub fn skip(&mut self, stdout_bytes: u64, stderr_bytes: u64) {
        if stdout_bytes > 0 {
            self.stdout.skip(stdout_bytes);
        }
        if stderr_bytes > 0 {
            self.stderr.skip(stderr_bytes);
        }
        let bytes = sum(stdout_bytes, stderr_bytes);
        if bytes > 0 {
            self.both.skip(bytes);
        }
    }

    pub fn finish(mut self) -> Captured {
        for part in [&mut self.both, &mut self.stdout, &mut self.stderr] {
            part.settle();
        }
        Captured {
            stdout_cut: self.stdout.cut,
            stderr_cut: self.stderr.cut,
            stdout: self.stdout.text(),
            stderr: self.stderr.text(),
            output: self.both.segments(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CAPS: OutputCaps = OutputCaps { head: 8, tail: 8 };

    #[test]
    fn short_output_is_whole_and_in_order() {
        let mut capture = Capture::new(CAPS);
        capture.push(Stream::Stdout, b"a\n");
        capture.push(Stream::Stderr, b"b\n");
        capture.push(Stream::Stdout, b"c\n");
        let captured = capture.finish();
        assert_eq!((captured.stdout.as_str(), captured.stderr.as_str()), ("a\nc\n", "b\n"));
        assert_eq!(captured.output.iter().map(|s| s.text.as_str()).collect::<String>(), "a\nb\nc\n");
        assert_eq!((captured.stdout_cut, captured.stderr_cut), (0, 0));
    }

    #[test]
    fn long_output_keeps_both_ends_and_says_what_is_missing() {
        let mut capture = Capture::new(CAPS);
        capture.push(Stream::Stdout, b"0123456789abcdefghijklmnop");
        let captured = capture.finish();
        assert_eq!(captured.stdout, "01234567\n[… 10 bytes cut …]\nijklmnop");
        assert_eq!(captured.stdout_cut, 10);
    }

    #[test]
    fn a_gap_of_the_kernel_is_counted_and_the_last_bytes_are_the_tail() {
        let mut capture = Capture::new(CAPS);
        capture.push(Stream::Stdout, b"0123456789");
        capture.skip(1000, 0);
        capture.push(Stream::Stdout, b"end");
        let captured = capture.finish();
        assert_eq!(captured.stdout, "01234567\n[… 1002 bytes cut …]\nend");
    }

    #[test]
    fn a_character_across_head_and_tail_is_whole() {
        let mut capture = Capture::new(CAPS);
        capture.push(Stream::Stdout, "中文中文".as_bytes());
        let captured = capture.finish();
        assert_eq!((captured.stdout.as_str(), captured.stdout_cut), ("中文中文", 0));
        assert_eq!(captured.output, [OutputSegment { stream: Stream::Stdout, text: "中文中文".into() }]);
    }

    #[test]
    fn a_character_that_the_cut_splits_is_cut_whole() {
        let mut capture = Capture::new(CAPS);
        capture.push(Stream::Stdout, "中文字符太多了".as_bytes());
        let captured = capture.finish();
        assert_eq!(captured.stdout, "中文\n[… 9 bytes cut …]\n多了");
        assert_eq!(captured.stdout_cut, 9);
    }

    proptest! {
        #[test]
        fn memory_is_bounded_and_no_byte_is_unaccounted(
            chunks in prop::collection::vec((any::<bool>(), prop::collection::vec(b'a'..=b'z', 0..40)), 0..60)
        ) {
            let mut capture = Capture::new(CAPS);
            let mut total = 0_u64;
            for (to_stdout, data) in &chunks {
                capture.push(if *to_stdout { Stream::Stdout } else { Stream::Stderr }, data);
                if *to_stdout { total += data.len() as u64; }
                prop_assert!(capture.both.tail_bytes <= CAPS.tail && capture.both.head_bytes <= CAPS.head);
            }
            let captured = capture.finish();
            let visible = captured.stdout.replace(&cut_notice(captured.stdout_cut), "").len() as u64;
            prop_assert_eq!(visible + captured.stdout_cut, total);
        }
    }
}
