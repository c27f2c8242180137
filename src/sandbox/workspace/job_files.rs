//! Files that go in and out of a sandbox for a job: the input is checked once, and of the script's output only regular
//! files are taken out, as data.

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};

use crate::protocol::glob;
use crate::protocol::job::JobArtifact;
use crate::protocol::limits::{
    ARTIFACT_SCAN_DEPTH, ARTIFACT_SCAN_ENTRIES, FOLDER_ENTRIES, JOB_ARTIFACT_BYTES, JOB_ARTIFACTS,
    JOB_INPUT_BYTES, JOB_INPUT_NAMES_BYTES,
};
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::workspace::archive;
use crate::sandbox::workspace::files::{beneath, clean, size};
use crate::sandbox::workspace::root::Root;
use crate::sandbox::workspace::walk::{Walk, WalkItem};

/// Mode of every file that leaves a sandbox, without the right to execute, so that none is run by accident.
const MODE: u32 = 0o644;

/// The content of a tar stream that a client sent for jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    /// The SHA-256 digest of each file.
    pub files: BTreeMap<String, String>,
    pub bytes: u64,
}

impl Manifest {
    /// One digest for everything: that of a list as `sha256sum` writes it, with line breaks in names escaped.
    pub fn sha256(&self) -> String {
        let mut digest = Sha256::new();
        for (path, sha256) in &self.files {
            let escaped = path.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r");
            let mark = if escaped == *path { "" } else { "\\" };
            digest.update(format!("{mark}{sha256}  {escaped}\n"));
        }
        hex::encode(digest.finalize())
    }
}

/// Reads a tar stream to its end. Only folders and regular files with paths below the workspace are accepted.
pub fn look_through(input: impl Read) -> Result<Manifest, Problem> {
    let (mut manifest, mut names) = (Manifest::default(), 0);
    archive::each_member(input, FOLDER_ENTRIES, |name, facts, data| {
        let path = clean(&name.to_string_lossy())?;
        names += path.len();
        if names > JOB_INPUT_NAMES_BYTES {
            return Err(too_large());
        }
        if facts.kind == archive::Kind::Folder {
            return Ok(());
        }
        let (bytes, sha256) = copy_digested(data, &mut std::io::sink()).map_err(archive::broken)?;
        manifest.bytes = manifest.bytes.saturating_add(bytes);
        if manifest.bytes > JOB_INPUT_BYTES {
            return Err(too_large());
        }
        manifest.files.insert(path, sha256);
        Ok(())
    })?;
    Ok(manifest)
}

pub fn too_large() -> Problem {
    Problem::new(Code::TooLarge, format!("the files of a job may have {JOB_INPUT_BYTES} bytes at most"))
        .hint("send only what the script needs")
}

/// The files that are kept of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gathered {
    pub files: Vec<JobArtifact>,
    /// Whether a file is missing: because there were too many, it was too large or too deep, could not be read, or has
    /// a name that a terminal or another system could not handle.
    pub cut: bool,
}

/// Writes the files that match a pattern as a tar stream. Links and special files are ignored.
pub fn gather(root: &Root<'_>, patterns: &[String], out: impl Write) -> std::io::Result<Gathered> {
    let mut gathered = Gathered::default();
    let mut builder = tar::Builder::new(out);
    let mut bytes = 0_u64;
    // In order, so that the same files are taken each time if not all can be.
    let walk = Walk { entries: ARTIFACT_SCAN_ENTRIES, sorted: true };
    walk.run(root.folder(), |met| {
        let entry = match met {
            WalkItem::Entry(entry) => entry,
            WalkItem::Unread { error: Errno::NOENT, .. } => return Ok::<_, std::io::Error>(false),
            WalkItem::Unread { .. } | WalkItem::TooMany => {
                gathered.cut = true;
                return Ok(false);
            }
        };
        let usable = entry.name.to_str().ok().filter(|name| !name.chars().any(char::is_control));
        let path = usable.and_then(|_| entry.path().into_os_string().into_string().ok());
        match (entry.kind(), path) {
            (FileType::Directory, Some(_)) if entry.depth() + 1 < ARTIFACT_SCAN_DEPTH => return Ok(true),
            (FileType::Directory, _) | (FileType::RegularFile, None) => gathered.cut = true,
            (FileType::RegularFile, Some(path)) => {
                if !patterns.iter().any(|pattern| glob::matches(pattern, &path)) {
                    return Ok(false);
                }
                let bytes_left = JOB_ARTIFACT_BYTES.saturating_sub(bytes);
                let fits = gathered.files.len() < JOB_ARTIFACTS && size(&entry.stat) <= bytes_left;
                match if fits { append(&mut builder, root, &path, bytes_left)? } else { None } {
                    Some(artifact) => {
                        bytes += artifact.bytes;
                        gathered.files.push(artifact);
                    }
                    None => gathered.cut = true,
                }
            }
            _ => {}
        }
        Ok(false)
    })?;
    builder.into_inner()?.flush()?;
    gathered.files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(gathered)
}

