//! Exit codes for the shell, for a job's report and for the starter of the daemon, and the signals that they mean.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use crate::protocol::ask::AskOutcome;
use crate::protocol::result::{ExecutionResult, Reason, Status};

pub const SUCCESS: u8 = 0;
pub const FAILURE: u8 = 1;
/// Wrong arguments.
pub const USAGE: u8 = 64;
/// Another daemon serves this home or this socket.
pub const ALREADY_RUNNING: u8 = 75;
pub const TIMEOUT: u8 = 124;
/// Belljar's own errors, as opposed to those of the code it runs.
pub const OWN: u8 = 125;
pub const INTERRUPTED: u8 = 130;
/// 128 + SIGKILL, with which the kernel ends a process that needs too much memory.
pub const KILLED: u8 = 137;
/// 128 + SIGPIPE: the reader of our output is gone.
pub const BROKEN_PIPE: u8 = 141;
pub const TERMINATED: u8 = 143;

/// The code for the end of a cell. A crash is never 0.
pub fn exit_code(result: &ExecutionResult) -> u8 {
    match result.status {
        Status::Success => SUCCESS,
        Status::Failure => FAILURE,
        Status::Timeout => TIMEOUT,
        Status::Interrupted => INTERRUPTED,
        Status::Crashed => match (result.reason, result.exit_code) {
            (Reason::OutOfMemory, _) => KILLED,
            (Reason::SandboxLost | Reason::PolicyViolation | Reason::JournalQuota, None) => OWN,
            (_, None) => FAILURE,
            (_, Some(code)) => process_code(code),
        },
    }
}

/// The code for the end of a script that has a process of its own: the argument of `sys.exit` counts.
pub fn script_exit_code(result: &ExecutionResult) -> u8 {
    match (result.status, result.reason, result.exit_code) {
        (Status::Failure, Reason::Exit, Some(code)) => low_byte(code),
        _ => exit_code(result),
    }
}

/// The code for the end of an ask.
pub fn ask_exit_code(outcome: AskOutcome) -> u8 {
    match outcome {
        AskOutcome::Answered => SUCCESS,
        AskOutcome::TimeLimit => TIMEOUT,
        AskOutcome::Cancelled => INTERRUPTED,
        AskOutcome::StepLimit
        | AskOutcome::FailureLimit
        | AskOutcome::RepeatedFailure
        | AskOutcome::TokenLimit
        | AskOutcome::Rejected
        | AskOutcome::Malformed
        | AskOutcome::ModelFailed => FAILURE,
        AskOutcome::SandboxFailed => OWN,
    }
}

/// The code with which a shell reports the end of a failed process: 128 + n for signal n.
pub fn process_code(code: i32) -> u8 {
    match code {
        -127..=-1 => u8::try_from(128 - code).unwrap_or(FAILURE),
        _ => low_byte(code),
    }
}

/// The low byte, which is all that the kernel keeps of an exit code, but never 0, because the process failed.
fn low_byte(code: i32) -> u8 {
    match u8::try_from(code & 0xff) {
        Ok(0) | Err(_) => FAILURE,
        Ok(code) => code,
    }
}

