//! An archive that has arrived: on the disk, without a name, so that it is gone with the daemon; charged to who sent it.

use std::fs::File;
use std::io::{self, Read, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use crate::protocol::limits::FILE_BYTES;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, FREE_SPACE, Problem};
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Ledger, Permit};
use crate::sandbox::workspace::disk;
use crate::security_controls;

const CHUNK: usize = 256 * 1024;
/// The name of the archive in a user's quota.
const NAME: &str = "an archive that is imported";

pub struct Spool {
    file: File,
    _permit: Permit,
}

impl Spool {
    /// Writes all of `input` into a file in `folder`, on whose disk `reserve` bytes are kept free. Each piece is charged before
    /// it is written.
    pub fn receive(
        (folder, reserve): (&Path, u64),
        ledger: &Ledger,
        owner: Principal,
        mut input: impl Read,
    ) -> Result<Self, Problem> {
        let storage = |error: io::Error| {
            Problem::new(Code::Storage, format!("the archive cannot be kept: {error}")).hint(FREE_SPACE)
        };
        let permit = ledger.keep(owner, NAME, Amounts::of([(Kind::Workspace, 0)]));
        let gauge = permit.gauge();
        let mut file = tempfile::tempfile_in(folder).map_err(storage)?;
        let (mut bytes, mut buffer) = (0_u64, vec![0; CHUNK]);
        loop {
            let count = input
                .read(&mut buffer)
                .map_err(|error| Problem::new(Code::BadRequest, format!("the archive broke off: {error}")))?;
            let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { break };
            bytes += count as u64;
            if bytes > FILE_BYTES {
                let message = format!("an archive may have {FILE_BYTES} bytes at most");
                return Err(
                    Problem::new(Code::TooLarge, message).hint("move large files apart from the session")
                );
            }
            if security_controls::holds("archives_are_charged") {
                gauge.grow(Kind::Workspace, count as u64)?;
            }
            disk::check_at(folder, reserve)?;
            file.write_all(chunk).map_err(storage)?;
        }
        Ok(Self { file, _permit: permit })
    }

    /// Reads it from its beginning.
    pub fn reader(&self) -> impl Read + '_ {
        SpoolReader { file: &self.file, at: 0 }
    }
}

struct SpoolReader<'a> {
    file: &'a File,
    at: u64,
}

impl Read for SpoolReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(buffer, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Quota;

    #[test]
    fn an_archive_is_charged_before_it_is_written_and_has_no_name() {
        let folder = tempfile::tempdir().unwrap();
        let quota = Quota { everyone: [(Kind::Workspace, 100)].into_iter().collect(), ..Quota::default() };
        let ledger = Ledger::new(&quota);
        let receive = |bytes: &[u8]| Spool::receive((folder.path(), 0), &ledger, Principal::ANN, bytes);
        let kept = receive(&[7; 80]).unwrap();
        for _ in 0..2 {
            let mut read = Vec::new();
            kept.reader().read_to_end(&mut read).unwrap();
            assert_eq!(read, [7; 80]);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert_eq!(receive(&[7; 30]).err().map(|problem| problem.code), Some(Code::QuotaExceeded));
        drop(kept);
        assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 0);
        receive(&[7; 100]).unwrap();
    }

    #[test]
    fn an_archive_leaves_the_reserve_of_the_disk_alone() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = Ledger::new(&Quota::default());
        let receive =
            |reserve| Spool::receive((folder.path(), reserve), &ledger, Principal::ANN, &[7; 80][..]);
        assert_eq!(receive(u64::MAX).err().map(|problem| problem.code), Some(Code::Storage));
        assert_eq!(ledger.used(Principal::ANN, Kind::Workspace), 0);
        receive(0).unwrap();
    }
}
