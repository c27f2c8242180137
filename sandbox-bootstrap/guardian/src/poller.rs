//! One epoll set and timers. What is ready is told by tokens; the guardian's loop knows what they mean.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io;

use crate::limits::TURN;
use crate::output::Stream;

/// What a watched descriptor is. Numbers are indexes of runners, of computations, of commands, of background cells or of
/// requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    Bridge,
    Inbox,
    Control(u32),
    ControlOut(u32),
    Tools(u32),
    ToolsOut(u32),
    Output(u32, Stream),
    Pidfd(u32),
    Computation(u32),
    Evaluator,
    EvaluatorOut,
    CommandOutput(u32, Stream),
    CommandInput(u32),
    BackgroundOutput(u32, Stream),
    /// The pidfd of a command.
    Command(u32),
    /// The socket that programs connect to.
    Requests,
    /// The fork that talks to such a program, by the index of its request.
    Request(u32),
    RequestOut(u32),
}

impl Token {
    fn to_u64(self) -> u64 {
        let (kind, index) = match self {
            Self::Bridge => (0, 0),
            Self::Inbox => (1, 0),
            Self::Control(index) => (2, index),
            Self::ControlOut(index) => (3, index),
            Self::Tools(index) => (4, index),
            Self::ToolsOut(index) => (5, index),
            Self::Output(index, Stream::Stdout) => (6, index),
            Self::Output(index, Stream::Stderr) => (7, index),
            Self::Pidfd(index) => (8, index),
            Self::Computation(index) => (9, index),
            Self::Evaluator => (10, 0),
            Self::EvaluatorOut => (11, 0),
            Self::CommandOutput(index, Stream::Stdout) => (12, index),
            Self::CommandOutput(index, Stream::Stderr) => (13, index),
            Self::CommandInput(index) => (14, index),
            Self::Command(index) => (15, index),
            Self::Requests => (16, 0),
            Self::Request(index) => (17, index),
            Self::RequestOut(index) => (18, index),
            Self::BackgroundOutput(index, Stream::Stdout) => (19, index),
            Self::BackgroundOutput(index, Stream::Stderr) => (20, index),
        };
        kind << 32 | u64::from(index)
    }

    fn from_u64(value: u64) -> Self {
        #[allow(clippy::cast_possible_truncation)] // the lower half is the index
        let index = value as u32;
        match value >> 32 {
            0 => Self::Bridge,
            1 => Self::Inbox,
            2 => Self::Control(index),
            3 => Self::ControlOut(index),
            4 => Self::Tools(index),
            5 => Self::ToolsOut(index),
            6 => Self::Output(index, Stream::Stdout),
            7 => Self::Output(index, Stream::Stderr),
            8 => Self::Pidfd(index),
            9 => Self::Computation(index),
            10 => Self::Evaluator,
            11 => Self::EvaluatorOut,
            12 => Self::CommandOutput(index, Stream::Stdout),
            13 => Self::CommandOutput(index, Stream::Stderr),
            14 => Self::CommandInput(index),
            15 => Self::Command(index),
            16 => Self::Requests,
            17 => Self::Request(index),
            18 => Self::RequestOut(index),
            19 => Self::BackgroundOutput(index, Stream::Stdout),
            _ => Self::BackgroundOutput(index, Stream::Stderr),
        }
    }
}

/// What happens after a while. Numbers are indexes of runners, of computations, of commands, of background cells or of
/// requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Timer {
    Connect,
    Handshake,
    /// Without a daemon the sandbox ends.
    Orphan,
    Checkpoint,
    StartWorker,
    Reap,
    Sweep,
    KillStrays,
    WatchMemory,
    CheckMemory,
    Resume,
    HoldPacking,
    /// The grace of a kill, the time of a listing, or of a copy that has answered, is over.
    End(u32),
    NotBack(u32),
    EndedUnseen(u32),
    GatherStdout(u32),
    GatherStderr(u32),
    Computation(u32),
    StartEvaluator,
    /// The time of the expression that the evaluator works at is over.
    Evaluator,
    GatherCommand(u32),
    /// The grace of a command that is to be killed is over.
    EndCommand(u32),
    GatherBackground(u32),
    /// The grace of a background cell that is to be killed is over.
    EndBackground(u32),
    /// The next request may come.
    Requests,
    /// A fork is late with the reading of a request, or with the delivery of its answer.
    Request(u32),
}

/// A descriptor's place in the epoll set.
#[derive(Debug)]
pub struct Watch {
    token: Token,
    flags: EventFlags,
}

