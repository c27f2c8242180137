//! The kernel's table of the mounts of a process, `/proc/<pid>/mountinfo`. Every user may read it, also of a process that
//! lets no process look into its folders.

use std::io::{Error, ErrorKind, Read as _};
use std::path::{Path, PathBuf};

/// The largest table that is read. A host with thousands of containers has some hundred bytes for each of their mounts.
const TABLE_BYTES: u64 = 8 << 20;

/// What the kernel appends to the path of a folder that was removed.
const REMOVED: &str = "//deleted";

/// The table of a process, by its id or as `self`. A table that is too large is an error: a part of it would hide mounts.
pub fn read(process: &str) -> std::io::Result<String> {
    read_at_most(Path::new(&format!("/proc/{process}/mountinfo")), TABLE_BYTES)
}

fn read_at_most(path: &Path, most: u64) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        tracing::warn!(path = %path.display(), most, "a table of mounts is too large to be read");
        return Err(Error::new(ErrorKind::FileTooLarge, "the table of mounts is too large"));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountRow {
    pub id: u64,
    /// The id of the mount on which this one is mounted.
    pub parent: u64,
    /// The numbers of the device of the file system.
    pub device: String,
    /// The folder that is mounted: where it is in its file system now.
    pub root: String,
    pub target: PathBuf,
    pub kind: String,
    pub writable: bool,
    pub nosuid: bool,
}

impl MountRow {
    fn parse(row: &str) -> Option<Self> {
        let (mount, system) = row.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let (id, parent) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let (device, root) = (fields.next()?.to_owned(), unescape(fields.next()?));
        let target = PathBuf::from(unescape(fields.next()?));
        let options: Vec<&str> = fields.next()?.split(',').collect();
        Some(Self {
            id,
            parent,
            device,
            root,
            target,
            kind: system.split(' ').next()?.to_owned(),
            writable: !options.contains(&"ro"),
            nosuid: options.contains(&"nosuid"),
        })
    }
}

pub fn rows(table: &str) -> Vec<MountRow> {
    table.lines().filter_map(MountRow::parse).collect()
}

/// Spaces and similar characters are written as three octal digits.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

/// Where a folder is that a process has mounted.
#[derive(Debug, PartialEq, Eq)]
pub enum MountedFolder {
    /// The paths that lead to it outside of the process.
    At(Vec<PathBuf>),
    Removed,
}

/// Where the folder is that `theirs` has mounted at `target`, by the mounts of this process; `None` if nothing is mounted
/// there.
pub fn mounted_folder(theirs: &str, own: &str, target: &Path) -> Option<MountedFolder> {
    // The last one hides those before it.
    let mounted = rows(theirs).into_iter().rfind(|row| row.target == target)?;
    if mounted.root.ends_with(REMOVED) {
        return Some(MountedFolder::Removed);
    }
    let path_by = |row: MountRow| {
        let below = Path::new(&mounted.root).strip_prefix(&row.root).ok()?;
        (row.device == mounted.device).then(|| row.target.join(below))
    };
    Some(MountedFolder::At(rows(own).into_iter().filter_map(path_by).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: &str = "\
21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
22 21 8:2 /homes /home rw,relatime - ext4 /dev/sda2 rw
23 21 0:5 / /dev rw,nosuid - devtmpfs udev rw
";

    #[test]
    fn a_table_is_read_as_a_whole_or_not_at_all() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("mountinfo");
        std::fs::write(&path, OWN).unwrap();
        let size = OWN.len() as u64;
        assert_eq!(read_at_most(&path, size).unwrap(), OWN);
        assert_eq!(read_at_most(&path, size - 1).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn the_folder_behind_a_mount_is_found_where_it_is_now() {
        let at = |root: &str, target: &str| {
            let theirs = format!(
                "31 30 0:40 / / ro - overlay overlay rw\n\
                 32 31 8:1 /earlier /data ro - ext4 /dev/sda1 rw\n\
                 33 31 8:2 {root} /data ro,nosuid - ext4 /dev/sda2 rw\n"
            );
            mounted_folder(&theirs, OWN, Path::new(target))
        };
        let here = |path: &str| Some(MountedFolder::At(vec![path.into()]));
        assert_eq!(at("/homes/ann/a\\040b", "/data"), here("/home/ann/a b"));
        assert_eq!(at("/elsewhere", "/data"), Some(MountedFolder::At(Vec::new())), "it is not mounted here");
        assert_eq!(at("/homes/ann/x//deleted", "/data"), Some(MountedFolder::Removed));
        assert_eq!(at("/homes/ann", "/other"), None);
    }
}
