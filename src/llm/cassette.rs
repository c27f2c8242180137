//! Cassettes: recorded requests and replies, one JSON line per request, to be played again.
//!
//! A request is looked up by its normal form, which leaves out everything that differs from run to run: ids are
//! numbered in the order of their first use, and tools are represented by name and hash. Equal requests are answered in
//! the order in which they were recorded; the last answer is repeated without end.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::io::AsyncReadExt as _;

use super::failure::{AttemptFailure, clean};
use super::secret::Secret;
use crate::protocol::chat::{ChatReply, ChatRequest, Message};

const CASSETTE_BYTES: u64 = 256 * 1024 * 1024;
/// Hexadecimal digits of a hash; it only distinguishes versions of one tool.
const HASH_DIGITS: usize = 16;
/// Bytes of an id in the format of `Uuid`.
const UUID_BYTES: usize = 36;

#[derive(Serialize, Deserialize)]
struct Line {
    /// Information for people only: a cassette is played no matter for which model it was recorded.
    model: String,
    request: NormalRequest,
    reply: ChatReply,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct NormalRequest {
    messages: Vec<Message>,
    tools: Vec<NamedHash>,
    answer: Option<NamedHash>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct NamedHash {
    name: String,
    hash: String,
}

impl NormalRequest {
    fn of(request: &ChatRequest) -> Self {
        let mut ids = Ids::default();
        let messages = request.messages.iter().map(|message| ids.message(message)).collect();
        let tools = request.tools.iter().map(|tool| NamedHash {
            name: tool.name.clone(),
            hash: hash(&format!("{}\n{}", tool.description, tool.parameters)),
        });
        let answer = request.answer.as_ref();
        let answer = answer
            .map(|answer| NamedHash { name: answer.name.clone(), hash: hash(&answer.schema.to_string()) });
        Self { messages, tools: tools.collect(), answer }
    }

    /// Where this request and a recorded one begin to differ: the number of equal messages, and a description of the
    /// difference.
    fn difference(&self, recorded: &Self) -> (usize, String) {
        let pairs = self.messages.iter().zip(&recorded.messages);
        let agree = pairs.take_while(|(came, known)| came == known).count();
        let what = match (self.messages.get(agree), recorded.messages.get(agree)) {
            (Some(came), Some(known)) => {
                let (came, known) = (message_json(came), message_json(known));
                let (came, known) = apart(&came, &known);
                format!("message {} is `{came}` and was `{known}`", agree + 1)
            }
            (Some(_), None) => format!("it has {} messages and had {agree}", self.messages.len()),
            (None, Some(_)) => format!("it has {agree} messages and had {}", recorded.messages.len()),
            (None, None) if self.tools != recorded.tools => "its tools are others".to_owned(),
            (None, None) => "the schema of its answer is another".to_owned(),
        };
        (agree, what)
    }
}

fn message_json(message: &Message) -> String {
    serde_json::to_value(message).as_ref().map(Value::to_string).unwrap_or_default()
}

/// The parts of two texts around the place where they begin to differ.
fn apart(came: &str, known: &str) -> (String, String) {
    const BEFORE: usize = 20;
    let agree = came.chars().zip(known.chars()).take_while(|(a, b)| a == b).count();
    let part = |text: &str| {
        let text: String = text.chars().skip(agree.saturating_sub(BEFORE)).take(3 * BEFORE).collect();
        clean(&text)
    };
    (part(came), part(known))
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text);
    format!("{digest:x}").chars().take(HASH_DIGITS).collect()
}

/// Numbers ids in the order of their first use.
#[derive(Default)]
struct Ids {
    calls: HashMap<String, usize>,
    uuids: HashMap<String, usize>,
}

impl Ids {
    fn message(&mut self, message: &Message) -> Message {
        let mut message = message.clone();
        for call in &mut message.tool_calls {
            call.id = self.call(&call.id);
            call.arguments = self.text(&call.arguments);
        }
        message.tool_call_id = message.tool_call_id.map(|id| self.call(&id));
        message.content = self.text(&message.content);
        message
    }

