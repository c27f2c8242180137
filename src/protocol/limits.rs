//! Every fixed bound of the protocol has its name here. Bounds that an operator may change are
//! settings (`config/default.toml`); these are not.

use std::time::Duration;

/// Version of the bridge protocol that this build speaks.
pub const BRIDGE_VERSION: u32 = 1;

/// Largest text frame (JSON) on the bridge, in either direction. A cell's code, a display and a
/// tool's result each have to fit.
pub const FRAME_BYTES: usize = 24 * 1024 * 1024;
/// Largest payload of one binary output frame.
pub const OUTPUT_FRAME_BYTES: usize = 64 * 1024;
/// Header of a binary output frame: one byte for the stream, eight for the cell (big endian).
pub const OUTPUT_HEADER_BYTES: usize = 9;
/// Bytes the daemon may have queued towards a kernel that does not read.
pub const WRITE_BUFFER_BYTES: usize = 2 * FRAME_BYTES;
/// Longest time until the daemon acknowledges a frame of the kernel that it has dealt with.
pub const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(20);
/// Bytes of frames after which the daemon acknowledges them at once, so that a stream of output does not wait for that.
pub const ACKNOWLEDGE_BYTES: usize = 512 * 1024;
/// Frames to a kernel that may wait; a kernel that lets more pile up is taken for dead.
pub const HOST_FRAMES_WAITING: usize = 256;

/// Tool calls of one session that the daemon works on at once; the kernel holds back the rest.
pub const TOOL_CALLS_IN_FLIGHT: usize = 64;
/// Questions of one cell to people without a decision: those that wait, and those that the cell has given up.
pub const UNDECIDED_QUESTIONS: usize = 256;
/// Names of completed tool calls that a result lists.
pub const TOOL_CALLS_LISTED: usize = 100;
/// Characters of a tool's name.
pub const TOOL_NAME_CHARS: usize = 64;
/// Bytes of the text that one tool may return, and of all texts that a session keeps to replace markers.
pub const TOOL_OUTPUT_BYTES: usize = 4 * 1024 * 1024;
pub const TOOL_RESPONSES_BYTES: usize = 32 * 1024 * 1024;
/// Bytes to which all markers of one cell may expand; further ones stay markers. A marker is short and can be printed
/// often.
pub const MARKERS_BYTES: usize = 2 * TOOL_OUTPUT_BYTES;
/// Bytes of the arguments of a call that a person is asked about.
pub const APPROVAL_BYTES: u64 = 1024 * 1024;
/// Nesting of JSON values that come from a model, a client or a program.
pub const JSON_DEPTH: usize = 100;
/// Tools that clients lend to a session, and calls of them that wait for an answer.
pub const CLIENT_TOOLS: usize = 64;
pub const CLIENT_CALLS: usize = 256;
/// How long the calls of lent tools wait for their clients after a death of the daemon.
pub const CLIENT_RETURNS_WITHIN: Duration = Duration::from_secs(10);

/// Characters of a value's `repr` in a result.
pub const REPR_CHARS: usize = 20_000;
/// Characters of a value's `repr` in a list of variables.
pub const PREVIEW_CHARS: usize = 200;
/// Variables in one listing.
pub const VARIABLES: usize = 500;
/// Characters of an exception's text, and of its traceback.
pub const EXCEPTION_CHARS: usize = 10_000;
pub const TRACEBACK_CHARS: usize = 40_000;
/// Names that a lost cell may have assigned, and the time to find them out.
pub const NAMES: usize = 100;
pub const NAMES_WITHIN: Duration = Duration::from_secs(1);
/// Bytes of a kernel's frames that the daemon has not acknowledged as journaled.
pub const UNACKNOWLEDGED_BYTES: usize = 4 * 1024 * 1024;
/// Displays kept per cell, and bytes of one display's MIME bundle as JSON.
pub const DISPLAYS: usize = 32;
pub const DISPLAY_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of all displays of one cell together, so that a result stays within one frame.
pub const DISPLAYS_BYTES: usize = 16 * 1024 * 1024;
/// Files listed as artifacts of a cell, and entries and depth that are searched for them.
pub const ARTIFACTS: usize = 200;
pub const ARTIFACT_SCAN_ENTRIES: usize = 20_000;
pub const ARTIFACT_SCAN_DEPTH: usize = 16;

