//! The guardian's connection to the daemon: the guardian connects, and is then the *server* of the websocket that the
//! daemon opens over it. Frames, and reconnecting.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::{self, Errno};
use rustix::net::{self, AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use crate::limits::{CONNECT_RETRY_FIRST, CONNECT_RETRY_MAX, HANDSHAKE};
use crate::outbox::Outbox;
use crate::poller::{Poller, Timer, Token, Watch};
use crate::websocket::{self, Message, MessageReader, Violation};

/// First byte of a runner's message on the bridge: one that is no stream of output.
const RUNNER_KIND: u8 = 3;

/// A frame that is partly sent.
struct Sending {
    frame: Vec<u8>,
    done: usize,
    /// Whether it is one of the numbered frames.
    is_kept: bool,
}

struct Connection {
    socket: OwnedFd,
    watch: Watch,
    /// Bytes that were received before the upgrade.
    head: Vec<u8>,
    /// Reads messages, after the upgrade.
    reader: Option<MessageReader>,
    /// The upgrade's answer and the hello: before all else, never kept.
    urgent: VecDeque<Vec<u8>>,
    pong: Option<Vec<u8>>,
    sending: Option<Sending>,
    /// Whether hellos are exchanged.
    is_open: bool,
}

pub struct Bridge {
    path: String,
    connection: Option<Connection>,
    retry: Duration,
    pub outbox: Outbox,
    /// Whether a connection was lost since `take_lost` was asked.
    lost: bool,
}

impl Bridge {
    pub fn new(path: String) -> Self {
        Self { path, connection: None, retry: CONNECT_RETRY_FIRST, outbox: Outbox::default(), lost: false }
    }

    pub fn connect(&mut self, poller: &mut Poller) {
        match self.try_connect(poller) {
            Ok(connection) => {
                self.connection = Some(connection);
                poller.after(Timer::Handshake, HANDSHAKE);
            }
            // No daemon listens, or its queue is full: connecting a unix socket is never «in progress».
            Err(_) => self.connect_later(poller),
        }
    }

    fn try_connect(&self, poller: &Poller) -> io::Result<Connection> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        net::connect(&socket, &SocketAddrUnix::new(self.path.as_str())?)?;
        let mut watch = Watch::new(Token::Bridge);
        watch.set(poller, &socket, EventFlags::IN);
        Ok(Connection {
            socket,
            watch,
            head: Vec::new(),
            reader: None,
            urgent: VecDeque::new(),
            pong: None,
            sending: None,
            is_open: false,
        })
    }

    fn connect_later(&mut self, poller: &mut Poller) {
        poller.after(Timer::Connect, self.retry);
        self.retry = (self.retry * 2).min(CONNECT_RETRY_MAX);
    }

    /// Whether a connection was lost since this was last asked.
    pub fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// Accepts the daemon's hello: answers it, then sends the frames that it has not dealt with, and the queue.
    pub fn open(&mut self, hello: &str, poller: &mut Poller) {
        poller.cancel(Timer::Handshake);
        self.outbox.send_again();
        self.retry = CONNECT_RETRY_FIRST;
        if let Some(connection) = &mut self.connection {
            connection.is_open = true;
            connection.urgent.push_back(websocket::encode(websocket::TEXT, &[hello.as_bytes()]));
        }
        self.flush(poller);
    }

    /// Queues a text frame.
    pub fn send(&mut self, text: &str, poller: &mut Poller) {
        self.push(websocket::encode(websocket::TEXT, &[text.as_bytes()]), poller);
    }

    pub fn send_output(&mut self, header: [u8; 9], data: &[u8], poller: &mut Poller) {
        self.push(websocket::encode(websocket::BINARY, &[&header, data]), poller);
    }

    /// Queues a message of a runner behind the guardian's part: two JSON objects, the second is passed on unread.
    pub fn send_of_runner(&mut self, own: &str, said: &[u8], poller: &mut Poller) {
        let size = u32::try_from(own.len()).unwrap_or(u32::MAX).to_be_bytes();
        let frame = websocket::encode(websocket::BINARY, &[&[RUNNER_KIND], &size, own.as_bytes(), said]);
        self.push(frame, poller);
    }

    fn push(&mut self, frame: Vec<u8>, poller: &mut Poller) {
        let free = self.connection.as_mut().filter(|connection| {
            connection.is_open && connection.sending.is_none() && connection.urgent.is_empty()
        });
        let Some(connection) = free.filter(|_| !self.outbox.has_queue()) else {
            self.outbox.keep(frame);
            return;
        };
        match net::send(&connection.socket, &frame, SendFlags::NOSIGNAL) {
            Ok(sent) if sent == frame.len() => self.outbox.keep_sent(frame),
            Err(error) if error != Errno::AGAIN && error != Errno::INTR => {
                self.outbox.keep(frame);
                self.lose(poller);
            }
            partly => {
                self.outbox.begin(&frame);
                connection.sending = Some(Sending { frame, done: partly.unwrap_or(0), is_kept: true });
                connection.watch_writes(true, poller);
            }
        }
    }

    /// Sends what can be sent without waiting.
    pub fn flush(&mut self, poller: &mut Poller) {
        let Some(connection) = &mut self.connection else { return };
        let broken = loop {
            if connection.sending.is_none() && !connection.next_to_send(&mut self.outbox) {
                break false;
            }
            let Some(sending) = &mut connection.sending else { break false };
            match net::send(&connection.socket, &sending.frame[sending.done..], SendFlags::NOSIGNAL) {
                Ok(count) => sending.done += count,
                Err(Errno::AGAIN | Errno::INTR) => break false,
                Err(_) => break true,
            }
            if sending.done < sending.frame.len() {
                break false;
            }
            if let Some(sent) = connection.sending.take_if(|sent| sent.is_kept) {
                self.outbox.finish(sent.frame);
            }
            connection.sending = None;
        };
        if broken {
            self.lose(poller);
            return;
        }
        let waits = connection.is_waiting(&self.outbox);
        connection.watch_writes(waits, poller);
        self.outbox.relieve();
    }

    /// Reads once; the messages that came are taken with `next_message`.
    pub fn receive(&mut self, scratch: &mut [u8], poller: &mut Poller) {
        let Some(connection) = &mut self.connection else { return };
        match io::read(&connection.socket, &mut *scratch) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) | Ok(0) => self.lose(poller),
            Ok(count) => match connection.take(&scratch[..count]) {
                Ok(true) => self.flush(poller),
                Ok(false) => {}
                Err(violation) => self.close(violation.code, violation.reason, poller),
            },
        }
    }

    /// The next text of the daemon. Pings are answered and closes are dealt with on the way.
    pub fn next_text(&mut self, poller: &mut Poller) -> Option<String> {
        loop {
            let reader = self.connection.as_mut()?.reader.as_mut()?;
            match reader.next() {
                Ok(None) => return None,
                Ok(Some(Message::Text(text))) => return Some(text),
                Ok(Some(Message::Ping(payload))) => self.answer_ping(&payload, poller),
                Ok(Some(Message::Pong)) => {}
                Ok(Some(Message::Close)) => self.close(websocket::NORMAL, "", poller),
                Err(Violation { code, reason }) => self.close(code, reason, poller),
            }
        }
    }

    /// One answer, to the latest ping, is enough; so a flood of pings cannot fill the queue.
    fn answer_ping(&mut self, payload: &[u8], poller: &mut Poller) {
        if let Some(connection) = &mut self.connection {
            connection.pong = Some(websocket::encode(websocket::PONG, &[payload]));
        }
        self.flush(poller);
    }

    /// Closes the connection with a reason, and connects again later.
    pub fn close(&mut self, code: u16, reason: &str, poller: &mut Poller) {
        if let Some(connection) = &self.connection
            && connection.reader.is_some()
            && connection.sending.is_none()
        {
            // The daemon learns of the end anyway, so a close frame that cannot be sent is no loss.
            let _ =
                net::send(&connection.socket, &websocket::encode_close(code, reason), SendFlags::NOSIGNAL);
        }
        self.lose(poller);
    }

    /// The connection is gone; a frame that was partly sent is sent whole on the next one.
    pub fn lose(&mut self, poller: &mut Poller) {
        let Some(connection) = self.connection.take() else { return };
        poller.cancel(Timer::Handshake);
        if let Some(sending) = connection.sending.filter(|sending| sending.is_kept) {
            self.outbox.put_back(sending.frame);
        }
        self.lost = true;
        self.connect_later(poller);
    }
}

