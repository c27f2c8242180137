//! The server's half of RFC 6455, as far as the bridge needs it: no extensions, no subprotocols.
//!
//! Nothing here does I/O: bytes go in, messages and bytes to send come out. Every breach of the protocol or of a bound
//! is a `Violation`, after which the connection is of no use.

use crate::digest;
use crate::limits::{BUFFER_KEPT_BYTES, FRAGMENTS, FRAME_BYTES, UPGRADE_BYTES, UPGRADE_HEADERS};

pub const CONTINUATION: u8 = 0x0;
pub const TEXT: u8 = 0x1;
pub const BINARY: u8 = 0x2;
pub const CLOSE: u8 = 0x8;
pub const PING: u8 = 0x9;
pub const PONG: u8 = 0xA;

pub const NORMAL: u16 = 1000;
pub const PROTOCOL_ERROR: u16 = 1002;
pub const BAD_TEXT: u16 = 1007;
pub const TOO_BIG: u16 = 1009;

const ACCEPT_SALT: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const CONTROL_BYTES: usize = 125;
const KEY_BYTES: usize = 16;
const MASK_BYTES: usize = 4;

/// The peer broke the protocol; `code` is the status for the close frame.
#[derive(Debug, PartialEq, Eq)]
pub struct Violation {
    pub code: u16,
    pub reason: &'static str,
}

fn violation<T>(code: u16, reason: &'static str) -> Result<T, Violation> {
    Err(Violation { code, reason })
}

/// The answer to a whole upgrade request and the bytes that the request took; `None` while it is not all there.
pub fn answer_upgrade(received: &[u8]) -> Result<Option<(Vec<u8>, usize)>, Violation> {
    let seen = &received[..received.len().min(UPGRADE_BYTES)];
    let Some(end) = seen.windows(4).position(|window| window == b"\r\n\r\n") else {
        return if received.len() >= UPGRADE_BYTES {
            violation(PROTOCOL_ERROR, "the upgrade request is too long")
        } else {
            Ok(None)
        };
    };
    let mut lines = split_lines(&received[..end]).into_iter();
    let request: Vec<&[u8]> = lines.next().unwrap_or_default().split(|byte| *byte == b' ').collect();
    if !matches!(request[..], [b"GET", _, b"HTTP/1.1"]) {
        return violation(PROTOCOL_ERROR, "not a GET request of HTTP/1.1");
    }
    let headers = Headers::parse(lines.collect())?;
    if !headers.get("upgrade").eq_ignore_ascii_case(b"websocket") {
        return violation(PROTOCOL_ERROR, "no upgrade to websocket");
    }
    let mut options = headers.get("connection").split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    if !options.any(|option| option.eq_ignore_ascii_case(b"upgrade")) {
        return violation(PROTOCOL_ERROR, "the connection is not to be upgraded");
    }
    if headers.get("sec-websocket-version") != b"13" {
        return violation(PROTOCOL_ERROR, "not version 13");
    }
    let key = headers.get("sec-websocket-key");
    if !digest::is_base64_of(key, KEY_BYTES) {
        return violation(PROTOCOL_ERROR, "no proper key");
    }
    let accept = digest::base64(&digest::sha1(&[key, ACCEPT_SALT].concat()));
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    Ok(Some((answer.into_bytes(), end + 4)))
}

fn split_lines(text: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.windows(2).position(|window| window == b"\r\n") {
        lines.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    lines.push(rest);
    lines
}

struct Headers<'a>(Vec<(Vec<u8>, &'a [u8])>);

impl<'a> Headers<'a> {
    fn parse(lines: Vec<&'a [u8]>) -> Result<Self, Violation> {
        if lines.len() > UPGRADE_HEADERS {
            return violation(PROTOCOL_ERROR, "too many headers");
        }
        let mut headers: Vec<(Vec<u8>, &[u8])> = Vec::new();
        for line in lines {
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(0);
            let name = line[..colon].to_ascii_lowercase();
            if name.is_empty() || name.trim_ascii() != name {
                return violation(PROTOCOL_ERROR, "a header is malformed");
            }
            if headers.iter().any(|(known, _)| *known == name) {
                return violation(PROTOCOL_ERROR, "a header comes twice");
            }
            headers.push((name, line[colon + 1..].trim_ascii()));
        }
        Ok(Self(headers))
    }

    /// The value; empty if there is no such header.
    fn get(&self, name: &str) -> &'a [u8] {
        self.0.iter().find(|(known, _)| known == name.as_bytes()).map_or(&[], |(_, value)| value)
    }
}

/// One unmasked, unfragmented frame, whose payload is given in parts.
pub fn encode(opcode: u8, parts: &[&[u8]]) -> Vec<u8> {
    let size: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = Vec::with_capacity(10 + size);
    frame.push(0x80 | opcode);
    match (u8::try_from(size), u16::try_from(size)) {
        (Ok(small), _) if size <= CONTROL_BYTES => frame.push(small),
        (_, Ok(medium)) => {
            frame.push(126);
            frame.extend_from_slice(&medium.to_be_bytes());
        }
        _ => {
            frame.push(127);
            frame.extend_from_slice(&(size as u64).to_be_bytes());
        }
    }
    for part in parts {
        frame.extend_from_slice(part);
    }
    frame
}

