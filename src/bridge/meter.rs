//! Charges the bytes of a sandbox as they are read: without room the daemon does not read from the sandbox.

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::memory::{Charge, MemoryPurpose, OVERDRAFT_AFTER, Pool};
use crate::protocol::limits::OUTPUT_FRAME_BYTES;
use crate::security_controls;

/// The bytes of a frame that are read without a charge. An output frame, or the frame that ends a cell, fits into it,
/// together with bytes that were read of the frame before.
const FREE_BYTES: u64 = 4 * OUTPUT_FRAME_BYTES as u64;
/// The bytes of a large frame that are charged and read at once.
const PIECE_BYTES: usize = 64 * 1024;

/// A connection of a kernel whose bytes are counted.
pub struct Metered {
    stream: Box<dyn Stream>,
    meter: Meter,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl std::fmt::Debug for Metered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metered").field("meter", &self.meter).finish_non_exhaustive()
    }
}

/// Knows how many bytes the frame takes that is being read. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    /// The pool to charge; until it is known, nothing is charged.
    pool: Arc<OnceLock<Pool>>,
    count: Arc<Mutex<Count>>,
}

#[derive(Default)]
struct Count {
    /// Bytes that were read since the last frame was complete.
    read: u64,
    charge: Option<Charge>,
    waiting: Option<BoxFuture<'static, Charge>>,
}

impl std::fmt::Debug for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Count").field("read", &self.read).finish_non_exhaustive()
    }
}

impl Metered {
    #[must_use]
    pub fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        Self { stream: Box::new(stream), meter: Meter::default() }
    }

    pub(super) fn meter(&self) -> Meter {
        self.meter.clone()
    }
}

impl Meter {
    /// From now on, bytes that are read are charged to `pool`.
    pub fn charge_to(&self, pool: Pool) {
        let _ = self.pool.set(pool);
    }

    /// Called when a frame is complete: returns its charge, and starts the count for the next frame.
    pub fn take(&self) -> Option<Charge> {
        let mut count = self.count.lock();
        count.read = 0;
        count.charge.take()
    }

    /// Whether the next bytes wait for room.
    pub fn is_waiting(&self) -> bool {
        self.count.lock().waiting.is_some()
    }

    /// Ready when there is room to read another piece.
    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(pool) = self.pool.get().filter(|_| security_controls::holds("frame_memory_charge")) else {
            return Poll::Ready(());
        };
        let mut count = self.count.lock();
        if count.read < FREE_BYTES && count.waiting.is_none() {
            return Poll::Ready(());
        }
        if count.waiting.is_none() {
            let mut charge = count.charge.take().unwrap_or_else(|| pool.open(MemoryPurpose::Frames));
            let more = (count.read + PIECE_BYTES as u64).saturating_sub(charge.bytes());
            count.waiting = Some(Box::pin(async move {
                charge.grow_or_overdraw(more, OVERDRAFT_AFTER).await;
                charge
            }));
        }
        let Some(waiting) = &mut count.waiting else { return Poll::Ready(()) };
        let charge = ready!(waiting.as_mut().poll(cx));
        (count.waiting, count.charge) = (None, Some(charge));
        Poll::Ready(())
    }
}

