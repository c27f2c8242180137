//! Code that is checked or evaluated in processes of its own, made by the zygote, which has no user data.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::io::{self, Errno};
use rustix::pipe::{self, PipeFlags};
use rustix::process::{self as os_process, Pid, Signal, WaitOptions};
use serde_json::{Value, json};

use crate::frames::{HostFrame, Refusal};
use crate::guardian::Guardian;
use crate::limits::{ANSWER_BYTES, COMPUTE_STOPS, COMPUTES, NAMES, NAMES_MEMORY_BYTES};
use crate::poller::{Timer, Token, Watch};
use crate::process::send_signal;
use crate::process_table;
use crate::zygote::Wanted;

const VALUE: u8 = b'V';
const ERROR: u8 = b'E';
const KILLED: &str = "something else killed the process; a reset ends what other cells left running";
const HELD_UP: &str =
    "something else stopped the process again and again; a reset ends what other cells left running";
const BUSY: Refusal = Refusal::Busy("too many expressions are being evaluated");

/// Why the process of a computation was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KilledFor {
    Time,
    Reset,
    /// Code of the session has stopped it again and again.
    Stops,
    Memory,
}

/// How the process of a computation ended.
#[derive(Debug, Default, Clone, Copy)]
pub struct Ending {
    /// The first reason counts. `None` if the guardian knows of none.
    pub killed_for: Option<KilledFor>,
    pub exit_code: i32,
}

struct Computation {
    request: u64,
    wanted: Wanted,
    pid: i32,
    descriptor: OwnedFd,
    watch: Watch,
    begun: Instant,
    timeout: Duration,
    answer: Vec<u8>,
    ending: Ending,
    /// How often it was found stopped.
    stops: u32,
    /// The processes of the sandbox that the system had ended for memory before this one was made.
    oom_kills: u64,
}

#[derive(Default)]
pub struct Computations {
    open: BTreeMap<u32, Computation>,
    next: u32,
}

impl Computations {
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.open.values().map(|computation| computation.pid)
    }

    pub fn is_busy(&self) -> bool {
        !self.open.is_empty()
    }

    /// The process is killed for its memory, if it is one of these.
    pub fn out_of_memory(&mut self, pid: i32) {
        for computation in self.open.values_mut().filter(|computation| computation.pid == pid) {
            computation.ending.killed_for.get_or_insert(KilledFor::Memory);
        }
    }

    /// Kills the processes; their answers are told when they have ended.
    pub fn stop(&mut self) {
        for computation in self.open.values_mut() {
            computation.ending.killed_for.get_or_insert(KilledFor::Reset);
            send_signal(computation.pid, Signal::KILL);
        }
    }
}

impl Guardian {
    /// Evaluates an expression.
    pub fn start_compute(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let request = frame.get("request")?;
        let timeout = Duration::from_millis(frame.get("timeout_ms")?);
        frame.get::<u64>("memory_bytes")?;
        for (name, first) in [("expression", '"'), ("values", '{')] {
            if !frame.raw(name)?.starts_with(first) {
                return Err(Refusal::Malformed(format!("compute: the field `{name}` has another type")));
            }
        }
        let payload = format!("{}\n{}", json!({"chars": self.limits.repr_chars}), frame.text).into_bytes();
        if self.is_handed_over(request, &payload, timeout) {
            return Ok(());
        }
        self.start_computation(request, Wanted::Compute, Instant::now(), timeout, &payload)
    }

    /// Lists the names that code assigns.
    pub fn start_names(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let request = frame.get("request")?;
        if !frame.raw("code")?.starts_with('"') {
            return Err(Refusal::Malformed("names: the field `code` has another type".into()));
        }
        let timeout_ms = u64::try_from(NAMES.as_millis()).unwrap_or(u64::MAX);
        let bound =
            json!({"most": self.limits.names, "timeout_ms": timeout_ms, "memory_bytes": NAMES_MEMORY_BYTES});
        let payload = format!("{bound}\n{}", frame.text);
        self.start_computation(request, Wanted::Names, Instant::now(), NAMES, payload.as_bytes())
    }