pub fn encode_close(code: u16, reason: &str) -> Vec<u8> {
    let reason = &reason.as_bytes()[..reason.len().min(CONTROL_BYTES - 2)];
    encode(CLOSE, &[&code.to_be_bytes(), reason])
}

/// XORs with the repeated key.
fn unmask(data: &mut [u8], key: [u8; MASK_BYTES]) {
    let wide = u64::from_ne_bytes([key[0], key[1], key[2], key[3], key[0], key[1], key[2], key[3]]);
    let (chunks, rest) = data.as_chunks_mut::<8>();
    for chunk in chunks {
        *chunk = (u64::from_ne_bytes(*chunk) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    Text(String),
    Ping(Vec<u8>),
    Pong,
    Close,
}

struct Frame {
    is_final: bool,
    opcode: u8,
    payload: Vec<u8>,
}

/// Turns the client's bytes into messages.
#[derive(Default)]
pub struct MessageReader {
    buffer: Vec<u8>,
    /// Bytes at the start of the buffer that belong to frames which were returned.
    used: usize,
    fragments: Option<Vec<u8>>,
    fragments_count: usize,
}

impl MessageReader {
    pub fn feed(&mut self, data: &[u8]) {
        if self.used > 0 {
            self.buffer.drain(..self.used);
            self.used = 0;
        }
        self.buffer.extend_from_slice(data);
    }

    /// The next whole message.
    pub fn next(&mut self) -> Result<Option<Message>, Violation> {
        while let Some(frame) = self.next_frame()? {
            let message = match frame.opcode {
                CLOSE => Some(Message::Close),
                PING => Some(Message::Ping(frame.payload)),
                PONG => Some(Message::Pong),
                _ => self.assemble(frame)?.map(Message::Text),
            };
            if message.is_some() {
                return Ok(message);
            }
        }
        Ok(None)
    }

    fn next_frame(&mut self) -> Result<Option<Frame>, Violation> {
        let waiting = &self.buffer[self.used..];
        let &[first, second, ..] = waiting else {
            self.shrink();
            return Ok(None);
        };
        let (is_final, opcode, short_size) = (first & 0x80 != 0, first & 0x0F, usize::from(second & 0x7F));
        if first & 0x70 != 0 {
            return violation(PROTOCOL_ERROR, "a reserved bit is set");
        }
        if second & 0x80 == 0 {
            return violation(PROTOCOL_ERROR, "a frame of the client is not masked");
        }
        // Binary frames go from kernel to daemon only.
        if !matches!(opcode, CONTINUATION | TEXT | CLOSE | PING | PONG) {
            return violation(PROTOCOL_ERROR, "an unexpected opcode");
        }
        if opcode >= CLOSE && (short_size > CONTROL_BYTES || !is_final) {
            return violation(PROTOCOL_ERROR, "a control frame is long or fragmented");
        }
        let length_bytes = match short_size {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let start = 2 + length_bytes;
        let Some(length) = waiting.get(2..start) else {
            return Ok(None);
        };
        let size = if length_bytes == 0 {
            short_size as u64
        } else {
            length.iter().fold(0, |size, byte| size << 8 | u64::from(*byte))
        };
        let held = self.fragments.as_ref().map_or(0, Vec::len) as u64;
        if opcode < CLOSE && size.saturating_add(held) > FRAME_BYTES as u64 {
            return violation(TOO_BIG, "a message is too big");
        }
        let (start, size) = (start + MASK_BYTES, usize::try_from(size).unwrap_or(usize::MAX));
        let Some(masked) = waiting.get(start..start.saturating_add(size)) else {
            return Ok(None);
        };
        let key = [waiting[start - 4], waiting[start - 3], waiting[start - 2], waiting[start - 1]];
        let mut payload = masked.to_vec();
        unmask(&mut payload, key);
        self.used += start + size;
        Ok(Some(Frame { is_final, opcode, payload }))
    }

    fn assemble(&mut self, frame: Frame) -> Result<Option<String>, Violation> {
        if (frame.opcode == CONTINUATION) != self.fragments.is_some() {
            return violation(PROTOCOL_ERROR, "fragments are out of order");
        }
        let Some(fragments) = self.fragments.as_mut() else {
            if frame.is_final {
                return text(frame.payload).map(Some);
            }
            (self.fragments, self.fragments_count) = (Some(frame.payload), 1);
            return Ok(None);
        };
        fragments.extend_from_slice(&frame.payload);
        self.fragments_count += 1;
        if self.fragments_count > FRAGMENTS {
            return violation(TOO_BIG, "too many fragments");
        }
        if !frame.is_final {
            return Ok(None);
        }
        text(self.fragments.take().unwrap_or_default()).map(Some)
    }

    /// Gives back the memory of a large frame when nothing waits any more.
    fn shrink(&mut self) {
        if self.used == self.buffer.len() {
            self.buffer.clear();
            self.used = 0;
            self.buffer.shrink_to(BUFFER_KEPT_BYTES);
        }
    }
}

fn text(payload: Vec<u8>) -> Result<String, Violation> {
    String::from_utf8(payload).or_else(|_| violation(BAD_TEXT, "a text is not UTF-8"))
}

#[cfg(test)]
#[path = "websocket_tests.rs"]
mod tests;
