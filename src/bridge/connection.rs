//! The task that owns a connection to a kernel.
//!
//! Frames are handled strictly one after the other. Output and displays go straight to a [`Sink`], so that a flood of
//! them never becomes a flood of actor messages; every other frame is handed on with its [`FrameGuard`], and the next
//! frame is only handled when the guard is dropped. So at any moment one number says exactly which frames have had
//! their effect: the daemon sends that number to the kernel (`ack`), and the kernel resumes after it if this daemon
//! dies.

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::meter::{Meter, Metered};
use crate::memory::{
    Charge, MemoryPurpose, NoRoom, OVERDRAFT_AFTER, Pool, SMALL_BYTES, TINY_BYTES, offload_if_large,
};
use crate::panics::spawn_reporting;
use crate::protocol::frames::{HostFrame, KernelFrame, OutputFrame};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::{
    ACKNOWLEDGE_AFTER, ACKNOWLEDGE_BYTES, FRAME_BYTES, HOST_FRAMES_WAITING, PING_EVERY, PONG_WITHIN,
};
use crate::protocol::values::parsed_bytes;
use crate::security_controls;
use serde_json::{Map, Value};

/// Takes the frames that must stay in order. Only the connection's task calls it.
pub trait Sink: Send + Sync + 'static {
    fn output(&mut self, frame: OutputFrame<'_>, number: u64);
    fn display(&mut self, cell: CellNumber, mime: Map<String, Value>, number: u64);
    fn gap(&mut self, cell: CellNumber, stdout_bytes: u64, stderr_bytes: u64, number: u64);
    /// When gathered output has to be published at the latest.
    fn flush_at(&self) -> Option<Instant>;
    fn flush(&mut self);
    /// Waits until the frames that were taken before leave room for more.
    fn wait_for_room(&self) -> impl Future<Output = ()> + Send;
    /// Whether `wait_for_room` would wait.
    fn is_crowded(&self) -> bool;
    /// The number of frames that have had their effect for good, given that all up to `number` were handled.
    fn settled(&self, number: u64) -> u64;
}

/// A frame is plain if its parsed values take at most this many times its own size; many small values take more.
const PLAIN_COPIES: u64 = 3;

/// The memory that a frame takes until it has had its effect.
#[derive(Debug, Default)]
struct InMemory {
    _charge: Option<Charge>,
    /// The bytes that the frame takes as parsed values.
    parsed: u64,
    refused: Option<NoRoom>,
}

/// The right to handle one frame. The next frame waits until the guard is dropped.
#[derive(Debug)]
pub struct FrameGuard {
    /// The number of the frame, counted from the start of the sandbox.
    pub number: u64,
    memory: InMemory,
    cancel: CancellationToken,
    /// Released only after `drop` may have closed the connection, so that no acknowledgement slips in between.
    _permit: OwnedSemaphorePermit,
}

impl FrameGuard {
    /// The bytes that the frame takes as parsed values.
    #[must_use]
    pub fn parsed_bytes(&self) -> u64 {
        self.memory.parsed
    }

    /// The reason why the frame comes without the content from its runner: there was no room for that content.
    #[must_use]
    pub fn refused(&self) -> Option<&NoRoom> {
        self.memory.refused.as_ref()
    }
}

impl Drop for FrameGuard {
    fn drop(&mut self) {
        // The task that handled the frame panicked, so it is unknown whether the frame had an effect. The kernel must
        // not get an acknowledgement, so that it sends the frame again on the next connection.
        if std::thread::panicking() && security_controls::holds("frame_of_a_death_is_not_acknowledged") {
            self.cancel.cancel();
        }
    }
}

/// What the owner of the link receives.
#[derive(Debug)]
pub enum Incoming {
    Frame(Box<KernelFrame>, FrameGuard),
    /// Always the last to arrive.
    Closed(Closed),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The owner dropped its link.
    ByUs,
    /// The kernel's side ended.
    ByKernel,
    /// The kernel broke the protocol, or does not answer pings.
    Violation(String),
    /// The task that reads the connection panicked. The kernel is not to blame, and connects again.
    Fault,
}

/// The owner's end. Dropping it closes the connection.
#[derive(Debug)]
pub struct Link {
    outgoing: mpsc::Sender<Outgoing>,
    cancel: CancellationToken,
    /// While this is set, the kernel cannot answer pings and need not.
    silent: Arc<AtomicBool>,
    pool: Pool,
    /// Set when nothing more can be sent: the writing task ended, or the queue is full.
    unwritable: Arc<AtomicBool>,
}

