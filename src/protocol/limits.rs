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
/// A kernel hears this long after a frame at the latest that it is settled.
pub const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(20);
/// Frames to a kernel that may wait; a kernel that lets more pile up is taken for dead.
pub const HOST_FRAMES_WAITING: usize = 256;

/// Tool calls of one session that the daemon works on at once; the kernel holds back the rest.
pub const TOOL_CALLS_IN_FLIGHT: usize = 64;
/// Names of completed tool calls that a result lists.
pub const TOOL_CALLS_LISTED: usize = 100;
/// Characters of a tool's name.
pub const TOOL_NAME_CHARS: usize = 64;
/// Bytes of what one tool may say, and of all that a session keeps of it for its markers.
pub const TOOL_OUTPUT_BYTES: usize = 4 * 1024 * 1024;
pub const TOOL_RESPONSES_BYTES: usize = 32 * 1024 * 1024;
/// Bytes that all markers of one cell become; the others stay as they are. A marker is short and can be printed often.
pub const MARKERS_BYTES: usize = 2 * TOOL_OUTPUT_BYTES;
/// Bytes of the arguments of a call that a person is asked about.
pub const APPROVAL_BYTES: u64 = 1024 * 1024;
/// Nesting of JSON values that come from a model, a client or a program.
pub const JSON_DEPTH: usize = 100;
/// Tools that clients lend to a session, clients that do, and calls that wait for them.
pub const CLIENT_TOOLS: usize = 64;
pub const CLIENT_CALLS: usize = 256;

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
/// Frames of a kernel that wait for the daemon's word that they are journaled.
pub const UNACKNOWLEDGED_BYTES: usize = 4 * 1024 * 1024;
/// Displays kept per cell, and bytes of one display's MIME bundle as JSON.
pub const DISPLAYS: usize = 32;
pub const DISPLAY_BYTES: usize = 8 * 1024 * 1024;
/// Bytes of all displays of one cell together, so that a result stays within one frame.
pub const DISPLAYS_BYTES: usize = 16 * 1024 * 1024;
/// Files listed as artifacts of a cell, entries and depth looked at to find them.
pub const ARTIFACTS: usize = 200;
pub const ARTIFACT_SCAN_ENTRIES: usize = 20_000;
pub const ARTIFACT_SCAN_DEPTH: usize = 16;

/// Files and bytes that a job gets, and that are kept of it.
pub const JOB_INPUT_BYTES: u64 = 256 * 1024 * 1024;
/// What the names of its files and folders may take, all together: those of files are kept in memory, and each part of
/// one may be a folder to make.
pub const JOB_INPUT_NAMES_BYTES: usize = 1024 * 1024;
pub const JOB_ARTIFACTS: usize = 1_000;
pub const JOB_ARTIFACT_BYTES: u64 = 256 * 1024 * 1024;
/// Of a job's arguments, environment and patterns together, and of its name.
pub const JOB_WORDS: usize = 1_000;
pub const JOB_WORDS_BYTES: usize = 128 * 1024;
pub const JOB_NAME_CHARS: usize = 300;
/// Inputs of one user that are kept, their bytes, and the time in which a job has to ask for one.
pub const JOB_INPUTS: usize = 512;
pub const JOB_INPUTS_BYTES: u64 = 4 * JOB_INPUT_BYTES;
pub const JOB_INPUT_UNUSED: Duration = Duration::from_secs(120);
/// Jobs in one list, and acts of administrators that one job lists.
pub const JOBS_LISTED: usize = 1_000;
pub const JOB_ACTS_LISTED: usize = 100;

/// Things that a session may begin with, characters of each, and the time to import them all.
pub const PRELOAD_ENTRIES: usize = 256;
pub const PRELOAD_CHARS: usize = 500;
pub const PRELOAD: Duration = Duration::from_secs(120);
/// Modules that could not be imported that are told of.
pub const PRELOAD_SKIPPED: usize = 200;

/// Characters of a session's name.
pub const SESSION_NAME_CHARS: usize = 64;
/// Bytes of one `output` event's text.
pub const OUTPUT_EVENT_BYTES: usize = 64 * 1024;
/// While output flows, events are at least this far apart; the first is never delayed.
pub const OUTPUT_COALESCE: Duration = Duration::from_millis(20);
/// Finished cells of a session whose results can still be fetched.
pub const RESULTS_KEPT: usize = 100;
/// Segments in `ExecutionResult::output`; further switches between the streams are merged.
pub const OUTPUT_SEGMENTS: usize = 1_000;

/// Time the guardian gives a runner between SIGTERM and SIGKILL.
pub const KILL_GRACE: Duration = Duration::from_millis(100);
/// Time an interrupted cell has to stop by itself before its worker is killed.
pub const INTERRUPT_GRACE: Duration = Duration::from_secs(2);
/// Time the guardian has to report the end of a worker it was told to kill, before the whole
/// sandbox is given up. It may have to wait for a checkpoint that gets no CPU time, and to kill a crowd.
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
/// What a connection buffers of what it reads and writes; the head of a request has to fit.
pub const CONNECTION_BUFFER_BYTES: usize = 64 * 1024;
/// Time for the body of a JSON request to arrive.
pub const REQUEST_BODY: Duration = Duration::from_secs(60);
/// Connections to the control socket: all together, and per user.
pub const CONNECTIONS: usize = 1_024;
pub const CONNECTIONS_PER_USER: usize = 256;
/// So many a user has whatever others have.
pub const CONNECTIONS_SURE: usize = 16;
/// How long a client may read nothing of a folder that is being sent, which takes a thread.
pub const UNREAD: Duration = Duration::from_secs(30);
/// Files that are being received, each of which takes a thread: all together, and per user.
pub const UPLOADS: usize = 128;
pub const UPLOADS_PER_USER: usize = 16;
pub const UPLOADS_SURE: usize = 1;
/// Comment line that keeps an idle event stream alive.
pub const STREAM_KEEPALIVE: Duration = Duration::from_secs(15);
/// Time an ephemeral session lives without anybody who holds it.
pub const UNHELD: Duration = Duration::from_secs(10);
/// Largest file that goes in or out through the API, and most entries of a folder.
pub const FILE_BYTES: u64 = 4 * 1024 * 1024 * 1024;
pub const FOLDER_ENTRIES: usize = 10_000;
/// How many times what it may have on disk a workspace, or all of a user's, may take before no cell runs any
/// more: up to there cells can tidy up, and beyond it only growth could follow.
pub const DISK_TOLERANCE: u64 = 2;
/// Time sessions have to end after SIGTERM before the daemon exits anyway.
pub const DRAIN: Duration = Duration::from_secs(10);
/// Backtracking that a pattern of a JSON Schema may do, bytes that it takes compiled, and bytes of all texts and of all
/// names of fields that are held against patterns in one check.
pub const PATTERN_STEPS: usize = 100_000;
pub const PATTERN_BYTES: usize = 1024 * 1024;
pub const PATTERN_TEXT_BYTES: usize = 4 * 1024;
pub const PATTERN_NAME_BYTES: u64 = 64 * 1024;
/// Parts of a schema, with its references written out, times parts of the value that is held against it.
pub const CHECK_STEPS: u64 = 100_000_000;

/// Time for an event to get into the journal. It takes some tens of microseconds; a disk that hangs longer than this must
/// not hold a session or a client.
pub const JOURNAL_TIMEOUT: Duration = Duration::from_secs(2);
