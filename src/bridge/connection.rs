//! The task that owns a connection to a kernel.
//!
//! Output and displays go straight to a [`Sink`], in the order in which they arrived, so that a
//! flood of them never becomes a flood of actor messages. Every other frame is handed on with a
//! permit: when the receiver holds too many, the task stops reading, and the kernel has to wait.

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use std::sync::Arc;
use std::time::Instant;
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::sync::CancellationToken;

use crate::protocol::frames::{HostFrame, KernelFrame, OutputFrame};
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::{
    CONTROL_FRAMES_WAITING, FRAME_BYTES, HOST_FRAMES_WAITING, PING_EVERY, PONG_WITHIN,
};
use serde_json::{Map, Value};

/// Takes what has to stay in order. Called from the connection's task only.
pub trait Sink: Send + 'static {
    fn output(&mut self, frame: OutputFrame<'_>);
    fn display(&mut self, cell: CellNumber, mime: Map<String, Value>);
    fn gap(&mut self, cell: CellNumber, stdout_bytes: u64, stderr_bytes: u64);
    /// When gathered output has to be published at the latest.
    fn flush_at(&self) -> Option<Instant>;
    fn flush(&mut self);
}

/// What arrives for the owner of the link.
#[derive(Debug)]
pub enum Incoming {
    /// The permit is given back when the frame has been dealt with.
    Frame(Box<KernelFrame>, OwnedSemaphorePermit),
    /// The last that arrives.
    Closed(Closed),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Closed {
    /// The owner let go.
    ByUs,
    /// The kernel's side ended.
    ByKernel,
    /// The kernel broke the protocol, or does not answer.
    Violation(String),
}

/// The owner's end. Dropping it closes the connection.
#[derive(Debug)]
pub struct Link {
    outgoing: mpsc::Sender<String>,
    cancel: CancellationToken,
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
        socket: WebSocketStream<UnixStream>,
        sink: S,
        deliver: impl Fn(Incoming) + Send + Sync + 'static,
    ) -> Self {
        let (outgoing, queue) = mpsc::channel(HOST_FRAMES_WAITING);
        let cancel = CancellationToken::new();
        let (writer, reader) = socket.split();
        let driver = Driver { reader, sink, cancel: cancel.clone(), last_heard: Instant::now() };
        let ender = cancel.clone();
        tokio::spawn(async move {
            let write = write(writer, queue, ender.clone());
            let writing = tokio::spawn(async move {
                write.await;
                ender.cancel();
            });
            let closed = driver.read(&deliver).await;
            writing.abort();
            deliver(Incoming::Closed(closed));
        });
        Self { outgoing, cancel }
    }

    /// Queues a frame. A kernel that lets the queue fill up is taken for dead.
    pub fn send(&self, frame: &HostFrame) -> Result<(), SendError> {
        let text = serde_json::to_string(frame).map_err(|_| SendError::TooLarge)?;
        if text.len() > FRAME_BYTES {
            return Err(SendError::TooLarge);
        }
        self.outgoing.try_send(text).map_err(|_| {
            self.cancel.cancel();
            SendError::Gone
        })
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
    mut writer: SplitSink<WebSocketStream<UnixStream>, Message>,
    mut queue: mpsc::Receiver<String>,
    cancel: CancellationToken,
) {
    let mut ping = tokio::time::interval(PING_EVERY);
    ping.tick().await;
    loop {
        let message = tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            frame = queue.recv() => match frame {
                Some(text) => Message::text(text),
                None => break,
            },
            _ = ping.tick() => Message::Ping(bytes::Bytes::new()),
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            sent = writer.send(message) => if sent.is_err() { break },
        }
    }
}

struct Driver<S> {
    reader: SplitStream<WebSocketStream<UnixStream>>,
    sink: S,
    cancel: CancellationToken,
    last_heard: Instant,
}

impl<S: Sink> Driver<S> {
    async fn read(mut self, deliver: &(impl Fn(Incoming) + Sync)) -> Closed {
        let permits = Arc::new(Semaphore::new(CONTROL_FRAMES_WAITING));
        let closed = loop {
            let silence = self.last_heard + PONG_WITHIN;
            let flush = self.sink.flush_at();
            let message = tokio::select! {
                biased;
                () = self.cancel.cancelled() => break Closed::ByUs,
                () = sleep_until(flush), if flush.is_some() => { self.sink.flush(); continue }
                message = self.reader.next() => message,
                () = sleep_until(Some(silence)) => break Closed::Violation("no answer to pings".into()),
            };
            self.last_heard = Instant::now();
            match message {
                Some(Ok(Message::Binary(bytes))) => match OutputFrame::parse(&bytes) {
                    Some(frame) => self.sink.output(frame),
                    None => break Closed::Violation("an output frame of the wrong form".into()),
                },
                Some(Ok(Message::Text(text))) => match serde_json::from_str(&text) {
                    Ok(KernelFrame::Display { cell, mime }) => self.sink.display(cell, mime),
                    Ok(KernelFrame::OutputGap { cell, stdout_bytes, stderr_bytes }) => {
                        self.sink.gap(cell, stdout_bytes, stderr_bytes);
                    }
                    Ok(frame) => {
                        // What was printed before comes before.
                        self.sink.flush();
                        let permit = tokio::select! {
                            biased;
                            () = self.cancel.cancelled() => break Closed::ByUs,
                            permit = Arc::clone(&permits).acquire_owned() => permit,
                        };
                        match permit {
                            Ok(permit) => deliver(Incoming::Frame(Box::new(frame), permit)),
                            Err(_) => break Closed::ByUs,
                        }
                    }
                    Err(error) => {
                        break Closed::Violation(format!("a frame that is not understood: {error}"));
                    }
                },
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => break Closed::ByKernel,
                Some(Err(error)) => break error_end(&error),
            }
        };
        self.sink.flush();
        closed
    }
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
