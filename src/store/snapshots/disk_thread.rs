//! The thread that puts the chunks of one snapshot on the disk while the next ones come in. Each is kept by the disk as
//! soon as it is written, so that the end of a large snapshot does not wait for all of them.

use rustix::process::setpriority_process;
use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

use super::chunker::LONGEST;
use super::chunks::{ChunkFiles, ContentDigest};

/// The priority of the threads that take a snapshot: the last in line among those of the daemon. A cell that comes meanwhile
/// would else wait until one of them leaves its processor.
const LAST_IN_LINE: i32 = 19;
/// Chunks that wait for the disk.
const CHUNKS_WAITING: usize = 2;
/// The memory of a snapshot on its way to the disk: of the chunks that wait, of one that is being written, and of one that is being
/// made.
pub const WRITING_BYTES: u64 = (CHUNKS_WAITING as u64 + 2) * LONGEST as u64;

/// Starts a thread that works on a snapshot which is being taken.
pub fn spawn_last_in_line<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.into()).spawn(move || {
        // Without it, the snapshot is taken all the same. The priority is that of the thread alone.
        let _ = setpriority_process(None, LAST_IN_LINE);
        work()
    })
}

#[derive(Debug)]
pub(super) struct DiskThread {
    /// None once no more comes.
    queue: Option<SyncSender<(ContentDigest, Vec<u8>)>>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl DiskThread {
    pub fn start(files: ChunkFiles) -> io::Result<Self> {
        let (queue, chunks) = sync_channel::<(ContentDigest, Vec<u8>)>(CHUNKS_WAITING);
        let work = move || {
            for (digest, stored) in chunks {
                files.write(digest, &stored)?;
                files.sync(digest)?;
            }
            Ok(())
        };
        let thread = spawn_last_in_line("snapshot-disk", work)?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    /// Writes a chunk soon. An error is that of this chunk or of one before; nothing more is written then.
    pub fn write(&mut self, digest: ContentDigest, stored: Vec<u8>) -> io::Result<()> {
        if self.queue.as_ref().is_some_and(|queue| queue.send((digest, stored)).is_ok()) {
            return Ok(());
        }
        self.finish()?;
        Err(io::Error::other("nothing more is written of a snapshot that has ended"))
    }

    /// Waits until the disk has all that was written.
    pub fn finish(&mut self) -> io::Result<()> {
        self.queue = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(io::Error::other("an internal error ended the writing")))
    }
}

impl Drop for DiskThread {
    /// What nothing waits for ends, too, before anybody looks at the files.
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::debug!(%error, "a snapshot that was given up could not be written");
        }
    }
}
