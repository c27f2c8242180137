//! Every fixed bound of the guardian, and the bounds that the daemon sends with its hello.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

// The protocol's own bounds; the daemon has the same.
pub const PROTOCOL_VERSION: u64 = 1;
pub const FRAME_BYTES: usize = 24 * 1024 * 1024;
pub const OUTPUT_FRAME_BYTES: usize = 64 * 1024;
/// Bytes of one message of a runner: the rest of the frame is for the guardian's part.
pub const SAID_BYTES: usize = FRAME_BYTES - 4096;

// The bridge.
pub const UPGRADE_BYTES: usize = 8 * 1024;
pub const UPGRADE_HEADERS: usize = 64;
pub const FRAGMENTS: usize = 4096;
pub const HANDSHAKE: Duration = ms(10_000);
pub const CONNECT_RETRY_FIRST: Duration = ms(10);
pub const CONNECT_RETRY_MAX: Duration = ms(500);
pub const FIRST_HELLO: Duration = ms(120_000);
/// Bytes of the one buffer that everything is read into.
pub const READ_BYTES: usize = 64 * 1024;
/// Above the first mark nothing more is read from runners, below the second mark reading resumes.
pub const BRIDGE_QUEUE_HIGH: usize = 1024 * 1024;
pub const BRIDGE_QUEUE_LOW: usize = 256 * 1024;
/// A buffer that has grown beyond this gives its memory back when it is empty.
pub const BUFFER_KEPT_BYTES: usize = 256 * 1024;

// Python's first process.
/// Python has started within this time, or the sandbox ends, or the start is tried again. It has made the first process
/// within the same time.
pub const ZYGOTE_START: Duration = ms(60_000);
/// Python that was killed by code of the session has started again within this time, or is given up.
pub const ZYGOTE_RESTART: Duration = ms(6_000);
/// Any later process is made within this time, or the zygote is replaced.
pub const ZYGOTE_ANSWER: Duration = ms(4_000);
/// A zygote that does not answer is told this often to go on, because code of the session can stop it.
pub const ZYGOTE_PRESS: Duration = ms(20);
/// Zygotes that are asked for one process: the first may have been killed a moment before.
pub const ZYGOTE_TRIES: usize = 2;
/// Bytes of an answer of the zygote.
pub const ZYGOTE_ANSWER_BYTES: usize = 256;

