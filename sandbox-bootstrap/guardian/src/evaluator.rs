//! One process that evaluates expressions that leave no trace in it, one after the other; a new process for each of them
//! takes several times as long.
//!
//! Whether an expression leaves a trace, the evaluator finds out before it evaluates anything, so nothing that could lie
//! about it has run by then. Such an expression gets a process of its own, and so does any other that the evaluator does
//! not answer: code of the session can kill or stop it, no more than that.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::io;
use rustix::process::{self as os_process, Pid, Signal, WaitOptions};

use crate::channel::{Channel, Read};
use crate::computations::{Ending, KilledFor};
use crate::guardian::Guardian;
use crate::limits::EVALUATOR_REQUEST_BYTES;
use crate::poller::{Poller, Timer, Token};
use crate::process::send_signal;
use crate::process_table;
use crate::wire::{self, TooLong};
use crate::zygote::Wanted;

const EXPRESSION: u8 = b'E';
/// What the evaluator answers instead of an outcome: the expression may leave a trace.
const NOT_TAKEN: u8 = b'N';

struct Expression {
    request: u64,
    payload: Vec<u8>,
    begun: Instant,
    timeout: Duration,
}

struct Running {
    pid: i32,
    channel: Channel,
    present: Option<Expression>,
}

#[derive(Default)]
pub struct Evaluator {
    running: Option<Running>,
}

impl Evaluator {
    pub fn pid(&self) -> Option<i32> {
        self.running.as_ref().map(|running| running.pid)
    }

    pub fn is_busy(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.present.is_some())
    }

    pub fn flush(&mut self, poller: &Poller) {
        if let Some(running) = &mut self.running {
            running.channel.flush(poller);
        }
    }

    /// Ends the process. Returns the expression that it was to evaluate.
    fn end(&mut self, poller: &mut Poller) -> Option<Expression> {
        let mut running = self.running.take()?;
        poller.cancel(Timer::Evaluator);
        running.channel.end(poller);
        send_signal(running.pid, Signal::KILL);
        let _ = os_process::waitpid(Pid::from_raw(running.pid), WaitOptions::empty());
        running.present
    }
}

impl Guardian {
    /// Hands an expression to the evaluator. False if it is not there, busy, or the expression is too long for it.
    pub fn is_handed_over(&mut self, request: u64, payload: &[u8], timeout: Duration) -> bool {
        let Some(running) = &mut self.evaluator.running else { return false };
        if running.present.is_some() || payload.len() > EVALUATOR_REQUEST_BYTES {
            return false;
        }
        send_signal(running.pid, Signal::CONT); // code of the session may have stopped it
        if running.channel.send(wire::pack(EXPRESSION, payload), &self.poller).is_err() {
            return false; // cannot be: one expression is far below the bound
        }
        let begun = Instant::now();
        running.present = Some(Expression { request, payload: payload.to_vec(), begun, timeout });
        self.poller.after(Timer::Evaluator, timeout);
        self.reap_soon();
        true
    }

    /// Starts the evaluator, unless it is there. Without it each expression has a process of its own.
    pub fn ensure_evaluator(&mut self) {
        if self.evaluator.running.is_some() {
            return;
        }
        if let Ok(running) = self.start_evaluator() {
            self.evaluator.running = running;
        }
    }

    fn start_evaluator(&mut self) -> io::Result<Option<Running>> {
        let mut channel = Channel::new(Token::Evaluator, Token::EvaluatorOut)?;
        let ends: Option<[BorrowedFd<'_>; 2]> = channel.runner_ends().map(Into::into);
        let pid = ends.and_then(|ends| self.make_process(Wanted::Evaluator, &[], &ends));
        channel.close_runner_ends();
        channel.read(true, &self.poller);
        Ok(pid.map(|pid| Running { pid, channel, present: None }))
    }

    /// The evaluator has answered, or has ended.
    pub fn evaluator_ready(&mut self) {
        let Some(running) = &mut self.evaluator.running else { return };
        match running.channel.receive(&mut self.scratch, &self.poller) {
            Read::Some => match running.channel.next() {
                Ok(Some(answer)) => self.evaluator_answered(answer),
                Ok(None) => {}
                Err(TooLong) => self.evaluator_lost(),
            },
            Read::Nothing => {}
            Read::End => self.evaluator_lost(),
        }
    }

    fn evaluator_answered(&mut self, (kind, outcome): (u8, Vec<u8>)) {
        let present = self.evaluator.running.as_mut().and_then(|running| running.present.take());
        let Some(expression) = present else { return self.evaluator_lost() };
        self.poller.cancel(Timer::Evaluator);
        if kind == NOT_TAKEN {
            self.evaluate_alone(expression);
        } else {
            self.tell_outcome(expression.request, &outcome, Ending::default(), expression.timeout);
        }
    }

    /// Takes an answer that came before the evaluator was lost, or was late to be read.
    fn take_last_answer(&mut self) {
        while let Some(running) = self.evaluator.running.as_mut().filter(|running| running.present.is_some())
        {
            if running.channel.receive(&mut self.scratch, &self.poller) != Read::Some {
                return;
            }
            match running.channel.next() {
                Ok(Some(answer)) => self.evaluator_answered(answer),
                Ok(None) => {}
                Err(TooLong) => return,
            }
        }
    }

    fn evaluator_lost(&mut self) {
        self.take_last_answer();
        if let Some(expression) = self.evaluator.end(&mut self.poller) {
            self.evaluate_alone(expression);
        }
    }

    /// Evaluates it in a process of its own, in what is left of its time.
    fn evaluate_alone(&mut self, expression: Expression) {
        let Expression { request, payload, begun, timeout } = expression;
        if let Err(refusal) = self.start_computation(request, Wanted::Compute, begun, timeout, &payload) {
            self.refuse(&refusal, Some(request), None);
        }
    }

    pub fn evaluator_timed_out(&mut self) {
        self.take_last_answer();
        if self.evaluator.is_busy() {
            self.give_up_expression(KilledFor::Time);
        }
    }

    /// Ends the evaluator, and says why it does not answer.
    pub fn give_up_expression(&mut self, reason: KilledFor) {
        if let Some(Expression { request, timeout, .. }) = self.evaluator.end(&mut self.poller) {
            self.tell_outcome(request, &[], Ending { killed_for: Some(reason), exit_code: 0 }, timeout);
        }
    }

    /// Does without the evaluator if code of the session has stopped it.
    pub fn press_evaluator(&mut self) {
        let stands = |pid| process_table::row(pid).is_some_and(|row| row.stands);
        if self.evaluator.is_busy() && self.evaluator.pid().is_some_and(stands) {
            self.evaluator_lost();
        }
    }

    /// A child of the guardian has ended. False if it was not the evaluator.
    pub fn evaluator_ended(&mut self, pid: i32) -> bool {
        let is_ours = self.evaluator.pid() == Some(pid);
        if is_ours {
            self.evaluator_lost();
        }
        is_ours
    }
}