impl Watch {
    pub fn new(token: Token) -> Self {
        Self { token, flags: EventFlags::empty() }
    }

    /// Watches for these events. None: stop watching, hang-ups included. False if the system refuses.
    pub fn set(&mut self, poller: &Poller, descriptor: impl AsFd, wanted: EventFlags) -> bool {
        if wanted == self.flags {
            return true;
        }
        let (epoll, data) = (&poller.epoll, EventData::new_u64(self.token.to_u64()));
        let done = if wanted.is_empty() {
            epoll::delete(epoll, descriptor)
        } else if self.flags.is_empty() {
            epoll::add(epoll, descriptor, data, wanted)
        } else {
            epoll::modify(epoll, descriptor, data, wanted)
        };
        if done.is_ok() {
            self.flags = wanted;
        }
        done.is_ok()
    }
}

const EVENTS: usize = 64;

pub struct Poller {
    epoll: OwnedFd,
    timers: BTreeMap<Timer, Instant>,
    turn_began: Instant,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, timers: BTreeMap::new(), turn_began: Instant::now() })
    }

    /// A timer with the same key is replaced.
    pub fn after(&mut self, timer: Timer, pause: Duration) {
        self.timers.insert(timer, Instant::now() + pause);
    }

    /// Like `after`, but a timer with the same key that is due earlier stays.
    pub fn within(&mut self, timer: Timer, pause: Duration) {
        let due = Instant::now() + pause;
        self.timers.entry(timer).and_modify(|known| *known = due.min(*known)).or_insert(due);
    }

    pub fn cancel(&mut self, timer: Timer) {
        self.timers.remove(&timer);
    }

    /// How long the guardian may wait for a runner, which may be hostile: all waits of one turn have one budget.
    ///
    /// What came in meanwhile, the end of a cell for example, is handled only after the turn.
    pub fn patience(&self, pause: Duration) -> Duration {
        pause.min((self.turn_began + TURN).saturating_duration_since(Instant::now()))
    }

    /// Waits for the next event or timer, and tells what is ready.
    pub fn wait(&mut self) -> Vec<(Token, EventFlags)> {
        let timeout = self.timers.values().min().map(|due| {
            let left = due.saturating_duration_since(Instant::now());
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; EVENTS];
        let count = epoll::wait(&self.epoll, &mut events, timeout.as_ref()).unwrap_or(0);
        self.turn_began = Instant::now();
        events[..count].iter().map(|event| (Token::from_u64(event.data.u64()), event.flags)).collect()
    }

    /// Takes out the timers that are due now.
    pub fn due(&mut self) -> Vec<Timer> {
        let now = Instant::now();
        self.timers.iter().filter(|(_, due)| **due <= now).map(|(timer, _)| *timer).collect()
    }

    /// Takes a due timer out. False if it was cancelled or put off since.
    pub fn ring(&mut self, timer: Timer) -> bool {
        let is_due = self.timers.get(&timer).is_some_and(|due| *due <= Instant::now());
        if is_due {
            self.timers.remove(&timer);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_as_they_were() {
        for token in [
            Token::Bridge,
            Token::Inbox,
            Token::Control(1),
            Token::ControlOut(2),
            Token::Tools(3),
            Token::ToolsOut(4),
            Token::Output(5, Stream::Stdout),
            Token::Output(u32::MAX, Stream::Stderr),
            Token::Pidfd(6),
            Token::Computation(7),
            Token::Evaluator,
            Token::EvaluatorOut,
            Token::CommandOutput(8, Stream::Stdout),
            Token::CommandOutput(9, Stream::Stderr),
            Token::CommandInput(10),
            Token::Command(11),
            Token::Requests,
            Token::Request(12),
            Token::RequestOut(13),
        ] {
            assert_eq!(Token::from_u64(token.to_u64()), token);
        }
    }

    #[test]
    fn a_timer_that_was_put_off_does_not_ring() {
        let mut poller = Poller::new().unwrap();
        poller.after(Timer::Reap, Duration::ZERO);
        poller.after(Timer::Sweep, Duration::ZERO);
        assert_eq!(poller.due(), [Timer::Reap, Timer::Sweep]);
        poller.after(Timer::Reap, Duration::from_secs(9));
        assert!(!poller.ring(Timer::Reap) && poller.ring(Timer::Sweep) && !poller.ring(Timer::Sweep));
        poller.within(Timer::Reap, Duration::ZERO);
        assert!(poller.ring(Timer::Reap));
    }
}
