//! Messages between guardian and runners: length (u32, big endian), kind (one byte), payload.
//!
//! From guardian to runner, the payload of most kinds is a JSON frame of the daemon. From runner to guardian, it comes
//! from a process in which user code runs, so it is not trusted: the guardian itself states what it is about (which
//! cell, which call, which request) and passes the rest on unread, as said by a runner.

use crate::limits::{BUFFER_KEPT_BYTES, FRAME_BYTES};

/// Kinds of messages from guardian to runner.
pub mod to_runner {
    pub const HOST_FRAME: u8 = b'H';
    /// Asks for a copy, and brings its descriptors; the payload is `[index of the new runner, is a checkpoint, tag]`.
    pub const SPAWN: u8 = b'S';
    /// Tells a checkpoint that it is the main worker now.
    pub const PROMOTE: u8 = b'M';
    /// What cells changed after this copy was made, each as its runner wrote it down, in a JSON array.
    pub const REDO: u8 = b'R';
    /// The runner's newest cell when it called, its own number of the call, and the daemon's frame.
    pub const TOOL_ANSWER: u8 = b'A';
    /// A cell for a thread of its own, with descriptors: its output, its errors, and where it is told to end.
    pub const BACKGROUND: u8 = b'G';
    /// Comes after a cell of the main line, with its number; the runner answers when its first thread is free.
    pub const ARE_YOU_BACK: u8 = b'Q';
}

/// Kinds of messages from runner to guardian.
pub mod from_runner {
    /// The answer to `PROMOTE`.
    pub const PROMOTED: u8 = b'M';
    /// First message of a runner: its pid.
    pub const PRESENT: u8 = b'P';
    /// The answer to `ARE_YOU_BACK`, with the same number.
    pub const BACK: u8 = b'Q';
    /// What was printed has to be read before more is.
    pub const HURRY: u8 = b'U';
    /// A MIME bundle, for the present cell.
    pub const DISPLAY: u8 = b'Y';
    /// The number of a background cell, and a MIME bundle.
    pub const BACKGROUND_DISPLAY: u8 = b'Z';
    /// The runner's own number of the call, then its name and arguments.
    pub const TOOL_CALL: u8 = b'C';
    /// The runner's own number of a call whose answer is not waited for any more: the daemon ends the call.
    pub const TOOL_GIVEN_UP: u8 = b'N';
    /// Says that the code may have had effects from here on, and which names it may assign, if that is known.
    pub const CELL_BEGUN: u8 = b'B';
    /// The number of the cell, what repeats all that it changed, if that is known, then how it went.
    pub const CELL_DONE: u8 = b'D';
    /// The number of a background cell, then how it went.
    pub const BACKGROUND_DONE: u8 = b'G';
    pub const VARIABLES_DONE: u8 = b'V';
    pub const PRELOADED: u8 = b'L';
    /// 1 if a snapshot was loaded, else 0, then how that went.
    pub const RESTORED: u8 = b'O';
    /// The payload is `[index of the runner that could not be made, for want of descriptors]`.
    pub const SPAWN_FAILED: u8 = b'X';
}

pub const HEADER_BYTES: usize = 5;
/// Bytes of the runner's own number of a tool call.
pub const NUMBER_BYTES: usize = 4;
/// Bytes of that number and of the number of the background cell that calls, or 0.
pub const CALL_BYTES: usize = NUMBER_BYTES + 8;
/// Bytes before what repeats a cell: the number of the cell and the length of what repeats it.
const DONE_BYTES: usize = 10;

/// A whole message.
pub fn pack(kind: u8, payload: &[u8]) -> Vec<u8> {
    pack_parts(kind, &[payload])
}

/// A whole message whose payload is given in parts.
pub fn pack_parts(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let size: usize = parts.iter().map(|part| part.len()).sum();
    let mut message = Vec::with_capacity(HEADER_BYTES + size);
    // A payload is a frame of the daemon and a few bytes more, so its length is far below the range of the field.
    message.extend_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes());
    message.push(kind);
    for part in parts {
        message.extend_from_slice(part);
    }
    message
}

