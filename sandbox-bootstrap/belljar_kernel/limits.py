"""Every fixed bound of the kernel, and the bounds the daemon sends with its hello."""

# The protocol's own bounds; the daemon has the same.
PROTOCOL_VERSION = 1
FRAME_BYTES = 24 * 1024 * 1024
OUTPUT_FRAME_BYTES = 64 * 1024
# Bytes of one message of a runner: the rest of the frame is for the guardian's part.
SAID_BYTES = FRAME_BYTES - 4096
# Nesting of JSON values that code may send; the daemon's parser stops at 128.
JSON_DEPTH = 100

# The bridge.
UPGRADE_BYTES = 8 * 1024
UPGRADE_HEADERS = 64
FRAGMENTS = 4096
HANDSHAKE_S = 10.0
CONNECT_RETRY_FIRST_S = 0.01
CONNECT_RETRY_MAX_S = 0.5
FIRST_HELLO_S = 120.0
# Small enough that the memory for each read comes from the heap, not from a mapping of its own.
BRIDGE_READ_BYTES = 64 * 1024
# Above the first mark nothing more is read from runners, below the second mark reading resumes.
BRIDGE_QUEUE_HIGH = 1024 * 1024
BRIDGE_QUEUE_LOW = 256 * 1024

# Runners.
PIPE_BYTES = 1024 * 1024
CONTROL_READ_BYTES = 64 * 1024
# After output was read, more of it is gathered for so long.
OUTPUT_GATHER_S = 0.002
# Bytes that may wait for a runner that does not read: tool results, mostly.
RUNNER_QUEUE_BYTES = 256 * 1024 * 1024
RUNNER_INDEXES = 2**21
# Bytes of the arguments of a runner's unanswered tool calls together; the number of these calls is bounded by the
# daemon's `tool_calls`. A single call may always be made.
CALLS_BYTES = 64 * 1024 * 1024
# Calls of a runner that are remembered, so that their answers can be passed on.
CALLS_REMEMBERED = 1024
# Bytes of refused calls' answers that a runner may leave unread before its calls are not read any more.
REFUSALS_BYTES = 64 * 1024
# The order in which the OOM killer ends processes when memory is short: first those that only check code, then the
# worker, then the memory reserve, then checkpoints, and last the guardian, without which all is lost. The host's kernel
# adds to each score the thousandths of the memory that the process has.
COMPUTE_OOM_SCORE = 1000
WORKER_OOM_SCORE = 980
CHECKPOINT_OOM_MARGIN = 50  # above the guardian's
# The size of the memory reserve, and the part of memory in use from which on it is made: enough to put a checkpoint
# in the worker's place.
RESERVE_BYTES = 16 * 1024 * 1024
RESERVE_FROM = 0.5
# A copy that a runner was asked for when it died reports within this time, or does not exist. If no process holds the
# copy's end of the channel, that is known at once, so this time is for a copy that gets no CPU time.
SETTLE_S = 4.0
# A checkpoint confirms within this time that it is the worker now, or is given up. An older one gets half of what is
# left, but not less than the second value: a checkpoint that answers at all is faster than that.
PROMOTE_S = 4.0
PROMOTE_LEAST_S = 0.1
# The time for a checkpoint while all other processes are stopped, also if the sandbox has used up its CPU time. Then
# the others are resumed, because the checkpoint may wait for one of them.
PROMOTE_HALTED_S = 1.0
# All waits in one turn of the guardian's loop take no longer than this together, so that the end of a cell is reported
# before the daemon gives the sandbox up.
TURN_S = 8.0
# The checkpoint of the state after a cell is made this long after the cell's answer, or before the next request to the
# worker: the fork would take time that the daemon needs to pass the answer on.
CHECKPOINT_PAUSE_S = 0.003
# If the daemon wants checkpoints of sessions at rest only, cells that follow each other more quickly than that have one
# this long after the last.
CHECKPOINT_BUSY_S = 0.05
# A cell that only assigns plain values needs no checkpoint: the values are kept instead. Bounds of the code of such a
# cell, of an integer, of the values of one cell, and of those of all cells since a checkpoint was made.
REDO_NODES = 200
REDO_BITS = 4096
REDO_BYTES = 4096
REDO_CELLS = 1024
REDO_ALL_BYTES = 256 * 1024
# A worker that has just been copied runs code of the session when the copy has left its process group, and after this
# time at the latest.
SETTLED_MS = 1000
# If there was no process or no memory for a checkpoint, it is tried again.
CHECKPOINT_RETRY_S = 0.2
CHECKPOINT_TRIES = 10
# A worker that reported the end of a cell answers within this time that its first thread is free, or a checkpoint
# replaces it.
BACK_S = 10.0
# A message that the worker has begun to send before then is complete within this time, or the worker is replaced at
# once: what follows would be read as the rest of that message.
HALF_S = 1.0
# A copy that has given the answer it was made for ends within this time, or is killed.
COPY_END_S = 1.0
# A checkpoint shows its size within this time, or its memory counts in full.
ROLLUP_S = 2.0
# While a copy is being made, remains of other copies are searched for this often.
SWEEP_S = 1.0
# A reset is done when no earlier process is left; killed processes are gone within this time, or the sandbox ends.
RESET_S = 8.0
RESET_POLL_S = 0.001
# Time for a listing of variables in a copy.
VIEW_S = 5.0
# The part of that time for showing a single variable, and for showing all of them.
SHOW_VALUE_S = 0.5
SHOW_VALUES_S = 3.0
# While a cell runs, the memory in use is checked this often; where the sandbox has no counter of its own and the memory
# has to be summed up, less often (the second value), unless it may be too much (the third).
MEMORY_CHECK_S = 0.05
MEMORY_SUM_S = 1.0
MEMORY_ALARM_S = 0.2
# A checkpoint that seems to have this much more memory than it shows is not the process whose size it shows. The count
# of the host's kernel is not more exact, with many processors.
ROLLUP_SLACK_BYTES = 16 * 1024 * 1024
# Measuring memory takes at most this part of the guardian's time, however many processes there are.
MEMORY_PART = 0.2
# Pages are counted for so long before all other processes are stopped for the rest of the count; with more processes
# than the second value (a dozen are the kernel's own), they are stopped at once.
LOOK_S = 0.02
LOOK_CROWD = 24
# If less than this is left for so long, the guardian ends the largest process, in case the system does not.
BRIM_BYTES = 8 * 1024 * 1024
BRIM_S = 2.0
# From this part of the budget for checkpoints on, even the last checkpoint may have to go.
BUDGET_SCARCE = 0.75
WORKER_START_TRIES = 20
WORKER_START_RETRY_S = 0.1
# Orphans are reaped this often while cells run, and while none does.
REAP_BUSY_S = 0.2
REAP_IDLE_S = 5.0
# Used where the host's kernel has no pidfd and the end of a runner is only found by polling.
REAP_WITHOUT_PIDFD_S = 0.02
REAPED_REMEMBERED = 256
# A copy that has ended becomes a child of the guardian within this time, or never does.
ORPHANED_S = 1.0
KILL_ROUNDS = 50
# Time between two checks whether all processes that were told to stop have stopped.
STAND_POLL_S = 0.001
# Most generations between the guardian and a copy.
DEPTH = 64
# How long to wait for killed processes before something is started that may need their places: until KILLED_ROOM of a
# crowd are gone, or until KILLED_FEW or fewer are dead. On a busy host, processes take long to die.
KILLED_WAIT_S = 5.0
KILLED_POLL_S = 0.02
KILLED_ROOM = 32
KILLED_FEW = 16
# With more processes than these, all are stopped before strays are looked for.
CROWD = 56
# So many processes can be killed at once without making others wait; a dozen are the kernel's own.
FEW = 24
# Processes that were stopped for the end of a cell are resumed after this time, if that end does not come.
HALT_S = 3.0
# A stopped crowd is killed when the daemon has all that it needs to report the end of the cell, and after this time at
# the latest: hundreds of processes that die take the CPU time that the sandbox has.
TELL_FIRST_S = 0.25

