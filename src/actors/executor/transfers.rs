//! Snapshots on their way between a kernel and the disk, as tasks: the stream is read and written here, the disk on
//! threads that may wait. A few records are in memory at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot, watch};

use crate::actors::snapshots::{SessionSnapshots, TakenSnapshot};
use crate::protocol::clock;
use crate::protocol::ids::CellNumber;
use crate::protocol::packages::PackageSet;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::protocol::snapshot::{MissingVariable, SnapshotManifest, SnapshotRecord, add_missing};
use crate::protocol::text::brief;
use crate::quota::Ledger;
use crate::sandbox::backend::DataListener;
use crate::security_controls;
use crate::store::snapshots::records::{self, HEADER_BYTES, RecordError, RecordHeader, RecordKind};
use crate::store::snapshots::{
    SnapshotAbout, SnapshotError, SnapshotPiece, SnapshotReader, spawn_last_in_line,
};

/// Records of one transfer that wait for the disk.
const RECORDS_WAITING: usize = 2;
/// Bytes that are read at once, so that small records do not cost a system call each.
const READ_AHEAD: usize = 64 * 1024;
/// Records that may be of any length: more than the sections of the largest snapshot have.
const SMALL_RECORDS: u64 = 1024 * 1024;
/// Bytes that the records beyond these have on average, at least.
const RECORD_MEAN: u64 = 4096;
/// The longest time until a kernel connects; other deadlines are held by the executor.
const CONNECTS: Duration = Duration::from_secs(15 * 60);
/// What is written of a snapshot without looking whether a cell runs, for how long that is put off while one does, and how
/// often that is looked at.
const WRITTEN_AT_ONCE: usize = 256 * 1024;
const PUT_OFF: Duration = Duration::from_millis(5);
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// How long the guardian may take to say why a copy has ended whose stream has ended, and what a copy had sent that has ended
/// may take to come.
const WHY: Duration = Duration::from_secs(3);
/// Characters of what a kernel says of its failure.
const REASON_CHARS: usize = 300;

/// What the guardian has said of the copy that packs.
#[expect(clippy::option_option, reason = "whether it has ended, and whether there is a reason")]
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// The newest cell whose changes it holds.
    pub state_of: Option<CellNumber>,
    /// Set when the copy has ended: why, if not by itself.
    pub ended: Option<Option<String>>,
}

/// What the daemon knows of a snapshot beside what its kernel says.
#[derive(Clone, Debug)]
pub(super) struct About {
    pub python: String,
    pub image: String,
    pub packages: Option<PackageSet>,
    pub name: Option<String>,
    /// What the session woke without.
    pub missing: Vec<MissingVariable>,
}

/// One end of a transfer in the daemon.
pub(super) struct DataEnd {
    pub listener: DataListener,
    pub token: String,
    pub on_disk: SessionSnapshots,
    /// Where it is known whether cells run.
    pub ledger: Ledger,
    /// The bytes that have moved so far.
    pub moved: Arc<AtomicU64>,
}

/// A part of a snapshot on its way to the disk.
enum Part {
    Bytes(Vec<u8>),
    SectionEnd,
    End(Box<SnapshotAbout>),
}

pub(super) fn failed(why: impl std::fmt::Display) -> Problem {
    Problem::new(Code::SnapshotFailed, format!("the variables could not be saved: {why}"))
}

/// Receives a snapshot and keeps it.
pub(super) async fn receive(
    end: DataEnd,
    about: About,
    told: watch::Receiver<Told>,
) -> Result<TakenSnapshot, Problem> {
    let DataEnd { listener, token, on_disk, ledger, moved } = end;
    let stream = unless_over(listener.accept(&token, CONNECTS), &told).await??;
    let mut stream = BufReader::with_capacity(READ_AHEAD, stream);
    let (parts, incoming) = mpsc::channel(RECORDS_WAITING);
    let (done, written) = oneshot::channel();
    let write = move || drop(done.send(write(&on_disk, &ledger, incoming)));
    spawn_last_in_line("snapshot-write", write).map_err(failed)?;
    let read = read(&mut stream, &parts, &moved, about, told).await;
    drop(parts);
    let written = written.await.map_err(|_| failed("an internal error"))?;
    match (read, written) {
        // What was wrong with the disk ends the reading as well, so it comes first.
        (_, Err(problem)) | (Err(problem), _) => Err(problem),
        (Ok(()), Ok(taken)) => taken.ok_or_else(|| failed("it was given up")),
    }
}

/// Writes what comes, on a thread that may wait. Without an end, all of it goes again.
fn write(
    on_disk: &SessionSnapshots,
    ledger: &Ledger,
    mut parts: mpsc::Receiver<Part>,
) -> Result<Option<TakenSnapshot>, Problem> {
    let mut writer = on_disk.next_writer()?;
    let mut written_since = 0;
    while let Some(part) = parts.blocking_recv() {
        match part {
            Part::Bytes(bytes) => {
                for bytes in bytes.chunks(WRITTEN_AT_ONCE) {
                    written_since += bytes.len();
                    if written_since >= WRITTEN_AT_ONCE {
                        let_cells_run(ledger);
                        written_since = 0;
                    }
                    writer.piece(bytes)?;
                }
            }
            Part::SectionEnd => writer.end_section()?,
            // Should nothing wait for it any more, it goes where it is dropped.
            Part::End(about) => {
                let record = writer.finish(*about)?;
                return Ok(Some(TakenSnapshot::new(record, on_disk.clone())));
            }
        }
    }
    Ok(None)
}