    pub fn start_computation(
        &mut self,
        request: u64,
        wanted: Wanted,
        begun: Instant,
        timeout: Duration,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        if self.computations.open.len() >= COMPUTES {
            return Err(BUSY);
        }
        let (descriptor, write_end) = pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|_| BUSY)?;
        io::ioctl_fionbio(&descriptor, true).map_err(|_| BUSY)?;
        let oom_kills = self.memory.oom_kills(&self.limits);
        let pid = self.make_process(wanted, &[payload], &[write_end.as_fd()]);
        let pid = pid.ok_or_else(Refusal::no_process)?;
        let index = self.computations.next;
        self.computations.next = index.wrapping_add(1);
        let mut watch = Watch::new(Token::Computation(index));
        watch.set(&self.poller, &descriptor, EventFlags::IN);
        let (answer, ending) = (Vec::new(), Ending::default());
        let computation = Computation {
            request,
            wanted,
            pid,
            descriptor,
            watch,
            begun,
            timeout,
            answer,
            ending,
            stops: 0,
            oom_kills,
        };
        self.computations.open.insert(index, computation);
        self.poller.after(Timer::Computation(index), timeout.saturating_sub(begun.elapsed()));
        self.reap_soon();
        Ok(())
    }

    /// Lets processes go on that code of the session has stopped; one that it stops again and again is given up.
    pub fn press_computations(&mut self) {
        if self.processes.is_halted() {
            return; // by the guardian itself
        }
        self.press_evaluator();
        for computation in self.computations.open.values_mut() {
            if !process_table::row(computation.pid).is_some_and(|row| row.stands) {
                continue;
            }
            computation.stops += 1;
            if computation.stops < COMPUTE_STOPS {
                send_signal(computation.pid, Signal::CONT);
            } else {
                computation.ending.killed_for.get_or_insert(KilledFor::Stops);
                send_signal(computation.pid, Signal::KILL);
            }
        }
    }

    /// The process has written something, or has ended.
    pub fn computation_ready(&mut self, index: u32) {
        let Some(computation) = self.computations.open.get_mut(&index) else { return };
        if computation.receive(&mut self.scratch) {
            return;
        }
        // The process has answered or died; either way it is not needed any more.
        send_signal(computation.pid, Signal::KILL);
        let status = os_process::waitpid(Pid::from_raw(computation.pid), WaitOptions::empty());
        if let Ok(Some((_, status))) = status {
            let code = status.exit_status().or_else(|| status.terminating_signal().map(|number| -number));
            computation.ending.exit_code = code.unwrap_or(0);
        }
        self.finish_computation(index);
    }

    pub fn computation_timed_out(&mut self, index: u32) {
        if let Some(computation) = self.computations.open.get_mut(&index) {
            computation.ending.killed_for.get_or_insert(KilledFor::Time);
            send_signal(computation.pid, Signal::KILL);
        }
    }

    /// A child of the guardian has ended. False if it was none of these processes.
    pub fn computation_ended(&mut self, pid: i32, exit_code: i32) -> bool {
        let Some((index, computation)) =
            self.computations.open.iter_mut().find(|(_, computation)| computation.pid == pid)
        else {
            return false;
        };
        computation.ending.exit_code = exit_code;
        let index = *index;
        self.finish_computation(index);
        true
    }

    fn finish_computation(&mut self, index: u32) {
        let Some(mut computation) = self.computations.open.remove(&index) else { return };
        if computation.begun.elapsed() >= computation.timeout {
            computation.ending.killed_for.get_or_insert(KilledFor::Time);
        }
        if self.memory.oom_kills(&self.limits) > computation.oom_kills {
            computation.ending.killed_for.get_or_insert(KilledFor::Memory);
        }
        self.poller.cancel(Timer::Computation(index));
        computation.watch.set(&self.poller, &computation.descriptor, EventFlags::empty());
        let mut left = ANSWER_BYTES / self.scratch.len();
        while computation.receive(&mut self.scratch) && computation.has_more() && left > 0 {
            left -= 1;
        }
        if computation.wanted == Wanted::Names {
            // Nothing is there if the code was too much to parse.
            let names: Vec<String> = serde_json::from_slice(&computation.answer).unwrap_or_default();
            self.send(&json!({"type": "names", "request": computation.request, "names": names}));
        } else {
            self.tell_outcome(
                computation.request,
                &computation.answer,
                computation.ending,
                computation.timeout,
            );
            // There may be more of them. Not now: all processes may be about to end.
            self.poller.after(Timer::StartEvaluator, Duration::ZERO);
        }
    }

    pub fn tell_outcome(&mut self, request: u64, answer: &[u8], ending: Ending, timeout: Duration) {
        let outcome = describe_outcome(answer, ending, timeout);
        self.send(&json!({"type": "computed", "request": request, "outcome": outcome}));
    }
}

