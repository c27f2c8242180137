//! Numbers that a kernel makes up. Guest code cannot reach the connection on which they would come: the guardian wraps
//! what a guest may say. A guardian that was taken over can, so the daemon's side is tried here with a peer that is
//! none: whatever it counts, nothing overflows, and the owner of the connection hears of its end.

use belljar::bridge::{Closed, Incoming, Link, Metered, Sink};
use belljar::memory::Memory;
use belljar::protocol::frames::OutputFrame;
use belljar::protocol::ids::{CellNumber, SessionId};
use belljar::protocol::principal::Principal;
use belljar::protocol::result::Stream;
use belljar::store::{Journal, OutputCaps, Recorder, Spill};
use futures_util::SinkExt;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;

/// A sink that gives what the bridge hears to a recorder, as the daemon's sink does.
struct Records {
    recorder: Arc<Recorder>,
    panics: bool,
}

impl Sink for Records {
    async fn wait_for_room(&self) {}

    fn is_crowded(&self) -> bool {
        false
    }

    fn output(&mut self, frame: OutputFrame<'_>, number: u64) {
        self.recorder.output(&frame, number);
    }

    fn display(&mut self, cell: CellNumber, mime: Map<String, Value>, number: u64) {
        assert!(!self.panics, "as it was told to");
        self.recorder.display(cell, mime, number);
    }

    fn gap(&mut self, cell: CellNumber, stdout_bytes: u64, stderr_bytes: u64, number: u64) {
        self.recorder.gap(cell, stdout_bytes, stderr_bytes, number);
    }

    fn flush_at(&self) -> Option<Instant> {
        self.recorder.flush_at()
    }

    fn flush(&mut self) {
        self.recorder.flush();
    }

    fn settled(&self, number: u64) -> u64 {
        number
    }
}

fn recorder(folder: &std::path::Path) -> Arc<Recorder> {
    let log = Journal::open(folder).unwrap().log(SessionId::fresh()).unwrap();
    let spill = Spill::open(log.spill_folder(), 1 << 20).unwrap();
    Arc::new(Recorder::new(log, spill, OutputCaps { head: 100, tail: 100 }))
}

/// A peer on one side, and what arrives on the other.
async fn connected(
    received: u64,
    sink: Records,
) -> (WebSocketStream<UnixStream>, Link, mpsc::UnboundedReceiver<Incoming>) {
    let (daemon, kernel) = UnixStream::pair().unwrap();
    let daemon = WebSocketStream::from_raw_socket(Metered::new(daemon), Role::Client, None).await;
    let kernel = WebSocketStream::from_raw_socket(kernel, Role::Server, None).await;
    let (sender, incoming) = mpsc::unbounded_channel();
    let pool = Memory::default().pool(Principal::new(1));
    let link = Link::start(daemon, received, pool, sink, move |arrived| drop(sender.send(arrived)));
    (kernel, link, incoming)
}

async fn next(incoming: &mut mpsc::UnboundedReceiver<Incoming>) -> Incoming {
    tokio::time::timeout(Duration::from_secs(5), incoming.recv())
        .await
        .expect("it is told at once")
        .expect("told")
}

fn gap(stdout_bytes: u64, stderr_bytes: u64) -> Message {
    let gap =
        json!({"type": "output_gap", "cell": 1, "stdout_bytes": stdout_bytes, "stderr_bytes": stderr_bytes});
    Message::text(gap.to_string())
}

#[tokio::test]
async fn sums_of_made_up_numbers_stay_at_the_largest_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let recorder = recorder(folder.path());
    recorder.begin(1);
    let sink = Records { recorder: Arc::clone(&recorder), panics: false };
    // The kernel claims to have sent as many frames as there can be, too.
    let (mut kernel, _link, mut incoming) = connected(u64::MAX - 2, sink).await;
    for forged in [gap(u64::MAX, u64::MAX), gap(1, 1), gap(u64::MAX, 0)] {
        kernel.send(forged).await.unwrap();
    }
    let undone = json!({"type": "undone", "request": u64::MAX, "state_of": u64::MAX}).to_string();
    kernel.send(Message::text(undone)).await.unwrap();
    assert!(matches!(next(&mut incoming).await, Incoming::Frame(..)), "the connection goes on");
    recorder.output(&OutputFrame { stream: Stream::Stdout, cell: Some(1), data: &[b'x'; 500] }, u64::MAX);
    let record = recorder.finish(1);
    assert_eq!((record.captured.stdout_cut, record.captured.stderr_cut), (u64::MAX, u64::MAX));
    assert_eq!(record.dropped_bytes, u64::MAX);
    assert!(record.captured.stdout.ends_with('x'), "{}", record.captured.stdout);
}

#[tokio::test]
async fn whoever_owns_a_connection_hears_that_the_task_of_it_panicked() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Records { recorder: recorder(folder.path()), panics: true };
    let (mut kernel, _link, mut incoming) = connected(0, sink).await;
    // As the guardian wraps what a runner says: three, the length of its own word, that word, what was said.
    let own = json!({"type": "display", "cell": 1}).to_string();
    let length = u32::try_from(own.len()).unwrap().to_be_bytes();
    let display = [&[3], &length[..], own.as_bytes(), br#"{"mime":{"text/plain":"x"}}"#].concat();
    kernel.send(Message::binary(display)).await.unwrap();
    assert!(matches!(next(&mut incoming).await, Incoming::Closed(Closed::Fault)));
}

#[tokio::test]
async fn a_frame_over_which_its_reader_died_is_not_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let sink = Records { recorder: recorder(folder.path()), panics: false };
    let (mut kernel, _link, mut incoming) = connected(0, sink).await;
    let replaced = json!({"type": "worker_replaced", "exit_code": -9, "after": "lost"}).to_string();
    kernel.send(Message::text(replaced)).await.unwrap();
    let Incoming::Frame(_, turn) = next(&mut incoming).await else { panic!("a frame comes first") };
    let died = tokio::spawn(async move {
        let _turn = turn;
        panic!("as it was told to")
    });
    assert!(died.await.is_err());
    assert!(matches!(next(&mut incoming).await, Incoming::Closed(_)), "the kernel is hung up on");
    // Nothing but the end comes: no word that the frame was dealt with.
    let heard =
        tokio::time::timeout(Duration::from_secs(5), futures_util::StreamExt::next(&mut kernel)).await;
    assert!(!matches!(heard.expect("its end is heard"), Some(Ok(Message::Text(_)))), "it was acknowledged");
}
