//! Commands: programs that the daemon has started beside the cells. The guardian starts them itself, so that neither the
//! worker nor its death has anything to do with them.
//!
//! A command has a number of its own among the cells. Its output and its end are told as those of a cell: every end is
//! that of a process, `cell_lost`, which leaves the variables as they are.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::io::{self, Errno};
use rustix::pipe::{self, PipeFlags};
use rustix::process::{self as os_process, Pid, PidfdFlags, Signal};
use rustix::pty::{self, OpenptFlags};
use rustix::termios::{self, Winsize};
use serde_json::json;

use crate::digest;
use crate::frames::{After, HostFrame, Refusal};
use crate::guardian::Guardian;
use crate::handle::{OutputPipe, new_meter};
use crate::helpers;
use crate::limits::{
    COMMANDS, CROWD, LAST_OUTPUT_BYTES, OUTPUT_FRAME_BYTES, OUTPUT_GATHER, RUNNER_INDEXES, TYPED_BYTES,
};
use crate::output::{OutputMeter, STREAMS, Stream};
use crate::poller::{Poller, Timer, Token, Watch};
use crate::process::send_signal;
use crate::process_table;

const SHELL: &str = "/bin/sh";
/// The shell that a person who types gets, where it is installed.
const FRIENDLY_SHELL: &str = "/bin/bash";

/// What is written to a command.
struct Input {
    descriptor: OwnedFd,
    watch: Watch,
    waiting: VecDeque<u8>,
    /// Whether the descriptor is closed when all is written.
    ends: bool,
}

struct Command {
    cell: u64,
    pid: i32,
    pidfd: Option<(OwnedFd, Watch)>,
    tag: Option<u64>,
    input: Option<Input>,
    /// The output pipes by stream. A command with a terminal has only the first, which is the terminal.
    outputs: [Option<OutputPipe>; 2],
    meter: OutputMeter,
    killed: bool,
    out_of_memory: bool,
}

/// The commands that run.
#[derive(Default)]
pub struct Commands {
    open: BTreeMap<u32, Command>,
    next: u32,
    were_there: bool,
}

impl Commands {
    pub fn cells(&self) -> impl Iterator<Item = u64> {
        self.open.values().map(|command| command.cell)
    }

    /// The processes that were started for them.
    pub fn pids(&self) -> impl Iterator<Item = i32> {
        self.open.values().map(|command| command.pid)
    }

    pub fn are_running(&self) -> bool {
        !self.open.is_empty()
    }

    /// Whether there ever was a command: what it left running may still be there.
    pub fn were_there(&self) -> bool {
        self.were_there
    }

    /// All of them are about to be killed.
    pub fn end_all(&mut self) {
        self.open.values_mut().for_each(|command| command.killed = true);
    }

    /// The process is killed for its memory, if it is one of theirs.
    pub fn out_of_memory(&mut self, pid: i32) {
        let session = process_table::row(pid).map(|row| row.session);
        for command in self.open.values_mut() {
            command.out_of_memory |= command.pid == pid || session == Some(command.pid);
        }
    }

    /// The number of the running command whose processes have this tag.
    pub fn cell_of_tag(&self, tag: u64) -> Option<u64> {
        self.open.values().find(|command| command.tag == Some(tag)).map(|command| command.cell)
    }

    fn of_cell(&self, cell: u64) -> Option<u32> {
        self.open.iter().find(|(_, command)| command.cell == cell).map(|(index, _)| *index)
    }

    fn new_index(&mut self) -> u32 {
        while self.open.contains_key(&self.next) {
            self.next = (self.next + 1) % RUNNER_INDEXES;
        }
        let index = self.next;
        self.next = (index + 1) % RUNNER_INDEXES;
        index
    }
}

/// The descriptors of a command: the guardian's ends, and those of the process.
struct Ends {
    input: Option<Input>,
    outputs: [Option<OutputPipe>; 2],
    /// Standard input, output and error.
    theirs: [Stdio; 3],
}

impl Ends {
    /// Pipes for the output, and for the input if there is some.
    fn pipes(index: u32, stdin: Vec<u8>) -> io::Result<Self> {
        let [mut stdout, mut stderr] =
            STREAMS.map(|stream| OutputPipe::new(Token::CommandOutput(index, stream)));
        let their_end = |pipe: &mut io::Result<OutputPipe>| match pipe {
            Ok(pipe) => pipe.runner_end.take().map(Stdio::from).ok_or(Errno::BADF),
            Err(error) => Err(*error),
        };
        let (their_stdout, their_stderr) = (their_end(&mut stdout)?, their_end(&mut stderr)?);
        let (input, their_stdin) = if stdin.is_empty() {
            (None, Stdio::null())
        } else {
            let (theirs, ours) = pipe::pipe_with(PipeFlags::CLOEXEC)?;
            io::ioctl_fionbio(&ours, true)?;
            (Some(Input::new(index, ours, stdin.into(), true)), Stdio::from(theirs))
        };
        Ok(Self {
            input,
            outputs: [stdout.ok(), stderr.ok()],
            theirs: [their_stdin, their_stdout, their_stderr],
        })
    }

