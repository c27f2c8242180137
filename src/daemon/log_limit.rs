//! Limits the size of the daemon's log. No user is charged for the log, yet what users do makes it grow; therefore
//! nothing more is written on a day whose log has reached its limit.

use std::io::{Result, Write};
use std::path::Path;

use crate::protocol::clock;

/// How the names of the files begin and end, with the day in between.
pub const PREFIX: &str = "belljar";
pub const SUFFIX: &str = "log";
/// The most bytes of log per day.
const DAY_BYTES: u64 = 64 * 1024 * 1024;
/// The length of a date in a timestamp.
const DATE_CHARS: usize = "2000-01-01".len();
const FULL: &str = "the log of this day is full; nothing more is written until tomorrow (UTC)\n";

pub struct LogLimit<W> {
    inner: W,
    day: u64,
    left: u64,
}

impl<W: Write> LogLimit<W> {
    /// Limits a log in this folder. The bytes that earlier daemons wrote there on this day count, too.
    pub fn new(inner: W, folder: &Path) -> Self {
        let (day, date) = (clock::today(), clock::now());
        let date = date.get(..DATE_CHARS).unwrap_or_default();
        let log_file = std::fs::metadata(folder.join(format!("{PREFIX}.{date}.{SUFFIX}")));
        let left = DAY_BYTES.saturating_sub(log_file.map_or(0, |file| file.len()));
        Self { inner, day, left }
    }

    fn write_on(&mut self, day: u64, line: &[u8]) -> Result<usize> {
        if self.day != day {
            (self.day, self.left) = (day, DAY_BYTES);
        }
        let bytes = line.len() as u64;
        if bytes <= self.left {
            self.inner.write_all(line)?;
            self.left -= bytes;
            return Ok(line.len());
        }
        if std::mem::take(&mut self.left) > 0 {
            self.inner.write_all(FULL.as_bytes())?;
        }
        Ok(line.len())
    }
}

impl<W: Write> Write for LogLimit<W> {
    fn write(&mut self, line: &[u8]) -> Result<usize> {
        self.write_on(clock::today(), line)
    }

    fn flush(&mut self) -> Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_earlier_daemon_wrote_on_the_same_day_counts() {
        let folder = tempfile::tempdir().unwrap();
        let appender = || {
            let builder = tracing_appender::rolling::Builder::new();
            let builder = builder.rotation(tracing_appender::rolling::Rotation::DAILY);
            builder.filename_prefix(PREFIX).filename_suffix(SUFFIX).build(folder.path()).unwrap()
        };
        let mut first = LogLimit::new(appender(), folder.path());
        first.write_all(b"0123456789").unwrap();
        first.flush().unwrap();
        let second = LogLimit::new(appender(), folder.path());
        // At midnight between the two, the next day has all of its bytes again.
        assert!(second.left == DAY_BYTES - 10 || second.day != first.day, "{}", second.left);
    }

    #[test]
    fn a_day_has_a_size_and_the_next_one_has_it_again() {
        let mut log = LogLimit { inner: Vec::new(), day: 1, left: 10 };
        for line in ["12345\n", "678\n", "more\n", "and more\n"] {
            assert_eq!(log.write_on(1, line.as_bytes()).unwrap(), line.len());
        }
        assert_eq!(String::from_utf8(log.inner.clone()).unwrap(), "12345\n678\n");
        log.left = 1;
        log.write_on(1, b"more\n").unwrap();
        log.write_on(1, b"and more\n").unwrap();
        log.write_on(2, b"a new day\n").unwrap();
        assert_eq!(String::from_utf8(log.inner).unwrap(), format!("12345\n678\n{FULL}a new day\n"));
    }
}
