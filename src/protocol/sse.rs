//! Server-sent events, written and read: the daemon writes them for its clients, and the clients and the code that
//! asks models read them. The size of an event is bounded: a stream that never ends its event is an error, not a
//! growing buffer.

use std::fmt::Write as _;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A comment, which readers skip: the connection is alive although there is no event.
pub const KEEPALIVE: &str = ": still here\n\n";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// The value of the `event:` line; empty without one.
    pub name: String,
    pub data: String,
}

/// Appends an event to a stream. Name and data must be of one line, as compact JSON is.
pub fn encode(id: Option<u64>, name: &str, data: &str, stream: &mut String) {
    if let Some(id) = id {
        let _ = writeln!(stream, "id: {id}");
    }
    let _ = write!(stream, "event: {name}\ndata: {data}\n\n");
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("an event of the stream is larger than {limit} bytes")]
    TooLarge { limit: usize },
    #[error("the stream is not UTF-8")]
    NotText,
}

/// Reads a stream in pieces; where it is cut makes no difference.
#[derive(Debug)]
pub struct SseDecoder {
    /// Most bytes of an event.
    limit: usize,
    line: Vec<u8>,
    name: String,
    /// The data lines of the event that is not complete yet.
    data: Option<String>,
    /// The last byte was a CR that ended a line; an LF right after it belongs to that line end.
    after_return: bool,
    /// The first line has been read; a byte order mark can only precede it.
    begun: bool,
}

impl SseDecoder {
    pub fn new(limit: usize) -> Self {
        Self { limit, line: Vec::new(), name: String::new(), data: None, after_return: false, begun: false }
    }

    /// The events that are complete after `chunk`. Events without data are skipped.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<Vec<SseEvent>, SseError> {
        let mut events = Vec::new();
        let mut rest = chunk;
        while let Some((&first, after)) = rest.split_first() {
            if std::mem::take(&mut self.after_return) && first == b'\n' {
                rest = after;
                continue;
            }
            let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.push(rest)?;
                break;
            };
            let (line, ended) = rest.split_at(end);
            self.push(line)?;
            self.after_return = ended.first() == Some(&b'\r');
            rest = ended.get(1..).unwrap_or_default();
            events.extend(self.end_of_line()?);
        }
        Ok(events)
    }

    /// The event that the end of the stream completes: some servers do not write the last empty line.
    pub fn finish(mut self) -> Result<Option<SseEvent>, SseError> {
        if !self.line.is_empty() {
            self.end_of_line()?;
        }
        Ok(self.take())
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        let data = self.data.as_ref().map_or(0, String::len);
        if self.line.len() + self.name.len() + data + bytes.len() > self.limit {
            return Err(SseError::TooLarge { limit: self.limit });
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn take(&mut self) -> Option<SseEvent> {
        let name = std::mem::take(&mut self.name);
        self.data.take().map(|data| SseEvent { name, data })
    }

    fn end_of_line(&mut self) -> Result<Option<SseEvent>, SseError> {
        let line = std::mem::take(&mut self.line);
        let mut line = line.as_slice();
        if !std::mem::replace(&mut self.begun, true) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        let line = std::str::from_utf8(line).map_err(|_| SseError::NotText)?;
        if line.is_empty() {
            return Ok(self.take());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match (field, &mut self.data) {
            ("event", _) => value.clone_into(&mut self.name),
            ("data", None) => self.data = Some(value.to_owned()),
            ("data", Some(data)) => {
                data.push('\n');
                data.push_str(value);
            }
            // Comments only keep the stream alive, and the number of an event is in its data, too.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMIT: usize = 64;

    fn event(name: &str, data: &str) -> SseEvent {
        SseEvent { name: name.into(), data: data.into() }
    }

    #[test]
    fn events_end_with_an_empty_line_however_lines_end() {
        let mut decoder = SseDecoder::new(LIMIT);
        let stream = b"\xef\xbb\xbfdata: a\n\n: alive\n\nid: 1\nevent: x\ndata:b\r\ndata: c\r\n\r\ndata: d\r\rdata\n\nevent: y\n\n";
        assert_eq!(
            decoder.feed(stream).unwrap(),
            [event("", "a"), event("x", "b\nc"), event("", "d"), event("", "")]
        );
        assert_eq!(decoder.feed(b"data: [DONE]").unwrap(), Vec::new());
        assert_eq!(decoder.finish().unwrap(), Some(event("", "[DONE]")));
    }

    #[test]
    fn what_is_written_is_read() {
        let mut stream = String::new();
        encode(Some(7), "output", r#"{"a": 1}"#, &mut stream);
        stream.push_str(KEEPALIVE);
        encode(None, "problem", "{}", &mut stream);
        let events = SseDecoder::new(LIMIT).feed(stream.as_bytes()).unwrap();
        assert_eq!(events, [event("output", r#"{"a": 1}"#), event("problem", "{}")]);
    }

    #[test]
    fn nothing_grows_without_end() {
        let too_large = Err(SseError::TooLarge { limit: LIMIT });
        for piece in ["x".repeat(LIMIT / 2 + 1), format!("data: {}\n", "x".repeat(LIMIT / 2))] {
            let mut decoder = SseDecoder::new(LIMIT);
            assert_eq!(decoder.feed(piece.as_bytes()), Ok(Vec::new()));
            assert_eq!(decoder.feed(piece.as_bytes()), too_large);
        }
        assert_eq!(SseDecoder::new(LIMIT).feed(b"data: \xff\n"), Err(SseError::NotText));
    }

    proptest! {
        #[test]
        fn how_the_stream_is_cut_makes_no_difference(
            stream in "((data|event|:|)(: ?)?[a-zé{}:]{0,5}(\r\n|\n|\r)){0,12}",
            cuts in prop::collection::vec(0usize..120, 0..6),
        ) {
            let bytes = stream.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let (mut whole, mut decoder) = (SseDecoder::new(1024), SseDecoder::new(1024));
            let expected = whole.feed(bytes).unwrap();
            let mut pieces = Vec::new();
            for pair in cuts.windows(2) {
                pieces.extend(decoder.feed(&bytes[pair[0]..pair[1]]).unwrap());
            }
            prop_assert_eq!(pieces, expected);
            prop_assert_eq!(decoder.finish(), whole.finish());
        }

        #[test]
        fn garbage_is_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut decoder = SseDecoder::new(LIMIT);
            let _ = decoder.feed(&bytes);
            let _ = decoder.finish();
        }
    }
}
