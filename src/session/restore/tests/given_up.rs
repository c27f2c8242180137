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

/// Nobody interrupts it again, so that it would wait until its time is over.
#[test]
fn a_call_that_was_given_up_because_of_an_interrupt_fails_at_once_when_its_cell_runs_again() {
    let gave_up = |call| EventBody::ToolAnswered { call, outcome: ToolOutcome::Failure(given_up()) };
    let interrupts = |cell| EventBody::Interrupting { cell, command: false };
    let once = |bodies: &[EventBody]| {
        let again = [EventBody::ReplayStarted { cells: vec![1] }, replayed(2, 1), started(2), called(3, 2)];
        let mut open = restored_from(&[bodies, &again].concat()).open_calls;
        let open = open.pop().expect("the call of the replay is open");
        (open.given_up.is_some(), open.recorded.map(|outcome| outcome.unwrap_err().code))
    };
    let begin = vec![queued(1, Mode::Main), started(1), called(1, 1)];
    let fails = (false, Some("interrupted".to_owned()));
    // Its code caught the interrupt, so the cell ended as any other.
    assert_eq!(once(&[begin.clone(), vec![interrupts(1), gave_up(1), done(1)]].concat()), fails);
    let before = vec![gave_up(1), interrupts(1), done(1)];
    assert_eq!(once(&[begin.clone(), before].concat()), (true, None), "that was not why");
    let of_another = vec![interrupts(9), gave_up(1), done(1)];
    assert_eq!(once(&[begin, of_another].concat()), (true, None));
}
