//! Copies a folder that a guest wrote into new files of the daemon: only regular files and folders, without links, set-id
//! bits or other rights, within bounds.

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::record::{self, FoundFile, ListedFile};
use crate::packages::resolved::{PACKAGES, of_metadata_folder};
use crate::protocol::packages::{InstalledPackage, PackageVersion};
use crate::security_controls;

/// Deepest nesting of folders.
const DEPTH: usize = 40;
/// The file that lists a package's files with their hashes.
const RECORD: &str = "RECORD";
/// The most bytes of such a list, which is read as a whole.
const RECORD_BYTES: u64 = 16 * 1024 * 1024;
/// The most bytes of the paths of all files, those that are there and those that lists have: they stay in memory until
/// all files are copied.
const PATHS_BYTES: usize = 32 * 1024 * 1024;
/// What one file takes on a disk beside its content: the content is rounded up to blocks, and there is an inode.
const BLOCK_BYTES: u64 = 4096;
const INODE_BYTES: u64 = 512;
/// What an entry takes in its folder beside its name.
const ENTRY_BYTES: u64 = 24;
/// Files of the installer itself at the top, which no package needs.
const NOT_COPIED: [&[u8]; 1] = [b".lock"];

/// The bytes that a file of a length takes on a disk.
pub fn disk_bytes(length: u64) -> u64 {
    length.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES).saturating_add(INODE_BYTES)
}

/// What a copy may take on a disk.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub bytes: u64,
    pub files: u64,
}

/// What was copied.
#[derive(Debug, Default)]
pub struct Copied {
    /// What files and folders take on the disk.
    pub bytes: u64,
    /// The part of it that folders take.
    pub folder_bytes: u64,
    pub files: u64,
    /// The packages whose metadata is there, sorted.
    pub packages: Vec<InstalledPackage>,
}

/// Copies `source` into the new folder `target`. The files have to be what the lists of their packages say.
pub fn copy(source: &Path, target: &Path, bounds: Bounds) -> std::io::Result<Copied> {
    let source = rustix::fs::open(source, folder_flags(), Mode::empty())?;
    let mut copy = Copy {
        root: target,
        bounds,
        copied: Copied::default(),
        found: BTreeMap::new(),
        listed: Vec::new(),
        path_bytes: 0,
    };
    copy.folder(source.as_fd(), target, 0, None)?;
    let Copy { mut copied, found, listed, .. } = copy;
    if let Some(path) = record::first_difference(&found, &listed)
        && security_controls::holds("packages_are_as_listed")
    {
        let path = path.escape_default();
        return Err(std::io::Error::other(format!("`{path}` is not what the list of its package says")));
    }
    copied.packages.sort();
    Ok(copied)
}

fn folder_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

struct Copy<'a> {
    /// The new folder.
    root: &'a Path,
    bounds: Bounds,
    copied: Copied,
    /// All files, by their paths below the root.
    found: BTreeMap<String, FoundFile>,
    /// What the lists of all packages say; not more than there may be files.
    listed: Vec<ListedFile>,
    /// Total bytes of the paths in `found` and `listed`.
    path_bytes: usize,
}