/// `signal 11 (SIGSEGV)` for −11, and for 139, as shells report it.
pub fn signal_name(code: i32) -> Option<String> {
    let number = match code {
        -64..=-1 => -code,
        129..=192 => code - 128,
        _ => return None,
    };
    // The standard library knows the names of signals, but shows them only in the text of an exit status.
    let text = ExitStatus::from_raw(number).to_string();
    text.strip_prefix("signal: ").map(|name| format!("signal {name}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::protocol::result::{Mode, StateKind, StateReport, Truncated};

    pub fn result(status: Status, reason: Reason, exit_code: Option<i32>) -> ExecutionResult {
        ExecutionResult {
            cell: 1,
            mode: Mode::Main,
            status,
            reason,
            exit_code,
            code: String::new(),
            timeout_s: 30.0,
            stdout: String::new(),
            stderr: String::new(),
            output: Vec::new(),
            result: None,
            displays: Vec::new(),
            artifacts: Vec::new(),
            exception: None,
            duration_ms: 0.0,
            truncated: Truncated::default(),
            state: StateReport {
                kind: StateKind::Kept,
                restored_to: None,
                completed_tool_calls: Vec::new(),
                unprotected: false,
                as_before: None,
                maybe_assigned: Vec::new(),
                note: None,
            },
        }
    }

    #[test]
    fn every_end_has_its_code() {
        for (status, reason, code, expected) in [
            (Status::Success, Reason::Ok, Some(0), 0),
            (Status::Success, Reason::Exit0, Some(0), 0),
            (Status::Failure, Reason::Exception, Some(0), 1),
            (Status::Failure, Reason::Exit, Some(7), 1),
            (Status::Timeout, Reason::CellDeadline, Some(-15), 124),
            (Status::Crashed, Reason::Signal, Some(-11), 139),
            (Status::Crashed, Reason::Signal, Some(-9), 137),
            (Status::Crashed, Reason::OutOfMemory, Some(-9), 137),
            (Status::Crashed, Reason::OutOfMemory, None, 137),
            (Status::Crashed, Reason::ExitCall, Some(0), 1),
            (Status::Crashed, Reason::ExitCall, Some(3), 3),
            (Status::Crashed, Reason::ExitCall, Some(139), 139),
            (Status::Crashed, Reason::ExitCall, Some(256), 1),
            (Status::Crashed, Reason::SandboxLost, None, 125),
            (Status::Interrupted, Reason::ByUser, Some(0), 130),
        ] {
            assert_eq!(exit_code(&result(status, reason, code)), expected, "{status:?} {reason:?} {code:?}");
        }
    }

    #[test]
    fn a_script_has_its_own_code() {
        for (code, expected) in [(7, 7), (255, 255), (256, 1), (-1, 255), (i32::MIN, 1)] {
            assert_eq!(
                script_exit_code(&result(Status::Failure, Reason::Exit, Some(code))),
                expected,
                "{code}"
            );
        }
        assert_eq!(script_exit_code(&result(Status::Failure, Reason::Exception, Some(0))), 1);
        assert_eq!(script_exit_code(&result(Status::Crashed, Reason::ExitCall, Some(0))), 1);
    }

    #[test]
    fn every_end_of_an_ask_has_its_code() {
        for (outcome, expected) in [
            (AskOutcome::Answered, 0),
            (AskOutcome::StepLimit, 1),
            (AskOutcome::FailureLimit, 1),
            (AskOutcome::RepeatedFailure, 1),
            (AskOutcome::TokenLimit, 1),
            (AskOutcome::TimeLimit, 124),
            (AskOutcome::Cancelled, 130),
            (AskOutcome::Rejected, 1),
            (AskOutcome::Malformed, 1),
            (AskOutcome::ModelFailed, 1),
            (AskOutcome::SandboxFailed, 125),
        ] {
            assert_eq!(ask_exit_code(outcome), expected, "{outcome:?}");
        }
    }

    #[test]
    fn a_crash_never_looks_like_success() {
        for code in -300..600 {
            assert_ne!(exit_code(&result(Status::Crashed, Reason::ExitCall, Some(code))), 0, "{code}");
        }
    }

    #[test]
    fn signals_have_names() {
        assert_eq!(signal_name(-11).as_deref(), Some("signal 11 (SIGSEGV)"));
        assert_eq!(signal_name(139).as_deref(), Some("signal 11 (SIGSEGV)"));
        assert_eq!(signal_name(-9).as_deref(), Some("signal 9 (SIGKILL)"));
        assert_eq!(signal_name(1), None);
        assert_eq!(signal_name(i32::MIN), None);
    }
}
