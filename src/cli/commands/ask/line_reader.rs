//! Reads lines that a person types while other things happen. Only for a stdin that is a terminal.

use std::io::{self, BufRead as _};

use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::oneshot;

use crate::cli::failure::Failure;

/// Reads a line only when one is wanted, so that an editor has the terminal for itself.
#[derive(Default)]
pub(in crate::cli) struct LineReader {
    /// The line that a thread reads. It may outlive its question, since the read cannot be cancelled.
    pending: Option<oneshot::Receiver<io::Result<Option<String>>>>,
}

impl LineReader {
    /// The next line, without its end; none at the end of input. The future can be dropped while it waits;
    /// no line is lost.
    pub async fn line(&mut self) -> Result<Option<String>, Failure> {
        let read = self.pending.get_or_insert_with(begin).await;
        self.pending = None;
        // A thread that ended without sending has read nothing.
        read.unwrap_or(Ok(None)).map_err(|e| Failure::io("failed to read from the terminal", &e))
    }

    /// Discards what was typed before the question was shown: it cannot be the answer.
    pub fn forget_stale(&mut self) {
        // This fails only if the terminal is gone, and then the next read fails, too.
        let _ = tcflush(io::stdin(), QueueSelector::IFlush);
        if self.pending.as_mut().is_some_and(|pending| pending.try_recv().is_ok()) {
            self.pending = None;
        }
    }
}

fn begin() -> oneshot::Receiver<io::Result<Option<String>>> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A terminal hands out a line at a time, and none longer than a few thousand bytes.
        let read = io::stdin().lock().read_until(b'\n', &mut bytes);
        let line = String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned();
        // If the receiver is gone, the line is dropped.
        let _ = sender.send(read.map(|length| (length > 0).then_some(line)));
    });
    receiver
}