/// Bytes of the words of a command and its environment: the host's kernel takes no word that is much longer.
pub const COMMAND_BYTES: usize = 96 * 1024;
/// Bytes of a command's standard input.
pub const COMMAND_STDIN_BYTES: usize = 4 * 1024 * 1024;
/// Bytes that are typed into the terminal of a command with one request.
pub const TYPED_BYTES: usize = 64 * 1024;
/// Commands of a session that run at once; more wait.
pub const RUNNING_COMMANDS: usize = 8;
/// Background cells of a session that run at once; more wait.
pub const RUNNING_BACKGROUND: usize = 8;
/// Commands that have ended, as listed.
pub const COMMANDS_LISTED: usize = 32;

/// Bytes of a job's input; further below, files and bytes that are kept as a job's artifacts.
pub const JOB_INPUT_BYTES: u64 = 256 * 1024 * 1024;
/// Bytes of all names of files and folders in a job's input: names of files are kept in memory, and each part of a
/// path may need a folder to be made.
pub const JOB_INPUT_NAMES_BYTES: usize = 1024 * 1024;
pub const JOB_ARTIFACTS: usize = 1_000;
pub const JOB_ARTIFACT_BYTES: u64 = 256 * 1024 * 1024;
/// Number and bytes of a job's arguments, environment and patterns together, and characters of its name.
pub const JOB_WORDS: usize = 1_000;
pub const JOB_WORDS_BYTES: usize = 128 * 1024;
pub const JOB_NAME_CHARS: usize = 300;
/// Inputs of one user that are kept, their bytes, and the time within which a job has to use a new input.
pub const JOB_INPUTS: usize = 512;
pub const JOB_INPUTS_BYTES: u64 = 4 * JOB_INPUT_BYTES;
pub const JOB_INPUT_UNUSED: Duration = Duration::from_secs(120);
/// Jobs of one batch, and bytes of all their descriptions as JSON; and batches in one list.
pub const BATCH_JOBS: usize = 1_000;
pub const BATCH_BYTES: usize = 8 * 1024 * 1024;
pub const BATCHES_LISTED: usize = 100;
/// Jobs in one list, acts of administrators that one job lists, acts of one administrator with one job that are kept, and
/// the time within which the same act is recorded once.
pub const JOBS_LISTED: usize = 1_000;
pub const JOB_ACTS_LISTED: usize = 100;
pub const JOB_ACTS_KEPT: usize = 100;
pub const SAME_ACT_WITHIN: Duration = Duration::from_secs(60);

/// Entries that a session may preload, characters of each, and the time to import them all.
pub const PRELOAD_ENTRIES: usize = 256;
pub const PRELOAD_CHARS: usize = 500;
pub const PRELOAD: Duration = Duration::from_secs(120);
/// Modules that could not be imported, as listed in a report.
pub const PRELOAD_SKIPPED: usize = 200;

/// Variables of the environment that a session may set, characters of a name, and bytes of all names and values.
pub const ENV_VARIABLES: usize = 64;
pub const ENV_NAME_CHARS: usize = 128;
pub const ENV_BYTES: usize = 32 * 1024;
/// Volumes and folders that a session may have beside its workspace, and characters of the path of each in the sandbox.
pub const MOUNTS: usize = 8;
pub const MOUNT_TARGET_CHARS: usize = 256;
/// Images that one user has built, those of them that sessions still use included.
pub const BUILT_IMAGES: usize = 64;
/// Characters of such an image's name, and bytes of a Dockerfile.
pub const IMAGE_NAME_CHARS: usize = 128;
pub const DOCKERFILE_BYTES: usize = 64 * 1024;
/// Volumes of one user.
pub const VOLUMES: usize = 64;
/// Labels of a session, and characters of each key and each value.
pub const LABELS: usize = 32;
pub const LABEL_CHARS: usize = 128;

/// Characters of the name of a session or a volume.
pub const NAME_CHARS: usize = 64;
/// Bytes of one `output` event's text.
pub const OUTPUT_EVENT_BYTES: usize = 64 * 1024;
/// While output flows, events are at least this far apart; the first is never delayed.
pub const OUTPUT_COALESCE: Duration = Duration::from_millis(20);
/// Segments in `ExecutionResult::output`; further switches between the streams are merged.
pub const OUTPUT_SEGMENTS: usize = 1_000;