/// Waits a moment if cells run, of whichever session: hashing and compressing would take a processor from them.
fn let_cells_run(ledger: &Ledger) {
    let began = Instant::now();
    while ledger.used_by_all(Kind::Cells) > 0 && began.elapsed() < PUT_OFF {
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What comes. An error if the copy has ended that would send it: processes that it has left behind may hold the connection
/// open, and without one, nothing would tell that none comes any more.
async fn unless_over<T>(comes: impl Future<Output = T>, told: &watch::Receiver<Told>) -> Result<T, Problem> {
    let mut hears = told.clone();
    let is_over = async {
        // Without an executor nothing is told any more, and this task ends with it.
        if hears.wait_for(|told| told.ended.is_some()).await.is_err() {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(WHY).await;
    };
    tokio::select! {
        biased;
        it = comes => Ok(it),
        () = is_over => Err(ended_early(told)),
    }
}

/// Why a copy ended that had not sent everything, as far as the guardian has said.
fn ended_early(told: &watch::Receiver<Told>) -> Problem {
    let why = told.borrow().ended.clone().flatten();
    failed(why.map_or_else(
        || "the process that packed them ended before it had sent all of them".to_owned(),
        |why| brief(&why, REASON_CHARS),
    ))
}

async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    parts: &mpsc::Sender<Part>,
    moved: &AtomicU64,
    about: About,
    mut told: watch::Receiver<Told>,
) -> Result<(), Problem> {
    let mut volume = Volume::default();
    loop {
        let (kind, payload) = match unless_over(record(stream), &told).await? {
            Ok(record) => record,
            Err(ReadError::Record(error)) => return Err(failed(error)),
            Err(ReadError::Ended) => {
                // Told or not, the stream is over.
                let _ = tokio::time::timeout(WHY, told.wait_for(|told| told.ended.is_some())).await;
                return Err(ended_early(&told));
            }
        };
        volume.add(payload.len())?;
        // Only the variables are progress: records without any would keep the transfer alive for ever.
        moved.fetch_add(payload.len() as u64, Ordering::Relaxed);
        let (part, is_last) = match kind {
            RecordKind::Piece => (Part::Bytes(payload), false),
            RecordKind::SectionEnd => (Part::SectionEnd, false),
            RecordKind::GivenUp => {
                let reason = records::given_up(&payload).map_err(failed)?;
                return Err(failed(brief(&reason.message, REASON_CHARS)));
            }
            RecordKind::End => {
                let manifest = records::manifest(&payload).map_err(failed)?;
                let known = tokio::time::timeout(WHY, told.wait_for(|told| told.state_of.is_some())).await;
                let cell = known.ok().and_then(Result::ok).and_then(|told| told.state_of);
                let cell = cell.ok_or_else(|| failed("it is not known whose they are"))?;
                (Part::End(Box::new(complete(about.clone(), cell, manifest))), true)
            }
        };
        // A writer that takes no more has failed, and says why.
        if parts.send(part).await.is_err() || is_last {
            return Ok(());
        }
    }
}

fn complete(about: About, cell: CellNumber, mut manifest: SnapshotManifest) -> SnapshotAbout {
    let About { python, image, packages, name, missing } = about;
    // What could not be loaded is not among the variables, so the kernel does not know of it any more.
    let of_kernel = std::mem::replace(&mut manifest.missing, missing);
    add_missing(&mut manifest.missing, of_kernel);
    SnapshotAbout { cell, python, image, manifest, name, packages, at: clock::now() }
}

/// What has come of a snapshot.
#[derive(Default)]
struct Volume {
    records: u64,
    bytes: u64,
}

impl Volume {
    /// Counts a record. Far too many for so few bytes are refused, because each costs the daemon some work.
    fn add(&mut self, length: usize) -> Result<(), Problem> {
        self.records += 1;
        self.bytes += length as u64;
        if self.records > SMALL_RECORDS + self.bytes / RECORD_MEAN
            && security_controls::holds("snapshot_records_are_counted")
        {
            return Err(failed("they came in too many pieces"));
        }
        Ok(())
    }
}

enum ReadError {
    Ended,
    Record(RecordError),
}

async fn record(stream: &mut (impl AsyncRead + Unpin)) -> Result<(RecordKind, Vec<u8>), ReadError> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await.map_err(|_| ReadError::Ended)?;
    let RecordHeader { kind, length } = RecordHeader::parse(header).map_err(ReadError::Record)?;
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload).await.map_err(|_| ReadError::Ended)?;
    Ok((kind, payload))
}