// Runners.
pub const PIPE_BYTES: usize = 1024 * 1024;
/// After output was read, more of it is gathered for so long.
pub const OUTPUT_GATHER: Duration = ms(2);
/// Bytes that may wait for a runner that does not read: tool results, mostly.
pub const RUNNER_QUEUE_BYTES: usize = 256 * 1024 * 1024;
pub const RUNNER_INDEXES: u32 = 1 << 21;
/// Bytes of the arguments of a runner's unanswered tool calls together; the number of these calls is bounded by the
/// daemon's `tool_calls`. A single call may always be made.
pub const CALLS_BYTES: usize = 64 * 1024 * 1024;
/// Calls of a runner that are remembered, so that their answers can be passed on.
pub const CALLS_REMEMBERED: usize = 1024;
/// Bytes of refused calls' answers that a runner may leave unread before its calls are not read any more.
pub const REFUSALS_BYTES: usize = 64 * 1024;
/// The place of workers in the order in which the OOM killer ends processes; the memory reserve comes after them.
pub const WORKER_OOM_SCORE: i64 = 980;
/// The size of the memory reserve, and the part of memory in use, in percent, from which on it is made: enough to put
/// a checkpoint in the worker's place.
pub const RESERVE_BYTES: u64 = 16 * 1024 * 1024;
pub const RESERVE_FROM_PERCENT: u64 = 50;
/// A copy that a runner was asked for when it died reports within this time, or does not exist. If no process holds
/// the copy's end of the channel, that is known at once, so this time is for a copy that gets no CPU time.
pub const SETTLE: Duration = ms(4_000);
/// A runner that was asked for a copy says within this time why there is none: the copy's end of the channel may be
/// closed before.
pub const REASON: Duration = ms(200);
/// A checkpoint confirms within this time that it is the worker now, or is given up. An older one gets half of what is
/// left, but not less than the second value: a checkpoint that answers at all is faster than that.
pub const PROMOTE: Duration = ms(4_000);
pub const PROMOTE_LEAST: Duration = ms(100);
/// The time for a checkpoint while all other processes are stopped, also if the sandbox has used up its CPU time. Then
/// the others are resumed, because the checkpoint may wait for one of them.
pub const PROMOTE_HALTED: Duration = ms(1_000);
/// All waits in one turn of the guardian's loop take no longer than this together, so that the end of a cell is
/// reported before the daemon gives the sandbox up.
pub const TURN: Duration = ms(8_000);
/// The checkpoint of the state after a cell is made this long after the cell's answer, or before the next request to
/// the worker: the fork would take time that the daemon needs to pass the answer on.
pub const CHECKPOINT_PAUSE: Duration = ms(3);
/// If the daemon wants checkpoints of sessions at rest only, cells that follow each other more quickly than that have
/// one this long after the last.
pub const CHECKPOINT_BUSY: Duration = ms(50);
/// Bounds of what repeats cells that need no checkpoint, for all of them since a checkpoint was made.
pub const REDO_CELLS: usize = 1024;
pub const REDO_ALL_BYTES: usize = 256 * 1024;
/// If there was no process or no memory for a checkpoint, it is tried again.
pub const CHECKPOINT_RETRY: Duration = ms(200);
pub const CHECKPOINT_TRIES: u32 = 10;
/// After so many workers that ended one after the other without a cell, the state that they had is given up for the one
/// before it. The second number is for workers that were killed.
pub const DEATHS_OF_A_STATE: u32 = 2;
pub const DEATHS_BY_OTHERS: u32 = 6;
/// A worker that reported the end of a cell answers within this time that its first thread is free, or a checkpoint
/// replaces it.
pub const BACK: Duration = ms(10_000);
/// A message that the worker has begun to send before then is complete within this time, or the worker is replaced at
/// once: what follows would be read as the rest of that message.
pub const HALF: Duration = ms(1_000);
/// A copy that has given the answer it was made for ends within this time, or is killed.
pub const COPY_END: Duration = ms(1_000);
/// A checkpoint shows its size within this time, or its memory counts in full.
pub const ROLLUP: Duration = ms(2_000);
/// While a copy is being made, remains of other copies are searched for this often.
pub const SWEEP: Duration = ms(1_000);
/// A reset is done when no earlier process is left; killed processes are gone within this time, or the sandbox ends.
pub const RESET: Duration = ms(8_000);
pub const RESET_POLL: Duration = ms(1);
/// Time for a listing of variables in a copy.
pub const VIEW: Duration = ms(5_000);
/// Time for packing the variables in a copy, a little more than the daemon gives it.
pub const PACKING: Duration = ms(16 * 60 * 1_000);
/// A copy that packs goes on when no cell has run for so long: cells that follow each other would meet it at work else. The
/// daemon has the same bound, and counts the time in which the copy stands.
pub const RESTED: Duration = ms(50);
/// Where somebody waits for a snapshot, the copy that packs it takes turns with cells: it stands for the first time at most,
/// and goes on beside them for the second. Each turn is twice as long as the one before, so that cells have most of the
/// time at first, and a copy with much to pack still ends.
pub const PACKING_STANDS: Duration = ms(3_000);
pub const PACKING_TURN: Duration = ms(1_000);
/// A copy that packed and was killed has ended within this time, or no other one is made yet.
pub const GIVEN_UP_END: Duration = ms(4_000);
/// While a cell runs, the memory in use is checked this often; where the sandbox has no counter of its own and the
/// memory has to be summed up, less often (the second value), unless it may be too much (the third).
pub const MEMORY_CHECK: Duration = ms(50);
pub const MEMORY_SUM: Duration = ms(1_000);
pub const MEMORY_ALARM: Duration = ms(200);
/// A checkpoint that seems to have this much more memory than it shows is not the process whose size it shows. The
/// count of the host's kernel is not more exact, with many processors.
pub const ROLLUP_SLACK_BYTES: u64 = 16 * 1024 * 1024;
/// Measuring memory takes at most one part in so many of a processor, however many processes there are.
pub const MEMORY_PARTS: u32 = 5;
/// Pages are counted for so long before all other processes are stopped for the rest of the count; with more processes
/// than the second value (a dozen are the kernel's own), they are stopped at once.
pub const LOOK: Duration = ms(20);
pub const LOOK_CROWD: usize = 24;
/// If less than this is left for so long, the guardian ends the largest process, in case the system does not.
pub const BRIM_BYTES: u64 = 8 * 1024 * 1024;
pub const BRIM: Duration = ms(2_000);
/// From this part of the budget for checkpoints on, in percent, even the last checkpoint may have to go.
pub const BUDGET_SCARCE_PERCENT: u64 = 75;
pub const WORKER_START_TRIES: u32 = 20;
pub const WORKER_START_RETRY: Duration = ms(100);
/// Orphans are reaped this often while cells run, and while none does.
pub const REAP_BUSY: Duration = ms(200);
pub const REAP_IDLE: Duration = ms(5_000);
/// Used where the host's kernel has no pidfd and the end of a runner is only found by polling.
pub const REAP_WITHOUT_PIDFD: Duration = ms(20);
pub const REAPED_REMEMBERED: usize = 256;
/// More than there can be processes in a sandbox.
pub const REAPED_AT_ONCE: usize = 8192;
/// A copy that has ended becomes a child of the guardian within this time, or never does.
pub const ORPHANED: Duration = ms(1_000);
pub const KILL_ROUNDS: u32 = 50;
/// Time between two checks whether all processes that were told to stop have stopped.
pub const STAND_POLL: Duration = ms(1);
/// Most generations between the guardian and a copy.
pub const DEPTH: u32 = 64;
/// How long to wait for killed processes before something is started that may need their places: until `KILLED_ROOM`
/// of a crowd are gone, or until `KILLED_FEW` or fewer are dead. On a busy host, processes take long to die.
pub const KILLED_WAIT: Duration = ms(5_000);
pub const KILLED_POLL: Duration = ms(20);
pub const KILLED_ROOM: usize = 32;
pub const KILLED_FEW: usize = 16;
/// If there are more processes than this, all are stopped before strays are looked for.
pub const CROWD: usize = 56;
/// The number of processes that can be killed at once without making others wait; a dozen are the kernel's own.
pub const FEW: usize = 24;
/// Processes that were stopped for the end of a cell are resumed after this time, if that end does not come.
pub const HALT: Duration = ms(3_000);
/// A stopped crowd is killed when the daemon has all that it needs to report the end of the cell, and after this time
/// at the latest: hundreds of processes that die take the CPU time that the sandbox has.
pub const TELL_FIRST: Duration = ms(250);