    fn call(&mut self, id: &str) -> String {
        let next = self.calls.len() + 1;
        format!("call_{}", self.calls.entry(id.to_owned()).or_insert(next))
    }

    fn text(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            // Only a hexadecimal digit can begin an id, which rules out most characters cheaply.
            let found = rest.get(..UUID_BYTES).filter(|part| c.is_ascii_hexdigit() && is_uuid(part));
            if let Some(uuid) = found {
                let next = self.uuids.len() + 1;
                let number = self.uuids.entry(uuid.to_owned()).or_insert(next);
                out.extend(["<id ", number.to_string().as_str(), ">"]);
                rest = rest.get(UUID_BYTES..).unwrap_or_default();
            } else {
                out.push(c);
                rest = rest.get(c.len_utf8()..).unwrap_or_default();
            }
        }
        out
    }
}

fn is_uuid(text: &str) -> bool {
    text.bytes().enumerate().all(|(index, byte)| match index {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    })
}

/// Writes a cassette.
pub(super) struct Recorder {
    file: PathBuf,
    /// Serialises the writing of lines.
    turn: Arc<Mutex<()>>,
}

impl Recorder {
    pub fn new(file: PathBuf) -> Self {
        Self { file, turn: Arc::default() }
    }

    /// Records a reply. A failure to write is only logged, because the reply is worth more than its record.
    pub async fn record(&self, model: &str, request: &ChatRequest, reply: &ChatReply, key: Option<&Secret>) {
        let line =
            Line { model: model.to_owned(), request: NormalRequest::of(request), reply: reply.clone() };
        let text = match serde_json::to_string(&line) {
            Ok(text) => key.map_or_else(|| text.clone(), |key| key.redact(&text)),
            Err(error) => return tracing::warn!(%error, "a reply cannot be recorded"),
        };
        let (file, turn) = (self.file.clone(), self.turn.clone());
        let writing = tokio::task::spawn_blocking(move || {
            let _turn = turn.lock();
            // Only the daemon's user may read the file, because conversations are private.
            let mut file = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
            file.write_all(format!("{text}\n").as_bytes())
        });
        match writing.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, file = %self.file.display(), "a reply cannot be recorded");
            }
            Err(error) => tracing::warn!(%error, "a reply cannot be recorded"),
        }
    }
}

/// Plays a cassette.
#[derive(Default)]
pub(super) struct Replayer {
    /// How often each request was played, by the hash of its normal form.
    played: Mutex<HashMap<String, usize>>,
}

impl Replayer {
    pub async fn play(
        &self,
        file: Option<&Path>,
        request: &ChatRequest,
    ) -> Result<ChatReply, AttemptFailure> {
        let text = read(file, CASSETTE_BYTES).await?;
        self.find(&text, request)
    }

    fn find(&self, text: &str, request: &ChatRequest) -> Result<ChatReply, AttemptFailure> {
        let wanted = NormalRequest::of(request);
        let (mut equal, mut nearest) = (Vec::new(), None::<(usize, String)>);
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line: Line = serde_json::from_str(line).map_err(|error| {
                AttemptFailure::not_recorded(format!("line {} of the cassette is wrong: {error}", number + 1))
            })?;
            if line.request == wanted {
                equal.push(line.reply);
            } else if equal.is_empty() {
                let (agree, what) = wanted.difference(&line.request);
                if nearest.as_ref().is_none_or(|(most, _)| agree > *most) {
                    nearest = Some((agree, format!("line {} comes nearest: {what}", number + 1)));
                }
            }
        }
        let Some(last) = equal.len().checked_sub(1) else {
            let nearest = nearest.map_or_else(|| "it is empty".to_owned(), |(_, what)| what);
            return Err(AttemptFailure::not_recorded(format!(
                "the cassette does not know this request; {nearest}"
            )));
        };
        let key = serde_json::to_string(&wanted).unwrap_or_default();
        let mut played = self.played.lock();
        let count = played.entry(hash(&key)).or_default();
        let index = (*count).min(last);
        *count += 1;
        Ok(equal.swap_remove(index))
    }
}

