"""Every fixed bound of the kernel, and the bounds the daemon sends with its hello."""

# The protocol's own bounds; the daemon has the same.
PROTOCOL_VERSION = 1
FRAME_BYTES = 24 * 1024 * 1024
OUTPUT_FRAME_BYTES = 64 * 1024
# What a runner may say at once: the rest of the frame is for the guardian's own word.
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
BRIDGE_READ_BYTES = 256 * 1024
# Above the first mark nothing more is read from runners, below the second it is again.
BRIDGE_QUEUE_HIGH = 1024 * 1024
BRIDGE_QUEUE_LOW = 256 * 1024

# Runners.
PIPE_BYTES = 1024 * 1024
CONTROL_READ_BYTES = 64 * 1024
# What may wait for a runner that does not read: tool results, mostly.
RUNNER_QUEUE_BYTES = 256 * 1024 * 1024
RUNNER_INDEXES = 2**21
# What the arguments of a runner's tool calls that have no answer yet take together; how many calls these are is the
# daemon's `tool_calls`. A single one may always be made.
CALLS_BYTES = 64 * 1024 * 1024
# Calls of a runner that an answer is still passed on for.
CALLS_REMEMBERED = 1024
# Refusals of calls that a runner lets wait, before nothing more is read of its calls.
REFUSALS_BYTES = 64 * 1024
# Who goes when memory is short: first what only looks at code, then the worker, then what was put by,
# then checkpoints, and the guardian, without which all is lost, not before the last of them. The
# system adds the thousandths of the memory that a process has to its score.
COMPUTE_OOM_SCORE = 1000
WORKER_OOM_SCORE = 980
CHECKPOINT_OOM_MARGIN = 50  # above the guardian's
# What is put by, from this part of the memory in use on: enough to put a checkpoint in the worker's place.
RESERVE_BYTES = 16 * 1024 * 1024
RESERVE_FROM = 0.5
# A copy that a runner was asked for when it died shows up within this, or never came to be. That is
# known at once where nobody holds its end of a socket, so this is for one that gets no CPU time.
SETTLE_S = 4.0
# A checkpoint answers within this that it is the worker now, or is given up. An older one gets half of what is left,
# but not less than the second: one that answers at all does so in less.
PROMOTE_S = 4.0
PROMOTE_LEAST_S = 0.1
# For one that is alone awake, also if the sandbox has used up its CPU time: then all others are let go on, because it may
# wait for one of them.
PROMOTE_HALTED_S = 1.0
# All that is waited for in one turn of the guardian's loop takes no longer than this together, so that the end of a
# cell is told before the daemon gives the sandbox up.
TURN_S = 8.0
# The state that a cell leaves is put by this long after its answer, or before the next thing that is
# asked of the worker: the fork would take time that the daemon needs to pass the answer on.
CHECKPOINT_PAUSE_S = 0.003
# Where processes or memory were short, it is tried again.
CHECKPOINT_RETRY_S = 0.2
CHECKPOINT_TRIES = 10
# A worker that said that a cell is done takes the next one within this, or is put back to a checkpoint.
BACK_S = 10.0
# What it has begun to send before then is whole within this, or it is put back at once: what follows would be read as
# the rest of that.
HALF_S = 1.0
# A copy that has answered what it was made for is gone within this, or is killed.
COPY_END_S = 1.0
# A checkpoint shows its size within this, or counts in full.
ROLLUP_S = 2.0
# While a copy is on its way, what is left of others is looked for this often.
SWEEP_S = 1.0
# A reset is done when nothing of before lives; what is killed is gone within this, or the sandbox ends.
RESET_S = 8.0
RESET_POLL_S = 0.001
# A listing of variables from a copy of a checkpoint.
VIEW_S = 5.0
# Of that, what a single variable may take to be shown, and all of them.
SHOW_VALUE_S = 0.5
SHOW_VALUES_S = 3.0
# While a cell runs, the memory in use is looked at this often; where there is no counter of the
# sandbox's own and it has to be summed up, less often, unless it may be too much.
MEMORY_CHECK_S = 0.05
MEMORY_SUM_S = 1.0
MEMORY_ALARM_S = 0.2
# A checkpoint that seems to have more than it shows by so much is not the process whose size it shows. The system's
# own count is not more exact, on machines with many processors.
ROLLUP_SLACK_BYTES = 16 * 1024 * 1024
# It takes at most this part of the guardian's time, however many processes there are to look at.
MEMORY_PART = 0.2
# Pages are counted for so long before what runs is stopped for the rest of the count; with more processes than
# these (a dozen are ours), at once.
LOOK_S = 0.02
LOOK_CROWD = 24
# With less than this left for so long, the largest process is ended where the system does not do it.
BRIM_BYTES = 8 * 1024 * 1024
BRIM_S = 2.0
# From this part of the budget for checkpoints on, the last one may have to go too.
BUDGET_SCARCE = 0.75
WORKER_START_TRIES = 20
WORKER_START_RETRY_S = 0.1
# Orphans are reaped this often while cells run, and while none does.
REAP_BUSY_S = 0.2
REAP_IDLE_S = 5.0
# Used where the kernel has no pidfd and the end of a runner is only found by asking.
REAP_WITHOUT_PIDFD_S = 0.02
REAPED_REMEMBERED = 256
# A copy that has ended is a child of the guardian within this, or never was to be one.
ORPHANED_S = 1.0
KILL_ROUNDS = 50
# Between two looks at whether all that was told to stop has stopped.
STAND_POLL_S = 0.001
# A copy is no further below the guardian than this.
DEPTH = 64
# What was killed is waited for so long, before something is started that may need its place: until so many of a
# crowd are gone, and not for so few. What takes long is to die, on a machine that has other things to do.
KILLED_WAIT_S = 5.0
KILLED_POLL_S = 0.02
KILLED_ROOM = 32
KILLED_FEW = 16
# With more processes than these, all are stopped before strays are looked for.
CROWD = 56
# So many processes can be killed at once without making others wait; a dozen are ours.
FEW = 24
# What was stopped for the end of a cell goes on after this, should that end not come.
HALT_S = 3.0
# A crowd that stands still is killed when the daemon has all that it needs to tell the end of the cell, and after this
# at the latest: hundreds of processes that die take the CPU time that the sandbox has.
TELL_FIRST_S = 0.25

# Cells.
CELL_SOURCES_KEPT = 1000
# A write to the other stream waits until the last one was read: longer than any load holds up the guardian. It
# is looked at after pauses that grow from POLL to POLL_MAX.
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
# Modules that are imported for a family of them.
FAMILY_MODULES = 1000

# Expressions.
COMPUTES = 16
COMPUTE_CHARS = 100_000
NAMES_MS = 1000
# More than this is not told ahead, but looked up when it is asked for.
NAMES_BYTES = 16 * 1024
NAMES_MEMORY_BYTES = 512 * 1024 * 1024

# Until the daemon has sent its own.
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