impl Copy<'_> {
    /// `package` is the one whose metadata the folder has.
    fn folder(
        &mut self,
        source: BorrowedFd<'_>,
        target: &Path,
        depth: usize,
        package: Option<&PackageVersion>,
    ) -> std::io::Result<()> {
        if depth > DEPTH {
            return Err(std::io::Error::other("the folders of a package are nested too deeply"));
        }
        make_folder(target)?;
        let mut names = 0;
        for entry in Dir::read_from(source)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..")
                || (depth == 0 && NOT_COPIED.contains(&name.to_bytes()))
            {
                continue;
            }
            self.copied.files += 1;
            if self.copied.files > self.bounds.files {
                return Err(std::io::Error::other(format!(
                    "there are more than {} files",
                    self.bounds.files
                )));
            }
            names += name.to_bytes().len() as u64 + ENTRY_BYTES;
            let plain = std::str::from_utf8(name.to_bytes())
                .map_err(|_| std::io::Error::other("the name of a file is no text"))?;
            let found = rustix::fs::statat(source, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let path = target.join(plain);
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => {
                    let below = rustix::fs::openat(source, name, folder_flags(), Mode::empty())?;
                    let package = (depth == 0).then(|| of_metadata_folder(plain)).flatten();
                    self.folder(below.as_fd(), &path, depth + 1, package.as_ref())?;
                }
                FileType::RegularFile => {
                    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                    let file = rustix::fs::openat(source, name, flags, Mode::empty())?;
                    let is_list = package.is_some() && plain == RECORD;
                    let sha256 = self.file(std::fs::File::from(file), &path, is_list)?;
                    if let Some(PackageVersion { name, version }) = package.filter(|_| is_list).cloned() {
                        if self.copied.packages.len() >= PACKAGES {
                            return Err(std::io::Error::other(format!(
                                "there are more than {PACKAGES} packages"
                            )));
                        }
                        self.copied.packages.push(InstalledPackage { name, version, sha256 });
                    }
                }
                _ => return Err(std::io::Error::other(format!("`{}` is no file", plain.escape_default()))),
            }
        }
        let bytes = disk_bytes(names.max(1));
        self.copied.folder_bytes += bytes;
        self.take(bytes)
    }

    /// Counts bytes on the disk.
    fn take(&mut self, bytes: u64) -> std::io::Result<()> {
        self.copied.bytes = self.copied.bytes.saturating_add(bytes);
        if self.copied.bytes > self.bounds.bytes {
            return Err(std::io::Error::other(format!("they take more than {} bytes", self.bounds.bytes)));
        }
        Ok(())
    }

    /// Copies one file, and gives its hash. A list of files is read, too.
    fn file(&mut self, source: std::fs::File, target: &Path, is_list: bool) -> std::io::Result<String> {
        let mode = source.metadata()?.mode();
        let room = self.bounds.bytes.saturating_sub(self.copied.bytes);
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(target)?;
        let mut copy = HashingWriter { file, hash: Sha256::new() };
        let mut source = source.take(room.saturating_add(1));
        let length = if is_list {
            let mut content = Vec::new();
            source.take(RECORD_BYTES.saturating_add(1)).read_to_end(&mut content)?;
            if content.len() as u64 > RECORD_BYTES {
                return Err(std::io::Error::other(format!(
                    "a list of files of a package has more than {RECORD_BYTES} bytes"
                )));
            }
            copy.write_all(&content)?;
            self.read_list(&String::from_utf8_lossy(&content))?;
            content.len() as u64
        } else {
            std::io::copy(&mut source, &mut copy)?
        };
        let HashingWriter { file, hash } = copy;
        let sha256: [u8; 32] = hash.finalize().into();
        if let Some(path) = target.strip_prefix(self.root).ok().and_then(Path::to_str) {
            self.hold_path(path)?;
            self.found.insert(path.to_owned(), FoundFile { bytes: length, sha256 });
        }
        self.take(disk_bytes(length))?;
        let rights = if mode & 0o100 == 0 { 0o644 } else { 0o755 };
        let rights =
            if security_controls::holds("packages_have_no_set_id_bits") { rights } else { mode & 0o7777 };
        file.set_permissions(std::fs::Permissions::from_mode(rights))?;
        Ok(hex::encode(sha256))
    }

    fn read_list(&mut self, text: &str) -> std::io::Result<()> {
        for listed in record::listed(text) {
            if self.listed.len() as u64 >= self.bounds.files {
                let most = self.bounds.files;
                return Err(std::io::Error::other(format!("the packages list more than {most} files")));
            }
            self.hold_path(listed.path())?;
            self.listed.push(listed);
        }
        Ok(())
    }

    /// Counts a path that is about to stay in memory.
    fn hold_path(&mut self, path: &str) -> std::io::Result<()> {
        self.path_bytes = self.path_bytes.saturating_add(path.len());
        if self.path_bytes > PATHS_BYTES {
            return Err(std::io::Error::other(format!(
                "the paths of all files have more than {PATHS_BYTES} bytes"
            )));
        }
        Ok(())
    }
}