/// Whether a frame was written into the kernel's socket. The kernel never saw a frame that was not.
#[derive(Clone, Debug, Default)]
pub struct Delivery(Arc<AtomicBool>);

impl Delivery {
    pub fn is_made(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
struct Outgoing {
    text: String,
    delivery: Delivery,
    /// The charge for the text until it is written to the kernel.
    memory: Option<Charge>,
}

#[derive(Debug, thiserror::Error)]
pub enum SendError {
    #[error("the frame is larger than {FRAME_BYTES} bytes")]
    TooLarge,
    #[error("the kernel is gone or does not read")]
    Gone,
}

impl Link {
    /// Starts the task. `deliver` must not block; it gets `Closed` exactly once, at the end.
    pub fn start<S: Sink>(
        socket: WebSocketStream<Metered>,
        received: u64,
        pool: Pool,
        sink: S,
        deliver: impl Fn(Incoming) + Send + Sync + 'static,
    ) -> Self {
        let (outgoing, queue) = mpsc::channel(HOST_FRAMES_WAITING);
        let cancel = CancellationToken::new();
        let silent = Arc::new(AtomicBool::new(false));
        let meter = socket.get_ref().meter();
        meter.charge_to(pool.clone());
        let unwritable = Arc::new(AtomicBool::new(false));
        let (writer, reader) = socket.split();
        let driver = Driver {
            reader,
            sink,
            cancel: cancel.clone(),
            last_heard: Instant::now(),
            received,
            acknowledged: received,
            acknowledge_at: None,
            unacknowledged: 0,
            outgoing: outgoing.clone(),
            silent: Arc::clone(&silent),
            turns: Arc::new(Semaphore::new(1)),
            unwritable: Arc::clone(&unwritable),
            unread: 0,
            meter,
            pool: pool.clone(),
        };
        let (ender, ended) = (cancel.clone(), Arc::clone(&unwritable));
        let writing = spawn_reporting(write(writer, queue, cancel.clone()), move |_| {
            if !ender.is_cancelled() {
                ended.store(true, Ordering::Release);
                ender.cancel();
            }
        });
        let writing = AbortOnDropHandle::new(writing);
        let (deliver, ender) = (Arc::new(deliver), cancel.clone());
        let deliver_end = Arc::clone(&deliver);
        spawn_reporting(async move { driver.read(&*deliver).await }, move |closed| {
            drop(writing);
            ender.cancel();
            if closed.is_some() || security_controls::holds("end_of_a_bridge_is_told") {
                deliver_end(Incoming::Closed(closed.unwrap_or(Closed::Fault)));
            }
        });
        Self { outgoing, cancel, silent, pool, unwritable }
    }

    /// While silence is expected, a kernel that does not answer is not taken for dead.
    pub fn expect_silence(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    /// Queues a frame. A kernel that lets the queue fill up is taken for dead, and the link's owner gets `Closed`.
    pub fn send(&self, frame: &HostFrame) -> Result<Delivery, SendError> {
        let text = serde_json::to_string(frame).map_err(|_| SendError::TooLarge)?;
        if text.len() > FRAME_BYTES {
            return Err(SendError::TooLarge);
        }
        let delivery = Delivery::default();
        let bytes = text.len() as u64;
        // The charge ignores the limit: without this frame, the cell that waits for it would wait for ever. As long as
        // the kernel does not read it, the charge makes later requests of the user fail.
        let memory = (bytes > TINY_BYTES).then(|| self.pool.charge_anyway(MemoryPurpose::Outgoing, bytes));
        self.outgoing.try_send(Outgoing { text, delivery: delivery.clone(), memory }).map_err(|_| {
            self.unwritable.store(true, Ordering::Release);
            self.cancel.cancel();
            SendError::Gone
        })?;
        Ok(delivery)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// Writing has a task of its own, so that a large frame to a busy kernel does not keep its output
/// from being read.
async fn write(
    mut writer: SplitSink<WebSocketStream<Metered>, Message>,
    mut queue: mpsc::Receiver<Outgoing>,
    cancel: CancellationToken,
) {
    let mut ping = tokio::time::interval(PING_EVERY);
    ping.tick().await;
    loop {
        let (message, delivery, _memory) = tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            frame = queue.recv() => match frame {
                Some(Outgoing { text, delivery, memory }) => (Message::text(text), delivery, memory),
                None => break,
            },
            _ = ping.tick() => (Message::Ping(bytes::Bytes::new()), Delivery::default(), None),
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            sent = writer.send(message) => match sent {
                Ok(()) => delivery.0.store(true, Ordering::Release),
                Err(_) => break,
            },
        }
    }
}

struct Driver<S> {
    reader: SplitStream<WebSocketStream<Metered>>,
    sink: S,
    cancel: CancellationToken,
    last_heard: Instant,
    /// The number of frames that were read.
    received: u64,
    /// The number in the last `ack` to the kernel.
    acknowledged: u64,
    /// When to send the next `ack`.
    acknowledge_at: Option<Instant>,
    /// The bytes of frames that were read since an `ack` was last tried.
    unacknowledged: usize,
    outgoing: mpsc::Sender<Outgoing>,
    silent: Arc<AtomicBool>,
    /// Has one permit, so that one frame is handled at a time.
    turns: Arc<Semaphore>,
    /// Set when nothing more can be sent: the writing task ended, or the queue is full.
    unwritable: Arc<AtomicBool>,
    /// The number of frames with content from user code that was not understood.
    unread: u64,
    /// Counts the bytes of the frame that is being read.
    meter: Meter,
    pool: Pool,
}

impl<S: Sink> Driver<S> {
    async fn read(mut self, deliver: &(impl Fn(Incoming) + Sync)) -> Closed {
        let closed = loop {
            let silence = self.last_heard + PONG_WITHIN;
            let (flush, acknowledge) = (self.sink.flush_at(), self.acknowledge_at);
            let message = tokio::select! {
                biased;
                () = self.cancel.cancelled() => break self.cancelled(),
                () = sleep_until(flush), if flush.is_some() => { self.sink.flush(); continue }
                () = sleep_until(acknowledge), if acknowledge.is_some() => { self.acknowledge(); continue }
                // Without room nothing is read: the sandbox waits, but no thread of the daemon does.
                message = async { self.sink.wait_for_room().await; self.reader.next().await } => message,
                () = sleep_until(Some(silence)) => {
                    let waits = self.sink.is_crowded() || self.meter.is_waiting();
                    if self.silent.load(Ordering::Relaxed) || waits {
                        self.last_heard = Instant::now();
                        continue;
                    }
                    break Closed::Violation("no answer to pings".into())
                }
            };
            self.last_heard = Instant::now();
            match message {
                Some(Ok(message @ (Message::Binary(_) | Message::Text(_)))) => {
                    let Some(memory) = self.make_room(&message).await else { break self.cancelled() };
                    let Some(permit) = self.turn().await else { break self.cancelled() };
                    crate::panics::panic_if_requested("bridge");
                    self.received = self.received.saturating_add(1);
                    self.unacknowledged = self.unacknowledged.saturating_add(message.len());
                    let wait = if self.unacknowledged < ACKNOWLEDGE_BYTES {
                        ACKNOWLEDGE_AFTER
                    } else {
                        Duration::ZERO
                    };
                    let at = Instant::now() + wait;
                    self.acknowledge_at = Some(self.acknowledge_at.map_or(at, |before| before.min(at)));
                    let (number, cancel) = (self.received, self.cancel.clone());
                    let turn = FrameGuard { number, memory, cancel, _permit: permit };
                    let bytes = turn.parsed_bytes();
                    if let Err(what) = offload_if_large(bytes, || self.deal_with(message, turn, deliver)) {
                        break Closed::Violation(what);
                    }
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => break Closed::ByKernel,
                Some(Err(error)) => break error_end(&error),
            }
        };
        self.sink.flush();
        closed
    }

    /// Which side is reported to have closed the connection.
    fn cancelled(&self) -> Closed {
        if self.unwritable.load(Ordering::Acquire) { Closed::ByKernel } else { Closed::ByUs }
    }

    /// Waits until the frame before has been handled; `None` if the connection is closed instead.
    async fn turn(&mut self) -> Option<OwnedSemaphorePermit> {
        loop {
            let flush = self.sink.flush_at();
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return None,
                permit = Arc::clone(&self.turns).acquire_owned() => return permit.ok(),
                () = sleep_until(flush), if flush.is_some() => self.sink.flush(),
            }
        }
    }

    /// Charges the memory that the frame needs as values; `None` if the connection is closed instead. A plain frame is
    /// taken in the end even without room, one after the other; a frame of so many small values that there is no room
    /// for them is refused.
    async fn make_room(&mut self, message: &Message) -> Option<InMemory> {
        let charge = self.meter.take();
        let (bytes, parsed) = match message {
            Message::Text(text) => (text.len(), parsed_bytes(text)),
            Message::Binary(frame) => (frame.len(), KernelFrame::runner_part(frame).map_or(0, parsed_bytes)),
            _ => (0, 0),
        };
        if parsed <= SMALL_BYTES || !security_controls::holds("frame_memory_charge") {
            return Some(InMemory { _charge: charge, parsed, refused: None });
        }
        let mut charge = charge.unwrap_or_else(|| self.pool.open(MemoryPurpose::Frames));
        let bytes = bytes as u64;
        let is_plain = bytes <= SMALL_BYTES || parsed <= bytes.saturating_mul(PLAIN_COPIES);
        let growing = async {
            if is_plain {
                charge.grow_or_overdraw(parsed, OVERDRAFT_AFTER).await;
                None
            } else {
                charge.grow(parsed, OVERDRAFT_AFTER).await.err()
            }
        };
        let mut growing = Box::pin(growing);
        let refused = loop {
            let flush = self.sink.flush_at();
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => return None,
                refused = &mut growing => break refused,
                () = sleep_until(flush), if flush.is_some() => self.sink.flush(),
            }
        };
        drop(growing);
        self.last_heard = Instant::now();
        Some(InMemory { _charge: Some(charge), parsed, refused })
    }

    fn deal_with(
        &mut self,
        message: Message,
        turn: FrameGuard,
        deliver: &(impl Fn(Incoming) + Sync),
    ) -> Result<(), String> {
        let number = turn.number;
        match message {
            Message::Binary(bytes) => {
                if let Some(frame) = OutputFrame::parse(&bytes) {
                    self.sink.output(frame, number);
                } else if let Some(frame) = runner_frame(&bytes, &turn).map_err(not_understood)? {
                    self.take(frame, turn, deliver);
                } else {
                    self.unread += 1;
                    tracing::debug!(count = self.unread, "what code in a sandbox showed was not understood");
                }
            }
            Message::Text(_) if turn.refused().is_some() => {
                return Err("a frame of the guardian holds more values than there is room for".into());
            }
            Message::Text(text) => {
                self.take(KernelFrame::of_guardian(&text).map_err(not_understood)?, turn, deliver);
            }
            _ => {}
        }
        Ok(())
    }

    fn take(&mut self, frame: KernelFrame, turn: FrameGuard, deliver: &(impl Fn(Incoming) + Sync)) {
        match frame {
            KernelFrame::Display { cell, mime } => self.sink.display(cell, mime, turn.number),
            KernelFrame::OutputGap { cell, stdout_bytes, stderr_bytes } => {
                self.sink.gap(cell, stdout_bytes, stderr_bytes, turn.number);
            }
            frame => {
                // Output that was printed before this frame is published before it.
                self.sink.flush();
                deliver(Incoming::Frame(Box::new(frame), turn));
            }
        }
    }

    /// Tells the kernel which frames it may forget. Frames that are not settled yet are acknowledged later.
    fn acknowledge(&mut self) {
        self.unacknowledged = 0;
        // A frame whose guard is not dropped yet has not had its effect.
        let is_out = self.turns.available_permits() == 0;
        let dealt_with = if is_out { self.received.saturating_sub(1) } else { self.received };
        // A guard that is dropped by a panic closes the connection before it releases its permit.
        if self.cancel.is_cancelled() {
            return;
        }
        let settled = self.sink.settled(dealt_with);
        if settled > self.acknowledged
            && let Ok(text) = serde_json::to_string(&HostFrame::Ack { received: settled })
            && self.outgoing.try_send(Outgoing { text, delivery: Delivery::default(), memory: None }).is_ok()
        {
            self.acknowledged = settled;
        }
        let open = self.acknowledged < self.received;
        self.acknowledge_at = open.then(|| Instant::now() + ACKNOWLEDGE_AFTER);
    }
}

/// The frame that a runner sent, or, if there was no room for its content, the frame without that content.
fn runner_frame(bytes: &[u8], turn: &FrameGuard) -> Result<Option<KernelFrame>, String> {
    if turn.refused().is_some() { KernelFrame::unread(bytes) } else { KernelFrame::of_runner(bytes) }
}

/// The guardian runs no user code and keeps to the protocol, so a frame that is not understood is a violation.
fn not_understood(error: String) -> String {
    format!("a frame that is not understood: {error}")
}

fn error_end(error: &tokio_tungstenite::tungstenite::Error) -> Closed {
    use tokio_tungstenite::tungstenite::Error;
    use tokio_tungstenite::tungstenite::error::ProtocolError;
    match error {
        Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Io(_)
        | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => Closed::ByKernel,
        other => Closed::Violation(other.to_string()),
    }
}

async fn sleep_until(at: Option<Instant>) {
    if let Some(at) = at {
        tokio::time::sleep_until(at.into()).await;
    }
}
