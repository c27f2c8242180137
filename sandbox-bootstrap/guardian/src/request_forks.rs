//! What a fork of the guardian does with a program that has connected: see `requests`.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io;
use rustix::net::{self, SendFlags, SocketFlags, sockopt};
use rustix::process::{self, Pid, Signal};
use rustix::stdio;
use serde_json::json;

use crate::limits::{REQUEST_BYTES, REQUEST_PATIENCE, REQUESTS_AT_ONCE};
use crate::wire::{self, MessageReader};

/// A fork has accepted a connection.
pub const ACCEPTED: u8 = b'T';
/// A request, with the pid of the program before it.
pub const REQUEST: u8 = b'C';
pub const PID_BYTES: usize = 4;
/// The exit code of a fork that has turned away all programs that waited.
pub const TURNED_AWAY: i32 = 7;

/// What a fork does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Serves one program.
    Serve,
    /// Tells one program that too many are served.
    Refuse,
    /// Closes the connections of all programs that wait. What they have sent along is closed with them.
    TurnAway,
}

/// Keeps the guardian's channel as standard input and output, the listener as standard error, and nothing else.
pub fn keep_only(input: impl AsFd, output: impl AsFd, listener: &OwnedFd) -> io::Result<()> {
    stdio::dup2_stdin(input)?;
    stdio::dup2_stdout(output)?;
    stdio::dup2_stderr(listener)?;
    crate::close_inherited();
    Ok(())
}

impl Work {
    /// Does it, and gives the exit code.
    pub fn done(self) -> i32 {
        let _ = rustix::thread::set_name(c"belljar-request");
        // The guardian may have ended before this was set; then the pipe is closed, too.
        let _ = process::set_parent_process_death_signal(Some(Signal::KILL));
        if self == Self::TurnAway {
            return turn_all_away();
        }
        let Ok(client) = net::accept_with(stdio::stderr(), SocketFlags::CLOEXEC) else { return 0 };
        if write_all(&wire::pack(ACCEPTED, b""), |bytes| io::write(stdio::stdout(), bytes)).is_none() {
            return 1;
        }
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
    use rustix::net::{AddressFamily, SocketType};

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