struct HashingWriter {
    file: std::fs::File,
    hash: Sha256,
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

fn make_folder(path: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(0o755).create(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

/// Makes the new folder `target` with hard links to the files of `source`, which the daemon wrote.
pub fn link(source: &Path, target: &Path) -> std::io::Result<()> {
    again(source, target, &|from, to| std::fs::hard_link(from, to))
}

/// Makes the new folder `target` with copies of the files of `source`, which the daemon wrote.
pub fn duplicate(source: &Path, target: &Path) -> std::io::Result<()> {
    again(source, target, &|from, to| std::fs::copy(from, to).map(drop))
}

fn again(
    source: &Path,
    target: &Path,
    file: &dyn Fn(&Path, &Path) -> std::io::Result<()>,
) -> std::io::Result<()> {
    make_folder(target)?;
    for entry in std::fs::read_dir(source)? {
        let entry = entry?;
        let (from, to) = (entry.path(), target.join(entry.file_name()));
        if entry.file_type()?.is_dir() { again(&from, &to, file)? } else { file(&from, &to)? }
    }
    Ok(())
}

/// Reads a small file that a guest wrote into a folder.
pub fn read_text(folder: &Path, name: &str, most: u64) -> std::io::Result<String> {
    let mut text = String::new();
    open_file(folder, name)?.take(most).read_to_string(&mut text)?;
    Ok(text)
}

/// The length of a file of a guest's folder.
pub fn file_bytes(folder: &Path, name: &str) -> std::io::Result<u64> {
    open_file(folder, name)?.metadata().map(|file| file.len())
}

/// Copies one file of a guest's folder into a new one.
pub fn copy_file(folder: &Path, name: &str, target: &Path, most: u64) -> std::io::Result<()> {
    let source = open_file(folder, name)?;
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o700).open(target)?;
    let copied = std::io::copy(&mut source.take(most.saturating_add(1)), &mut file)?;
    if copied > most {
        return Err(std::io::Error::other(format!("`{name}` has more than {most} bytes")));
    }
    Ok(())
}

fn open_file(folder: &Path, name: &str) -> std::io::Result<std::fs::File> {
    let folder = rustix::fs::open(folder, folder_flags(), Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::openat(&folder, name, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other(format!("`{name}` is no file")));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENOUGH: Bounds = Bounds { bytes: 100_000, files: 100 };

    #[test]
    fn files_are_new_and_have_plain_rights() {
        let home = tempfile::tempdir().unwrap();
        let (source, target) = (home.path().join("a"), home.path().join("b"));
        std::fs::create_dir_all(source.join("bin")).unwrap();
        std::fs::create_dir_all(source.join("x_y-1.0.dist-info")).unwrap();
        std::fs::write(source.join("x_y-1.0.dist-info/RECORD"), "files").unwrap();
        std::fs::write(source.join("bin/run"), "#!").unwrap();
        std::fs::write(source.join(".lock"), "").unwrap();
        std::fs::set_permissions(source.join("bin/run"), std::fs::Permissions::from_mode(0o6777)).unwrap();
        let copied = copy(&source, &target, ENOUGH).unwrap();
        let facts = std::fs::metadata(target.join("bin/run")).unwrap();
        assert_eq!((facts.mode() & 0o7777, facts.nlink()), (0o755, 1));
        assert!(!target.join(".lock").exists());
        let names: Vec<(&str, &str)> =
            copied.packages.iter().map(|found| (found.name.as_str(), found.version.as_str())).collect();
        assert_eq!(names, [("x-y", "1.0")]);
        // Two files and three folders, which take whole blocks, however short they are.
        assert_eq!((copied.bytes, copied.folder_bytes), (5 * disk_bytes(1), 3 * disk_bytes(1)));
    }

    #[test]
    fn a_file_that_is_not_what_its_package_lists_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("a");
        std::fs::create_dir_all(source.join("x-1.0.dist-info")).unwrap();
        let empty = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU";
        let record = format!("x.py,sha256={empty},0\nx-1.0.dist-info/RECORD,,\n");
        std::fs::write(source.join("x-1.0.dist-info/RECORD"), record).unwrap();
        std::fs::write(source.join("x.py"), "").unwrap();
        assert_eq!(copy(&source, &home.path().join("b"), ENOUGH).unwrap().packages.len(), 1);
        std::fs::write(source.join("x.py"), "another").unwrap();
        let refused = copy(&source, &home.path().join("c"), ENOUGH).unwrap_err();
        assert!(refused.to_string().contains("`x.py` is not what the list"), "{refused}");
        std::fs::write(source.join("x.py"), "").unwrap();
        let few = Bounds { files: 3, ..ENOUGH };
        std::fs::write(source.join("x-1.0.dist-info/RECORD"), format!("x.py,sha256={empty},0\n").repeat(4))
            .unwrap();
        let refused = copy(&source, &home.path().join("d"), few).unwrap_err();
        assert!(refused.to_string().contains("list more than 3 files"), "{refused}");
    }

    #[test]
    fn long_paths_in_lists_of_packages_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("a");
        let list = format!("{},sha256=x,0\n", "x".repeat(PATHS_BYTES / 3));
        for name in ["x", "y", "z", "zz"] {
            std::fs::create_dir_all(source.join(format!("{name}-1.0.dist-info"))).unwrap();
            std::fs::write(source.join(format!("{name}-1.0.dist-info/RECORD")), &list).unwrap();
        }
        let large = Bounds { bytes: 1 << 30, ..ENOUGH };
        let refused = copy(&source, &home.path().join("b"), large).unwrap_err();
        assert!(refused.to_string().contains("the paths of all files"), "{refused}");
    }

    #[test]
    fn many_small_files_count_as_what_they_take_on_the_disk() {
        let home = tempfile::tempdir().unwrap();
        let source = home.path().join("a");
        std::fs::create_dir(&source).unwrap();
        (0..50).for_each(|n| std::fs::write(source.join(n.to_string()), "1").unwrap());
        let refused = copy(&source, &home.path().join("b"), ENOUGH).unwrap_err();
        assert!(refused.to_string().contains("100000 bytes"), "{refused}");
    }

    #[test]
    fn links_devices_and_too_much_are_refused() {
        type Attack = fn(&Path);
        let attacks: [Attack; 5] = [
            |folder| std::os::unix::fs::symlink("/etc/passwd", folder.join("x")).unwrap(),
            |folder| std::os::unix::fs::symlink("/etc", folder.join("x")).unwrap(),
            |folder| {
                let fifo = folder.join("x");
                rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, 0o644.into(), 0).unwrap();
            },
            |folder| std::fs::File::create(folder.join("x")).unwrap().set_len(100_001).unwrap(),
            |folder| (0..=100).for_each(|n| std::fs::write(folder.join(n.to_string()), "").unwrap()),
        ];
        for (number, attack) in attacks.into_iter().enumerate() {
            let home = tempfile::tempdir().unwrap();
            let source = home.path().join("a");
            std::fs::create_dir(&source).unwrap();
            attack(&source);
            assert!(copy(&source, &home.path().join("b"), ENOUGH).is_err(), "{number}");
        }
    }
}
