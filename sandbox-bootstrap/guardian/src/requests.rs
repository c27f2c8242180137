//! Requests of programs: `pip install` in a child of a cell, or in a command, asks the host's installer.
//!
//! Such a program has no descriptor of the kernel, so it connects to a socket with a name. The guardian listens there, but
//! takes nothing from it: a descriptor that code of the session sends along is closed by its receiver, which can take as
//! long as its sender likes. So a fork of the guardian accepts one connection, reads one request and passes it on in a
//! pipe, and ends when the answer is delivered or the program is gone. Some programs are served at a time; one more is
//! told so. Code of the session can stop a fork, so the guardian ends one that is late with its reading or its delivery.
//! For an answer a fork waits as long as the daemon takes, because a person may have to allow the request.
//!
//! The daemon takes a request for a tool call of the session's code, so the same rules hold for it. It is told when the
//! program is gone before the answer, so that it can stop working on it. Code that only shows, packs or loads variables
//! may call no tool, neither on its own channel nor by a program that it starts, so such programs are turned away.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::event::epoll::EventFlags;
use rustix::io;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Signal;
use serde_json::json;

use crate::calls::VIEWS_CALL_NOTHING;
use crate::channel::{Channel, Read};
use crate::controls;
use crate::guardian::Guardian;
use crate::handle::{Handle, Role};
use crate::limits::{REQUEST_LATE, REQUEST_PAUSE, REQUESTS_AT_ONCE, REQUESTS_WAITING};
use crate::poller::{Poller, Timer, Token, Watch};
use crate::process::{Processes, send_signal};
use crate::process_table;
use crate::request_forks::{ACCEPTED, PID_BYTES, REQUEST, TURNED_AWAY, Work, keep_only};
use crate::sys;
use crate::wire;

/// The answer to a request.
const ANSWER: u8 = b'A';
/// The name of the guardian's socket. It is abstract, because code of the session could remove a file. Such names belong
/// to a network namespace, and each sandbox has its own.
const NAME: &[u8] = b"belljar-requests";

/// A request that is being read or waits for its answer, or programs that are turned away.
struct Open {
    /// The fork that talks to the program.
    pid: i32,
    channel: Channel,
    /// Before that, the connection that it is there for would be taken for that of one more program.
    has_accepted: bool,
    /// The call that has no answer yet.
    call: Option<u64>,
}

#[derive(Default)]
pub struct Requests {
    listener: Option<(OwnedFd, Watch)>,
    /// The forks that run, by an index that is free again when its fork has ended.
    open: BTreeMap<u32, Open>,
    /// Whether the programs that wait have ended and are to be turned away; none is served before that is done.
    are_stale: bool,
}

impl Requests {
    /// Waits for programs. Without a network of its own, the sandbox would share the name with others, so there it has none.
    pub fn listen(&mut self, poller: &Poller) {
        self.listener = new_listener().ok().map(|listener| (listener, Watch::new(Token::Requests)));
        self.watch(poller, true);
    }

    fn watch(&mut self, poller: &Poller, on: bool) {
        if let Some((listener, watch)) = &mut self.listener {
            watch.set(poller, listener, if on { EventFlags::IN } else { EventFlags::empty() });
        }
    }

    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.open.values().map(|open| open.pid)
    }

    /// What a fork for the next program has to do; `None` if there shall be no other one now.
    fn next_work(&self) -> Option<Work> {
        if self.open.values().any(|open| !open.has_accepted) {
            return None;
        }
        match self.open.len() {
            0 if self.are_stale => Some(Work::TurnAway),
            _ if self.are_stale => None,
            count if count < REQUESTS_AT_ONCE => Some(Work::Serve),
            REQUESTS_AT_ONCE => Some(Work::Refuse),
            _ => None,
        }
    }

    /// Lets go of a fork, and gives the call that has no answer yet.
    fn close(&mut self, index: u32, poller: &mut Poller) -> Option<u64> {
        let mut open = self.open.remove(&index)?;
        open.channel.end(poller);
        poller.cancel(Timer::Request(index));
        poller.after(Timer::Requests, REQUEST_PAUSE);
        open.call
    }

    pub fn flush(&mut self, index: u32, poller: &Poller) {
        if let Some(open) = self.open.get_mut(&index) {
            open.channel.flush(poller);
        }
    }

    /// Passes on the answer to a call. False if no request made it.
    pub fn answer(&mut self, call: u64, text: &str, poller: &mut Poller) -> bool {
        let found = self.open.iter_mut().find(|(_, open)| open.call == Some(call));
        let Some((index, open)) = found else { return false };
        open.call = None;
        send_signal(open.pid, Signal::CONT); // code of the session may have stopped it
        poller.after(Timer::Request(*index), REQUEST_LATE);
        let message = wire::pack(ANSWER, text.as_bytes());
        if open.channel.send(message, poller).is_err() {
            send_signal(open.pid, Signal::KILL);
        }
        true
    }
}