/// The text of the file to be played.
pub(super) async fn read(file: Option<&Path>, limit: u64) -> Result<String, AttemptFailure> {
    let file = file.ok_or_else(|| AttemptFailure::not_recorded("there is no file to play".to_owned()))?;
    let printable_path = file.display();
    let cannot = |error: std::io::Error| {
        AttemptFailure::not_recorded(format!("{printable_path} cannot be read: {error}"))
    };
    let mut text = String::new();
    let opened = tokio::fs::File::open(file).await.map_err(cannot)?;
    opened.take(limit + 1).read_to_string(&mut text).await.map_err(cannot)?;
    if text.len() as u64 > limit {
        return Err(AttemptFailure::not_recorded(format!("{printable_path} is larger than {limit} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::chat::{Finish, ModelTool, Role, ToolCall};
    use serde_json::json;

    fn request(id: &str, output: &str) -> ChatRequest {
        let mut asked = Message::new(Role::Assistant, "");
        asked.tool_calls.push(ToolCall { id: id.into(), name: "run".into(), arguments: "{}".into() });
        let mut answered = Message::new(Role::Tool, output);
        answered.tool_call_id = Some(id.into());
        let tool = ModelTool { name: "run".into(), description: "Run.".into(), parameters: json!({}) };
        let messages = vec![Message::new(Role::User, "Hi"), asked, answered];
        ChatRequest { messages, tools: vec![tool], answer: None, reply_tokens: None }
    }

    fn reply(text: &str) -> ChatReply {
        ChatReply {
            message: Message::new(Role::Assistant, text),
            reasoning: None,
            refusal: None,
            finish: Finish::Stop,
            usage: None,
        }
    }

    async fn recorded(lines: &[(ChatRequest, ChatReply)]) -> String {
        let dir = tempfile::tempdir().unwrap();
        let recorder = Recorder::new(dir.path().join("cassette.jsonl"));
        for (request, reply) in lines {
            recorder.record("m", request, reply, Secret::new("sk-1").as_ref()).await;
        }
        read(Some(&recorder.file), CASSETTE_BYTES).await.unwrap()
    }

    #[tokio::test]
    async fn ids_make_no_difference_and_equal_requests_are_played_in_order() {
        let (one, other) = (uuid::Uuid::new_v4(), uuid::Uuid::new_v4());
        let output = |id: uuid::Uuid| format!("é cell {id} of {id} done");
        let text = recorded(&[
            (request("a", &output(one)), reply("first")),
            (request("b", &output(other)), reply("second sk-1")),
        ])
        .await;
        assert!(!text.contains("sk-1") && !text.contains(&one.to_string()), "{text}");
        let replayer = Replayer::default();
        let play = || replayer.find(&text, &request("z", &output(uuid::Uuid::new_v4()))).unwrap();
        let replies: Vec<String> = (0..3).map(|_| play().message.content).collect();
        assert_eq!(replies, ["first", "second [key]", "second [key]"]);
    }

    #[tokio::test]
    async fn a_miss_says_where_it_differs() {
        let text = recorded(&[
            (ChatRequest { messages: Vec::new(), ..request("a", "") }, reply("x")),
            (request("a", "the result is 4"), reply("y")),
        ])
        .await;
        let miss = |request: &ChatRequest| Replayer::default().find(&text, request).unwrap_err().message;
        insta::assert_snapshot!(miss(&request("a", "the result is 5")), @r#"
        the cassette does not know this request; line 2 comes nearest: message 3 is `ent":"the result is 5","role":"tool","tool_call_id":"call_1"` and was `ent":"the result is 4","role":"tool","tool_call_id":"call_1"`
        "#);
        let mut changed = request("a", "the result is 4");
        changed.tools[0].description = "Walk.".into();
        insta::assert_snapshot!(miss(&changed), @r#"
        the cassette does not know this request; line 2 comes nearest: its tools are others
        "#);
        changed.messages.pop();
        insta::assert_snapshot!(miss(&changed), @r#"
        the cassette does not know this request; line 2 comes nearest: it has 2 messages and had 3
        "#);
        assert!(Replayer::default().find("", &changed).unwrap_err().message.contains("it is empty"));
        assert!(Replayer::default().find("{}", &changed).unwrap_err().message.contains("line 1"));
    }
}
