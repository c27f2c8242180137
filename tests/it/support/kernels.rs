//! The kernel, compiled once for all tests. Every daemon of a test has a home of its own, for which it would start a sandbox
//! that compiles the kernel: half a second of the processor, a thousand times. A daemon checks a tree that it finds in its
//! home, as after a restart, so the copy of a tree that another daemon has made is as good as its own.

use rustix::fs::{FlockOperation, flock};
use serde_json::json;
use std::cell::Cell;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

use super::matrix::has_no_engine;
use super::{Daemon, ROOT, User, binary, jails};

/// The image whose Python a kernel was compiled with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Image {
    /// The system of the host, as jails show it.
    Host,
    /// `belljar/base`.
    Base,
    /// The image of containers for which no other one was asked.
    Default,
}

impl Image {
    /// The name of the folder with its kernel.
    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Base => "base",
            Self::Default => "default",
        }
    }
}

thread_local! {
    static IS_ANEW: Cell<bool> = const { Cell::new(false) };
}

/// Daemons that are started in a test which is run by this find no kernel, and compile it.
pub fn compiled_anew(test: impl FnOnce()) {
    let before = IS_ANEW.replace(true);
    test();
    IS_ANEW.set(before);
}

/// Puts the kernel of an image into the home of a daemon of that user, or that of the host if its configuration asks for
/// sandboxes that have no image.
pub fn give(home: &Path, owner: User, image: Image) {
    // What a build for `make mutate` has switched off may be what compiles a kernel, or what checks it.
    if cfg!(feature = "mutate") || IS_ANEW.get() {
        return;
    }
    let config = std::fs::read_to_string(home.join("config.toml")).unwrap_or_default();
    let of_the_host = ["\"bubblewrap\"", "\"process\""].iter().any(|backend| config.contains(backend));
    let image = if of_the_host { Image::Host } else { image };
    // Without it the daemon compiles one itself, and says what is wrong if it cannot.
    let _ = made(image).map(|made| copy_missing(&made, home, owner));
}

/// The folder with the kernel of an image, which is made if this binary has none yet.
fn made(image: Image) -> Option<PathBuf> {
    let facts = std::fs::metadata(binary()).ok()?;
    let all = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    let own = all.join(format!("{}-{}-{}", facts.len(), facts.mtime(), facts.mtime_nsec()));
    let folder = own.join(image.name());
    if folder.is_dir() {
        return Some(folder);
    }
    if image != Image::Host && has_no_engine() {
        return None;
    }
    std::fs::create_dir_all(&own).ok()?;
    // Tests that run at the same time wait for the one that makes it.
    let lock = std::fs::File::create(all.join(format!("{}.lock", image.name()))).ok()?;
    flock(&lock, FlockOperation::LockExclusive).ok()?;
    if !folder.is_dir() {
        remove_all_but(&own, &all);
        make(&folder, image)?;
    }
    Some(folder)
}

/// Removes the kernels of earlier binaries.
fn remove_all_but(own: &Path, all: &Path) {
    let entries = std::fs::read_dir(all).into_iter().flatten().flatten().map(|entry| entry.path());
    for earlier in entries.filter(|path| path != own && path.is_dir()) {
        // Another test may be at it.
        let _ = std::fs::remove_dir_all(earlier);
    }
}

/// Has a daemon of root compile the kernel of an image, and keeps a copy in `folder`.
fn make(folder: &Path, image: Image) -> Option<()> {
    let draft = tempfile::tempdir_in(folder.parent()?).ok()?;
    let mut is_made = false;
    let mut compile = || {
        compiled_anew(|| {
            let daemon = Daemon::start();
            let mut request = json!({"name": "s"});
            if image == Image::Base {
                request["image"] = json!("belljar/base");
            }
            let begun = daemon.http("POST", "/v1/sessions", request.to_string().as_bytes());
            is_made = begun.status == 201
                && daemon.http("POST", "/v1/sessions/s/cells?wait=true", br#"{"code": "1"}"#).status == 200
                && copy_all(&daemon.home().join("kernel"), draft.path(), ROOT).is_ok();
        });
    };
    if image == Image::Host {
        jails::in_a_jail(None, compile);
    } else {
        compile();
    }
    if !is_made {
        return None;
    }
    std::fs::rename(draft.keep(), folder).ok()
}

/// Copies the trees that the home has not.
fn copy_missing(made: &Path, home: &Path, owner: User) -> std::io::Result<()> {
    let kernels = home.join("kernel");
    if !kernels.is_dir() {
        std::fs::DirBuilder::new().mode(0o700).create(&kernels)?;
        chown(&kernels, Some(owner.uid), Some(owner.gid))?;
    }
    // A daemon that runs already may look at any time, and renames what it is making itself into the same place.
    let is_draft = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".draft-");
    if std::fs::read_dir(&kernels)?.flatten().any(|entry| is_draft(&entry)) {
        return Ok(());
    }
    let draft = tempfile::Builder::new().prefix(".kernel").tempdir_in(home)?;
    for tree in std::fs::read_dir(made)? {
        let tree = tree?;
        let (copied, target) = (draft.path().join(tree.file_name()), kernels.join(tree.file_name()));
        if !target.exists() {
            copy(&tree.path(), &copied, owner)?;
            match std::fs::rename(copied, target) {
                // The daemon was faster.
                Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => {}
                renamed => renamed?,
            }
        }
    }
    Ok(())
}

/// Copies what is in a folder into another one.
fn copy_all(from: &Path, to: &Path, owner: User) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()), owner)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, owner: User) -> std::io::Result<()> {
    let facts = std::fs::symlink_metadata(from)?;
    if facts.is_dir() {
        std::fs::create_dir(to)?;
        std::fs::set_permissions(to, facts.permissions())?;
        copy_all(from, to, owner)?;
    } else {
        std::fs::copy(from, to)?;
    }
    chown(to, Some(owner.uid), Some(owner.gid))
}
