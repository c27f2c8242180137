//! Large values as files named by the hash of their content, so that rows stay small.

use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Events whose JSON is larger are kept as a file of their own.
pub(super) const INLINE_BYTES: usize = 256 * 1024;

#[derive(Clone, Debug)]
pub(super) struct Blobs {
    folder: PathBuf,
}

impl Blobs {
    pub fn open(folder: PathBuf) -> std::io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(Self { folder })
    }

    pub fn name(content: &[u8]) -> String {
        hex::encode(Sha256::digest(content))
    }

    /// Writes the content completely to the disk before returning, because the row that names the blob is committed
    /// afterwards.
    pub fn put(&self, content: &[u8]) -> std::io::Result<String> {
        let name = Self::name(content);
        let path = self.folder.join(&name);
        if path.exists() {
            return Ok(name);
        }
        let draft = self.folder.join(format!(".{name}.draft"));
        let outcome = File::options().write(true).create(true).truncate(true).mode(0o600).open(&draft);
        let outcome = outcome.and_then(|mut file| {
            file.write_all(content)?;
            file.sync_data()
        });
        if let Err(error) = outcome.and_then(|()| std::fs::rename(&draft, &path)) {
            // A partial file would only fill a full disk further.
            let _ = std::fs::remove_file(&draft);
            return Err(error);
        }
        Ok(name)
    }

    pub fn get(&self, name: &str) -> std::io::Result<String> {
        std::fs::read_to_string(self.path(name)?)
    }

    /// Removes a blob that no event refers to any more. A missing file is no error.
    pub fn remove(&self, name: &str) -> std::io::Result<()> {
        match std::fs::remove_file(self.path(name)?) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The names of all files, drafts included.
    pub fn names(&self) -> Vec<OsString> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).collect()
    }

    /// Removes every file of these for which `used` is false; returns how many.
    pub fn sweep(
        &self,
        names: &[OsString],
        mut used: impl FnMut(&str) -> rusqlite::Result<bool>,
    ) -> rusqlite::Result<usize> {
        let mut removed = 0;
        for name in names {
            let is_used = name.to_str().map_or(Ok(false), &mut used)?;
            if !is_used && std::fs::remove_file(self.folder.join(name)).is_ok() {
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Names come from the database; a name that is not a hash never becomes a path.
    fn path(&self, name: &str) -> std::io::Result<PathBuf> {
        if name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(self.folder.join(Path::new(name)));
        }
        Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "no name of a blob"))
    }
}