impl Computation {
    /// Reads what is there. False at the end.
    fn receive(&mut self, scratch: &mut [u8]) -> bool {
        match io::read(&self.descriptor, &mut *scratch) {
            Ok(0) => false,
            Ok(count) => {
                // A process that sends more than any answer has is treated as one that has ended.
                self.answer.extend_from_slice(&scratch[..count]);
                self.answer.len() <= ANSWER_BYTES
            }
            Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
        }
    }

    fn has_more(&self) -> bool {
        crate::channel::bytes_waiting(&self.descriptor) > 0
    }
}

fn describe_outcome(answer: &[u8], ending: Ending, timeout: Duration) -> Value {
    let text = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
    let error = |kind: &str, message: &str| json!({"error": format!("PythonError: {kind}: {message}")});
    let late = || error("TimeoutError", &format!("longer than {} ms", timeout.as_millis()));
    let was_killed = [Signal::KILL, Signal::XCPU].iter().any(|each| ending.exit_code == -each.as_raw());
    match (answer.split_first(), ending.killed_for) {
        (Some((&VALUE, rest)), _) => json!({"value": text(rest)}),
        (Some((&ERROR, rest)), _) => json!({"error": text(rest)}),
        (_, Some(KilledFor::Reset)) => error("RuntimeError", "the session was reset"),
        (_, Some(KilledFor::Time)) => late(),
        (_, Some(KilledFor::Stops)) => error("RuntimeError", HELD_UP),
        (_, Some(KilledFor::Memory)) if was_killed => error("MemoryError", "the memory was not enough"),
        _ if was_killed => error("RuntimeError", KILLED),
        _ => error("RuntimeError", &format!("the process ended with {}", ending.exit_code)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outcome_is_what_the_process_wrote_or_how_it_ended() {
        let second = Duration::from_secs(1);
        let outcome = |answer: &[u8], ending| describe_outcome(answer, ending, second);
        let ended = |exit_code| Ending { exit_code, ..Ending::default() };
        assert_eq!(outcome(b"V42", ended(0)), json!({"value": "42"}));
        assert_eq!(outcome(b"Eno", ended(0)), json!({"error": "no"}));
        let killed = |reason| Ending { killed_for: Some(reason), exit_code: -9 };
        for (ending, kind) in [
            (killed(KilledFor::Reset), "RuntimeError: the session was reset"),
            (killed(KilledFor::Time), "TimeoutError: longer than 1000 ms"),
            (killed(KilledFor::Memory), "MemoryError: the memory was not enough"),
            (killed(KilledFor::Stops), &format!("RuntimeError: {HELD_UP}")),
            (ended(-9), &format!("RuntimeError: {KILLED}")),
            (ended(-24), &format!("RuntimeError: {KILLED}")),
            (ended(1), "RuntimeError: the process ended with 1"),
        ] {
            assert_eq!(outcome(b"", ending), json!({"error": format!("PythonError: {kind}")}));
        }
    }
}
