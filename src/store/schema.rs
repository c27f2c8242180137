//! The journal's file: how it is opened, checked, and migrated to the newest schema.

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

const FILE: &str = "journal.db";
/// A larger file is not checked completely at every start; damage in it shows when the damaged part is used.
const QUICK_CHECK_BYTES: u64 = 64 * 1024 * 1024;
/// Readers and the writer share one file; a wait this long means something is stuck.
const BUSY: Duration = Duration::from_secs(5);
/// Pages of the write-ahead log after which a commit moves it into the database.
pub(super) const CHECKPOINT_PAGES: u32 = 1_000;
/// The size to which the write-ahead log is truncated after it was larger.
const LOG_KEPT_BYTES: i64 = 64 * 1024 * 1024;
/// Beginning of every `SQLite` file, and where its header holds `user_version`.
const MAGIC: &[u8] = b"SQLite format 3\0";
const HEADER_BYTES: usize = 100;
const VERSION_AT: std::ops::Range<usize> = 60..64;

/// Step n brings a file from version n to n + 1. Steps that were released are never changed.
const MIGRATIONS: &[&str] = &[
    "
    CREATE TABLE sessions (
        id BLOB PRIMARY KEY,
        owner INTEGER NOT NULL,
        name TEXT NOT NULL,
        record TEXT NOT NULL,
        created_at TEXT NOT NULL,
        removed_at INTEGER
    ) STRICT, WITHOUT ROWID;
    CREATE UNIQUE INDEX living_names ON sessions (owner, name) WHERE removed_at IS NULL;

    -- Small columns first, so that looking at them does not read through large ones.
    CREATE TABLE events (
        session BLOB NOT NULL,
        seq INTEGER NOT NULL,
        at TEXT NOT NULL,
        name TEXT NOT NULL,
        cell INTEGER,
        sandbox TEXT,
        received INTEGER,
        stream TEXT,
        start INTEGER,
        bytes INTEGER,
        carry TEXT,
        blob TEXT,
        json TEXT,
        PRIMARY KEY (session, seq)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX ended_cells ON events (session, cell) WHERE name = 'cell_finished';
    CREATE INDEX blob_uses ON events (blob) WHERE blob IS NOT NULL;

    CREATE TABLE idempotency (
        owner INTEGER NOT NULL,
        key TEXT NOT NULL,
        body_hash TEXT NOT NULL,
        created INTEGER NOT NULL,
        target TEXT,
        status INTEGER,
        answer TEXT,
        PRIMARY KEY (owner, key)
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX idempotency_age ON idempotency (created);
",
    "
    CREATE INDEX model_replies ON events (at) WHERE name = 'model_replied';
",
    "
    CREATE TABLE jobs (
        id BLOB PRIMARY KEY,
        owner INTEGER NOT NULL,
        ended_at INTEGER,
        record TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX jobs_of_owner ON jobs (owner, id);
    CREATE INDEX open_jobs ON jobs (id) WHERE ended_at IS NULL;
",
    "
    -- What administrators did with jobs of others; outlives the job.
    CREATE TABLE job_acts (
        job BLOB NOT NULL,
        at TEXT NOT NULL,
        noted INTEGER NOT NULL,
        admin INTEGER NOT NULL,
        act TEXT NOT NULL
    ) STRICT;
    CREATE INDEX acts_on_job ON job_acts (job);
",
    "
    -- At every start the last sandbox of each session is looked up; without this its whole journal is read.
    CREATE INDEX sandbox_changes ON events (session, seq) WHERE name IN ('sandbox_ready', 'sandbox_gone');

    -- All that models have cost; `model_replies` left out what was spent without a reply.
    DROP INDEX model_replies;
    -- What the watch over removed sessions and ended jobs asks for again and again.
    CREATE INDEX removed_sessions ON sessions (removed_at, id, owner) WHERE removed_at IS NOT NULL;
    CREATE INDEX ended_jobs ON jobs (ended_at) WHERE ended_at IS NOT NULL;
    CREATE INDEX model_costs ON events (at) WHERE name IN ('model_replied', 'model_spent');
",
    "
    -- What models have cost today in sessions whose events are deleted already.
    CREATE TABLE spent_tokens (
        owner INTEGER NOT NULL,
        day TEXT NOT NULL,
        tokens INTEGER NOT NULL,
        PRIMARY KEY (owner, day)
    ) STRICT, WITHOUT ROWID;
",
    "
    CREATE TABLE batches (
        id BLOB PRIMARY KEY,
        owner INTEGER NOT NULL,
        created_at TEXT NOT NULL,
        ended_at TEXT,
        parallel INTEGER NOT NULL,
        size INTEGER NOT NULL,
        ephemeral INTEGER NOT NULL,
        -- The number of the newest event, and of the jobs that have ended and passed: jobs may be forgotten before others end.
        events INTEGER NOT NULL,
        ended INTEGER NOT NULL,
        passed INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE INDEX batches_of_owner ON batches (owner, id);
    CREATE INDEX open_batches ON batches (id) WHERE ended_at IS NULL;
    ALTER TABLE jobs ADD COLUMN batch BLOB;
    -- The numbers of the job's begin and end among the events of its batch.
    ALTER TABLE jobs ADD COLUMN started_event INTEGER;
    ALTER TABLE jobs ADD COLUMN ended_event INTEGER;
    CREATE INDEX jobs_of_batch ON jobs (batch, id) WHERE batch IS NOT NULL;
    CREATE INDEX batch_starts ON jobs (batch, started_event) WHERE started_event IS NOT NULL;
    CREATE INDEX batch_ends ON jobs (batch, ended_event) WHERE ended_event IS NOT NULL;
",
];

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "the journal `{}` was written by a newer version (its form is {found}, this version knows {known})\n\n\
         hint: start the newer version again, or set `BELLJAR_HOME` to another folder; nothing was changed",
        path.display()
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error(
        "the journal `{}` is damaged: {reason}\n\n\
         hint: restore it from a copy, or move it away together with its `-wal` file to start \
         without the old sessions; nothing was changed",
        path.display()
    )]
    Corrupt { path: PathBuf, reason: String },
    #[error(
        "the journal `{}` cannot be opened: {reason}\n\n\
         hint: free some space or mend the rights, or set `BELLJAR_HOME` to another folder",
        path.display()
    )]
    Unusable { path: PathBuf, reason: String },
}

