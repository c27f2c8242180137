"""Every fixed bound of the kernel's Python side, and the bounds the daemon sends with its hello.

The guardian's own are in `guardian/src/limits.rs`.
"""

# The protocol's own bounds; the daemon has the same.
FRAME_BYTES = 24 * 1024 * 1024
# Bytes of one message of a runner: the rest of the frame is for the guardian's part.
SAID_BYTES = FRAME_BYTES - 4096
# Nesting of JSON values that code may send; the daemon's parser stops at 128.
JSON_DEPTH = 100

# Runners.
CONTROL_READ_BYTES = 64 * 1024
# The order in which the OOM killer ends processes when memory is short: first those that only check code, then the
# worker, then the memory reserve, then checkpoints, and last the guardian, without which all is lost. The host's kernel
# adds to each score the thousandths of the memory that the process has.
COMPUTE_OOM_SCORE = 1000
WORKER_OOM_SCORE = 980
CHECKPOINT_OOM_MARGIN = 50  # above the guardian's
# A cell that only assigns plain values needs no checkpoint: the values are kept instead. Bounds of the code of such a
# cell, of an integer, and of the values of one cell.
REDO_NODES = 200
REDO_BITS = 4096
REDO_BYTES = 4096
# A worker that has just been copied runs code of the session when the copy has left its process group, and after this
# time at the latest.
SETTLED_MS = 1000
# The process between the two forks of a copy has ended within this time, or is killed. Other processes of the session
# can stop it, or the copy: they are told to go on this often. Its end is polled with pauses that grow from POLL to
# POLL_MAX, and the copy's arrival is waited for with looks at the copy in between.
PARTED_S = 4.0
PARTED_STOPS = 100
ARRIVED_LOOK_MS = 10
PARTED_POLL_S = 0.00005
PARTED_POLL_GROWTH = 1.2
PARTED_POLL_MAX_S = 0.001
# The part of the time of a listing for showing a single variable, for showing all of them, and for a process that
# does not notice that its time is over. Together they are less than the guardian's `VIEW`.
SHOW_VALUE_S = 0.5
SHOW_VALUES_S = 3.0
SHOW_MARGIN_S = 1.0
# After so many variables that ended the process that was to show them, no more are shown.
SHOW_DEATHS = 8
# Digests of variables, by which sessions are compared: how long all of them may take, which is a part of the time for
# showing all variables; the bytes that are read of one variable, and of all; how many things one may hold, and how deep
# in each other; how much is read at once; and their own size.
DIGESTS_S = 1.5
DIGEST_BYTES = 64 * 1024 * 1024
DIGESTS_BYTES = 256 * 1024 * 1024
DIGEST_ITEMS = 1_000_000
DIGEST_DEPTH = 50
DIGEST_CHUNK_BYTES = 1024 * 1024
DIGEST_SIZE = 16
# Keys of a value among which those are searched that begin with what is typed.
COMPLETED_KEYS = 100_000

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
# Functions of a cell that a nested ask may call: characters of what each says of itself, nesting of a type hint, how long
# one call may take, and bytes of what it returns, which are those that any tool may return.
FUNCTION_DESCRIPTION_CHARS = 4000
FUNCTION_HINT_DEPTH = 8
FUNCTION_S = 60.0
FUNCTION_BYTES = 4 * 1024 * 1024
# Pictures: a model is shown what has at most so many bytes as base64 and pixels of a side, as `src/agent/pictures.rs` has
# it. Of a larger one a copy is made with the first of these sides at which it is small enough. One that has more pixels is
# not decoded for that, because it would take much of the memory of the session.
PICTURE_BYTES = 512 * 1024
PICTURE_SIDE = 2048
SCALED_SIDES = (1024, 512)
SCALED_PIXELS = 24_000_000
# Commands of a shell in a cell: how much of captured output is read at once, and how long a command that is interrupted
# may take to end before it is killed.
COMMAND_READ_BYTES = 64 * 1024
COMMAND_GRACE_S = 1.0
# How often a command that prints nothing is looked at.
COMMAND_LOOK_MS = 50
# `%timeit`: as many loops as take this long are one run; so many runs, none of which begins after this time.
TIMEIT_LOOP_S = 0.2
TIMEIT_RUNS = 7
TIMEIT_S = 5.0
# Chained exceptions that are looked at for a hint.
HINT_LINKS = 100
# Most modules that are imported for families.
FAMILY_MODULES = 1000

