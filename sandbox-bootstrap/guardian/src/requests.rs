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
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io;
use rustix::net::{self, AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use rustix::process::{self, Pid, Signal};
use rustix::stdio;
use serde_json::json;

use crate::calls::VIEWS_CALL_NOTHING;
use crate::channel::{Channel, Read};
use crate::controls;
use crate::guardian::Guardian;
use crate::handle::{Handle, Role};
use crate::limits::{
    REQUEST_BYTES, REQUEST_LATE, REQUEST_PATIENCE, REQUEST_PAUSE, REQUESTS_AT_ONCE, REQUESTS_WAITING,
};
use crate::poller::{Poller, Timer, Token, Watch};
use crate::process::{Processes, send_signal};
use crate::process_table;
use crate::sys;
use crate::wire::{self, MessageReader};

/// The name of the guardian's socket. It is abstract, because code of the session could remove a file. Such names belong
/// to a network namespace, and each sandbox has its own.
const NAME: &[u8] = b"belljar-requests";
/// A request, with the pid of the program before it; and its answer.
const REQUEST: u8 = b'C';
const ANSWER: u8 = b'A';
const PID_BYTES: usize = 4;
/// The exit code of a fork that has turned away all programs that waited.
const TURNED_AWAY: i32 = 7;

/// A request that is being read or waits for its answer, or programs that are turned away.
struct Open {
    /// The fork that talks to the program.
    pid: i32,
    channel: Channel,
    /// The call that has no answer yet.
    call: Option<u64>,
}

/// What a fork does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Serves one program.
    Serve,
    /// Tells one program that too many are served.
    Refuse,
    /// Closes the connections of all programs that wait. What they have sent along is closed with them.
    TurnAway,
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
    /// A program has connected: a fork talks to it. The next program is looked for a moment later, when the fork has
    /// accepted this one.
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
        self.requests.open.insert(index, Open { pid, channel, call: None });
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
                let Ok(Some((REQUEST, payload))) = open.channel.next() else { return };
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
        }
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

// In the fork.

/// Keeps the guardian's channel as standard input and output, the listener as standard error, and nothing else.
fn keep_only(input: impl AsFd, output: impl AsFd, listener: &OwnedFd) -> io::Result<()> {
    stdio::dup2_stdin(input)?;
    stdio::dup2_stdout(output)?;
    stdio::dup2_stderr(listener)?;
    crate::close_inherited();
    Ok(())
}

impl Work {
    /// Does it, and gives the exit code.
    fn done(self) -> i32 {
        let _ = rustix::thread::set_name(c"belljar-request");
        // The guardian may have ended before this was set; then the pipe is closed, too.
        let _ = process::set_parent_process_death_signal(Some(Signal::KILL));
        if self == Self::TurnAway {
            return turn_all_away();
        }
        let Ok(client) = net::accept_with(stdio::stderr(), SocketFlags::CLOEXEC) else { return 0 };
        let done = if self == Self::Serve { serve(&client) } else { refuse(&client) };
        i32::from(done.is_none())
    }
}

fn turn_all_away() -> i32 {
    loop {
        match net::accept_with(stdio::stderr(), SocketFlags::CLOEXEC) {
            Ok(_) | Err(io::Errno::INTR | io::Errno::CONNABORTED) => {}
            Err(io::Errno::AGAIN) => return TURNED_AWAY,
            Err(_) => return 1,
        }
    }
}

fn serve(client: &OwnedFd) -> Option<()> {
    let program = sockopt::socket_peercred(client).map_or(0, |peer| Pid::as_raw(Some(peer.pid)));
    let request = read_line(client)?;
    let message = wire::pack_parts(REQUEST, &[&program.to_be_bytes(), &request]);
    write_all(&message, |bytes| io::write(stdio::stdout(), bytes))?;
    deliver(client, &wait_for_answer(client)?)
}

fn refuse(client: &OwnedFd) -> Option<()> {
    read_line(client)?; // a connection that is closed with something unread is an error for the program
    let message = format!(
        "{REQUESTS_AT_ONCE} requests of this sandbox have no answer yet: try again when one of them has it"
    );
    let refusal = json!({"type": "tool_failed", "error": {"code": "busy", "message": message}});
    deliver(client, refusal.to_string().as_bytes())
}

fn deliver(client: &OwnedFd, answer: &[u8]) -> Option<()> {
    sockopt::set_socket_timeout(client, sockopt::Timeout::Send, Some(REQUEST_PATIENCE)).ok()?;
    write_all(answer, |bytes| net::send(client, bytes, SendFlags::NOSIGNAL))
}

