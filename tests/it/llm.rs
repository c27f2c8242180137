//! The client of models against a real server: replies of every kind, every fault, and cassettes.

use belljar::config::load_text;
use belljar::llm::{Client, Delta};
use belljar::protocol::chat::{
    ChatReply, ChatRequest, Finish, Message, ModelFailure, ModelFailureKind as Kind, ModelTool, Role,
};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model_server::{Fault, ModelServer, Play, Reply};

const KEY: &str = "sk-loopback-0123456789";

fn client_of(settings: &str) -> Client {
    let text = format!("[model.m]\n{settings}");
    let loaded = load_text(Path::new("/nowhere/config.toml"), &text).unwrap();
    let variable = |name: &str| (name == "TEST_KEY").then(|| KEY.to_owned());
    Client::new("m", &loaded.settings.models["m"], variable).unwrap()
}

/// Deadlines are short: what a test waits for is over soon.
fn client(server: &ModelServer, more: &str) -> Client {
    client_of(&format!(
        "provider = \"compatible\"\nmodel = \"test\"\nbase_url = \"{}\"\nkey_variable = \"TEST_KEY\"\n\
         first_byte = \"1s\"\nidle = \"1s\"\n{more}",
        server.base_url()
    ))
}

fn request() -> ChatRequest {
    let parameters = json!({"type": "object", "properties": {"code": {"type": "string"}},
        "required": ["code"], "additionalProperties": false});
    ChatRequest {
        messages: vec![Message::new(Role::User, "Wie groß ist 1 + 1?")],
        tools: vec![ModelTool { name: "run".into(), description: "Run code.".into(), parameters }],
        answer: None,
        reply_tokens: None,
    }
}

async fn ask(client: &Client) -> (Result<ChatReply, ModelFailure>, Vec<Delta>) {
    let mut deltas = Vec::new();
    let reply = client.chat(&request(), |delta| deltas.push(delta)).await;
    (reply, deltas)
}

fn text_of(deltas: &[Delta]) -> String {
    deltas
        .iter()
        .filter_map(|delta| if let Delta::Text(text) = delta { Some(text.as_str()) } else { None })
        .collect()
}

fn restarts(deltas: &[Delta]) -> Vec<Kind> {
    let kind = |delta: &Delta| match delta {
        Delta::Retry { failure, .. } => Some(failure.kind),
        Delta::Text(_) | Delta::Reasoning(_) => None,
    };
    deltas.iter().filter_map(kind).collect()
}

fn fine() -> Play {
    Reply::text("Zwei, größer geht’s nicht. 二").into()
}

#[tokio::test]
async fn a_reply_is_streamed_and_put_together() {
    let server = ModelServer::start_with_key([fine()], KEY);
    let (reply, deltas) = ask(&client(&server, "")).await;
    let reply = reply.unwrap();
    assert_eq!(reply.message, Message::new(Role::Assistant, "Zwei, größer geht’s nicht. 二"));
    assert_eq!(reply.finish, Finish::Stop);
    assert!(reply.usage.unwrap().total() > 0);
    assert!(deltas.len() > 3, "{deltas:?}");
    assert_eq!(text_of(&deltas), reply.message.content);
    let received = server.received();
    assert_eq!(received[0].authorization, Some(format!("Bearer {KEY}")));
    assert_eq!(received[0].body["tools"][0]["function"]["name"], "run");
}

#[tokio::test]
async fn tool_calls_split_over_chunks_are_whole_again() {
    let code = json!({"code": "print('größer')\n".repeat(50)});
    let reply =
        Reply { content: Some("So:".into()), ..Reply::call("run", code.clone()).and_call("run", json!({})) };
    let server = ModelServer::start([Play::Reply(reply)]);
    let reply = ask(&client(&server, "")).await.0.unwrap();
    let calls = reply.message.tool_calls;
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].arguments, code.to_string());
    assert_ne!(calls[0].id, calls[1].id);
    assert_eq!(reply.finish, Finish::ToolCalls);
}

#[tokio::test]
async fn legacy_calls_reasoning_and_refusals_come_through() {
    let reply = Reply {
        function_call: Some(("old".into(), "{\"a\": 1}".into())),
        reasoning: Some("Let me think.".into()),
        refusal: Some("I will not.".into()),
        ..Reply::default()
    };
    let server = ModelServer::start([Play::Reply(reply)]);
    let reply = ask(&client(&server, "")).await.0.unwrap();
    assert_eq!(reply.message.function_call.unwrap().arguments, "{\"a\": 1}");
    assert_eq!(reply.reasoning.as_deref(), Some("Let me think."));
    assert_eq!(reply.refusal.as_deref(), Some("I will not."));
}

