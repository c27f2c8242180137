use super::*;
use crate::protocol::sse::SseDecoder;
use proptest::prelude::*;
use serde_json::json;

fn assembled(chunks: &[Value]) -> ChatReply {
    let mut assembler = Assembler::default();
    for chunk in chunks {
        assembler.chunk(chunk).unwrap();
    }
    assembler.reply(3)
}

fn delta(delta: Value) -> Value {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}], "usage": null})
}

fn call(id: &str, name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() }
}

#[test]
fn text_reasoning_refusal_and_usage() {
    let reply = assembled(&[
        delta(json!({"role": "assistant", "content": null, "reasoning_content": "Hm"})),
        delta(json!({"content": "Hel", "reasoning_content": null})),
        delta(json!({"content": [{"type": "text", "text": "lo"}]})),
        delta(json!({"refusal": "No."})),
        json!({"choices": [{"delta": {}, "finish_reason": "length"}]}),
        json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}),
    ]);
    assert_eq!(reply.message, Message::new(Role::Assistant, "Hello"));
    assert_eq!(reply.reasoning.as_deref(), Some("Hm"));
    assert_eq!(reply.refusal.as_deref(), Some("No."));
    assert_eq!(reply.finish, Finish::Length);
    assert_eq!(reply.usage, Some(Usage { prompt_tokens: 7, completion_tokens: 2 }));
    let reply = assembled(&[
        delta(json!({"content": "<think>\nHm {}\n</th"})),
        delta(json!({"content": "ink>\n\n42"})),
    ]);
    assert_eq!((reply.reasoning.as_deref(), reply.message.content.as_str()), (Some("Hm {}"), "42"));
    let absurd = json!({"choices": [], "usage": {"prompt_tokens": u64::MAX, "completion_tokens": 2}});
    assert_eq!(assembled(&[absurd]).usage, None);
}

#[test]
fn calls_are_put_together_by_their_index() {
    let piece = |index: u64, id: &str, name: &str, arguments: &str| json!({"index": index, "id": id, "function": {"name": name, "arguments": arguments}});
    let reply = assembled(&[
        delta(json!({"tool_calls": [piece(0, "a", "exe", ""), piece(1, "b", "file_reader", "")]})),
        delta(json!({"tool_calls": [piece(0, "a", "cute", "{\"x\"")]})),
        delta(json!({"tool_calls": [piece(1, "", "file_reader", "{}")]})),
        delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]})),
        json!({"choices": [{"delta": {"tool_calls": []}, "finish_reason": "stop"}]}),
    ]);
    assert_eq!(
        reply.message.tool_calls,
        [call("a", "execute", "{\"x\": 1}"), call("b", "file_reader", "{}")]
    );
    assert_eq!(reply.finish, Finish::ToolCalls);
}

#[test]
fn calls_without_index_or_id_are_told_apart() {
    let whole = |id: &str, name: &str| json!({"id": id, "function": {"name": name, "arguments": {"n": 1}}});
    let reply = assembled(&[delta(json!({"tool_calls": [whole("a", "f"), whole("b", "f")]}))]);
    assert_eq!(reply.message.tool_calls, [call("a", "f", "{\"n\":1}"), call("b", "f", "{\"n\":1}")]);
    let reply = assembled(&[
        delta(json!({"tool_calls": [whole("", "f"), whole("", "g")]})),
        delta(json!({"tool_calls": [{"function": {"arguments": " "}}]})),
    ]);
    assert_eq!(
        reply.message.tool_calls,
        [call("call_3_0", "f", "{\"n\":1}"), call("call_3_1", "g", "{\"n\":1} ")]
    );
    let mut first = whole("a", "f");
    first["index"] = json!(0);
    let mut second = whole("b", "f");
    second["index"] = json!(0);
    let reply = assembled(&[delta(json!({"tool_calls": [first]})), delta(json!({"tool_calls": [second]}))]);
    assert_eq!(reply.message.tool_calls.len(), 2, "two calls of the same index but of different ids");
}

#[test]
fn a_legacy_call_comes_in_pieces_too() {
    let reply = assembled(&[
        delta(json!({"function_call": {"name": "file_", "arguments": ""}})),
        delta(json!({"function_call": {"name": "read", "arguments": "{\"a\""}})),
        delta(json!({"function_call": {"arguments": ":1}"}})),
    ]);
    let call = reply.message.function_call.unwrap();
    assert_eq!((call.name.as_str(), call.arguments.as_str()), ("file_read", "{\"a\":1}"));
}