    /// A terminal, which is all three.
    fn terminal(index: u32, size: Winsize) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let ours = pty::openpt(flags)?;
        pty::unlockpt(&ours)?;
        let theirs = pty::ioctl_tiocgptpeer(&ours, flags)?;
        // A size that is not set is a terminal of no rows to programs, which then take 24.
        let _ = termios::tcsetwinsize(&ours, size);
        io::ioctl_fionbio(&ours, true)?;
        let copies = [theirs.try_clone(), theirs.try_clone()];
        let [Ok(second), Ok(third)] = copies else { return Err(Errno::MFILE) };
        let writes = ours.try_clone().map_err(|_| Errno::MFILE)?;
        let watch = Watch::new(Token::CommandOutput(index, Stream::Stdout));
        let output = OutputPipe { descriptor: ours, runner_end: None, watch };
        let input = Input::new(index, writes, VecDeque::new(), false);
        Ok(Self {
            input: Some(input),
            outputs: [Some(output), None],
            theirs: [theirs.into(), second.into(), third.into()],
        })
    }
}

impl Input {
    fn new(index: u32, descriptor: OwnedFd, waiting: VecDeque<u8>, ends: bool) -> Self {
        Self { descriptor, watch: Watch::new(Token::CommandInput(index)), waiting, ends }
    }

    /// Writes what is taken at once. False if there is nothing more to write, ever.
    fn write(&mut self, poller: &Poller) -> bool {
        while !self.waiting.is_empty() {
            match io::write(&self.descriptor, self.waiting.as_slices().0) {
                Ok(written) => drop(self.waiting.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // The command does not read any more.
                Err(_) => return false,
            }
        }
        let wanted = if self.waiting.is_empty() { EventFlags::empty() } else { EventFlags::OUT };
        self.watch.set(poller, &self.descriptor, wanted);
        !(self.waiting.is_empty() && self.ends)
    }
}

impl Command {
    fn watch_output(&mut self, stream: Stream, on: bool, poller: &Poller) {
        if let Some(output) = &mut self.outputs[stream.place()] {
            output.watch.set(
                poller,
                &output.descriptor,
                if on { EventFlags::IN } else { EventFlags::empty() },
            );
        }
    }

    fn close_output(&mut self, stream: Stream, poller: &Poller) {
        self.watch_output(stream, false, poller);
        self.outputs[stream.place()] = None;
    }

    fn close_input(&mut self, poller: &Poller) {
        if let Some(mut input) = self.input.take() {
            input.watch.set(poller, &input.descriptor, EventFlags::empty());
        }
    }

