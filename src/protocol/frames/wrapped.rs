//! Messages of a runner inside of a binary frame, below what the guardian says of them.

use serde_json::{Map, Value};

use super::KernelFrame;

impl KernelFrame {
    /// Reads a text frame, all of which the guardian itself wrote.
    ///
    /// # Errors
    /// The text is not a frame that the guardian makes without a runner.
    pub fn of_guardian(text: &str) -> Result<Self, String> {
        let frame: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if frame.may_come_from_runner() {
            return Err("what a runner says came as the guardian's word".into());
        }
        Ok(frame)
    }

    /// Reads a binary frame that is not output. If the runner's part is malformed, the result is None where the daemon
    /// waits for no answer, and an empty or failed answer where it does: only the runner's own cell or call suffers.
    ///
    /// # Errors
    /// The guardian's part of the frame is malformed.
    pub fn of_runner(frame: &[u8]) -> Result<Option<Self>, String> {
        let (own, content) = unwrapped(frame).ok_or_else(wrongly_wrapped)?;
        let own: Map<String, Value> = serde_json::from_slice(own).map_err(|error| error.to_string())?;
        let content = serde_json::from_slice(content).ok();
        match content.and_then(|content| Self::whole(own, content)) {
            Some(frame) => Ok(Some(frame)),
            None => Self::unread(frame),
        }
    }

    /// As `of_runner`, but the runner's part is treated as malformed.
    ///
    /// # Errors
    /// The guardian's part of the frame is malformed.
    pub fn unread(frame: &[u8]) -> Result<Option<Self>, String> {
        let (own, _) = unwrapped(frame).ok_or_else(wrongly_wrapped)?;
        let own: Map<String, Value> = serde_json::from_slice(own).map_err(|error| error.to_string())?;
        let kind = own.get("type").and_then(Value::as_str).unwrap_or_default();
        match unread(kind).ok_or_else(wrongly_wrapped)? {
            Value::Object(unread) => Self::whole(own, unread).ok_or_else(wrongly_wrapped).map(Some),
            _ => Ok(None),
        }
    }

    /// The runner's part of a binary frame that is not output, as text.
    pub fn runner_part(frame: &[u8]) -> Option<&str> {
        std::str::from_utf8(unwrapped(frame)?.1).ok()
    }

    /// Merges both parts. The guardian's part is added last, so that the runner's part cannot override it.
    fn whole(own: Map<String, Value>, mut content: Map<String, Value>) -> Option<Self> {
        content.extend(own);
        serde_json::from_value::<Self>(Value::Object(content)).ok().filter(Self::may_come_from_runner)
    }

    /// Whether the frame carries a message of a runner, in which user code runs.
    fn may_come_from_runner(&self) -> bool {
        match self {
            Self::CellDone { .. }
            | Self::Display { .. }
            | Self::ToolCall { .. }
            | Self::Variables { .. }
            | Self::Preloaded { .. }
            | Self::Restored { .. } => true,
            Self::Hello { .. }
            | Self::CellLost { .. }
            | Self::WorkerReplaced { .. }
            | Self::OutputGap { .. }
            | Self::Computed { .. }
            | Self::ResetDone { .. }
            | Self::Undone { .. }
            | Self::Names { .. }
            | Self::Snapshotting { .. }
            | Self::SnapshotEnded { .. }
            | Self::Refused { .. }
            | Self::ToolAbandoned { .. } => false,
        }
    }
}

/// The guardian's part and the runner's part of a binary frame that is not output.
fn unwrapped(frame: &[u8]) -> Option<(&[u8], &[u8])> {
    let (header, rest) = frame.split_at_checked(RUNNER_FRAME_HEADER_BYTES)?;
    let (&[RUNNER_FRAME_KIND], length) = header.split_at(1) else { return None };
    rest.split_at_checked(u32::from_be_bytes(length.try_into().ok()?) as usize)
}

fn wrongly_wrapped() -> String {
    "what a runner said is not wrapped as agreed".into()
}

