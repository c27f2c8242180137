//! Server-sent events of a provider. Lines and events are bounded: a stream that never ends its
//! event is an error, not a growing buffer.

/// Bytes of one line. The arguments of a whole tool call may come as one.
const LINE_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of one event's data.
const EVENT_BYTES: usize = 8 * 1024 * 1024;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("a line of the stream is longer than {LINE_BYTES} bytes")]
    LineTooLong,
    #[error("an event of the stream is larger than {EVENT_BYTES} bytes")]
    EventTooLarge,
    #[error("the stream is not UTF-8")]
    NotText,
}

#[derive(Debug, Default)]
pub struct SseParser {
    line: Vec<u8>,
    /// Data lines of the event that is not complete yet.
    data: Option<String>,
    /// The last byte ended a line as CR; an LF after it belongs to it.
    after_return: bool,
    /// The first line is over, and with it the place for a byte order mark.
    begun: bool,
}

impl SseParser {
    /// The data of events that are complete after `chunk`.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<Vec<String>, SseError> {
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

    /// What the stream's end leaves: some servers do not write the last empty line.
    pub fn finish(mut self) -> Result<Option<String>, SseError> {
        if !self.line.is_empty() {
            self.end_of_line()?;
        }
        Ok(self.data)
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.line.len() + bytes.len() > LINE_BYTES {
            return Err(SseError::LineTooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_of_line(&mut self) -> Result<Option<String>, SseError> {
        let line = std::mem::take(&mut self.line);
        let mut line = line.as_slice();
        if !std::mem::replace(&mut self.begun, true) {
            line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
        }
        let line = std::str::from_utf8(line).map_err(|_| SseError::NotText)?;
        if line.is_empty() {
            return Ok(self.data.take());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        // Comments keep the stream alive; names and numbers of events mean nothing here.
        if field != "data" {
            return Ok(None);
        }
        let value = value.strip_prefix(' ').unwrap_or(value);
        match &mut self.data {
            None => self.data = Some(value.to_owned()),
            Some(data) if data.len() + value.len() >= EVENT_BYTES => return Err(SseError::EventTooLarge),
            Some(data) => {
                data.push('\n');
                data.push_str(value);
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn events_end_with_an_empty_line_however_lines_end() {
        let mut parser = SseParser::default();
        let stream = b"\xef\xbb\xbfdata: a\n\n: alive\n\nid: 1\nevent: x\ndata:b\r\ndata: c\r\n\r\ndata: d\r\rdata\n\n";
        assert_eq!(parser.feed(stream).unwrap(), ["a", "b\nc", "d", ""]);
        assert_eq!(parser.feed(b"data: [DONE]").unwrap(), Vec::<String>::new());
        assert_eq!(parser.finish().unwrap().as_deref(), Some("[DONE]"));
    }

    #[test]
    fn nothing_grows_without_end() {
        let mut parser = SseParser::default();
        let chunk = vec![b'x'; LINE_BYTES / 2 + 1];
        assert_eq!(parser.feed(&chunk), Ok(Vec::new()));
        assert_eq!(parser.feed(&chunk), Err(SseError::LineTooLong));
        let mut parser = SseParser::default();
        let line = format!("data: {}\n", "x".repeat(EVENT_BYTES / 2));
        assert_eq!(parser.feed(line.as_bytes()), Ok(Vec::new()));
        assert_eq!(parser.feed(line.as_bytes()), Err(SseError::EventTooLarge));
        assert_eq!(SseParser::default().feed(b"data: \xff\n"), Err(SseError::NotText));
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
            let (mut whole, mut parser) = (SseParser::default(), SseParser::default());
            let expected = whole.feed(bytes).unwrap();
            let mut pieces = Vec::new();
            for pair in cuts.windows(2) {
                pieces.extend(parser.feed(&bytes[pair[0]..pair[1]]).unwrap());
            }
            prop_assert_eq!(pieces, expected);
            prop_assert_eq!(parser.finish(), whole.finish());
        }

        #[test]
        fn garbage_is_answered(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut parser = SseParser::default();
            let _ = parser.feed(&bytes);
            let _ = parser.finish();
        }
    }
}
