//! Runs the script that builds an image and shows its progress: on a terminal one line that
//! changes, elsewhere all output of the script.

use std::collections::VecDeque;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::cli::failure::Failure;
use crate::cli::render::human::{age, bar};
use crate::cli::render::screen::Screen;
use crate::protocol::text::{clipped, sanitized};

const TICK: Duration = Duration::from_millis(500);
/// Characters of a step's name, so that the line fits the terminal.
const STEP_CHARS: usize = 45;
/// Lines that are shown of a build that failed.
const KEPT_LINES: usize = 40;
/// Longest line of a build that is kept whole.
const LINE_BYTES: u64 = 64 * 1024;

pub struct BuildOutcome {
    pub status: ExitStatus,
    /// The last line on stdout.
    pub last: String,
}

/// The command's stdout has to be piped already.
pub async fn run(screen: &mut Screen, mut command: Command) -> Result<BuildOutcome, Failure> {
    let watched = screen.is_watched();
    command.stderr(if watched { Stdio::piped() } else { Stdio::inherit() }).kill_on_drop(true);
    let failed = |e| Failure::io("failed to run `bash`", &e);
    let mut child = command.spawn().map_err(failed)?;
    let (mut out, mut err) = (Lines::of(child.stdout.take()), Lines::of(child.stderr.take()));
    let mut progress =
        Progress { step: "starting".to_owned(), last_lines: VecDeque::new(), began: Instant::now() };
    let mut last = String::new();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    while out.is_open() || err.is_open() {
        tokio::select! {
            line = out.next() => last = line.unwrap_or(last),
            line = err.next() => line.into_iter().for_each(|line| progress.saw(line)),
            _ = ticks.tick() => if watched { screen.progress(&progress.line())? },
        }
    }
    let status = child.wait().await.map_err(failed)?;
    if watched && !status.success() {
        screen.block(
            &progress.last_lines.into_iter().map(|line| sanitized(&line)).collect::<Vec<_>>().join("\n"),
        )?;
    }
    Ok(BuildOutcome { status, last })
}

/// The lines of a stream, and the beginning of the next line.
struct Lines<R> {
    /// None after the end of the stream.
    reader: Option<BufReader<R>>,
    begun: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    fn of(stream: Option<R>) -> Self {
        Self { reader: stream.map(BufReader::new), begun: Vec::new() }
    }

    /// None at the end of the stream; after that it waits for ever. The future can be dropped while it waits;
    /// nothing is lost.
    async fn next(&mut self) -> Option<String> {
        let Some(reader) = &mut self.reader else { return std::future::pending().await };
        let bytes_left = LINE_BYTES.saturating_sub(self.begun.len() as u64);
        if let Ok(1..) = reader.take(bytes_left).read_until(b'\n', &mut self.begun).await {
            let line = std::mem::take(&mut self.begun);
            return Some(String::from_utf8_lossy(&line).trim_end().to_owned());
        }
        self.reader = None;
        None
    }

    fn is_open(&self) -> bool {
        self.reader.is_some()
    }
}

struct Progress {
    step: String,
    last_lines: VecDeque<String>,
    began: Instant,
}

impl Progress {
    fn saw(&mut self, line: String) {
        if let Some(step) = line.strip_prefix("step ") {
            step.clone_into(&mut self.step);
        }
        if self.last_lines.len() == KEPT_LINES {
            self.last_lines.pop_front();
        }
        self.last_lines.push_back(line);
    }

    /// `[#####---------------] 2/4: unpacking … · 42s`
    fn line(&self) -> String {
        let count = self.step.split_once(':').and_then(|(count, _)| count.split_once('/'));
        let count = count.and_then(|(step, of)| Some((step.parse::<u64>().ok()?, of.parse().ok()?)));
        let bar = count.map(|(step, of)| format!("{} ", bar(step.saturating_sub(1), of))).unwrap_or_default();
        format!("{bar}{} · {}", clipped(&self.step, STEP_CHARS), age(self.began.elapsed().as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_build_tells_its_last_line_and_how_it_ended() {
        let mut screen = Screen::new(crate::cli::render::screen::Color::Never);
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo noise; echo step 1/2: a >&2; echo sha256:1; exit 3"])
            .stdout(Stdio::piped());
        let built = run(&mut screen, command).await.unwrap();
        assert_eq!((built.status.code(), built.last.as_str()), (Some(3), "sha256:1"));
    }

    #[test]
    fn only_steps_change_the_line_and_only_the_last_lines_are_kept() {
        let mut progress =
            Progress { step: String::new(), last_lines: VecDeque::new(), began: Instant::now() };
        progress.saw("step 2/4: gathering".to_owned());
        (0..100).for_each(|n| progress.saw(format!("line {n}")));
        assert_eq!(progress.line(), "[#####---------------] 2/4: gathering · 0s");
        assert_eq!((progress.last_lines.len(), progress.last_lines[0].as_str()), (KEPT_LINES, "line 60"));
    }
}