fn write_all(mut bytes: &[u8], write: impl Fn(&[u8]) -> io::Result<usize>) -> Option<()> {
    while !bytes.is_empty() {
        match write(bytes) {
            Ok(written) => bytes = bytes.get(written..)?,
            Err(io::Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    Some(())
}

/// What the program sends up to the end of a line, within bounds.
fn read_line(client: &OwnedFd) -> Option<Vec<u8>> {
    let (deadline, mut line, mut chunk) = (Instant::now() + REQUEST_PATIENCE, Vec::new(), [0; 4096]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let mut ready = [PollFd::new(client, PollFlags::IN)];
        wait(&mut ready, Some(left));
        if ready[0].revents().is_empty() {
            continue;
        }
        let count = io::read(client, &mut chunk).ok().filter(|count| *count > 0)?;
        line.extend_from_slice(&chunk[..count]);
        if let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            line.truncate(end);
            return (end <= REQUEST_BYTES).then_some(line);
        }
        if line.len() > REQUEST_BYTES {
            return None;
        }
    }
}

/// The guardian's answer; `None` if the program or the guardian is gone before.
fn wait_for_answer(client: &OwnedFd) -> Option<Vec<u8>> {
    let (mut reader, mut chunk, input) = (MessageReader::default(), [0; 4096], stdio::stdin());
    loop {
        let mut ready =
            [PollFd::from_borrowed_fd(input, PollFlags::IN), PollFd::new(client, PollFlags::empty())];
        wait(&mut ready, None);
        if ready[1].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
            return None;
        }
        if ready[0].revents().is_empty() {
            continue;
        }
        let count = io::read(input, &mut chunk).ok().filter(|count| *count > 0)?;
        reader.feed(&chunk[..count]);
        if let Some((_, answer)) = reader.next().ok()? {
            return Some(answer);
        }
    }
}

fn wait(ready: &mut [PollFd<'_>], limit: Option<Duration>) {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let _ = poll(ready, limit.as_ref());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_served_up_to_a_bound_one_more_is_told_and_none_before_those_of_a_reset_are_gone() {
        let mut requests = Requests::default();
        let open = |index| {
            let channel = Channel::new(Token::Request(index), Token::RequestOut(index)).unwrap();
            Open { pid: 0, channel, call: None }
        };
        for index in 0..16 {
            assert_eq!(requests.next_work(), Some(Work::Serve));
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

    #[test]
    fn a_refused_program_is_told_why() {
        let (client, program) = pair();
        io::write(&program, b"{}\n").unwrap();
        assert_eq!(refuse(&client), Some(()));
        drop(client);
        let mut told = [0; 4096];
        let count = io::read(&program, &mut told).unwrap();
        let told: serde_json::Value = serde_json::from_slice(&told[..count]).unwrap();
        assert_eq!((&told["type"], &told["error"]["code"]), (&json!("tool_failed"), &json!("busy")));
        assert_eq!(io::read(&program, &mut [0; 1]), Ok(0), "a plain end, no error");
    }

    fn pair() -> (OwnedFd, OwnedFd) {
        net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn a_request_is_what_comes_before_the_end_of_the_line_however_it_is_cut() {
        crate::noise::try_out(300, |noise| {
            let size = [0, 1, 200, 9000][noise.below(4)];
            let mut sent = noise.bytes(size);
            noise.damage(&mut sent, 2, &[b"\n", b"\0"]);
            let expected = sent.iter().position(|byte| *byte == b'\n').map(|end| sent[..end].to_vec());
            let (client, program) = pair();
            let pieces: Vec<Vec<u8>> = noise.cut(&sent).into_iter().map(<[u8]>::to_vec).collect();
            let writer = std::thread::spawn(move || {
                for piece in pieces {
                    let _ = write_all(&piece, |bytes| net::send(&program, bytes, SendFlags::NOSIGNAL));
                }
            });
            assert_eq!(read_line(&client), expected);
            drop(client);
            writer.join().unwrap();
        });
    }

    #[test]
    fn a_request_is_one_line_of_bounded_length() {
        let (client, program) = pair();
        io::write(&program, b"{\"a\":1}\nmore").unwrap();
        assert_eq!(read_line(&client).unwrap(), b"{\"a\":1}");
        let (client, program) = pair();
        drop(program);
        assert_eq!(read_line(&client), None);
        let (client, program) = pair();
        let writer = std::thread::spawn(move || {
            write_all(&vec![b'x'; REQUEST_BYTES + 5000], |bytes| {
                net::send(&program, bytes, SendFlags::NOSIGNAL)
            })
        });
        assert_eq!(read_line(&client), None);
        drop(client);
        writer.join().unwrap();
    }
}