    /// Sends a signal to all processes of its group, of which it is the first once it has prepared itself.
    fn signal(&self, signal: Signal) {
        let sent = Pid::from_raw(self.pid).map(|pid| os_process::kill_process_group(pid, signal));
        if !matches!(sent, Some(Ok(()))) {
            send_signal(self.pid, signal);
        }
    }
}

/// The program and its arguments. A line is for a shell; without any, it is a shell.
fn program_of(argv: Vec<String>, line: Option<String>, has_terminal: bool) -> Result<Vec<String>, Refusal> {
    if !argv.is_empty() {
        return Ok(argv);
    }
    let is_there = |path: &str| std::fs::exists(path).unwrap_or(false);
    if has_terminal && line.is_none() && is_there(FRIENDLY_SHELL) {
        return Ok(vec![FRIENDLY_SHELL.into()]);
    }
    if !is_there(SHELL) {
        return Err(Refusal::NoShell);
    }
    let line = line.into_iter().flat_map(|line| ["-c".to_owned(), line]);
    Ok(std::iter::once(SHELL.to_owned()).chain(line).collect())
}

fn size_of(frame: &HostFrame<'_>) -> Result<Winsize, Refusal> {
    let (ws_row, ws_col) = (frame.get("rows")?, frame.get("columns")?);
    Ok(Winsize { ws_row, ws_col, ws_xpixel: 0, ws_ypixel: 0 })
}

fn bytes_of(frame: &HostFrame<'_>, field: &str) -> Result<Vec<u8>, Refusal> {
    let text: String = frame.get(field)?;
    digest::from_base64(&text).ok_or_else(|| Refusal::Malformed(format!("{field}: this is no base64")))
}

impl Guardian {
    pub fn start_command(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let (cell, has_terminal): (u64, bool) = (frame.get("cell")?, frame.get("tty")?);
        let program = program_of(frame.get("argv")?, frame.get("line")?, has_terminal)?;
        let (folder, environment): (Option<String>, BTreeMap<String, String>) =
            (frame.get("cwd")?, frame.get("env")?);
        let stdin = bytes_of(frame, "stdin")?;
        let size = size_of(frame)?;
        self.last_cell = self.last_cell.max(cell);
        self.wait_for_room();
        if self.commands.open.len() >= COMMANDS {
            return Err(Refusal::NoProcess("too many commands are running".into()));
        }
        let index = self.commands.new_index();
        let ends = if has_terminal { Ends::terminal(index, size) } else { Ends::pipes(index, stdin) };
        let ends = ends.map_err(|_| Refusal::NoDescriptors)?;
        let tag = self.processes.command_tag(index);
        let workspace = self.zygote.workspace();
        // What is relative is so to the workspace.
        let folder = std::path::Path::new(workspace).join(folder.unwrap_or_default());
        let mut command = helpers::command(tag, has_terminal, &folder.to_string_lossy(), &program);
        let [stdin, stdout, stderr] = ends.theirs;
        command.envs(environment).stdin(stdin).stdout(stdout).stderr(stderr);
        let pid = helpers::start(&mut command).map_err(|_| Refusal::no_process())?;
        drop(command); // and with it the guardian's copies of the ends of the process
        let mut started = Command {
            cell,
            pid,
            pidfd: None,
            tag,
            input: ends.input,
            outputs: ends.outputs,
            meter: new_meter(&self.limits),
            killed: false,
            out_of_memory: false,
        };
        if let Some(Ok(pidfd)) =
            Pid::from_raw(pid).map(|pid| os_process::pidfd_open(pid, PidfdFlags::empty()))
        {
            let mut watch = Watch::new(Token::Command(index));
            watch.set(&self.poller, &pidfd, EventFlags::IN);
            started.pidfd = Some((pidfd, watch));
        }
        self.commands.open.insert(index, started);
        self.commands.were_there = true;
        self.feed_command(index);
        self.read_command(index, !self.is_pressed);
        self.reap_soon();
        self.watch_memory_soon();
        Ok(())
    }

    /// Writes to a command what waits for it.
    pub fn feed_command(&mut self, index: u32) {
        let Some(command) = self.commands.open.get_mut(&index) else { return };
        if command.input.as_mut().is_some_and(|input| !input.write(&self.poller)) {
            command.close_input(&self.poller);
        }
    }

    /// Passes on what a person typed.
    pub fn type_into(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let (cell, typed) = (frame.get("cell")?, bytes_of(frame, "data")?);
        let Some(index) = self.commands.of_cell(cell) else { return Ok(()) };
        let input = self.commands.open.get_mut(&index).and_then(|command| command.input.as_mut());
        if let Some(input) = input.filter(|input| input.waiting.len() + typed.len() <= TYPED_BYTES) {
            input.waiting.extend(typed);
        }
        self.feed_command(index);
        Ok(())
    }

    pub fn resize_terminal(&mut self, frame: &HostFrame<'_>) -> Result<(), Refusal> {
        let (cell, size) = (frame.get("cell")?, size_of(frame)?);
        let command = self.commands.of_cell(cell).and_then(|index| self.commands.open.get(&index));
        if let Some(terminal) = command.and_then(|command| command.outputs[0].as_ref()) {
            // A pipe has no size.
            let _ = termios::tcsetwinsize(terminal.descriptor.as_fd(), size);
        }
        Ok(())
    }

    // Output.

    /// Reads what commands write, or lets them wait.
    pub fn read_commands(&mut self, on: bool) {
        for index in self.commands.open.keys().copied().collect::<Vec<_>>() {
            self.read_command(index, on);
        }
    }

    pub fn read_command(&mut self, index: u32, on: bool) {
        self.poller.cancel(Timer::GatherCommand(index));
        if let Some(command) = self.commands.open.get_mut(&index) {
            for stream in STREAMS {
                command.watch_output(stream, on, &self.poller);
            }
        }
    }