fn new_listener() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::bind(&listener, &SocketAddrUnix::new_abstract_name(NAME)?)?;
    net::listen(&listener, REQUESTS_WAITING)?;
    Ok(listener)
}

impl Guardian {
    /// A program has connected: a fork talks to it. The next program is looked for when the fork has accepted this one, and a
    /// moment later if there could be no fork.
    pub fn request_came(&mut self) {
        self.requests.watch(&self.poller, false);
        if let Some(work) = self.requests.next_work().filter(|_| !self.is_pressed) {
            // Without a process or a descriptor for it, the program waits.
            let _ = self.fork_for_requests(work);
        }
        self.poller.within(Timer::Requests, REQUEST_PAUSE);
    }

    fn fork_for_requests(&mut self, work: Work) -> io::Result<()> {
        let (listener, _) = self.requests.listener.as_ref().ok_or(io::Errno::BADF)?;
        let index = (0..u32::MAX).find(|index| !self.requests.open.contains_key(index)).unwrap_or_default();
        let mut channel = Channel::new(Token::Request(index), Token::RequestOut(index))?;
        let ends = channel.runner_ends().ok_or(io::Errno::BADF)?;
        let pid = sys::fork_into(|| match keep_only(ends.1, ends.0, listener) {
            Ok(()) => work.done(),
            Err(_) => 1,
        })?;
        channel.close_runner_ends();
        channel.read(true, &self.poller);
        self.requests.open.insert(index, Open { pid, channel, has_accepted: false, call: None });
        self.poller.after(Timer::Request(index), REQUEST_LATE);
        Ok(())
    }

    /// Turns away the programs that wait or are served, all of which have ended: a reset has lifted the rules that bound
    /// their requests, so that none of them may be served after it.
    pub fn drop_requests(&mut self) {
        if self.requests.listener.is_some() && controls::holds("reset_drops_requests") {
            for index in self.requests.open.keys().copied().collect::<Vec<_>>() {
                self.end_request(index);
            }
            self.requests.are_stale = true;
            self.poller.cancel(Timer::Requests);
            self.request_came();
        }
    }

    pub fn watch_requests(&mut self) {
        if self.requests.are_stale {
            self.request_came();
        } else {
            let has_room = self.requests.next_work().is_some();
            self.requests.watch(&self.poller, has_room);
        }
    }

    /// The time of a fork for its reading or its delivery is over.
    pub fn request_is_late(&mut self, index: u32) {
        if controls::holds("late_requests_end") {
            self.end_request(index);
        }
    }

    /// Ends a fork that is late, or whose program is gone. Its place is free at once: a process that is killed can take
    /// long to close what it was sent.
    fn end_request(&mut self, index: u32) {
        let Some(open) = self.requests.open.get(&index) else { return };
        send_signal(open.pid, Signal::KILL);
        self.close_request(index);
    }

    /// A child of the guardian has ended. False if it was not the fork for a request.
    pub fn request_ended(&mut self, pid: i32, exit_code: i32) -> bool {
        let found = self.requests.open.iter().find(|(_, open)| open.pid == pid).map(|(index, _)| *index);
        let Some(index) = found else { return false };
        self.requests.are_stale &= exit_code != TURNED_AWAY;
        self.close_request(index);
        true
    }

    fn close_request(&mut self, index: u32) {
        if let Some(call) = self.requests.close(index, &mut self.poller) {
            self.send(&json!({"type": "tool_abandoned", "call": call}));
        }
    }