fn append<W: Write>(
    builder: &mut tar::Builder<W>,
    root: &Root<'_>,
    path: &str,
    bytes_left: u64,
) -> std::io::Result<Option<JobArtifact>> {
    let Ok(fd) = beneath(root.folder(), path, OFlags::RDONLY, Mode::empty()) else { return Ok(None) };
    let opened = rustix::fs::fstat(&fd)?;
    let bytes = size(&opened);
    if FileType::from_raw_mode(opened.st_mode) != FileType::RegularFile || bytes > bytes_left {
        return Ok(None);
    }
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(bytes);
    header.set_mode(MODE);
    header.set_mtime(u64::try_from(opened.st_mtime).unwrap_or(0));
    // Exactly the announced number of bytes must follow the header, even if the file changes meanwhile.
    let mut data = DigestingReader {
        inner: File::from(fd).chain(std::io::repeat(0)).take(bytes),
        digest: Sha256::new(),
    };
    builder.append_data(&mut header, path, &mut data)?;
    Ok(Some(JobArtifact { path: path.to_owned(), bytes, sha256: hex::encode(data.digest.finalize()) }))
}

struct DigestingReader<R> {
    inner: R,
    digest: Sha256,
}

impl<R: Read> Read for DigestingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.digest.update(buffer.get(..count).unwrap_or_default());
        Ok(count)
    }
}

fn copy_digested(input: &mut dyn Read, out: &mut impl Write) -> std::io::Result<(u64, String)> {
    let mut input = DigestingReader { inner: input, digest: Sha256::new() };
    let bytes = std::io::copy(&mut input, out)?;
    Ok((bytes, hex::encode(input.digest.finalize())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::Path;

    fn gathered(folder: &Path, patterns: &[&str]) -> (Gathered, Vec<(String, u32, tar::EntryType)>) {
        let folder = File::open(folder).unwrap();
        let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        let mut out = Vec::new();
        let gathered = gather(&Root::of_daemon(folder.as_fd()), &patterns, &mut out).unwrap();
        let mut archive = tar::Archive::new(&out[..]);
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            (path, entry.header().mode().unwrap(), entry.header().entry_type())
        });
        let entries = entries.collect();
        (gathered, entries)
    }

    #[test]
    fn only_plain_files_come_out_without_the_right_to_run() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("out")).unwrap();
        std::fs::write(at("out/a.sh"), "x").unwrap();
        std::fs::set_permissions(at("out/a.sh"), std::fs::Permissions::from_mode(0o6755)).unwrap();
        std::fs::write(at("out/.env"), "secret").unwrap();
        std::fs::write(at("out/a\u{1b}[2Jb"), "x").unwrap();
        symlink("/etc/passwd", at("out/link")).unwrap();
        symlink("/etc", at("out/folder")).unwrap();
        let (all, entries) = gathered(folder.path(), &["**"]);
        assert_eq!(entries, [("out/a.sh".to_owned(), 0o644, tar::EntryType::Regular)]);
        assert_eq!(all.files.len(), 1);
        assert_eq!(all.files[0].sha256, "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
        assert!(all.cut, "a name with an escape sequence is told");
        let (named, _) = gathered(folder.path(), &["out/.env"]);
        assert_eq!(named.files.iter().map(|file| file.path.as_str()).collect::<Vec<_>>(), ["out/.env"]);
    }

    #[test]
    fn an_input_is_folders_and_files_below_it() {
        let entry = |name: &str, kind| {
            let mut archive = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_gnu();
            header.set_size(1);
            header.set_mode(0o644);
            header.set_entry_type(kind);
            header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_cksum();
            archive.append(&header, &b"x"[..]).unwrap();
            look_through(&archive.into_inner().unwrap()[..])
        };
        let good = entry("a/b.py", tar::EntryType::Regular).unwrap();
        assert_eq!((good.files.len(), good.bytes), (1, 1));
        // The digest of the file, and then the digest of the line that `sha256sum` would write.
        assert_eq!(good.files["a/b.py"], "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
        assert_eq!(good.sha256(), "a5ab6f9513a3569fdeb775b87a511f3b33f6349a5e56843ace8ca87788b40404");
        assert_ne!(good.sha256(), entry("a/c.py", tar::EntryType::Regular).unwrap().sha256());
        for name in ["../b.py", "/b.py", "a/../../b.py"] {
            assert!(entry(name, tar::EntryType::Regular).is_err(), "{name}");
        }
        assert!(entry("a", tar::EntryType::Symlink).is_err());
        assert!(entry("a", tar::EntryType::Link).is_err());
    }
}
