//! Server-sent events, as the daemon writes them. An event's size is bounded: a stream that never
//! ends its event is an error, not a growing buffer.

/// Largest event: a result with all its displays, once more for JSON's escapes.
const EVENT_BYTES: usize = 2 * crate::protocol::limits::FRAME_BYTES;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SseEvent {
    /// The `event:` line, or nothing.
    pub name: String,
    pub data: String,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SseError {
    #[error("an event of the stream is larger than {EVENT_BYTES} bytes")]
    TooLarge,
    #[error("an event of the stream is not UTF-8")]
    NotText,
}

#[derive(Debug, Default)]
pub(super) struct SseParser {
    line: Vec<u8>,
    event: SseEvent,
}

impl SseParser {
    /// Events that are complete after `chunk`.
    pub fn feed(&mut self, chunk: &[u8]) -> Result<Vec<SseEvent>, SseError> {
        let mut events = Vec::new();
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            self.push(line)?;
            rest = after.get(1..).unwrap_or_default();
            events.extend(self.end_of_line()?);
        }
        self.push(rest)?;
        Ok(events)
    }

    fn push(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.line.len() + self.event.data.len() + bytes.len() > EVENT_BYTES {
            return Err(SseError::TooLarge);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_of_line(&mut self) -> Result<Option<SseEvent>, SseError> {
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(&line);
        let line = std::str::from_utf8(line).map_err(|_| SseError::NotText)?;
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return Ok((event != SseEvent::default()).then_some(event));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if !self.event.data.is_empty() {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            // Comments keep the stream alive; the number of an event is in its data too.
            _ => {}
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(name: &str, data: &str) -> SseEvent {
        SseEvent { name: name.into(), data: data.into() }
    }

    #[test]
    fn events_end_with_an_empty_line() {
        let mut parser = SseParser::default();
        let stream =
            b": hello\n\nid: 1\nevent: output\ndata: {\"a\": 1}\n\ndata:x\r\ndata: y\r\n\r\nevent: open\n";
        assert_eq!(parser.feed(stream), Ok(vec![event("output", "{\"a\": 1}"), event("", "x\ny")]));
        assert_eq!(parser.feed(b"\n"), Ok(vec![event("open", "")]));
    }

    #[test]
    fn an_event_without_end_is_an_error() {
        let mut parser = SseParser::default();
        let chunk = vec![b'x'; EVENT_BYTES / 2 + 1];
        assert_eq!(parser.feed(&chunk), Ok(Vec::new()));
        assert_eq!(parser.feed(&chunk), Err(SseError::TooLarge));
        assert_eq!(SseParser::default().feed(b"data: \xff\n"), Err(SseError::NotText));
    }

    proptest! {
        #[test]
        fn how_the_stream_is_cut_makes_no_difference(
            stream in "(data|event|id|)(: ?)?[a-zé{}:\r]{0,5}(\n\n?(data: [a-z]{0,3}\n)?){0,8}",
            cut in 0usize..64,
            other in 0usize..64,
        ) {
            let bytes = stream.as_bytes();
            let (a, b) = (cut.min(other).min(bytes.len()), cut.max(other).min(bytes.len()));
            let whole = SseParser::default().feed(bytes).unwrap();
            let mut parser = SseParser::default();
            let mut pieces = Vec::new();
            for piece in [&bytes[..a], &bytes[a..b], &bytes[b..]] {
                pieces.extend(parser.feed(piece).unwrap());
            }
            prop_assert_eq!(pieces, whole);
        }
    }
}