    /// The fork has passed something on, or has ended.
    pub fn request_ready(&mut self, index: u32) {
        let Some(open) = self.requests.open.get_mut(&index) else { return };
        match open.channel.receive(&mut self.scratch, &self.poller) {
            Read::Nothing => {}
            // The fork can be reaped a moment after it has closed its end.
            Read::End => self.poller.within(Timer::Reap, REQUEST_PAUSE),
            Read::Some => {
                while let Some(open) = self.requests.open.get_mut(&index)
                    && let Ok(Some((kind, payload))) = open.channel.next()
                {
                    match kind {
                        ACCEPTED => open.has_accepted = true,
                        REQUEST if open.call.is_none() => self.requested(index, &payload),
                        _ => {}
                    }
                }
                self.watch_requests();
            }
        }
    }

    /// A program wants a tool to be called.
    fn requested(&mut self, index: u32, payload: &[u8]) {
        let Some(open) = self.requests.open.get_mut(&index) else { return };
        let Some((pid, said)) = payload.split_first_chunk::<PID_BYTES>() else { return };
        let program = i32::from_be_bytes(*pid);
        let call = self.next_call;
        self.next_call += 1;
        open.call = Some(call);
        self.poller.cancel(Timer::Request(index));
        if self.may_be_of_viewer(program) && controls::holds("viewers_make_no_requests") {
            let error = json!({"code": "not_allowed", "message": VIEWS_CALL_NOTHING});
            let refusal = json!({"type": "tool_failed", "error": error}).to_string();
            self.requests.answer(call, &refusal, &mut self.poller);
            return;
        }
        let cell = self.cell_of_process(program);
        let own = json!({"type": "tool_call", "call": call, "cell": cell, "from_program": true});
        self.send_of_runner(&own, said);
    }

    /// Whether a process may come of code that lists, packs or loads variables, or computes an expression. Its tag says so
    /// whatever parent and session it has, and the tree of processes where tags cannot be used. A process that is gone
    /// could be any, and does not take the answer. While the worker loads variables, only commands run beside that.
    fn may_be_of_viewer(&self, pid: i32) -> bool {
        let tag = self.processes.tag_of(pid);
        if !process_table::is_there(pid) {
            return true; // its tag may not have been readable any more
        }
        let is_loading = self.worker().is_some_and(|worker| worker.loading.is_some());
        if is_loading && !tag.is_some_and(process_table::is_of_command) {
            return true;
        }
        let shows = |handle: &&Handle| matches!(handle.role, Role::View | Role::Snapshot);
        let views = self.handles.values().filter(shows);
        let mut viewers =
            views.filter_map(|handle| handle.pid).chain(self.computations.pids()).chain(self.evaluator.pid());
        tag.is_some_and(Processes::may_be_of_view)
            || viewers.any(|viewer| viewer == pid || process_table::comes_of(viewer, pid))
    }

    /// The cell or the command that a process belongs to, as far as its tag says; `None` if nothing of it runs any more.
    /// A process can lower its tag to another one, so the daemon does not believe it where rules differ.
    fn cell_of_process(&self, pid: i32) -> Option<u64> {
        let tag = self.processes.tag_of(pid);
        if !process_table::is_there(pid) {
            return None; // its tag may not have been readable any more
        }
        let cell = match tag {
            Some(tag) => self.commands.cell_of_tag(tag).or_else(|| {
                let has_tag = |handle: &&Handle| self.processes.tag(handle.index, handle.role) == Some(tag);
                let copy = self.handles.values().find(has_tag);
                copy.map(|handle| handle.cell)
            }),
            None => self.line.worker.and_then(|index| self.handles.get(&index)).map(|handle| handle.cell),
        };
        cell.filter(|cell| *cell != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_served_up_to_a_bound_one_more_is_told_and_none_before_those_of_a_reset_are_gone() {
        let mut requests = Requests::default();
        let open = |index| {
            let channel = Channel::new(Token::Request(index), Token::RequestOut(index)).unwrap();
            Open { pid: 0, channel, has_accepted: true, call: None }
        };
        for index in 0..16 {
            assert_eq!(requests.next_work(), Some(Work::Serve));
            let is_late = Open { has_accepted: false, ..open(index) };
            requests.open.insert(index, is_late);
            assert_eq!(requests.next_work(), None, "the connection may be the one that it is to accept");
            requests.open.insert(index, open(index));
        }
        assert_eq!(requests.next_work(), Some(Work::Refuse));
        requests.open.insert(16, open(16));
        assert_eq!(requests.next_work(), None);
        requests.are_stale = true;
        assert_eq!(requests.next_work(), None);
        requests.open.clear();
        assert_eq!(requests.next_work(), Some(Work::TurnAway));
    }
}
