//! Calls of tools that clients lend.

use super::*;

fn of_client(lent: Option<LentAnswer>, held: bool) -> EventBody {
    let EventBody::ToolCalled { cell, call, name, arguments, .. } = called(7, 1) else { unreachable!() };
    EventBody::ToolCalled { cell, call, name, arguments, refused_bytes: None, lent, held }
}

fn open_call(calls: &[EventBody]) -> OpenCall {
    let mut open = restored_from(&[&[queued(1, Mode::Main), started(1)][..], calls].concat()).open_calls;
    assert_eq!(open.len(), 1, "{open:?}");
    open.remove(0)
}

fn sent() -> LentCall {
    LentCall { cell: Some(1), name: "tool7".into(), answer: LentAnswer::Value, seq: 3 }
}

#[test]
fn a_call_that_a_client_got_is_known_with_the_place_of_its_arguments() {
    let open = open_call(&[of_client(Some(LentAnswer::Value), false)]);
    assert_eq!(
        open,
        OpenCall { call: 7, recorded: None, given_up: None, waits: None, lent: Some(sent()), held: None }
    );
}

#[test]
fn a_held_call_is_held_again_until_it_is_made_and_then_its_client_may_answer() {
    let held = of_client(None, true);
    let unmade = UnmadeCall { cell: Some(1), name: "tool7".into(), seq: 3 };
    let open =
        OpenCall { call: 7, recorded: None, given_up: None, waits: None, lent: None, held: Some(unmade) };
    assert_eq!(open_call(&[held.clone(), EventBody::SandboxAttached]), open);
    let begun = |lent| EventBody::ToolBegun { cell: Some(1), call: 7, lent };
    let open = OpenCall { lent: Some(sent()), held: None, ..open };
    assert_eq!(open_call(&[held.clone(), begun(Some(LentAnswer::Value))]), open);
    // A person has allowed it, so that no later daemon sends it.
    assert_eq!(open_call(&[held, begun(None)]), OpenCall { lent: None, ..open });
}

#[test]
fn earlier_daemons_have_said_less_about_calls() {
    let called: EventBody = serde_json::from_str(
        r#"{"type": "tool_called", "cell": 1, "call": 7, "name": "tool7", "arguments": {}}"#,
    )
    .unwrap();
    let begun: EventBody = serde_json::from_str(r#"{"type": "tool_begun", "cell": 1, "call": 7}"#).unwrap();
    let open = open_call(&[called, begun]);
    assert_eq!(
        open,
        OpenCall { call: 7, recorded: None, given_up: None, waits: None, lent: None, held: None }
    );
}