/// Time the guardian gives a runner between SIGTERM and SIGKILL.
pub const KILL_GRACE: Duration = Duration::from_millis(100);
/// Time a background cell has to end by the exception that it is sent, before the worker is killed that it shares with the
/// session's other cells: those would be rolled back, so it is longer than the grace of a cell that is alone.
pub const BACKGROUND_GRACE: Duration = Duration::from_secs(2);
/// Time an interrupted cell has to stop by itself before its worker is killed.
pub const INTERRUPT_GRACE: Duration = Duration::from_secs(2);
/// Time the guardian has to report the end of a worker it was told to kill, before the whole sandbox is given up. The
/// guardian may have to wait for a checkpoint that gets no CPU time, and to kill many processes.
pub const KILL_REPORT: Duration = Duration::from_secs(15);
/// Time a sandbox has from its start until its kernel has said hello.
pub const KERNEL_HELLO: Duration = Duration::from_secs(30);
/// Time for one call to the container engine that should be quick, and for create and start.
pub const ENGINE_CALL: Duration = Duration::from_secs(15);
pub const ENGINE_START: Duration = Duration::from_secs(60);
/// Time between two pings on an idle bridge, and to answer one.
pub const PING_EVERY: Duration = Duration::from_secs(20);
pub const PONG_WITHIN: Duration = Duration::from_secs(60);

/// Time for the head of an HTTP request to arrive.
pub const REQUEST_HEAD: Duration = Duration::from_secs(10);
/// Bytes that a connection buffers for reading and writing; the head of a request has to fit.
pub const CONNECTION_BUFFER_BYTES: usize = 64 * 1024;
/// Time for the body of a JSON request to arrive.
pub const REQUEST_BODY: Duration = Duration::from_secs(60);
/// Connections to the control socket: all together, and per user.
pub const CONNECTIONS: usize = 1_024;
pub const CONNECTIONS_PER_USER: usize = 256;
/// Connections that a user can have regardless of how many other users have.
pub const CONNECTIONS_SURE: usize = 16;
/// How long a client may read nothing while a folder is sent to it, which occupies a thread.
pub const UNREAD: Duration = Duration::from_secs(30);
/// Files that are being received, each of which occupies a thread: all together, and per user.
pub const UPLOADS: usize = 128;
pub const UPLOADS_PER_USER: usize = 16;
pub const UPLOADS_SURE: usize = 1;
/// Time between comment lines that keep an idle event stream alive.
pub const STREAM_KEEPALIVE: Duration = Duration::from_secs(15);
/// How long an ephemeral session stays while no client holds it.
pub const UNHELD: Duration = Duration::from_secs(10);
/// Largest file that goes in or out through the API, and most entries of a folder.
pub const FILE_BYTES: u64 = 4 * 1024 * 1024 * 1024;
pub const FOLDER_ENTRIES: usize = 10_000;
/// Multiple of its disk quota that a workspace, or all workspaces of a user, may take before no cell runs any more: up
/// to there cells can free space, and beyond it usage could only grow.
pub const DISK_TOLERANCE: u64 = 2;
/// Time sessions have to end after SIGTERM before the daemon exits anyway.
pub const DRAIN: Duration = Duration::from_secs(10);
/// Bytes of a JSON Schema as text, and values in it.
pub const SCHEMA_BYTES: usize = 64 * 1024;
pub const SCHEMA_PARTS: usize = 10_000;
/// Different patterns of one schema, their bytes as text, and their bytes as compiled programs, each of all of them
/// together.
pub const PATTERNS: usize = 64;
pub const PATTERNS_TEXT_BYTES: usize = 8 * 1024;
pub const PATTERNS_COMPILED_BYTES: usize = 1024 * 1024;
/// Steps of one check of a value against a schema, and schemas within schemas that it may be in at once.
pub const CHECK_STEPS: u64 = 10_000_000;
pub const CHECK_NESTING: usize = 512;

/// Time for an event to get into the journal. It takes some tens of microseconds; a disk that hangs longer than this must
/// not hold a session or a client.
pub const JOURNAL_TIMEOUT: Duration = Duration::from_secs(2);