impl OpenError {
    pub(super) fn unusable(path: &Path, reason: &dyn std::fmt::Display) -> Self {
        Self::Unusable { path: path.to_owned(), reason: reason.to_string() }
    }

    fn of(path: &Path, error: &rusqlite::Error) -> Self {
        use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
        match error.sqlite_error_code() {
            Some(DatabaseCorrupt | NotADatabase) => {
                Self::Corrupt { path: path.to_owned(), reason: error.to_string() }
            }
            _ => Self::unusable(path, error),
        }
    }
}

/// Opens the writer's connection, the readers', and one for queries that take long. A file that is refused is not
/// changed.
pub(super) fn open(folder: &Path) -> Result<(Connection, Connection, Connection), OpenError> {
    let path = folder.join(FILE);
    check_header(&path)?;
    let failed = |error: rusqlite::Error| OpenError::of(&path, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut writer = Connection::open_with_flags(&path, flags).map_err(failed)?;
    // Closing would otherwise checkpoint the write-ahead log into a file that may turn out to be newer or damaged.
    writer.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    writer.busy_timeout(BUSY).map_err(failed)?;
    let found = version(&writer).map_err(failed)?;
    refuse_newer(&path, found)?;
    check_content(&path, &writer)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))
        .map_err(|error| OpenError::unusable(&path, &error))?;
    writer.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(failed)?;
    migrate(&mut writer, found).map_err(failed)?;
    let reader = || {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let reader = Connection::open_with_flags(&path, flags)?;
        reader.busy_timeout(BUSY)?;
        Ok(reader)
    };
    Ok((writer, reader().map_err(failed)?, reader().map_err(failed)?))
}

/// Checks the raw bytes, because `SQLite` would already begin recovery on opening. Creates the file if it does not
/// exist.
fn check_header(path: &Path) -> Result<(), OpenError> {
    let made = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    let file = made.map_err(|error| OpenError::unusable(path, &error))?;
    let mut header = Vec::with_capacity(HEADER_BYTES);
    (&file)
        .take(HEADER_BYTES as u64)
        .read_to_end(&mut header)
        .map_err(|error| OpenError::unusable(path, &error))?;
    if header.is_empty() {
        return Ok(());
    }
    let version = header.get(VERSION_AT).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    match version {
        Some(found) if header.starts_with(MAGIC) => refuse_newer(path, i64::from(found)),
        _ => Err(OpenError::Corrupt { path: path.to_owned(), reason: "it is no database".into() }),
    }
}

fn refuse_newer(path: &Path, found: i64) -> Result<(), OpenError> {
    let known = newest();
    if found > known { Err(OpenError::Newer { path: path.to_owned(), found, known }) } else { Ok(()) }
}

fn newest() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// The smallest possible write; it does not change the content.
pub(super) fn rewrite_version(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "user_version", newest())
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0))
}

fn check_content(path: &Path, connection: &Connection) -> Result<(), OpenError> {
    let failed = |error: rusqlite::Error| OpenError::of(path, &error);
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())).map_err(failed)?;
    if std::fs::metadata(path).map_or(0, |found| found.len()) > QUICK_CHECK_BYTES {
        return Ok(());
    }
    let verdict: String =
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(failed)?;
    if verdict == "ok" {
        return Ok(());
    }
    Err(OpenError::Corrupt { path: path.to_owned(), reason: verdict.replace('\n', " ") })
}

fn migrate(connection: &mut Connection, found: i64) -> rusqlite::Result<()> {
    // This only has an effect on a file without tables and cannot be changed later without a rewrite.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    // Deleted content is overwritten, because the environment of a job may hold secrets.
    connection.query_row("PRAGMA secure_delete = ON", [], |_| Ok(()))?;
    connection.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    connection.query_row(&format!("PRAGMA journal_size_limit = {LOG_KEPT_BYTES}"), [], |_| Ok(()))?;
    connection.query_row(&format!("PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}"), [], |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let steps = MIGRATIONS.iter().zip(1_i64..).skip(usize::try_from(found).unwrap_or(0));
    for (step, version) in steps {
        let transaction = connection.transaction()?;
        transaction.execute_batch(step)?;
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }
    connection.pragma_update(None, "synchronous", "NORMAL")
}