/// Background cells at once. The daemon starts fewer.
pub const BACKGROUND_CELLS: usize = 16;

// Commands.
/// Commands at once. The daemon starts fewer.
pub const COMMANDS: usize = 32;
/// Bytes that were typed into a command that does not read them; what is typed beyond that is dropped, as a terminal does.
pub const TYPED_BYTES: usize = 256 * 1024;
/// Bytes that are read of each stream when a command has ended; what it left running may write for ever.
pub const LAST_OUTPUT_BYTES: usize = 2 * PIPE_BYTES;

// Requests of programs.
/// The bytes of one request: 100 packages of 500 bytes each, and what JSON adds to them.
pub const REQUEST_BYTES: usize = 128 * 1024;
/// A program sends its request within this time, and takes its answer.
pub const REQUEST_PATIENCE: Duration = ms(5_000);
/// A fork that has neither read a request nor delivered its answer within this time was stopped, and is ended.
pub const REQUEST_LATE: Duration = ms(10_000);
/// The pause after a request until the next one is taken.
pub const REQUEST_PAUSE: Duration = ms(20);
/// Programs that are served at a time. The daemon lets as many installations of a session wait.
pub const REQUESTS_AT_ONCE: usize = 16;
/// Programs that wait until they are served, or told that too many are.
pub const REQUESTS_WAITING: i32 = 16;