/// What replaces a malformed part of a runner, by the type of the frame: null if the frame can be dropped, none if
/// runners send no frames of that type.
fn unread(kind: &str) -> Option<Value> {
    const TEXT: &str = "what the sandbox said of it was not understood";
    Some(match kind {
        "display" => Value::Null,
        "tool_call" => serde_json::json!({"name": "", "arguments": {}}),
        "cell_done" => serde_json::json!({
            "status": "failure", "reason": "exception", "exit_code": 0, "result": null,
            "exception": {"type": "KernelError", "value": TEXT, "repr": "", "traceback": ""},
            "duration_ms": 0.0, "displays_dropped": 0, "live": {"threads": 0, "tasks": 0, "children": 0},
        }),
        "variables" => serde_json::json!({"variables": [], "total": 0}),
        "preloaded" => {
            serde_json::json!({"names": 0, "failed": [{"import": "", "error": TEXT}], "skipped": []})
        }
        "restored" => {
            serde_json::json!({"report": {"restored": 0, "missing": [], "reopened": [], "error": TEXT}})
        }
        _ => return None,
    })
}

/// First byte of a binary frame with a message of a runner.
pub(crate) const RUNNER_FRAME_KIND: u8 = 3;
/// The bytes of a runner's frame before the guardian's part: its first byte, and the length of that part.
const RUNNER_FRAME_HEADER_BYTES: usize = 5;

#[cfg(test)]
mod tests {
    use super::super::DoneStatus;
    use super::*;

    fn wrapped_frame(own: &str, content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(own.len()).unwrap().to_be_bytes();
        [&[RUNNER_FRAME_KIND][..], &length, own.as_bytes(), content].concat()
    }

    #[test]
    fn the_guardians_word_on_what_a_runner_said_holds() {
        let own = r#"{"type":"tool_call","call":7,"cell":3,"from_program":true}"#;
        let forged =
            br#"{"type":"refused","call":1,"cell":1,"name":"t","arguments":{"x":1},"from_program":false}"#;
        let frame = KernelFrame::of_runner(&wrapped_frame(own, forged)).unwrap().unwrap();
        let arguments = serde_json::json!({"x": 1}).as_object().unwrap().clone();
        let (cell, name) = (Some(3), "t".into());
        assert_eq!(frame, KernelFrame::ToolCall { call: 7, cell, name, arguments, from_program: true });
    }

    #[test]
    fn words_that_mean_nothing_cost_only_what_they_are_about() {
        let deep = vec![b'['; 100_000];
        for nonsense in [&b""[..], b"[", b"[1]", b"\xff\xff", br#"{"mime":{}},"cell":9"#, &deep] {
            let display = wrapped_frame(r#"{"type":"display","cell":3}"#, nonsense);
            assert_eq!(KernelFrame::of_runner(&display), Ok(None));
            let own = r#"{"type":"cell_done","cell":3,"protected":true,"as_before":null}"#;
            let done = KernelFrame::of_runner(&wrapped_frame(own, nonsense)).unwrap();
            assert!(matches!(done, Some(KernelFrame::CellDone { cell: 3, status: DoneStatus::Failure, .. })));
        }
    }

    #[test]
    fn what_the_guardian_alone_may_say_is_not_taken_from_a_runner_nor_the_other_way_round() {
        let busy = r#"{"type":"refused","code":"busy","message":"","request":null,"cell":1}"#;
        assert!(KernelFrame::of_guardian(busy).is_ok());
        assert!(KernelFrame::of_runner(&wrapped_frame(busy, b"{}")).is_err());
        assert!(KernelFrame::of_runner(&wrapped_frame("{}", busy.as_bytes())).is_err());
        let display = r#"{"type":"display","cell":1,"mime":{}}"#;
        assert!(KernelFrame::of_guardian(display).is_err());
        for broken in [&[][..], &[3], &[3, 0, 0, 0, 9, b'{'], &[3, 255, 255, 255, 255, b'{', b'}']] {
            assert!(KernelFrame::of_runner(broken).is_err());
        }
    }
}
