//! Derives the end of a job from the end of its cell.
//!
//! A job's cell never answers: it replaces its process by the script, so only the script's own end counts, as
//! reported by the guardian, which is the script's parent. A cell that does answer has not got that far, or
//! the answer is forged; neither is a verdict of the script.

use crate::protocol::exit_codes::{
    INTERRUPTED as CANCELLED, KILLED, OWN, TIMEOUT as TIMED_OUT, process_code,
};
use crate::protocol::job::{JobEnd, Verdict};
use crate::protocol::problem::Problem;
use crate::protocol::result::{ExecutionResult, Reason, Status};

/// The end without artifacts, which are gathered later. `begun` says whether the cell became the script.
#[must_use]
pub fn of_result(result: &ExecutionResult, begun: bool) -> JobEnd {
    let (verdict, exit_code, reason) = match (result.status, result.reason, result.exit_code) {
        (Status::Timeout, ..) => (
            Verdict::TimedOut,
            TIMED_OUT,
            format!("it ran longer than {} s and was stopped", result.timeout_s),
        ),
        (Status::Interrupted, ..) => (Verdict::Cancelled, CANCELLED, "it was cancelled".to_owned()),
        (Status::Crashed, reason, code) if !begun => {
            let why = match (reason, code) {
                (Reason::OutOfMemory, _) => "there was not enough memory".to_owned(),
                (_, Some(code @ -127..=-1)) => format!("signal {} ended what was to become it", -code),
                (_, Some(code)) => format!("what was to become it exited with {code}"),
                (_, None) => "its sandbox was lost".to_owned(),
            };
            (Verdict::Error, OWN, format!("the script could not be started: {why}{}", note(result)))
        }
        (Status::Crashed, Reason::OutOfMemory, _) => (
            Verdict::OutOfMemory,
            KILLED,
            "it was killed because it needed more memory than it has".to_owned(),
        ),
        (Status::Crashed, Reason::ExitCall, Some(0)) => (Verdict::Passed, 0, "it exited with 0".to_owned()),
        (Status::Crashed, Reason::ExitCall, Some(code)) => match u8::try_from(code) {
            Ok(code) => (Verdict::Failed, code, format!("it exited with {code}")),
            Err(_) => (Verdict::Error, OWN, format!("its exit code makes no sense: {code}")),
        },
        (Status::Crashed, reason, Some(code @ -127..=-1)) => {
            let why = match reason {
                Reason::Pids => format!("signal {} ended it (the limit on processes was hit)", -code),
                Reason::PolicyViolation | Reason::JournalQuota => {
                    format!("it was stopped{}", first_sentence(result))
                }
                _ => format!("signal {} ended it", -code),
            };
            (Verdict::Crashed, process_code(code), why)
        }
        (Status::Crashed, ..) => (Verdict::Error, OWN, format!("its sandbox was lost{}", note(result))),
        (Status::Success | Status::Failure, ..) => {
            let why = result.exception.as_ref().map_or("no reason was given", |e| e.value.as_str());
            (Verdict::Error, OWN, format!("the script could not be started: {why}"))
        }
    };
    ended(verdict, exit_code, reason, result.duration_ms)
}

/// The first sentence of a note; the rest only concerns sessions, which continue.
fn first_sentence(result: &ExecutionResult) -> String {
    let note = note(result);
    let end = note.find(". ").unwrap_or(note.len());
    note.get(..end).unwrap_or(&note).trim_end_matches('.').to_owned()
}

fn note(result: &ExecutionResult) -> String {
    result.state.note.as_ref().map(|note| format!(": {note}")).unwrap_or_default()
}

/// The end of a job that never ran a cell.
#[must_use]
pub fn of_problem(problem: &Problem) -> JobEnd {
    let hint = problem.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
    ended(Verdict::Error, OWN, format!("{}{hint}", problem.message), 0.0)
}

#[must_use]
pub fn cancelled(before: &str) -> JobEnd {
    ended(Verdict::Cancelled, CANCELLED, format!("it was cancelled{before}"), 0.0)
}