/// Sends a snapshot to the kernel that loads it. No thread waits for the kernel: each record is read on one while the last one
/// is on its way.
pub(super) async fn send(end: DataEnd, snapshot: SnapshotRecord) -> Result<(), Problem> {
    let DataEnd { listener, token, on_disk, moved, .. } = end;
    let mut stream = listener.accept(&token, CONNECTS).await?;
    let opened = tokio::task::spawn_blocking(move || on_disk.read(&snapshot));
    let reader = opened.await.map_err(|_| not_loaded("an internal error"))??;
    let mut manifest = Some(serde_json::to_vec(&reader.about().manifest).map_err(not_loaded)?);
    let mut reading = tokio::task::spawn_blocking(move || next_piece(reader));
    loop {
        let (reader, piece) = reading.await.map_err(|_| not_loaded("an internal error"))??;
        reading = tokio::task::spawn_blocking(move || next_piece(reader));
        let (kind, payload) = match piece {
            Some(SnapshotPiece::Bytes(bytes)) => (RecordKind::Piece, bytes),
            Some(SnapshotPiece::SectionEnd) => (RecordKind::SectionEnd, Vec::new()),
            None => match manifest.take() {
                Some(manifest) => (RecordKind::End, manifest),
                None => return Ok(()),
            },
        };
        let header = kind.header(payload.len()).map_err(not_loaded)?;
        let sent = async {
            stream.write_all(&header).await?;
            stream.write_all(&payload).await
        };
        if sent.await.is_err() {
            // The kernel says why it reads no more.
            return Ok(());
        }
        moved.fetch_add(payload.len() as u64, Ordering::Relaxed);
    }
}

fn next_piece(mut reader: SnapshotReader) -> Result<(SnapshotReader, Option<SnapshotPiece>), SnapshotError> {
    let piece = reader.next_piece()?;
    Ok((reader, piece))
}

/// A fault of the daemon, which says nothing of the snapshot.
pub(super) fn not_loaded(why: impl std::fmt::Display) -> Problem {
    Problem::new(Code::Internal, why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about() -> About {
        About { python: String::new(), image: String::new(), packages: None, name: None, missing: Vec::new() }
    }

    #[test]
    fn a_snapshot_of_the_largest_size_has_enough_records_and_one_of_tiny_pieces_has_not() {
        let mut whole = Volume::default();
        assert!((0..4 * SMALL_RECORDS).all(|_| whole.add(64 * 1024).is_ok()));
        let mut ends = Volume::default();
        assert!((0..SMALL_RECORDS).all(|_| ends.add(0).is_ok()));
        ends.add(0).unwrap_err();
        let mut tiny = Volume::default();
        assert!(!(0..2 * SMALL_RECORDS).all(|_| tiny.add(1).is_ok()));
    }

    #[tokio::test]
    async fn nothing_is_waited_for_that_a_copy_that_has_ended_would_have_sent() {
        for (reason, said) in [
            (Some("the process that packed it died of signal 11"), "died of signal 11"),
            (None, "ended before it had sent all"),
        ] {
            let (tell, hears) = watch::channel(Told::default());
            let (parts, _taken) = mpsc::channel(8);
            // Something that the copy has left behind holds the other end open.
            let (mut stream, mut held) = tokio::io::duplex(64);
            held.write_all(b"P\0\0\0\x03abcP\0").await.unwrap();
            tell.send_modify(|told| told.ended = Some(reason.map(str::to_owned)));
            let moved = AtomicU64::new(0);
            let problem = read(&mut stream, &parts, &moved, about(), hears).await.unwrap_err();
            assert!(problem.message.contains(said), "{problem}");
            assert_eq!(moved.load(Ordering::Relaxed), 3, "what had come is read first");
        }
    }

    #[tokio::test]
    async fn a_copy_that_never_connected_is_not_waited_for_either() {
        let (tell, hears) = watch::channel(Told::default());
        tell.send_modify(|told| told.ended = Some(Some("it was killed".into())));
        let problem = unless_over(std::future::pending::<()>(), &hears).await.unwrap_err();
        assert!(problem.message.contains("it was killed"), "{problem}");
        assert_eq!(unless_over(async { 1 }, &hears).await.unwrap(), 1, "what is there already is taken");
    }

    #[tokio::test]
    async fn only_what_is_in_the_records_is_progress() {
        let (_told, hears) = watch::channel(Told::default());
        let (parts, mut taken) = mpsc::channel(8);
        let (moved, mut stream) = (AtomicU64::new(0), &b"P\0\0\0\x03abcS\0\0\0\0S\0\0\0\0P\0\0\0\0"[..]);
        let problem = read(&mut stream, &parts, &moved, about(), hears).await.unwrap_err();
        assert!(problem.message.contains("a piece of a section has no bytes"), "{problem}");
        assert_eq!(moved.load(Ordering::Relaxed), 3);
        assert!(matches!(taken.try_recv(), Ok(Part::Bytes(bytes)) if bytes == b"abc"));
        assert!(matches!(taken.try_recv(), Ok(Part::SectionEnd)));
    }
}