    pub fn command_wrote(&mut self, index: u32, stream: Stream) {
        let taken = self.take_command_output(index, stream);
        let Some(command) = self.commands.open.get_mut(&index) else { return };
        match taken {
            None => command.close_output(stream, &self.poller),
            Some(taken) if taken < OUTPUT_FRAME_BYTES && !self.is_pressed => {
                // What comes next waits a little for more, so that many short writes are few frames.
                command.watch_output(stream, false, &self.poller);
                self.poller.within(Timer::GatherCommand(index), OUTPUT_GATHER);
            }
            Some(_) => {}
        }
    }

    /// Bytes taken; `None` at the end of the stream.
    fn take_command_output(&mut self, index: u32, stream: Stream) -> Option<usize> {
        let command = self.commands.open.get_mut(&index)?;
        let output = command.outputs[stream.place()].as_ref()?;
        let taken = match io::read(&output.descriptor, &mut self.scratch[..OUTPUT_FRAME_BYTES]) {
            Ok(taken) if taken > 0 => taken,
            Err(Errno::AGAIN | Errno::INTR) => return Some(0),
            // A terminal that no process has open is an error to read.
            Ok(_) | Err(_) => return None,
        };
        let now = command.meter.take(stream, &self.scratch[..taken]);
        if !now.is_empty() {
            self.bridge.send_output(stream.header(command.cell), now, &mut self.poller);
            self.after_bridge();
        }
        Some(taken)
    }

    /// Forwards what a command that has ended had written, and what the meter held back.
    fn finish_command_output(&mut self, index: u32) {
        for stream in STREAMS {
            let mut left = LAST_OUTPUT_BYTES;
            while let Some(taken) =
                self.take_command_output(index, stream).filter(|taken| *taken > 0 && left > 0)
            {
                left = left.saturating_sub(taken);
            }
        }
        let Some(command) = self.commands.open.get_mut(&index) else { return };
        let (cell, meter) = (command.cell, std::mem::replace(&mut command.meter, new_meter(&self.limits)));
        self.send_held_back(cell, meter);
    }

    // Ends.

    pub fn interrupt_command(&mut self, cell: u64) {
        if let Some(command) = self.commands.of_cell(cell).and_then(|index| self.commands.open.get(&index)) {
            command.signal(Signal::INT);
        }
    }

    /// Has a command end: by itself, or after the grace with all that it started.
    pub fn kill_command(&mut self, cell: u64, grace: Duration) {
        let Some(index) = self.commands.of_cell(cell) else { return };
        let is_crowded = self.processes.is_crowded(CROWD);
        let Some(command) = self.commands.open.get_mut(&index) else { return };
        command.killed = true;
        if is_crowded {
            self.end_command(index);
        } else {
            command.signal(Signal::TERM);
            self.poller.after(Timer::EndCommand(index), grace);
        }
    }

    /// Kills a command and all that it started.
    pub fn end_command(&mut self, index: u32) {
        if let Some(command) = self.commands.open.get(&index) {
            let killed = self.processes.kill_command(command.pid, command.tag);
            self.strays.killed(killed);
            self.reap_soon();
        }
    }

    /// A child of the guardian has ended. False if it was no command.
    pub fn command_ended(&mut self, pid: i32, exit_code: i32) -> bool {
        let found = self.commands.open.iter().find(|(_, command)| command.pid == pid);
        let Some((index, is_killed)) = found.map(|(index, command)| (*index, command.killed)) else {
            return false;
        };
        // The command may have ended by itself, but not what it started, which lives on unless it is a crowd.
        if is_killed || self.processes.is_crowded(CROWD) {
            self.end_command(index);
        }
        self.finish_command_output(index);
        let Some(mut command) = self.commands.open.remove(&index) else { return true };
        for timer in [Timer::GatherCommand(index), Timer::EndCommand(index)] {
            self.poller.cancel(timer);
        }
        command.close_input(&self.poller);
        for stream in STREAMS {
            command.close_output(stream, &self.poller);
        }
        if let Some((pidfd, mut watch)) = command.pidfd.take() {
            watch.set(&self.poller, &pidfd, EventFlags::empty());
        }
        let mut frame = json!({
            "type": "cell_lost", "cell": command.cell, "exit_code": exit_code, "killed": command.killed,
            "after": After::Kept.to_json(),
        });
        if command.out_of_memory {
            frame["out_of_memory"] = json!(true);
        }
        self.send(&frame);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_for_a_shell_and_words_are_the_program() {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(program_of(words(&["ls", "-l"]), None, false), Ok(words(&["ls", "-l"])));
        assert_eq!(
            program_of(Vec::new(), Some("ls | wc".into()), false),
            Ok(words(&[SHELL, "-c", "ls | wc"]))
        );
        assert_eq!(program_of(Vec::new(), None, false), Ok(words(&[SHELL])));
    }
}