# Cells.
CELL_SOURCES_KEPT = 1000
# A write to the other stream waits until the output of the last one was read, at most this long, which is longer than
# any load delays the guardian. The wait polls with pauses that grow from POLL to POLL_MAX.
STREAM_SWITCH_WAIT_S = 60.0
STREAM_SWITCH_POLL_S = 0.00002
STREAM_SWITCH_POLL_GROWTH = 1.2
STREAM_SWITCH_POLL_MAX_S = 0.001
# How often the loop is run again after code of a cell has stopped it.
LOOP_STARTS = 1000
RECURSION_LIMIT_FLOOR = 1000
# Code that a cell runs as a tool: how deep it may nest, and how much of its output is its answer.
NESTED_DEPTH = 16
NESTED_OUTPUT_CHARS = 1024 * 1024
# Most modules that are imported for families.
FAMILY_MODULES = 1000

# Expressions.
COMPUTES = 16
COMPUTE_CHARS = 100_000
NAMES_MS = 1000
# Longer lists of names are not sent ahead, but determined when they are asked for.
NAMES_BYTES = 16 * 1024
NAMES_MEMORY_BYTES = 512 * 1024 * 1024

# The limits until the daemon has sent its own.
DEFAULTS = {
    "output_bytes": 16 * 1024 * 1024,
    "output_tail_bytes": 64 * 1024,
    "repr_chars": 20_000,
    "preview_chars": 200,
    "variables": 500,
    "exception_chars": 10_000,
    "traceback_chars": 40_000,
    "displays": 32,
    "display_bytes": 8 * 1024 * 1024,
    "displays_bytes": 16 * 1024 * 1024,
    "tool_calls": 64,
    "names": 200,
    "checkpoints": 0,
    "checkpoints_at_rest": 0,
    "checkpoint_bytes": 512 * 1024 * 1024,
    "memory_bytes": 1024 * 1024 * 1024,
    "unacknowledged_bytes": 8 * 1024 * 1024,
    "orphan_s": 600,
}


class Limits:
    """The daemon's `KernelLimits`, as attributes."""

    __slots__ = tuple(DEFAULTS)

    def __init__(self, given=None):
        for name, default in DEFAULTS.items():
            setattr(self, name, int((given or {}).get(name, default)))


def cut(text, chars):
    """At most `chars` characters of `text`, with a mark where something is missing."""
    if len(text) <= chars:
        return text
    return text[: max(chars - 1, 0)] + "…"