impl AsyncRead for Metered {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.meter.poll_room(cx));
        let most = buffer.remaining().min(PIECE_BYTES);
        let mut piece = ReadBuf::new(buffer.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece))?;
        let read = piece.filled().len();
        buffer.advance(read);
        self.meter.count.lock().read += read as u64;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Metered {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bridge::{Incoming, Link, Sink};
    use crate::memory::Memory;
    use crate::protocol::frames::OutputFrame;
    use crate::protocol::ids::CellNumber;
    use crate::protocol::principal::Principal;
    use futures_util::SinkExt;
    use serde_json::{Map, Value, json};
    use std::time::{Duration, Instant};
    use tokio::net::UnixStream;
    use tokio::sync::mpsc;
    use tokio_tungstenite::WebSocketStream;
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::protocol::Role;

    const LIMIT: u64 = 4 << 20;
    const SOON: Duration = Duration::from_secs(20);

    struct Nothing;

    impl Sink for Nothing {
        fn output(&mut self, _: OutputFrame<'_>, _: u64) {}
        fn display(&mut self, _: CellNumber, _: Map<String, Value>, _: u64) {}
        fn gap(&mut self, _: CellNumber, _: u64, _: u64, _: u64) {}
        fn flush_at(&self) -> Option<Instant> {
            None
        }
        fn flush(&mut self) {}
        async fn wait_for_room(&self) {}
        fn is_crowded(&self) -> bool {
            false
        }
        fn settled(&self, number: u64) -> u64 {
            number
        }
    }

    type Arrivals = mpsc::UnboundedReceiver<Incoming>;

    async fn connected(pool: &Pool) -> (WebSocketStream<UnixStream>, Link, Arrivals) {
        let (ours, kernels) = UnixStream::pair().unwrap();
        let ours = WebSocketStream::from_raw_socket(Metered::new(ours), Role::Client, None).await;
        let kernels = WebSocketStream::from_raw_socket(kernels, Role::Server, None).await;
        let (sender, arrivals) = mpsc::unbounded_channel();
        let link = Link::start(ours, 0, pool.clone(), Nothing, move |arrived| drop(sender.send(arrived)));
        (kernels, link, arrivals)
    }

    /// A tool call, wrapped by the guardian as it wraps every message of a runner.
    fn call(arguments: &str) -> Message {
        let own = json!({"type": "tool_call", "call": 1, "cell": 1}).to_string();
        let content = format!("{{\"name\": \"t\", \"arguments\": {{\"a\": {arguments}}}}}");
        let length = u32::try_from(own.len()).unwrap().to_be_bytes();
        Message::binary(
            [&[crate::protocol::frames::RUNNER_FRAME_KIND][..], &length, own.as_bytes(), content.as_bytes()]
                .concat(),
        )
    }

    async fn next(
        arrivals: &mut Arrivals,
    ) -> (crate::protocol::frames::KernelFrame, crate::bridge::FrameGuard) {
        match tokio::time::timeout(SOON, arrivals.recv()).await.expect("in time").expect("it arrives") {
            Incoming::Frame(frame, turn) => (*frame, turn),
            Incoming::Closed(closed) => panic!("{closed:?}"),
        }
    }

    #[tokio::test]
    async fn a_large_frame_is_charged_until_it_has_had_its_effect() {
        let memory = Memory::new(Some(LIMIT), None);
        let (mut kernel, _link, mut arrivals) = connected(&memory.pool(Principal::ANN)).await;
        let text = format!("\"{}\"", "x".repeat(1 << 20));
        kernel.send(call(&text)).await.unwrap();
        let (frame, turn) = next(&mut arrivals).await;
        assert!(matches!(frame, crate::protocol::frames::KernelFrame::ToolCall { .. }));
        assert!(turn.parsed_bytes() >= 1 << 20 && turn.refused().is_none());
        assert!(
            (2 << 20..=LIMIT).contains(&memory.taken(Principal::ANN).0),
            "{:?}",
            memory.taken(Principal::ANN)
        );
        drop(turn);
        assert_eq!(memory.taken(Principal::ANN).0, 0);
    }

    #[tokio::test]
    async fn without_room_what_is_plain_goes_on_in_the_end_and_what_is_made_of_small_values_does_not() {
        let memory = Memory::new(Some(LIMIT), None);
        let full = memory.pool(Principal::ANN).charge_anyway(MemoryPurpose::Calls, LIMIT);
        let (mut kernel, _link, mut arrivals) = connected(&memory.pool(Principal::ANN)).await;
        let (text, zeros) = (format!("\"{}\"", "x".repeat(1 << 20)), format!("[{}0]", "0,".repeat(1 << 19)));
        let sent = tokio::spawn(async move {
            kernel.send(call(&text)).await.unwrap();
            kernel.send(call(&zeros)).await.unwrap();
            kernel.send(call("1")).await.unwrap();
            kernel
        });
        let (_, turn) = next(&mut arrivals).await;
        assert!(turn.refused().is_none() && turn.parsed_bytes() >= 1 << 20);
        drop(turn);
        let (frame, turn) = next(&mut arrivals).await;
        let crate::protocol::frames::KernelFrame::ToolCall { arguments, .. } = frame else {
            panic!("{frame:?}")
        };
        assert!(turn.refused().is_some() && arguments.is_empty(), "nothing was made of it");
        drop(turn);
        let (_, turn) = next(&mut arrivals).await;
        assert!(turn.refused().is_none(), "what is small gets through");
        drop((turn, full, sent.await.unwrap()));
        assert_eq!(memory.taken(Principal::ANN).0, 0);
    }
}