/// The end of a cell as a runner tells it.
#[derive(Debug, PartialEq, Eq)]
pub struct Done<'a> {
    pub cell: u64,
    pub redo: &'a [u8],
    pub outcome: &'a [u8],
}

/// Takes the report of a cell's end apart. `None` if it is too short for what it claims to hold.
pub fn parse_done(payload: &[u8]) -> Option<Done<'_>> {
    let (head, rest) = payload.split_at_checked(DONE_BYTES)?;
    let (cell, redo_bytes) = head.split_at_checked(8)?;
    let redo_bytes = usize::from(u16::from_be_bytes(redo_bytes.try_into().ok()?));
    let (redo, outcome) = rest.split_at_checked(redo_bytes)?;
    Some(Done { cell: u64::from_be_bytes(cell.try_into().ok()?), redo, outcome })
}

/// The number of a cell, and what a runner says of it. `None` if there is no number.
pub fn parse_cell(payload: &[u8]) -> Option<(u64, &[u8])> {
    let (cell, said) = payload.split_first_chunk()?;
    Some((u64::from_be_bytes(*cell), said))
}

/// The background cell that makes a tool call, as the runner says.
pub fn calling_background(payload: &[u8]) -> Option<u64> {
    let (cell, _) = parse_cell(payload.get(NUMBER_BYTES..)?)?;
    Some(cell).filter(|cell| *cell != 0)
}

/// The pid in the first message of a runner; 0 if there is none.
pub fn parse_pid(payload: &[u8]) -> i32 {
    payload.try_into().map_or(0, i32::from_be_bytes)
}

/// A runner broke the framing.
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

/// Takes a stream of bytes apart into messages.
#[derive(Debug, Default)]
pub struct MessageReader {
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that belong to messages which were returned.
    used: usize,
}

impl MessageReader {
    pub fn feed(&mut self, data: &[u8]) {
        if self.used > 0 {
            self.buffer.drain(..self.used);
            self.used = 0;
        }
        self.buffer.extend_from_slice(data);
    }

    /// Number of bytes of messages that were fed but not returned yet.
    pub fn unread(&self) -> usize {
        self.buffer.len() - self.used
    }

    /// The next whole message, as its kind and its payload.
    pub fn next(&mut self) -> Result<Option<(u8, Vec<u8>)>, TooLong> {
        let waiting = &self.buffer[self.used..];
        let Some((header, rest)) = waiting.split_at_checked(HEADER_BYTES) else {
            self.shrink();
            return Ok(None);
        };
        let length = u32::from_be_bytes([header[0], header[1], header[2], header[3]]) as usize;
        if length > FRAME_BYTES {
            return Err(TooLong);
        }
        let Some(payload) = rest.get(..length) else {
            return Ok(None);
        };
        let message = (header[4], payload.to_vec());
        self.used += HEADER_BYTES + length;
        Ok(Some(message))
    }