#[must_use]
pub fn lost() -> JobEnd {
    ended(Verdict::Error, OWN, "its sandbox was gone when the daemon was started anew".to_owned(), 0.0)
}

fn ended(verdict: Verdict, exit_code: u8, reason: String, duration_ms: f64) -> JobEnd {
    JobEnd { verdict, exit_code, reason, duration_ms, artifacts: Vec::new(), artifacts_cut: false }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::frames::{DoneReason, DoneStatus, StateAfter};
    use crate::session::outcome::{Cause, CellStart, Changes, EndedBy, Ending, conclude};
    use crate::store::CellRecord;
    use std::time::Duration;

    fn verdict(ending: Ending, cause: Cause) -> (Verdict, u8) {
        let changes = Changes { artifacts: Vec::new(), cut: false };
        let result =
            conclude(CellStart::default(), ending, cause, CellRecord::default(), changes, Duration::ZERO);
        // No exit code of a process that has not become the script counts as the script's.
        let early = of_result(&result, false);
        assert!(early.exit_code >= TIMED_OUT && early.verdict != Verdict::Passed, "{early:?}");
        if result.status == Status::Crashed {
            assert_eq!((early.verdict, early.exit_code), (Verdict::Error, OWN), "{early:?}");
        }
        let end = of_result(&result, true);
        (end.verdict, end.exit_code)
    }

    fn exited(exit_code: i32) -> Ending {
        Ending::Lost { exit_code, after: StateAfter::Lost, older: false, names: Vec::new() }
    }

    #[test]
    fn every_end_of_a_script_has_its_verdict() {
        let none = Cause::default;
        let by = |ended_by| Cause { ended_by: Some(ended_by), ..Cause::default() };
        let oom = Cause { out_of_memory: true, ..Cause::default() };
        for (ending, cause, expected) in [
            (exited(0), none(), (Verdict::Passed, 0)),
            (exited(1), none(), (Verdict::Failed, 1)),
            (exited(255), none(), (Verdict::Failed, 255)),
            (exited(256), none(), (Verdict::Error, 125)),
            (exited(-11), none(), (Verdict::Crashed, 139)),
            (exited(-9), oom, (Verdict::OutOfMemory, 137)),
            (exited(-15), by(EndedBy::Deadline), (Verdict::TimedOut, 124)),
            // A script that exits with 0 when it is told to end has still run out of time.
            (exited(0), by(EndedBy::Deadline), (Verdict::TimedOut, 124)),
            (exited(0), by(EndedBy::Policy("disk".into())), (Verdict::Error, 125)),
            (exited(-9), by(EndedBy::Policy("disk".into())), (Verdict::Crashed, 137)),
            (exited(0), by(EndedBy::Cancel), (Verdict::Cancelled, 130)),
            (Ending::SandboxGone { end: None }, none(), (Verdict::Error, 125)),
            (Ending::Cancelled, none(), (Verdict::Cancelled, 130)),
        ] {
            assert_eq!(verdict(ending.clone(), cause), expected, "{ending:?}");
        }
    }

    #[test]
    fn a_cell_that_answers_is_never_a_pass() {
        for status in [DoneStatus::Success, DoneStatus::Failure, DoneStatus::Interrupted] {
            for reason in [DoneReason::Ok, DoneReason::Exit0, DoneReason::Exit, DoneReason::Exception] {
                let done = Ending::Done {
                    status,
                    reason,
                    exit_code: 0,
                    result: None,
                    exception: None,
                    displays_dropped: 0,
                    protected: true,
                    as_before: None,
                };
                assert!(verdict(done, Cause::default()).1 >= OWN);
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn only_an_exit_with_0_passes(code in proptest::prelude::any::<i32>()) {
            let (verdict, exit_code) = verdict(exited(code), Cause::default());
            proptest::prop_assert_eq!(verdict == Verdict::Passed, code == 0);
            proptest::prop_assert_eq!(exit_code == 0, code == 0);
        }
    }
}