// Expressions.
pub const COMPUTES: usize = 16;
/// A process that evaluates an expression and was found stopped this often, at every reaping, is given up.
pub const COMPUTE_STOPS: u32 = 10;
pub const NAMES: Duration = ms(1_000);
/// An expression that takes more bytes with its values has a process of its own.
pub const EVALUATOR_REQUEST_BYTES: usize = 64 * 1024;
/// Bytes of an expression's answer that are kept; its text is cut to fewer characters by the process that made it.
pub const ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// Longer lists of names are not believed to be a runner's, but determined when they are asked for.
pub const NAMES_BYTES: usize = 16 * 1024;
pub const NAMES_MEMORY_BYTES: u64 = 512 * 1024 * 1024;

/// The part of the daemon's `KernelLimits` that the guardian applies; runners read the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub output_bytes: u64,
    pub output_tail_bytes: usize,
    pub displays: u64,
    pub tool_calls: usize,
    pub names: usize,
    pub repr_chars: u64,
    pub checkpoints: usize,
    pub checkpoints_at_rest: bool,
    pub checkpoint_bytes: u64,
    pub memory_bytes: u64,
    pub unacknowledged_bytes: usize,
    pub orphan: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            output_bytes: 16 * 1024 * 1024,
            output_tail_bytes: 64 * 1024,
            displays: 32,
            tool_calls: 64,
            names: 200,
            repr_chars: 20_000,
            checkpoints: 0,
            checkpoints_at_rest: false,
            checkpoint_bytes: 512 * 1024 * 1024,
            memory_bytes: 1024 * 1024 * 1024,
            unacknowledged_bytes: 8 * 1024 * 1024,
            orphan: ms(600_000),
        }
    }
}

impl Limits {
    /// The limits that the daemon has given, with defaults for those that it has not; `None` if one is no number.
    pub fn given(given: &BTreeMap<String, Value>) -> Option<Self> {
        let defaults = Self::default();
        let number = |name: &str, default: u64| match given.get(name) {
            None => Some(default),
            Some(Value::Bool(on)) => Some(u64::from(*on)),
            Some(value) => value.as_u64(),
        };
        let size = |name: &str, default: usize| {
            number(name, default as u64).map(|value| usize::try_from(value).unwrap_or(usize::MAX))
        };
        Some(Self {
            output_bytes: number("output_bytes", defaults.output_bytes)?,
            output_tail_bytes: size("output_tail_bytes", defaults.output_tail_bytes)?,
            displays: number("displays", defaults.displays)?,
            tool_calls: size("tool_calls", defaults.tool_calls)?,
            names: size("names", defaults.names)?,
            repr_chars: number("repr_chars", defaults.repr_chars)?,
            checkpoints: size("checkpoints", defaults.checkpoints)?,
            checkpoints_at_rest: number("checkpoints_at_rest", 0)? != 0,
            checkpoint_bytes: number("checkpoint_bytes", defaults.checkpoint_bytes)?,
            memory_bytes: number("memory_bytes", defaults.memory_bytes)?,
            unacknowledged_bytes: size("unacknowledged_bytes", defaults.unacknowledged_bytes)?,
            orphan: Duration::from_secs(number("orphan_s", defaults.orphan.as_secs())?),
        })
    }

    /// All memory that the sandbox may take.
    pub fn all_memory(&self) -> u64 {
        let copies = if self.checkpoints == 0 { 0 } else { self.checkpoint_bytes };
        self.memory_bytes.saturating_add(copies)
    }
}
