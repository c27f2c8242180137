//! Output of cells on disk: one append-only file per cell, bounded per cell and per session.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;

use crate::protocol::ids::CellNumber;

/// All spill files of one session together; the oldest go first.
const SESSION_BYTES: u64 = 1024 * 1024 * 1024;

#[derive(Debug)]
pub struct Spill {
    folder: PathBuf,
    cell_bytes: u64,
    /// Bytes per cell that has a file.
    files: BTreeMap<CellNumber, u64>,
    bytes: u64,
    /// Only the file written last is held open: a session with many cells must not hold many.
    open: Option<(CellNumber, File)>,
}

/// A run of bytes in a spill file.
#[derive(Clone, Debug)]
pub struct Range {
    path: Arc<PathBuf>,
    start: u64,
    pub bytes: u64,
}

impl Range {
    /// Invalid UTF-8 is replaced: clients get text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut buffer = vec![0; usize::try_from(self.bytes).unwrap_or(0)];
        let read = File::open(&*self.path).and_then(|file| file.read_exact_at(&mut buffer, self.start));
        match read {
            Ok(()) => String::from_utf8_lossy(&buffer).into_owned(),
            Err(_) => "[this output is no longer kept]\n".into(),
        }
    }
}

impl Spill {
    #[must_use]
    pub fn new(folder: PathBuf, cell_bytes: u64) -> Self {
        Self { folder, cell_bytes, files: BTreeMap::new(), bytes: 0, open: None }
    }

    /// Appends as much as fits; none if nothing did. Cell 0 is output between cells.
    pub fn append(&mut self, cell: CellNumber, data: &[u8]) -> std::io::Result<Option<Range>> {
        let start = self.files.get(&cell).copied().unwrap_or(0);
        let room = usize::try_from(self.cell_bytes.saturating_sub(start)).unwrap_or(usize::MAX);
        let data = data.get(..room.min(data.len())).unwrap_or_default();
        if data.is_empty() {
            return Ok(None);
        }
        let path = self.path(cell);
        let file = match &mut self.open {
            Some((open, file)) if *open == cell => file,
            slot => {
                std::fs::create_dir_all(&self.folder)?;
                let file = File::options().append(true).create(true).mode(0o600).open(&path)?;
                &mut slot.insert((cell, file)).1
            }
        };
        if let Err(error) = file.write_all(data) {
            // Half a chunk would shift every later range.
            file.set_len(start)?;
            return Err(error);
        }
        let range = Range { path: Arc::new(path), start, bytes: data.len() as u64 };
        self.files.insert(cell, start + range.bytes);
        self.bytes += range.bytes;
        self.make_room(cell);
        Ok(Some(range))
    }

    /// Drops the oldest files while the session holds too much.
    fn make_room(&mut self, current: CellNumber) {
        while self.bytes > SESSION_BYTES {
            let Some(oldest) = self.files.keys().copied().find(|cell| *cell != current) else { break };
            self.forget(oldest);
        }
    }

    fn forget(&mut self, cell: CellNumber) {
        if let Some(bytes) = self.files.remove(&cell) {
            self.bytes = self.bytes.saturating_sub(bytes);
            let _ = std::fs::remove_file(self.path(cell));
        }
    }

    fn path(&self, cell: CellNumber) -> PathBuf {
        self.folder.join(format!("{cell}.out"))
    }
}

impl Drop for Spill {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_read_back_what_was_written_up_to_the_cap() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = Spill::new(folder.path().join("s"), 8);
        let first = spill.append(1, b"hello").unwrap().unwrap();
        let second = spill.append(1, b"world").unwrap().unwrap();
        assert_eq!((first.text(), second.text()), ("hello".into(), "wor".into()));
        assert!(spill.append(1, b"x").unwrap().is_none());
        assert_eq!(spill.append(2, b"y").unwrap().unwrap().text(), "y");
        drop(spill);
        assert!(!folder.path().join("s").exists());
        assert!(first.text().contains("no longer kept"));
    }
}