#[tokio::test]
async fn an_answer_in_one_piece_is_taken_too() {
    let whole = json!({"choices": [{"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": "Zwei"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}});
    let server = ModelServer::start([Fault::Raw("application/json", whole.to_string()).into()]);
    let (reply, deltas) = ask(&client(&server, "")).await;
    assert_eq!((reply.unwrap().message.content.as_str(), text_of(&deltas).as_str()), ("Zwei", "Zwei"));
}

#[tokio::test]
async fn a_wrong_key_is_not_tried_again_and_not_repeated() {
    let server = ModelServer::start_with_key([fine()], "another-key");
    let failure = ask(&client(&server, "")).await.0.unwrap_err();
    assert_eq!((failure.kind, failure.attempts), (Kind::Authentication, 1));
    assert_eq!(failure.message, "model `m`: the provider answered 401: Incorrect API key provided: [key]");
}

/// A provider, or a server that stands in for it, may send the key back in any part of a reply.
#[tokio::test]
async fn a_key_that_comes_back_in_a_reply_is_not_passed_on() {
    let reply = Reply {
        content: Some(format!("the key is {KEY}!")),
        reasoning: Some(format!("I was given {KEY}")),
        function_call: Some(("old".into(), json!({ "key": KEY }).to_string())),
        ..Reply::call("run", json!({"code": format!("print('{KEY}')")}))
    };
    let refusal = Reply { refusal: Some(format!("not with {KEY}")), ..Reply::text("") };
    let whole = json!({"choices": [{"index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": format!("{KEY} at once")}}]});
    let whole = Fault::Raw("application/json", whole.to_string());
    let server = ModelServer::start_with_key([reply.into(), refusal.into(), whole.into()], KEY);
    let client = client(&server, "");
    for parts in [
        &["the key is [key]!", "I was given [key]", "print('[key]')", "{\\\"key\\\":\\\"[key]\\\"}"][..],
        &["not with [key]"],
    ] {
        let (reply, _) = ask(&client).await;
        let reply = serde_json::to_string(&reply.unwrap()).unwrap();
        assert!(!reply.contains(KEY), "{reply}");
        assert!(parts.iter().all(|part| reply.contains(part)), "{reply}");
    }
    // What is shown while it comes has no key that came in one piece.
    let (reply, deltas) = ask(&client).await;
    assert_eq!(reply.unwrap().message.content, "[key] at once");
    assert_eq!(deltas, [Delta::Text("[key] at once".into())]);
}

#[tokio::test]
async fn a_reply_for_which_there_are_no_tokens_is_hung_up_on() {
    let long = || Play::from(Reply::text(&"word ".repeat(1_000)));
    let code = || Play::from(Reply::call("run", json!({"code": "x".repeat(5_000)})));
    let server = ModelServer::start([long(), code(), long()]);
    let client = client(&server, "");
    let mut wanted = ChatRequest { reply_tokens: Some(100), ..request() };
    for _ in 0..2 {
        let reply = client.chat(&wanted, |_| {}).await.unwrap();
        let bytes = reply.message.content.len()
            + reply.message.tool_calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        assert_eq!((reply.finish, reply.usage), (Finish::Length, None));
        assert!((350..450).contains(&bytes), "{bytes}");
    }
    wanted.reply_tokens = Some(1_250);
    let reply = client.chat(&wanted, |_| {}).await.unwrap();
    assert_eq!((reply.finish, reply.message.content.len()), (Finish::Stop, 5_000));
    let sent: Vec<_> = server.received().iter().map(|received| received.body["max_tokens"].clone()).collect();
    assert_eq!(sent, [json!(100), json!(100), json!(1_250)]);
}

#[tokio::test]
async fn a_key_that_is_echoed_in_pieces_is_not_shown() {
    let reply = Reply {
        content: Some(format!("the key is {KEY}, not sk-loop")),
        reasoning: Some(format!("I was given {KEY}")),
        ..Reply::text("")
    };
    let server = ModelServer::start_with_key([reply.into()], KEY);
    let (reply, deltas) = ask(&client(&server, "")).await;
    let reply = reply.unwrap();
    assert_eq!(text_of(&deltas), "the key is [key], not sk-loop");
    assert_eq!(text_of(&deltas), reply.message.content);
    let thought: String = deltas
        .iter()
        .filter_map(|delta| if let Delta::Reasoning(text) = delta { Some(text.as_str()) } else { None })
        .collect();
    assert_eq!(
        (thought.as_str(), reply.reasoning.as_deref()),
        ("I was given [key]", Some("I was given [key]"))
    );
}

