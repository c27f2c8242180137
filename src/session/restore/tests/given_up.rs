//! Calls of tools whose code did not wait for the answer.

use super::*;
use crate::session::replay::given_up;

#[test]
fn a_replayed_call_that_was_given_up_has_no_answer_from_the_next_daemon_either() {
    let gave_up = EventBody::ToolAnswered { call: 1, outcome: ToolOutcome::Failure(given_up()) };
    let bodies = [queued(1, Mode::Main), started(1), called(1, 1), gave_up, done(1)];
    let again = [EventBody::ReplayStarted { cells: vec![1] }, replayed(2, 1), started(2), called(2, 2)];
    let open = restored_from(&[&bodies[..], &again].concat()).open_calls;
    let stays_open = Some((2, "tool2".to_owned()));
    let is_answered = open.iter().any(|open| open.recorded.is_some() || open.given_up != stays_open);
    assert!(open.len() == 1 && !is_answered, "{open:?}");
}
