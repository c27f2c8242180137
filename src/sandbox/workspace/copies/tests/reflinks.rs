//! A copy shares the blocks of its original where the file system can, and has blocks of its own where it cannot.

use std::os::unix::fs::FileExt as _;
use std::process::Command;

use super::*;

const FILE_BYTES: usize = 32 << 20;
/// What a file system may need for the names of a copy whose blocks are shared.
const FOR_NAMES: u64 = 8 << 20;
/// What the makers of file systems ask for at least.
const IMAGE_BYTES: u64 = 512 << 20;

/// A file system of its own, in a file.
struct Mounted {
    at: tempfile::TempDir,
    _image: tempfile::NamedTempFile,
}

impl Mounted {
    /// None where the file system cannot be had here, which is said.
    fn of(program: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("NOT RUN: a file system can only be mounted as root");
            return None;
        }
        let (image, at) = (tempfile::NamedTempFile::new().unwrap(), tempfile::tempdir().unwrap());
        image.as_file().set_len(IMAGE_BYTES).unwrap();
        let Ok(made) = Command::new(program).arg("-q").arg(image.path()).output() else {
            eprintln!("NOT RUN: there is no `{program}` on this machine");
            return None;
        };
        assert!(made.status.success(), "{program}: {made:?}");
        let mounted = Command::new("mount").args(["-o", "loop"]).arg(image.path()).arg(at.path()).output();
        match mounted {
            Ok(mounted) if mounted.status.success() => Some(Self { at, _image: image }),
            failed => {
                eprintln!("NOT RUN: what `{program}` made cannot be mounted: {failed:?}");
                None
            }
        }
    }

    fn free_bytes(&self) -> u64 {
        let folder = File::open(self.at.path()).unwrap();
        rustix::fs::syncfs(&folder).unwrap();
        let found = rustix::fs::fstatvfs(&folder).unwrap();
        found.f_bfree * found.f_frsize
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.at.path()).status();
        assert!(
            unmounted.is_ok_and(|status| status.success()) || std::thread::panicking(),
            "it stays mounted"
        );
    }
}

/// A workspace with one file, and an empty one.
fn with_a_file(home: &Path) -> (Workspace, Workspace) {
    let (source, target) = two(home);
    let path = source.path.join("file");
    std::fs::write(&path, vec![7; FILE_BYTES]).unwrap();
    give_to_owner(&source, &path);
    (source, target)
}

/// What is written to the original afterwards is not in the copy.
fn assert_apart(source: &Workspace, target: &Workspace) {
    let original = File::options().write(true).open(source.path.join("file")).unwrap();
    original.write_all_at(b"later", 0).unwrap();
    assert!(std::fs::read(target.path.join("file")).unwrap() == vec![7; FILE_BYTES]);
}

async fn a_copy_takes_no_blocks_on(program: &str) {
    let Some(mounted) = Mounted::of(program) else { return };
    let (source, target) = with_a_file(mounted.at.path());
    let before = mounted.free_bytes();
    assert_eq!(copy(&source, &target, MOST).await.unwrap(), Copied { files: 1, left_out: 0 });
    let taken = before.saturating_sub(mounted.free_bytes());
    assert!(taken < FOR_NAMES, "the copy of {FILE_BYTES} bytes takes {taken}");
    assert_apart(&source, &target);
}

#[tokio::test]
async fn a_copy_shares_the_blocks_of_its_original_on_btrfs() {
    a_copy_takes_no_blocks_on("mkfs.btrfs").await;
}

#[tokio::test]
async fn a_copy_shares_the_blocks_of_its_original_on_xfs() {
    a_copy_takes_no_blocks_on("mkfs.xfs").await;
}

#[tokio::test]
async fn where_blocks_cannot_be_shared_the_bytes_are_copied() {
    // Memory has no blocks to share.
    let Ok(home) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("NOT RUN: there is no file system in memory");
        return;
    };
    let (source, target) = with_a_file(home.path());
    let (original, other) =
        (File::open(source.path.join("file")).unwrap(), File::create(home.path().join("other")).unwrap());
    assert!(rustix::fs::ioctl_ficlone(&other, &original).is_err(), "these files can share blocks");
    assert_eq!(copy(&source, &target, MOST).await.unwrap(), Copied { files: 1, left_out: 0 });
    let found = target.path.join("file").metadata().unwrap();
    assert!(found.blocks() * 512 >= FILE_BYTES as u64, "the copy has {} blocks", found.blocks());
    assert_apart(&source, &target);
}