impl Connection {
    fn watch_writes(&mut self, waits: bool, poller: &Poller) {
        let writes = if waits { EventFlags::OUT } else { EventFlags::empty() };
        self.watch.set(poller, &self.socket, EventFlags::IN | writes);
    }

    fn is_waiting(&self, outbox: &Outbox) -> bool {
        let has_own = self.sending.is_some() || !self.urgent.is_empty() || self.pong.is_some();
        has_own || (self.is_open && outbox.has_queue())
    }

    fn next_to_send(&mut self, outbox: &mut Outbox) -> bool {
        let own = self.urgent.pop_front().or_else(|| self.pong.take());
        let is_kept = own.is_none();
        let next = own.or_else(|| if self.is_open { outbox.take() } else { None });
        self.sending = next.map(|frame| Sending { frame, done: 0, is_kept });
        self.sending.is_some()
    }

    /// Takes in what was read. True if there is an answer to the upgrade, which has to be sent.
    fn take(&mut self, data: &[u8]) -> Result<bool, Violation> {
        if let Some(reader) = &mut self.reader {
            reader.feed(data);
            return Ok(false);
        }
        self.head.extend_from_slice(data);
        let Some((answer, used)) = websocket::answer_upgrade(&self.head)? else {
            return Ok(false);
        };
        let mut reader = MessageReader::default();
        reader.feed(&self.head[used..]);
        (self.reader, self.head) = (Some(reader), Vec::new());
        self.urgent.push_back(answer);
        Ok(true)
    }
}