# Snapshots. Bytes of one record of the stream, what is held back until all names are known to be whole, and buffers that
# are small enough to be part of the pickle.
RECORD_BYTES = 1024 * 1024
SPOOL_BYTES = 64 * 1024 * 1024
INLINE_BYTES = 64 * 1024
# A longer pickle is not loaded on trial: its things would take a multiple of it.
TRY_OUT_BYTES = 256 * 1024 * 1024
# Processes that may end while they pack a name, which is then left out; how many of them may be killed, as they are
# where memory is short; tries to pack what is left when names fail; and processes that try out names one by one.
PACK_DEATHS = 16
PACK_KILLS = 3
PACK_TRIES = 8
ALONE_PROCESSES = 64
# A name is left out that makes no progress for so many looks, each of them a second after the one before.
PACK_STUCK_LOOKS = 8
# A process that packs or tries out is killed when it has not looked at itself for so long. Its end is polled with pauses
# that grow from POLL to POLL_MAX.
PACK_SILENT_S = 16.0
PACK_POLL_S = 0.0005
PACK_POLL_GROWTH = 1.2
PACK_POLL_MAX_S = 0.02
# A snapshot whose load has failed is loaded on trial until no step ends the process: after so many deaths, what follows is
# left out. A step that makes no progress counts as a death after STEP, or after IMPORT where it may import a module, and
# never before it has had a share of the time that is left for trials: a machine that is slow must not cost a variable. All
# trials together take no longer than TRIALS, which is less than the daemon waits for a load. What a trial leaves behind is
# looked for so often.
WAKE_DEATHS = 12
WAKE_STEP_S = 4.0
WAKE_SHARES = 8
WAKE_IMPORT_S = 30.0
WAKE_TRIALS_S = 120.0
WAKE_SWEEPS = 100
# Nesting of what can be packed: the stack of a process is long enough for that.
PACK_RECURSION = 5000
# Bytes in which a process says which names it could not load: less than a pipe holds.
LEFT_OUT_BYTES = 60 * 1024
# Names and files that a manifest or a report lists, and characters of each of their words.
MISSING_NAMES = 200
MISSING_NAME_CHARS = 200
MISSING_REASON_CHARS = 300
# Attributes of modules that are looked at for functions which the session has put there.
PATCHES_LOOKED_AT = 1_000_000
# Attributes of modules that cells have assigned; characters of one cell in which they are searched, whose tree may take
# hundreds of bytes for each, and of all cells; and things in a value that is set before the variables are loaded.
ASSIGNED_ATTRIBUTES = 1000
ASSIGNED_CELL_CHARS = 64 * 1024
ASSIGNED_SOURCE_CHARS = 1024 * 1024
ASSIGNED_EARLY_THINGS = 10_000
# What is copied during a load, to undo what code of the session does to it: parts of one container, and all of them.
PUT_BACK_PARTS = 10_000
PUT_BACK_THINGS = 100_000

# Expressions.
COMPUTE_CHARS = 100_000
# A process that evaluates one expression after the other ends when it has grown by this much.
EVALUATOR_GROWTH_BYTES = 16 * 1024 * 1024
# Longer lists of names are not sent ahead, but determined when they are asked for.
NAMES_BYTES = 16 * 1024

# The limits until the daemon has sent its own.
DEFAULTS = {
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
    "keep_cwd": False,
}


class Limits:
    """The part of the daemon's `KernelLimits` that runners apply, as attributes."""

    __slots__ = tuple(DEFAULTS)

    def __init__(self, given=None):
        for name, default in DEFAULTS.items():
            setattr(self, name, int((given or {}).get(name, default)))


def cut(text, chars):
    """At most `chars` characters of `text`, with a mark where something is missing."""
    if len(text) <= chars:
        return text
    return text[: max(chars - 1, 0)] + "…"