    /// Gives back the memory of a large message when nothing waits any more.
    fn shrink(&mut self) {
        if self.unread() == 0 {
            self.buffer.clear();
            self.used = 0;
            self.buffer.shrink_to(BUFFER_KEPT_BYTES);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::noise::try_out;

    type Messages = Vec<(u8, Vec<u8>)>;

    /// All messages up to the end or a breach of the framing. What is announced takes no memory before it is there.
    fn read_all(pieces: &[&[u8]]) -> (Messages, Option<TooLong>) {
        let (mut reader, mut found, mut sent) = (MessageReader::default(), Vec::new(), 0);
        for piece in pieces {
            sent += piece.len();
            reader.feed(piece);
            loop {
                match reader.next() {
                    Ok(Some(message)) => found.push(message),
                    Ok(None) => break,
                    Err(broken) => return (found, Some(broken)),
                }
            }
            assert!(reader.buffer.capacity() <= 2 * sent + 64 && reader.unread() <= sent);
        }
        (found, None)
    }

    #[test]
    fn any_messages_come_out_whole_however_they_are_cut() {
        try_out(400, |noise| {
            let messages: Messages = (0..noise.below(5))
                .map(|_| {
                    let size = [0, 9, 300, BUFFER_KEPT_BYTES + 9][noise.below(4)];
                    (u8::try_from(noise.below(256)).unwrap(), vec![7; noise.below(size + 1)])
                })
                .collect();
            let sent: Vec<u8> = messages.iter().flat_map(|(kind, payload)| pack(*kind, payload)).collect();
            assert_eq!(read_all(&noise.cut(&sent)), (messages, None));
        });
    }

    #[test]
    fn damage_is_read_or_refused_in_one_way_however_it_is_cut() {
        let telling: [&[u8]; 4] = [&[0; 4], &[255; 4], &[0, 0, 1, 0, b'D'], &[1, 128, 0, 0]];
        try_out(2000, |noise| {
            let mut sent = [pack(b'D', &[0; 40]), pack(b'Y', b""), pack(b'C', b"call")].concat();
            let places = noise.below(4);
            noise.damage(&mut sent, places, &telling);
            assert_eq!(read_all(&noise.cut(&sent)), read_all(&[&sent]), "{sent:?}");
        });
    }

    #[test]
    fn the_end_of_a_cell_is_all_of_the_message_or_nothing() {
        try_out(2000, |noise| {
            let size = noise.below(40);
            let mut told = noise.bytes(size);
            noise.damage(&mut told, 1, &[&[0; 8], &[0, 2]]);
            if let Some(Done { cell, redo, outcome }) = parse_done(&told) {
                let length = u16::try_from(redo.len()).unwrap().to_be_bytes();
                assert_eq!([&cell.to_be_bytes()[..], &length, redo, outcome].concat(), told);
            }
            parse_pid(&told);
        });
    }

    #[test]
    fn messages_come_out_whole_however_they_are_cut() {
        let sent = [pack(b'D', b"one"), pack(b'Y', b""), pack(b'C', &[7; 300])].concat();
        for size in [1, 2, 7, sent.len()] {
            let (mut reader, mut found) = (MessageReader::default(), Vec::new());
            for piece in sent.chunks(size) {
                reader.feed(piece);
                while let Some(message) = reader.next().unwrap() {
                    found.push(message);
                }
            }
            assert_eq!(found, [(b'D', b"one".to_vec()), (b'Y', vec![]), (b'C', vec![7; 300])]);
            assert_eq!(reader.unread(), 0);
        }
    }

    #[test]
    fn a_message_that_would_be_too_long_is_refused_before_it_is_there() {
        let mut reader = MessageReader::default();
        reader.feed(&[255; HEADER_BYTES]);
        assert_eq!(reader.next(), Err(TooLong));
    }

    #[test]
    fn half_a_message_counts_as_unread() {
        let mut reader = MessageReader::default();
        reader.feed(&pack(b'D', b"abc")[..6]);
        assert_eq!((reader.next().unwrap(), reader.unread()), (None, 6));
    }

    #[test]
    fn the_end_of_a_cell_is_taken_apart_only_if_it_is_whole() {
        let told = [&7_u64.to_be_bytes()[..], &2_u16.to_be_bytes(), b"{}", b"rest"].concat();
        assert_eq!(parse_done(&told), Some(Done { cell: 7, redo: b"{}", outcome: b"rest" }));
        for size in 0..12 {
            assert_eq!(parse_done(&told[..size]), None, "{size}");
        }
    }

    #[test]
    fn a_pid_has_four_bytes() {
        assert_eq!(parse_pid(&5_i32.to_be_bytes()), 5);
        assert_eq!((parse_pid(b""), parse_pid(&[0; 5])), (0, 0));
    }

    #[test]
    fn what_is_said_of_a_cell_begins_with_its_number() {
        assert_eq!(parse_cell(&[0, 0, 0, 0, 0, 0, 1, 2, 7]), Some((258, &[7][..])));
        assert_eq!(parse_cell(&[0; 7]), None);
    }
}
