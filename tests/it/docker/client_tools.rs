//! Tools that a connected program lends to a session.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use super::asking::{answer, begin, calls, conversation, end_of, events_of, runs, says, scripted, told};
use super::helpers::{S, base, list, outcome, post, queue, text, value};
use crate::support::{Daemon, SOON, eventually};

/// A client with its tools. They are there until it is dropped.
pub struct Client {
    lines: std::io::Lines<BufReader<UnixStream>>,
}

impl Client {
    pub fn lend(daemon: &Daemon, tools: &Value) -> Self {
        Self::register(daemon, &json!({ "tools": tools }))
    }

    /// As a client whose stream broke.
    fn lend_again(daemon: &Daemon, tools: &Value) -> Self {
        Self::register(daemon, &json!({ "tools": tools, "again": true }))
    }

    fn register(daemon: &Daemon, body: &Value) -> Self {
        let body = body.to_string();
        let mut socket = UnixStream::connect(daemon.socket()).expect("the daemon serves");
        socket.set_read_timeout(Some(SOON)).expect("a timeout");
        let head = "POST /v1/sessions/s/tools HTTP/1.1\r\nHost: belljar";
        write!(socket, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("it takes requests");
        let mut client = Self { lines: BufReader::new(socket).lines() };
        assert!(client.lines.any(|line| line.expect("a line") == "event: ready"));
        client
    }

    pub fn next_call(&mut self) -> Value {
        let data = self.lines.find_map(|line| {
            let line = line.expect("the stream goes on");
            line.strip_prefix("data: ").filter(|data| data.contains("\"call\"")).map(str::to_owned)
        });
        serde_json::from_str(&data.expect("a call")).expect("JSON")
    }
}

fn weather() -> Value {
    json!([
        {"name": "weather", "description": "Say the weather.", "output": {"type": "object"},
         "parameters": {"type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}},
        {"name": "picture", "description": "Draw it.", "parameters": {"type": "object", "properties": {}}},
    ])
}

pub fn reply(daemon: &Daemon, call: &Value, answer: Value) -> u16 {
    post(daemon, &format!("tool-calls/{}", text(call, "call")), &answer).status
}

/// The smallest PNG there is.
const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";

#[test]
fn a_client_lends_its_tools_while_it_is_there() {
    let Some(daemon) = base() else { return };
    let mut client = Client::lend(&daemon, &weather());

    let cell = queue(&daemon, &json!({"code": "weather(city='Ulm')['degrees'] + 1"}));
    let call = client.next_call();
    assert_eq!((text(&call, "name"), &call["arguments"]), ("weather", &json!({"city": "Ulm"})));
    assert_eq!(reply(&daemon, &call, json!({"value": {"degrees": 20}})), 200);
    assert_eq!(text(&outcome(&daemon, cell), "/result/repr"), "21");
    // An answer counts once, and only to a call that there is.
    assert_eq!(reply(&daemon, &call, json!({"value": {"degrees": 30}})), 404);

    let cell = queue(&daemon, &json!({"code": "print('see', picture())"}));
    let call = client.next_call();
    let parts = json!({"parts": {"text": "a dot", "images": [{"mime": "image/png", "base64": PNG}]}});
    assert_eq!(reply(&daemon, &call, parts), 200);
    let result = outcome(&daemon, cell);
    assert_eq!(text(&result, "stdout"), "see a dot\n");
    assert_eq!(list(&result, "displays")[0]["mime"]["image/png"], PNG, "{result:#}");

    // What does not fit is an error of the call, in the code that made it.
    let code =
        "try:\n    weather(city='Ulm')\nexcept ToolError as error:\n    print(error.code, error.message)";
    for (answer, said) in [
        (json!({"failure": {"code": "no_rain", "message": "it is dry"}}), "no_rain it is dry\n"),
        (json!({"failure": {"code": "A b", "message": "it is dry"}}), "failed it is dry\n"),
        (json!({"value": "warm"}), "failed "),
        (json!({"parts": {"text": "", "images": []}}), "failed "),
    ] {
        let cell = queue(&daemon, &json!({ "code": code }));
        let call = client.next_call();
        assert_eq!(reply(&daemon, &call, answer), 200);
        let result = outcome(&daemon, cell);
        assert!(text(&result, "stdout").starts_with(said), "{said}: {result:#}");
    }

    // Names that are taken, and schemas that are none.
    let one = |name: &str, parameters: Value| json!({"tools": [{"name": name, "description": "d", "parameters": parameters}]});
    for wrong in [
        one("weather", json!({"type": "object", "properties": {}})),
        one("execute_python_code", json!({"type": "object", "properties": {}})),
        one("no name", json!({"type": "object", "properties": {}})),
        one("x", json!({"type": 3})),
    ] {
        assert_eq!(post(&daemon, "tools", &wrong).status, 400, "{wrong}");
    }

    // A client that goes leaves an error behind, and its tools go with it.
    let cell = queue(&daemon, &json!({ "code": code }));
    client.next_call();
    drop(client);
    assert!(text(&outcome(&daemon, cell), "stdout").starts_with("client_gone "));
    eventually("the tool is gone", || {
        let result = daemon.run(S, "'weather' in globals()");
        (result["result"]["repr"] == "False").then_some(())
    });
    daemon.assert_sound();
}

#[test]
fn a_model_uses_what_a_client_lends_and_goes_on_without_it() {
    let script = [
        calls("weather", &json!({"city": "Ulm"})),
        runs("print(weather(city='Bonn'))"),
        says("done"),
        calls("weather", &json!({"city": "Kiel"})),
        says("without"),
    ]
    .concat();
    let Some(mut daemon) = scripted("", &script) else { return };
    let mut client = Client::lend(&daemon, &weather());
    let ask = begin(&daemon, json!({"text": "how is it?"}));
    for degrees in [20, 30] {
        let call = client.next_call();
        assert_eq!(reply(&daemon, &call, json!({"value": {"degrees": degrees}})), 200);
    }
    assert_eq!(text(&end_of(&daemon, ask), "answer"), "done");
    let told_now = told(&daemon);
    assert!(told_now[0].contains("20") && told_now[1].contains("30"), "{told_now:?}");
    // The daemon ends over a call, and no client comes back: the ask knows, and ends.
    let ask = begin(&daemon, json!({"text": "and in Kiel?"}));
    client.next_call();
    super::helpers::restart_by(&mut daemon, "KILL");
    assert_eq!(text(&end_of(&daemon, ask), "answer"), "without");
    assert!(told(&daemon)[2].contains("not known"), "{:?}", told(&daemon));
    assert_eq!(events_of(&daemon, "ask_finished").len(), 2);
    super::asking::write_script(&daemon, &says("fresh"));
    assert_eq!(answer(&daemon, json!({"text": "x", "fresh": true})), "fresh");
    daemon.assert_sound();
}

/// What a client lends a session is not lent to the sessions of asks within: there it can neither be
/// called nor be in the way.
#[test]
fn an_ask_within_goes_without_what_a_client_lends() {
    let script = [
        conversation("the inner one", &[runs("print('weather' in globals())"), says("inner done")]),
        conversation("outer", &[runs("print(ask('the inner one'))"), says("outer done")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };
    let _client = Client::lend(&daemon, &weather());
    let policy = json!({"tools": ["weather"]});
    assert_eq!(answer(&daemon, json!({"text": "outer", "approval": policy})), "outer done");
    assert!(told(&daemon)[0].contains("inner done"), "{:?}", told(&daemon));
    let tools = json!(["weather", "ask", "execute_python_code"]);
    assert_eq!(answer(&daemon, json!({"text": "outer", "tools": tools, "fresh": true})), "outer done");
    assert!(told(&daemon)[0].contains("inner done"), "{:?}", told(&daemon));
    daemon.assert_sound();
}

/// Neither a client that comes, nor another daemon, nor other values put back what code has changed.
#[test]
fn what_code_made_of_given_values_stays() {
    let Some(mut daemon) = scripted("", &[runs("x += 10"), says("done")].concat()) else { return };
    assert_eq!(answer(&daemon, json!({"text": "add", "context": {"x": 1}})), "done");
    let _client = Client::lend(&daemon, &weather());
    eventually("the tool is there", || (value(&daemon, "'weather' in globals()") == "True").then_some(()));
    assert_eq!(value(&daemon, "x"), "11");
    super::helpers::restart_by(&mut daemon, "KILL");
    super::asking::write_script(&daemon, &says("fresh"));
    assert_eq!(answer(&daemon, json!({"text": "more", "context": {"y": 5}, "fresh": true})), "fresh");
    assert_eq!(value(&daemon, "x, y"), "(11, 5)");
    // What is given anew is as it is given.
    assert_eq!(answer(&daemon, json!({"text": "again", "context": {"x": 1}, "fresh": true})), "fresh");
    assert_eq!(value(&daemon, "x, y"), "(1, 5)");
    daemon.assert_sound();
}

/// A client that works on a call when the daemon is killed gives its answer to the next daemon.
#[test]
fn the_answer_of_a_client_survives_the_death_of_the_daemon() {
    let Some(mut daemon) = base() else { return };
    let cell_of = |daemon: &Daemon| queue(daemon, &json!({"code": "weather(city='Ulm')['degrees'] + 1"}));
    let twenty = json!({"value": {"degrees": 20}});

    // It need not lend its tools again for that.
    let mut client = Client::lend(&daemon, &weather());
    let cell = cell_of(&daemon);
    let call = client.next_call();
    super::helpers::restart_by(&mut daemon, "KILL");
    assert_eq!(reply(&daemon, &call, twenty.clone()), 200);
    assert_eq!(text(&outcome(&daemon, cell), "/result/repr"), "21");
    assert_eq!(reply(&daemon, &call, twenty.clone()), 404);

    // If it does, it gets the call again, which may never have reached it, and knows it by its id.
    let mut client = Client::lend(&daemon, &weather());
    let cell = cell_of(&daemon);
    let call = client.next_call();
    super::helpers::restart_by(&mut daemon, "KILL");
    let mut client = Client::lend_again(&daemon, &weather());
    assert_eq!(client.next_call(), call);
    super::helpers::restart_by(&mut daemon, "KILL");
    let mut client = Client::lend_again(&daemon, &weather());
    assert_eq!(client.next_call(), call);
    assert_eq!(reply(&daemon, &call, twenty.clone()), 200);
    assert_eq!(text(&outcome(&daemon, cell), "/result/repr"), "21");

    // Only one that knows the first daemon's calls gets them; the code learns that there may have been an effect.
    let code = "try:\n    weather(city='Ulm')\nexcept ToolError as error:\n    print(error.code)";
    let cell = queue(&daemon, &json!({ "code": code }));
    let lost = client.next_call();
    super::helpers::restart_by(&mut daemon, "KILL");
    let mut other = Client::lend(&daemon, &weather());
    assert_eq!(text(&outcome(&daemon, cell), "stdout"), "interrupted\n");
    let cell = cell_of(&daemon);
    let call = other.next_call();
    assert_ne!(call["call"], lost["call"]);
    assert_eq!(reply(&daemon, &call, twenty), 200);
    assert_eq!(text(&outcome(&daemon, cell), "/result/repr"), "21");
    daemon.assert_sound();
}

/// The next daemon knows a call that a person has to allow by its question; without that, it must not send the call.
#[test]
fn a_later_daemon_sends_no_call_that_a_person_has_to_allow() {
    let script = [runs("weather(city='Ulm')"), says("done")].concat();
    let Some(mut daemon) = scripted("", &script) else { return };
    let _first = Client::lend(&daemon, &weather());
    let ask = begin(&daemon, json!({"text": "how is it?", "approval": {"tools": ["weather"]}}));
    eventually("a person is asked", || (!events_of(&daemon, "approval_wanted").is_empty()).then_some(()));
    let called = &events_of(&daemon, "tool_called")[0];
    assert!(called.get("lent").is_none(), "{called:#}");
    super::helpers::restart_by(&mut daemon, "KILL");
    let _again = Client::lend_again(&daemon, &weather());
    let id = text(&events_of(&daemon, "approval_wanted")[0], "/approval/id").to_owned();
    let decided = daemon.http("POST", &format!("/v1/approvals/{id}"), br#"{"reject": {"reason": "no"}}"#);
    assert_eq!(decided.status, 200, "{}", decided.text());
    eventually("the call is answered", || (!events_of(&daemon, "tool_answered").is_empty()).then_some(()));
    assert_eq!(text(&end_of(&daemon, ask), "answer"), "done");
    daemon.assert_sound();
}

fn eventually_told(daemon: &Daemon, kind: &str) {
    eventually(kind, || (!events_of(daemon, kind).is_empty()).then_some(()));
}

/// Runs code that goes on over the death of the daemon and calls a tool before its client has come back.
fn call_without_client(daemon: &mut Daemon) -> u64 {
    let client = Client::lend(daemon, &weather());
    let wait = "import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.02)\n";
    let cell = queue(daemon, &json!({"code": format!("{wait}weather(city='Ulm')['degrees'] + 1")}));
    eventually_told(daemon, "cell_started");
    super::helpers::restart_by(daemon, "KILL");
    // Not before: a daemon that sees its client leave takes the tool back.
    drop(client);
    eventually_told(daemon, "sandbox_attached");
    daemon.http("PUT", "/v1/sessions/s/files/go", b"").expect_status(200);
    eventually_told(daemon, "tool_called");
    cell
}

#[test]
fn a_call_waits_for_a_client_that_comes_back() {
    let Some(mut daemon) = base() else { return };
    let cell = call_without_client(&mut daemon);
    let mut client = Client::lend(&daemon, &weather());
    let call = client.next_call();
    assert_eq!(reply(&daemon, &call, json!({"value": {"degrees": 20}})), 200);
    assert_eq!(text(&outcome(&daemon, cell), "/result/repr"), "21");
    daemon.assert_sound();
}

/// Each further daemon that dies leaves a call where it is: not made yet, or with its client.
#[test]
fn a_call_that_waits_for_its_client_outlives_one_daemon_after_the_other() {
    let Some(mut daemon) = base() else { return };
    let cell = call_without_client(&mut daemon);
    super::helpers::restart_by(&mut daemon, "KILL");
    assert!(events_of(&daemon, "tool_begun").is_empty(), "nothing was sent");
    let mut client = Client::lend(&daemon, &weather());
    let call = client.next_call();
    assert_eq!(text(&events_of(&daemon, "tool_begun")[0], "lent"), "value");
    super::helpers::restart_by(&mut daemon, "KILL");
    let mut client = Client::lend_again(&daemon, &weather());
    assert_eq!(client.next_call(), call);
    super::helpers::restart_by(&mut daemon, "KILL");
    assert_eq!(reply(&daemon, &call, json!({"value": {"degrees": 20}})), 200);
    assert_eq!(text(&outcome(&daemon, cell), "/result/repr"), "21");
    assert_eq!(events_of(&daemon, "tool_called").len(), 1);
    daemon.assert_sound();
}