#[tokio::test]
async fn a_missing_key_names_its_variable_and_the_setting() {
    let failure = ask(&client_of("provider = \"dashscope\"\n")).await.0.unwrap_err();
    assert_eq!((failure.kind, failure.attempts), (Kind::Authentication, 0));
    for part in ["DASHSCOPE_API_KEY", "[model.m]", "key_variable"] {
        assert!(failure.message.contains(part), "{failure}");
    }
}

#[tokio::test]
async fn too_many_requests_are_waited_out_as_the_server_wants() {
    let server = ModelServer::start([Fault::Status(429, Some("1")).into(), fine()]);
    let begun = Instant::now();
    let (reply, deltas) = ask(&client(&server, "")).await;
    assert!(reply.is_ok() && begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(restarts(&deltas), [Kind::RateLimited]);
}

#[tokio::test]
async fn errors_of_the_server_are_tried_again_so_often_and_no_more() {
    let server = ModelServer::start([500, 503, 502].map(|status| Fault::Status(status, None).into()));
    let (reply, deltas) = ask(&client(&server, "retries = 2\n")).await;
    let failure = reply.unwrap_err();
    assert_eq!((failure.kind, failure.attempts), (Kind::ServerError, 3));
    assert_eq!(restarts(&deltas), [Kind::ServerError, Kind::ServerError]);
    assert_eq!(server.received().len(), 3);
}

#[tokio::test]
async fn requests_that_are_wrong_are_not_tried_again() {
    for (status, message, kind) in [
        (400, "bad schema", Kind::InvalidRequest),
        (404, "no such model", Kind::InvalidRequest),
        (403, "not yours", Kind::Authentication),
        (400, "This model's maximum context length is 8192 tokens", Kind::ContextTooLong),
        (307, "elsewhere", Kind::InvalidRequest),
    ] {
        let server = ModelServer::start([Fault::Says(status, message.into()).into(), fine()]);
        let failure = ask(&client(&server, "")).await.0.unwrap_err();
        assert_eq!((failure.kind, failure.attempts), (kind, 1), "{status}");
        assert_eq!(server.received().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn a_server_that_stalls_before_the_first_byte_is_asked_again() {
    let server = ModelServer::start([Fault::Stall.into(), fine()]);
    let (reply, deltas) = ask(&client(&server, "")).await;
    assert!(reply.is_ok());
    assert_eq!(restarts(&deltas), [Kind::TimedOut]);
}

#[tokio::test]
async fn streams_that_stall_or_break_off_begin_anew() {
    for (fault, kind) in [
        (Fault::StallInStream, Kind::TimedOut),
        (Fault::Cut, Kind::CutOff),
        (Fault::EndWithoutFinish, Kind::CutOff),
    ] {
        let server = ModelServer::start([fault.clone().into(), fine()]);
        let (reply, deltas) = ask(&client(&server, "")).await;
        assert!(reply.is_ok(), "{fault:?}");
        assert_eq!(restarts(&deltas), [kind], "{fault:?}");
        assert!(matches!(deltas[0], Delta::Text(_)), "the half was shown: {deltas:?}");
        let server = ModelServer::start([fault.clone().into()]);
        let failure = ask(&client(&server, "retries = 0\n")).await.0.unwrap_err();
        assert_eq!((failure.kind, failure.attempts), (kind, 1), "{fault:?}");
    }
}

#[tokio::test]
async fn all_attempts_together_have_their_time() {
    let server = ModelServer::start((0..20).map(|_| Fault::Status(429, Some("1")).into()));
    let begun = Instant::now();
    let failure = ask(&client(&server, "total = \"2s\"\nretries = 20\n")).await.0.unwrap_err();
    assert_eq!(failure.kind, Kind::RateLimited);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    let server = ModelServer::start([Fault::Stall.into()]);
    let failure = ask(&client(&server, "total = \"300ms\"\n")).await.0.unwrap_err();
    assert_eq!((failure.kind, failure.attempts), (Kind::TimedOut, 1));
}

#[tokio::test]
async fn garbage_is_called_so() {
    let error = json!({"error": {"message": "key sk-loopback-0123456789 is \u{1b}[31mbad", "code": 400}});
    for (kind, text) in [
        ("text/event-stream", "data: <html>no</html>\n\n".to_owned()),
        ("text/event-stream", "data: [DONE]\n\n".to_owned()),
        ("text/html", "<html>Log in</html>".to_owned()),
        ("application/json", "{\"choices\": [".to_owned()),
        ("application/json", "{}".to_owned()),
    ] {
        let server = ModelServer::start([Fault::Raw(kind, text.clone()).into(), fine()]);
        let failure = ask(&client(&server, "")).await.0.unwrap_err();
        assert_eq!((failure.kind, failure.attempts), (Kind::BadReply, 1), "{text}: {failure}");
    }
    let server = ModelServer::start([Fault::Raw("text/event-stream", format!("data: {error}\n\n")).into()]);
    let failure = ask(&client(&server, "")).await.0.unwrap_err();
    assert_eq!(failure.kind, Kind::InvalidRequest);
    assert!(failure.message.ends_with("key [key] is bad"), "{failure:?}");
}

/// Most memory that this process has held so far, in MiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[tokio::test]
async fn an_event_without_end_ends_early_and_costs_little() {
    let server = ModelServer::start([Fault::EndlessEvent.into(), fine()]);
    let client = client(&server, "");
    let before = peak_memory();
    let failure = ask(&client).await.0.unwrap_err();
    assert_eq!((failure.kind, failure.attempts), (Kind::BadReply, 1));
    assert!(peak_memory() - before < 100, "{before} MiB grew to {} MiB", peak_memory());
    assert!(ask(&client).await.0.is_ok(), "the client is of use afterwards");
}

#[tokio::test]
async fn who_is_not_there_is_unreachable() {
    let gone = ModelServer::start([]).base_url();
    let settings = |url: &str| {
        client_of(&format!("provider = \"compatible\"\nmodel = \"m\"\nbase_url = \"{url}\"\nretries = 1\n"))
    };
    let failure = ask(&settings(&gone)).await.0.unwrap_err();
    assert_eq!((failure.kind, failure.attempts), (Kind::Unreachable, 2), "{failure}");
    let place = gone.trim_start_matches("http://").trim_end_matches("/v1");
    assert!(failure.message.contains(&format!("{place} cannot be reached")), "{failure}");
    let plain = ModelServer::start([]);
    let failure = ask(&settings(&plain.base_url().replace("http:", "https:"))).await.0.unwrap_err();
    assert_eq!(failure.kind, Kind::Unreachable, "no TLS there: {failure}");
}

#[tokio::test]
async fn a_dropped_request_is_cancelled_and_gives_its_place_back() {
    let server = ModelServer::start([Fault::StallInStream.into(), fine()]);
    let client = Arc::new(client(&server, "concurrency = 1\n"));
    let asking = client.clone();
    let task = tokio::spawn(async move { ask(&asking).await });
    while server.received().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert!(ask(&client).await.0.is_ok());
}

#[tokio::test]
async fn a_cassette_replays_a_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let cassette = dir.path().join("cassette.jsonl");
    let server = ModelServer::start([
        Reply::call("run", json!({"code": "1 + 1"})).into(),
        Reply::call("run", json!({"code": "2 + 2"})).into(),
        fine(),
    ]);
    let recorded = client(&server, &format!("record = \"{}\"\n", cassette.display()));
    let first = converse(&recorded).await;
    let text = std::fs::read_to_string(&cassette).unwrap();
    assert_eq!(text.lines().count(), 3);
    assert!(!text.contains(KEY) && !text.contains("Bearer"));
    drop(server);
    let settings = format!("provider = \"replay\"\nfile = \"{}\"\n", cassette.display());
    for _ in 0..2 {
        assert_eq!(converse(&client_of(&settings)).await, first);
    }
    let mut other = request();
    other.messages[0].content = "Wie groß ist 1 + 2?".into();
    let failure = client_of(&settings).chat(&other, |_| ()).await.unwrap_err();
    assert_eq!(failure.kind, Kind::NotRecorded);
    assert!(failure.message.contains("message 1 is"), "{failure}");
}

/// Answers each call with `ok` until the model has no more.
async fn converse(client: &Client) -> Vec<ChatReply> {
    let mut request = request();
    let mut replies = Vec::new();
    loop {
        let reply = client.chat(&request, |_| ()).await.unwrap();
        replies.push(reply.clone());
        if reply.message.tool_calls.is_empty() {
            return replies;
        }
        request.messages.push(reply.message.clone());
        for call in reply.message.tool_calls {
            let mut answer = Message::new(Role::Tool, "ok");
            answer.tool_call_id = Some(call.id);
            request.messages.push(answer);
        }
    }
}

#[tokio::test]
async fn a_script_is_played_from_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("script.toml");
    std::fs::write(&file, "[[reply]]\nexpect = \"1 + 1\"\ncontent = \"Zwei\"\n").unwrap();
    let client = client_of(&format!("provider = \"script\"\nfile = \"{}\"\n", file.display()));
    let (reply, deltas) = ask(&client).await;
    assert_eq!((reply.unwrap().message.content, text_of(&deltas)), ("Zwei".into(), "Zwei".into()));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(ask(&client).await.0.unwrap_err().kind, Kind::NotRecorded);
}
