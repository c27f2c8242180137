//! The guardian's ends of the connections with a runner; never blocks.
//!
//! The guardian sends on a socket, which can also carry descriptors. The runner cannot send on it: a descriptor in the
//! queue of a socket is closed by the process that owns the queue, and closing it can take as long as its sender likes.
//! So a runner sends on a pipe, which carries bytes only.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;
use rustix::io::{self, Errno};
use rustix::net::{
    self, AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::pipe::{self, PipeFlags};

use crate::controls;
use crate::limits::RUNNER_QUEUE_BYTES;
use crate::poller::{Poller, Token, Watch};
use crate::wire::{MessageReader, TooLong};

/// Descriptors that go to a runner at its start.
pub const RUNNER_DESCRIPTORS: usize = 7;

/// What one reading of the pipe brought.
#[derive(Debug, PartialEq, Eq)]
pub enum Read {
    Some,
    Nothing,
    /// The runner, and all that hold its end, closed it.
    End,
}

/// The queue of what a runner has not read is too long.
#[derive(Debug, PartialEq, Eq)]
pub struct Unread;

pub struct Channel {
    socket: OwnedFd,
    pipe: OwnedFd,
    /// The runner's ends, until they are handed over: the one that it sends on, and the one that it receives on.
    runner_ends: Option<(OwnedFd, OwnedFd)>,
    reader: MessageReader,
    queue: VecDeque<Vec<u8>>,
    /// Bytes of the queue's first message that were sent.
    queue_sent: usize,
    queue_bytes: usize,
    is_reading: bool,
    has_ended: bool,
    received: u64,
    most_waiting: Option<usize>,
    watch_in: Watch,
    watch_out: Watch,
}

impl Channel {
    pub fn new(token_in: Token, token_out: Token) -> io::Result<Self> {
        let (socket, runner_socket) =
            net::socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        io::ioctl_fionbio(&socket, true)?;
        if controls::holds("runners_send_no_descriptors") {
            net::shutdown(&socket, net::Shutdown::Read)?;
        }
        let (pipe, runner_pipe) = pipe::pipe_with(PipeFlags::CLOEXEC)?;
        io::ioctl_fionbio(&pipe, true)?;
        Ok(Self {
            socket,
            pipe,
            runner_ends: Some((runner_pipe, runner_socket)),
            reader: MessageReader::default(),
            queue: VecDeque::new(),
            queue_sent: 0,
            queue_bytes: 0,
            is_reading: false,
            has_ended: false,
            received: 0,
            most_waiting: None,
            watch_in: Watch::new(token_in),
            watch_out: Watch::new(token_out),
        })
    }

    /// The runner's descriptors: the one that it sends on, and the one that it receives on.
    pub fn runner_ends(&self) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        self.runner_ends.as_ref().map(|(pipe, socket)| (pipe.as_fd(), socket.as_fd()))
    }

    /// Closes the guardian's copies of them, after they were handed over.
    pub fn close_runner_ends(&mut self) {
        self.runner_ends = None;
    }

    pub fn pipe(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub fn read(&mut self, on: bool, poller: &Poller) {
        self.is_reading = on;
        self.watch(poller);
    }

    /// Reads only while no more bytes than that wait to be sent; `None`: always.
    ///
    /// Not for a well-behaved runner: it may send before it reads, and both would wait for each other.
    pub fn read_while(&mut self, most_waiting: Option<usize>, poller: &Poller) {
        self.most_waiting = most_waiting;
        self.watch(poller);
    }

    /// Bytes that the runner has sent up to now, read or not.
    pub fn sent(&self) -> u64 {
        if self.has_ended { self.received } else { self.received + bytes_waiting(&self.pipe) }
    }

    /// Bytes that were read.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes that the runner had sent by the end of the message that is being handled, or was handled last.
    pub fn handled(&self) -> u64 {
        self.received - self.reader.unread() as u64
    }

    /// Whether a part of a message was read, and its rest was not.
    pub fn has_half(&self) -> bool {
        self.reader.unread() > 0
    }

    /// Queues a message. A runner that is gone is no error: the end of its process reports that.
    pub fn send(&mut self, message: Vec<u8>, poller: &Poller) -> Result<(), Unread> {
        if self.has_ended {
            return Ok(());
        }
        let mut sent = 0;
        if self.queue.is_empty() {
            match net::send(&self.socket, &message, SendFlags::NOSIGNAL) {
                Ok(count) => sent = count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Ok(()),
            }
        }
        self.enqueue(message, sent, poller)
    }

    /// Sends a message with descriptors, which go with its first byte.
    ///
    /// Descriptors are rare, so such a message is refused if the runner does not read.
    pub fn send_with(
        &mut self,
        message: Vec<u8>,
        given: &[BorrowedFd<'_>],
        poller: &Poller,
    ) -> io::Result<()> {
        if self.has_ended {
            return Ok(());
        }
        if !self.queue.is_empty() {
            return Err(Errno::AGAIN);
        }
        let sent = send_descriptors(&self.socket, &message, given)?;
        self.enqueue(message, sent, poller).map_err(|Unread| Errno::NOBUFS)
    }

    fn enqueue(&mut self, message: Vec<u8>, sent: usize, poller: &Poller) -> Result<(), Unread> {
        if sent < message.len() {
            self.queue_bytes += message.len() - sent;
            if self.queue.is_empty() {
                self.queue_sent = sent;
            }
            self.queue.push_back(message);
            self.watch(poller);
        }
        if self.queue_bytes > RUNNER_QUEUE_BYTES { Err(Unread) } else { Ok(()) }
    }

    /// Sends what waits, as far as the runner takes it.
    pub fn flush(&mut self, poller: &Poller) {
        while let Some(first) = self.queue.front() {
            match net::send(&self.socket, &first[self.queue_sent..], SendFlags::NOSIGNAL) {
                Ok(count) => {
                    self.queue_bytes -= count;
                    self.queue_sent += count;
                    if self.queue_sent < first.len() {
                        break;
                    }
                    self.queue.pop_front();
                    self.queue_sent = 0;
                }
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => {
                    // The runner is gone.
                    self.queue.clear();
                    (self.queue_sent, self.queue_bytes) = (0, 0);
                }
            }
        }
        self.watch(poller);
    }

    /// Reads once.
    pub fn receive(&mut self, scratch: &mut [u8], poller: &Poller) -> Read {
        if self.has_ended {
            return Read::Nothing;
        }
        match io::read(&self.pipe, &mut *scratch) {
            Ok(0) => {
                self.end(poller);
                Read::End
            }
            Ok(count) => {
                self.received += count as u64;
                self.reader.feed(&scratch[..count]);
                Read::Some
            }
            Err(_) => Read::Nothing,
        }
    }

    /// The next whole message that was read.
    pub fn next(&mut self) -> Result<Option<(u8, Vec<u8>)>, TooLong> {
        if self.has_ended { Ok(None) } else { self.reader.next() }
    }

    /// Takes nothing more from the runner.
    pub fn end(&mut self, poller: &Poller) {
        self.has_ended = true;
        self.watch(poller);
    }

    fn watch(&mut self, poller: &Poller) {
        let lags = self.most_waiting.is_some_and(|most| self.queue_bytes > most);
        let reads = self.is_reading && !self.has_ended && !lags;
        let writes = !self.queue.is_empty() && !self.has_ended;
        self.watch_in.set(poller, &self.pipe, if reads { EventFlags::IN } else { EventFlags::empty() });
        self.watch_out.set(poller, &self.socket, if writes { EventFlags::OUT } else { EventFlags::empty() });
    }
}

/// Sends bytes on a socket, with descriptors. Returns how many bytes were sent.
pub fn send_descriptors(socket: impl AsFd, message: &[u8], given: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(RUNNER_DESCRIPTORS))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    if !rights.push(SendAncillaryMessage::ScmRights(given)) {
        return Err(Errno::INVAL);
    }
    net::sendmsg(socket, &[IoSlice::new(message)], &mut rights, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

/// How many bytes wait to be read from a pipe; works with either end of it.
pub fn bytes_waiting(descriptor: impl AsFd) -> u64 {
    io::ioctl_fionread(descriptor).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    fn channel() -> (Channel, Poller) {
        (Channel::new(Token::Control(0), Token::ControlOut(0)).unwrap(), Poller::new().unwrap())
    }

    #[test]
    fn what_was_sent_counts_before_it_is_read() {
        let (mut channel, poller) = channel();
        let message = wire::pack(b'B', b"names");
        io::write(channel.runner_ends().unwrap().0, &message.repeat(2)).unwrap();
        assert_eq!((channel.sent(), channel.handled()), (20, 0));
        assert_eq!(channel.receive(&mut [0; 64], &poller), Read::Some);
        assert_eq!(channel.next().unwrap(), Some((b'B', b"names".to_vec())));
        assert_eq!((channel.sent(), channel.handled(), channel.has_half()), (20, 10, true));
    }

    #[test]
    fn the_end_comes_when_nobody_holds_the_runners_end() {
        let (mut channel, poller) = channel();
        assert_eq!(channel.receive(&mut [0; 64], &poller), Read::Nothing);
        channel.close_runner_ends();
        assert_eq!(channel.receive(&mut [0; 64], &poller), Read::End);
        assert!(channel.has_ended());
    }

    #[test]
    fn what_a_runner_does_not_read_is_bounded() {
        let (mut channel, poller) = channel();
        let message = vec![0; RUNNER_QUEUE_BYTES / 8];
        let refused = (0..12).find(|_| channel.send(message.clone(), &poller) == Err(Unread));
        assert!(refused.is_some_and(|sent| sent >= 7));
    }

    #[test]
    fn a_runner_cannot_send_on_the_socket() {
        let (channel, _poller) = channel();
        let (_, socket) = channel.runner_ends().unwrap();
        assert_eq!(net::send(socket, b"x", SendFlags::NOSIGNAL), Err(Errno::PIPE));
    }
}