#[test]
fn sizes_are_bounded() {
    let mut assembler = Assembler::default();
    let text = delta(json!({"content": "x".repeat(REPLY_BYTES / 2)}));
    assert!(assembler.chunk(&text).is_ok() && assembler.chunk(&text).is_ok());
    assert!(assembler.chunk(&delta(json!({"content": "x"}))).is_err());
    let mut assembler = Assembler::default();
    let arguments = "x".repeat(ARGUMENTS_BYTES + 1);
    let piece = json!({"index": 0, "function": {"name": "f", "arguments": arguments}});
    assert!(assembler.chunk(&delta(json!({"tool_calls": [piece]}))).is_err());
    let many: Vec<Value> = (0..=TOOL_CALLS).map(|n| json!({"index": n, "function": {"name": "f"}})).collect();
    assert!(Assembler::default().chunk(&delta(json!({"tool_calls": many}))).is_err());
}

#[test]
fn an_error_in_the_stream_is_one_and_so_is_garbage() {
    use crate::protocol::chat::ModelFailureKind as Kind;
    let kind = |data: &str| Assembler::default().event(data).unwrap_err().kind;
    assert_eq!(kind(r#"{"error": {"message": "overloaded", "code": 503}}"#), Kind::ServerError);
    assert_eq!(kind("<html>"), Kind::BadReply);
    // A few megabytes of text would take hundreds as values.
    let many = format!("{{\"x\": [{}0]}}", "0,".repeat(1_000_000));
    assert_eq!(kind(&many), Kind::BadReply);
    assert!(Assembler::default().event(&format!("{{\"x\": \"{}\"}}", "0,".repeat(1_000_000))).is_ok());
}

/// A stream as bytes, read in pieces.
fn streamed(bytes: &[u8], cuts: &[usize]) -> Result<(ChatReply, bool), String> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| (*cut).min(bytes.len())).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    let (mut decoder, mut assembler) = (SseDecoder::new(usize::MAX), Assembler::default());
    for pair in cuts.windows(2) {
        for event in decoder.feed(&bytes[pair[0]..pair[1]]).map_err(|error| error.to_string())? {
            assembler.event(&event.data).map_err(|failure| failure.message)?;
        }
    }
    if let Some(event) = decoder.finish().map_err(|error| error.to_string())? {
        assembler.event(&event.data).map_err(|failure| failure.message)?;
    }
    let whole = assembler.is_whole();
    Ok((assembler.reply(0), whole))
}

proptest! {
    #[test]
    fn how_the_stream_is_cut_makes_no_difference(
        pieces in prop::collection::vec(("\\PC{0,6}", 0u64..3, "[{}\"a1:é]{0,6}"), 1..6),
        cuts in prop::collection::vec(0usize..2_000, 0..20),
    ) {
        let mut stream = String::new();
        for (text, index, arguments) in &pieces {
            let piece = json!({"index": index, "id": format!("id{index}"), "function": {"name": "f", "arguments": arguments}});
            let chunk = delta(json!({"content": text, "tool_calls": [piece]})).to_string();
            stream.extend(["data: ", chunk.as_str(), "\r\n\r\n"]);
        }
        stream.push_str(": alive\n\ndata: [DONE]\n\n");
        let (reply, whole) = streamed(stream.as_bytes(), &cuts).unwrap();
        prop_assert!(whole);
        prop_assert_eq!(&reply.message.content, &pieces.iter().map(|piece| piece.0.as_str()).collect::<String>());
        prop_assert_eq!(Ok((reply, whole)), streamed(stream.as_bytes(), &[]));
    }

    #[test]
    fn garbage_is_answered(bytes in prop::collection::vec(any::<u8>(), 0..300), cuts in prop::collection::vec(0usize..300, 0..4)) {
        let _ = streamed(&bytes, &cuts);
    }

    #[test]
    fn odd_types_are_answered(text in "[{}\\[\\]\":,a0]{0,40}") {
        let keys = ["choices", "usage", "error"];
        for key in keys {
            let _ = Assembler::default().event(&format!("{{\"{key}\": {text}}}"));
        }
        for key in ["content", "tool_calls", "function_call", "refusal"] {
            let _ = Assembler::default().event(&format!("{{\"choices\": [{{\"delta\": {{\"{key}\": {text}}}}}]}}"));
        }
    }
}
