//! The kernel's files: part of the binary, written to the daemon's home once per version and
//! image, compiled there by the image's own Python, and mounted read-only into every sandbox.

use sha2::{Digest, Sha256};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::controls;

/// Largest list of packages.
const PACKAGES_BYTES: u64 = 256 * 1024;

include!(concat!(env!("OUT_DIR"), "/kernel_files.rs"));

/// Name of the folder for this kernel and that image.
#[must_use]
pub fn folder_name(image_id: &str) -> String {
    let mut digest = Sha256::new();
    for (name, text) in KERNEL_FILES {
        digest.update(name.as_bytes());
        digest.update([0]);
        digest.update(controls::kernel_text(text).as_bytes());
        digest.update([0]);
    }
    digest.update(image_id.as_bytes());
    digest.finalize().iter().take(10).fold(String::new(), |name, byte| format!("{name}{byte:02x}"))
}

/// Writes the files below `folder`, readable for every guest.
pub fn write(folder: &Path) -> std::io::Result<()> {
    for (name, text) in KERNEL_FILES {
        let path = folder.join(name);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, controls::kernel_text(text).as_bytes())?;
    }
    open_to_all(folder)
}

/// What `prepare.py` found in the image, in the words of `pip`; nothing if it cannot be read.
#[must_use]
pub fn packages(folder: &Path) -> Vec<String> {
    let read = || -> std::io::Result<Vec<String>> {
        let mut text = String::new();
        std::fs::File::open(folder.join("packages.json"))?.take(PACKAGES_BYTES).read_to_string(&mut text)?;
        Ok(serde_json::from_str(&text)?)
    };
    let is_name = |name: &String| {
        name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
    };
    read().map(|names| names.into_iter().filter(is_name).collect()).unwrap_or_default()
}

/// Read access for every user id, whatever the daemon's umask is. The image's Python has written there,
/// so a link is not followed.
pub fn open_to_all(path: &Path) -> std::io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    let folder = found.is_dir();
    if !folder && !found.is_file() {
        return Err(std::io::Error::other("something other than a file was put there"));
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(if folder { 0o755 } else { 0o644 }))?;
    if folder {
        for entry in std::fs::read_dir(path)? {
            open_to_all(&entry?.path())?;
        }
    }
    Ok(())
}

/// Hands the tree to a user, so that the compiling guest may write in it, or back.
pub fn chown_tree(path: &Path, uid: u32, gid: u32) -> std::io::Result<()> {
    std::os::unix::fs::lchown(path, Some(uid), Some(gid))?;
    if std::fs::symlink_metadata(path)?.is_dir() {
        for entry in std::fs::read_dir(path)? {
            chown_tree(&entry?.path(), uid, gid)?;
        }
    }
    Ok(())
}
