//! Output of cells on disk: one file per cell, bounded per cell and per session. The files survive the daemon; only the
//! ranges that the journal names are valid.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::protocol::ids::CellNumber;

/// The limit for all spill files of one session together; the oldest files are deleted first.
const SESSION_BYTES: u64 = 1024 * 1024 * 1024;
/// The number of the file for output between cells.
const BETWEEN_CELLS: CellNumber = 0;

#[derive(Debug)]
pub struct Spill {
    folder: PathBuf,
    cell_bytes: u64,
    /// Bytes per cell that has a file.
    files: BTreeMap<CellNumber, u64>,
    bytes: u64,
    /// Bytes of deleted files that `take_freed` has not reported yet.
    freed: u64,
    /// Only the file written last is kept open, so that a session with many cells does not hold many descriptors.
    open: Option<(CellNumber, File)>,
}

/// A run of bytes in a spill file.
#[derive(Clone, Debug)]
pub struct Range {
    path: PathBuf,
    pub start: u64,
    pub bytes: u64,
}

impl Range {
    pub fn new(folder: &Path, cell: Option<CellNumber>, start: u64, bytes: u64) -> Self {
        Self { path: path(folder, cell.unwrap_or(BETWEEN_CELLS)), start, bytes }
    }

    pub fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut buffer = vec![0; usize::try_from(self.bytes).unwrap_or(0)];
        File::open(&self.path)?.read_exact_at(&mut buffer, self.start)?;
        Ok(buffer)
    }

    /// The text, in which what is no UTF-8 is replaced, and the bytes if that was necessary.
    pub fn text(&self) -> (String, Option<Vec<u8>>) {
        let Ok(bytes) = self.read() else { return ("[this output is no longer kept]\n".into(), None) };
        match String::from_utf8(bytes) {
            Ok(text) => (text, None),
            Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some(error.into_bytes())),
        }
    }
}

fn path(folder: &Path, cell: CellNumber) -> PathBuf {
    folder.join(format!("{cell}.out"))
}

impl Spill {
    /// Continues with the files in the folder, which need not exist yet.
    pub fn open(folder: &Path, cell_bytes: u64) -> std::io::Result<Self> {
        let mut files = BTreeMap::new();
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => Some(entries),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        for entry in entries.into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name();
            let cell = name.to_str().and_then(|name| name.strip_suffix(".out")?.parse().ok());
            if let Some(cell) = cell {
                files.insert(cell, entry.metadata()?.len());
            }
        }
        let bytes = files.values().sum();
        Ok(Self { folder: folder.to_owned(), cell_bytes, files, bytes, freed: 0, open: None })
    }

    /// Cuts off bytes that were written and never committed, so that the next range begins at `end`.
    ///
    /// If the file is shorter than `end`, its last bytes were lost with the power; their place is not used again.
    pub fn cut(&mut self, cell: Option<CellNumber>, end: u64) -> std::io::Result<()> {
        let cell = cell.unwrap_or(BETWEEN_CELLS);
        let Some(length) = self.files.get(&cell).copied() else {
            if end > 0 {
                self.files.insert(cell, end);
                self.bytes += end;
            }
            return Ok(());
        };
        if length > end {
            File::options().write(true).open(path(&self.folder, cell))?.set_len(end)?;
        }
        self.files.insert(cell, end);
        self.bytes = self.bytes - length.min(self.bytes) + end;
        Ok(())
    }

    /// Appends as much as fits; `None` if nothing fits. Without a cell, the data is output between cells.
    pub fn append(&mut self, cell: Option<CellNumber>, data: &[u8]) -> std::io::Result<Option<Range>> {
        let cell = cell.unwrap_or(BETWEEN_CELLS);
        let start = self.files.get(&cell).copied().unwrap_or(0);
        let bytes_left = usize::try_from(self.cell_bytes.saturating_sub(start)).unwrap_or(usize::MAX);
        let data = data.get(..bytes_left.min(data.len())).unwrap_or_default();
        if data.is_empty() {
            return Ok(None);
        }
        let path = path(&self.folder, cell);
        let file = match &mut self.open {
            Some((open, file)) if *open == cell => file,
            slot => {
                std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
                let file =
                    File::options().write(true).create(true).truncate(false).mode(0o600).open(&path)?;
                &mut slot.insert((cell, file)).1
            }
        };
        if let Err(error) = file.write_all_at(data, start) {
            // A partial chunk would only fill a full disk further.
            file.set_len(start)?;
            return Err(error);
        }
        let range = Range { path, start, bytes: data.len() as u64 };
        self.files.insert(cell, start + range.bytes);
        self.bytes += range.bytes;
        self.make_room(cell);
        Ok(Some(range))
    }

    /// Deletes the oldest files while the session holds too much. The file of output between cells is kept: if it were
    /// begun anew, old ranges would return new bytes.
    fn make_room(&mut self, current: CellNumber) {
        while self.bytes > SESSION_BYTES {
            let droppable = |cell: &CellNumber| *cell != current && *cell != BETWEEN_CELLS;
            let Some(oldest) = self.files.keys().copied().find(droppable) else { break };
            self.forget(oldest);
        }
    }

    fn forget(&mut self, cell: CellNumber) {
        if let Some(bytes) = self.files.remove(&cell) {
            self.bytes = self.bytes.saturating_sub(bytes);
            if std::fs::remove_file(path(&self.folder, cell)).is_ok() {
                self.freed = self.freed.saturating_add(bytes);
            }
        }
    }

    /// Bytes that were deleted to make room since the previous call.
    pub fn take_freed(&mut self) -> u64 {
        std::mem::take(&mut self.freed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_read_back_what_was_written_up_to_the_cap() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = Spill::open(&folder.path().join("s"), 8).unwrap();
        let first = spill.append(Some(1), b"hello").unwrap().unwrap();
        let second = spill.append(Some(1), b"world").unwrap().unwrap();
        assert_eq!((first.text(), second.text()), (("hello".into(), None), ("wor".into(), None)));
        assert!(spill.append(Some(1), b"x").unwrap().is_none());
        let (text, bytes) = spill.append(Some(2), b"y\xff").unwrap().unwrap().text();
        assert_eq!((text.as_str(), bytes), ("y\u{fffd}", Some(b"y\xff".to_vec())));
        std::fs::remove_file(folder.path().join("s/1.out")).unwrap();
        assert!(first.text().0.contains("no longer kept"));
    }

    #[test]
    fn a_folder_is_gone_on_with_at_the_committed_length() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = Spill::open(folder.path(), 100).unwrap();
        let first_part = spill.append(Some(3), b"committed").unwrap().unwrap();
        spill.append(Some(3), b" not committed").unwrap();
        spill.append(None, b"between").unwrap();
        drop(spill);

        let mut spill = Spill::open(folder.path(), 100).unwrap();
        assert_eq!((spill.bytes, spill.files.len()), (30, 2));
        spill.cut(Some(3), 9).unwrap();
        spill.cut(Some(8), 0).unwrap();
        let next = spill.append(Some(3), b" and on").unwrap().unwrap();
        assert_eq!((next.start, first_part.text().0 + &next.text().0), (9, "committed and on".into()));
        assert_eq!(std::fs::read(folder.path().join("3.out")).unwrap(), b"committed and on");
        assert_eq!(spill.append(None, b"!").unwrap().unwrap().start, 7);
        assert_eq!((spill.bytes, spill.files.len()), (24, 2));
    }
}
