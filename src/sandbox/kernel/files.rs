//! The kernel's files: part of the binary, written to the daemon's home once per version and image, and mounted
//! read-only into every sandbox. The guardian and the sources come from the binary. Bytecode is made elsewhere by the image's own Python and
//! copied here, under names that the daemon computes, into files that no other process ever had open.

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::protocol::api::ImagePackages;
use crate::security_controls;

/// Largest list of packages.
const PACKAGES_BYTES: u64 = 256 * 1024;
/// Maximum number of packages that are listed.
const PACKAGES: usize = 1_000;
/// Largest file of bytecode.
const BYTECODE_BYTES: u64 = 1024 * 1024;
/// Longest path of the folder for packages.
const SITE_CHARS: usize = 200;
/// Longest cache tag of a Python, as in `cpython-312`.
const TAG_CHARS: usize = 32;
/// Part of the folder's name, so that a tree of an earlier layout is not used again.
const LAYOUT: &str = "4";
/// The program in the tree that is the first process of a sandbox.
pub const GUARDIAN_FILE: &str = "belljar-guardian";
/// The folders in the tree of programs and of modules that stand before those of the image: `pip` and `uv`.
pub const SHIMS_BIN: &str = "shims/bin";
pub const SHIMS_LIB: &str = "shims/lib";
const PACKAGES_FILE: &str = "packages.json";
const PREPARED_FILE: &str = "prepared.json";
/// The file with the sum of what is in the tree and not in the binary.
const SUM_FILE: &str = "sum";

include!(concat!(env!("OUT_DIR"), "/kernel_files.rs"));

/// What `prepare.py` reports about the image.
#[derive(Debug, Deserialize)]
struct Prepared {
    cache_tag: String,
    packages: Vec<String>,
    main_packages: Vec<String>,
    site: String,
}

/// What is noted of an image beside its kernel.
#[derive(Serialize, Deserialize)]
struct ImageNote {
    #[serde(flatten)]
    packages: ImagePackages,
    /// The folder for further packages.
    site: Option<String>,
}

/// The name of the folder for this version of the kernel and this image.
pub fn folder_name(image_id: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(LAYOUT.as_bytes());
    for (name, text) in KERNEL_FILES {
        digest.update(name.as_bytes());
        digest.update([0]);
        digest.update(security_controls::kernel_text(text).as_bytes());
        digest.update([0]);
    }
    digest.update(Sha256::digest(GUARDIAN));
    digest.update(image_id.as_bytes());
    hex::encode(&digest.finalize()[..10])
}

/// The sources that are compiled to bytecode.
fn modules() -> impl Iterator<Item = &'static str> {
    KERNEL_FILES
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| Path::new(name).extension().is_some_and(|extension| extension == "py"))
}

/// Writes the sources to `folder`, which must not exist yet, readable for every guest.
pub fn write(folder: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().mode(0o755).create(folder)?;
    for (name, text) in KERNEL_FILES {
        write_new(&folder.join(name), security_controls::kernel_text(text).as_bytes())?;
    }
    write_new(&folder.join(GUARDIAN_FILE), GUARDIAN)?;
    open_to_all(folder)
}

/// Makes the whole tree in a new folder: the binary's sources, and the bytecode and packages from `output`.
pub fn assemble(folder: &Path, output: &Path) -> std::io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let output = rustix::fs::open(output, flags, Mode::empty())?;
    let prepared: Prepared = serde_json::from_slice(&take(&output, PREPARED_FILE, PACKAGES_BYTES)?)?;
    let tag = &prepared.cache_tag;
    let is_tag = |tag: &str| tag.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if tag.is_empty() || tag.len() > TAG_CHARS || !is_tag(tag) {
        return Err(std::io::Error::other("the image's Python has a tag that is none"));
    }
    write(folder)?;
    let mut made = BTreeMap::new();
    for module in modules() {
        let bytecode = take(&output, &prepared_name(module), BYTECODE_BYTES)?;
        made.insert(bytecode_name(module, tag), bytecode);
    }
    let bounded =
        |names: Vec<String>| names.into_iter().filter(|name| is_package(name)).take(PACKAGES).collect();
    let packages =
        ImagePackages { installed: bounded(prepared.packages), main: bounded(prepared.main_packages) };
    let note = ImageNote { packages, site: Some(prepared.site).filter(|path| is_plain_path(path)) };
    made.insert(PACKAGES_FILE.into(), serde_json::to_vec(&note)?);
    for (name, bytes) in &made {
        write_new(&folder.join(name), bytes)?;
    }
    write_new(&folder.join(SUM_FILE), sum(&made).as_bytes())?;
    open_to_all(folder)
}

/// The sum of what was made of an image, by the names of the files.
fn sum(made: &BTreeMap<PathBuf, Vec<u8>>) -> String {
    let mut digest = Sha256::new();
    for (name, bytes) in made {
        digest.update(Sha256::digest(name.as_os_str().as_bytes()));
        digest.update(Sha256::digest(bytes));
    }
    hex::encode(digest.finalize())
}

/// Whether a tree is still as `assemble` made it: the daemon owns every file in it, no other user may write there, the
/// sources are those of the binary, and all else has the sum that was noted.
pub fn is_sound(folder: &Path) -> bool {
    let mut found = BTreeSet::new();
    if !is_ours(folder, Path::new(""), &mut found) {
        return false;
    }
    let same = |(name, text): &(&str, &'static str)| {
        std::fs::read(folder.join(name))
            .is_ok_and(|found| found == security_controls::kernel_text(text).as_bytes())
    };
    let sources: BTreeSet<PathBuf> = KERNEL_FILES.iter().map(|(name, _)| PathBuf::from(name)).collect();
    let of_binary = |name: &Path| sources.contains(name) || name == Path::new(GUARDIAN_FILE);
    let made = found.iter().filter(|name| !of_binary(name) && *name != Path::new(SUM_FILE));
    let made: std::io::Result<BTreeMap<PathBuf, Vec<u8>>> =
        made.map(|name| Ok((name.clone(), std::fs::read(folder.join(name))?))).collect();
    let noted = std::fs::read_to_string(folder.join(SUM_FILE));
    found.is_superset(&sources)
        && KERNEL_FILES.iter().all(same)
        && std::fs::read(folder.join(GUARDIAN_FILE)).is_ok_and(|found| found == GUARDIAN)
        && made.is_ok_and(|made| {
            let as_noted = noted.is_ok_and(|noted| noted == sum(&made));
            as_noted || !security_controls::holds("kernel_bytecode_is_as_it_was_made")
        })
}

/// Collects the files below a folder; false unless all entries are files and folders that only the daemon can write.
fn is_ours(folder: &Path, below: &Path, found: &mut BTreeSet<PathBuf>) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let Ok(facts) = std::fs::symlink_metadata(folder.join(below)) else { return false };
    if facts.uid() != own || facts.mode() & 0o022 != 0 {
        return false;
    }
    if facts.is_file() {
        return facts.nlink() == 1 && found.insert(below.to_owned());
    }
    let Ok(entries) = std::fs::read_dir(folder.join(below)) else { return false };
    facts.is_dir()
        && entries
            .into_iter()
            .all(|entry| entry.is_ok_and(|entry| is_ours(folder, &below.join(entry.file_name()), found)))
}

/// The name that `prepare.py` gives the bytecode of a source.
fn prepared_name(module: &str) -> String {
    format!("{}c", module.replace('/', ":"))
}

/// `a/b.py` is compiled to `a/__pycache__/b.TAG.pyc`.
fn bytecode_name(module: &str, tag: &str) -> PathBuf {
    let module = Path::new(module);
    let stem = module.file_stem().unwrap_or_default().to_string_lossy();
    module.with_file_name("__pycache__").join(format!("{stem}.{tag}.pyc"))
}

/// Reads a file that the guest's `prepare.py` wrote: it must be a regular file without other hard links.
fn take(folder: &OwnedFd, name: &str, bytes: u64) -> std::io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = std::fs::File::from(rustix::fs::openat(folder, name, flags, Mode::empty())?);
    let facts = file.metadata()?;
    if !facts.is_file() || facts.nlink() != 1 || facts.len() > bytes {
        return Err(std::io::Error::other(format!("`{name}` is not what was to be made")));
    }
    let mut read = Vec::new();
    file.take(bytes).read_to_end(&mut read)?;
    Ok(read)
}

fn write_new(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o644).open(path)?.write_all(bytes)
}

fn is_package(name: &str) -> bool {
    name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// An absolute path that needs no quoting anywhere.
fn is_plain_path(path: &str) -> bool {
    let is_plain = |part: &str| {
        !part.is_empty()
            && !part.bytes().all(|b| b == b'.')
            && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-+".contains(&b))
    };
    path.len() <= SITE_CHARS && path.strip_prefix('/').is_some_and(|path| path.split('/').all(is_plain))
}

/// The packages of an image; none if no sandbox of it was made yet.
pub fn packages(kernels: &Path, image_id: &str) -> Option<ImagePackages> {
    note(&kernels.join(folder_name(image_id))).map(|note| note.packages)
}

/// The folder in which the image's Python looks for packages at every start, in the tree of a kernel.
pub fn site(kernel: &Path) -> Option<String> {
    note(kernel)?.site
}

fn note(kernel: &Path) -> Option<ImageNote> {
    let mut text = String::new();
    let file = std::fs::File::open(kernel.join(PACKAGES_FILE)).ok()?;
    file.take(PACKAGES_BYTES).read_to_string(&mut text).ok()?;
    serde_json::from_str(&text).ok()
}

/// Makes the tree readable for every user id, regardless of the daemon's umask.
pub fn open_to_all(path: &Path) -> std::io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    let folder = found.is_dir();
    if !folder && !found.is_file() {
        return Err(std::io::Error::other("something other than a file was put there"));
    }
    let is_shim = path.parent().is_some_and(|folder| folder.ends_with(SHIMS_BIN));
    let is_program = is_shim || path.file_name().is_some_and(|name| name == GUARDIAN_FILE);
    let mode = if folder || is_program { 0o755 } else { 0o644 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    if folder {
        for entry in std::fs::read_dir(path)? {
            open_to_all(&entry?.path())?;
        }
    }
    Ok(())
}

/// Writes what a well-behaved `prepare.py` writes into `output`.
#[cfg(test)]
pub fn pretend_to_compile(output: &Path) {
    for module in modules() {
        std::fs::write(output.join(prepared_name(module)), format!("bytecode of {module}")).unwrap();
    }
    let prepared = r#"{"cache_tag": "cpython-312", "packages": ["numpy", "six", "bad\nname"], "main_packages": ["numpy", "a b"], "site": "/usr/lib/python3.12/site-packages"}"#;
    std::fs::write(output.join(PREPARED_FILE), prepared).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of a well-behaved `prepare.py`.
    fn output(home: &Path) -> PathBuf {
        let output = home.join("output");
        std::fs::create_dir(&output).unwrap();
        pretend_to_compile(&output);
        output
    }

    #[test]
    fn a_tree_has_the_sources_and_one_file_of_bytecode_for_each() {
        let home = tempfile::tempdir().unwrap();
        let (tree, output) = (home.path().join(folder_name("image")), output(home.path()));
        std::fs::write(output.join("more.pyc"), "not asked for").unwrap();
        assert_eq!(packages(home.path(), "image"), None);
        assemble(&tree, &output).unwrap();
        assert!(is_sound(&tree));
        let bytecode = std::fs::read(tree.join("__pycache__/prepare.cpython-312.pyc")).unwrap();
        assert_eq!(bytecode, b"bytecode of prepare.py");
        assert_eq!(prepared_name("a/b.py"), "a:b.pyc");
        let packages = packages(home.path(), "image").unwrap();
        assert_eq!(
            (packages.installed, packages.main),
            (vec!["numpy".into(), "six".into()], vec!["numpy".into()])
        );
        assert_eq!(site(&tree).as_deref(), Some("/usr/lib/python3.12/site-packages"));
        for wrong in
            ["", "usr/lib", "/", "/a/../b", "/a//b", "/a b", "/a\nb", &format!("/{}", "a".repeat(SITE_CHARS))]
        {
            assert!(!is_plain_path(wrong), "{wrong}");
        }
        let program = std::fs::metadata(tree.join(GUARDIAN_FILE)).unwrap();
        assert_eq!(program.mode() & 0o7777, 0o755);
        for (shim, mode) in
            [("pip", 0o755), ("pip3", 0o755), ("uv", 0o755), ("../lib/pip/__main__.py", 0o644)]
        {
            let found = std::fs::metadata(tree.join(SHIMS_BIN).join(shim)).unwrap();
            assert_eq!(found.mode() & 0o7777, mode, "{shim}");
        }
        assert_eq!(bytecode_name("a/b.py", "t"), Path::new("a/__pycache__/b.t.pyc"));
        // An existing folder is never written into.
        assert!(assemble(&tree, &output).is_err());
    }

    #[test]
    fn what_is_no_plain_file_of_the_right_size_is_not_taken() {
        type Attack = fn(&Path);
        let attacks: [Attack; 6] = [
            |path| std::os::unix::fs::symlink("/etc/passwd", path).unwrap(),
            |path| {
                let other = path.with_extension("other");
                std::fs::write(&other, "x").unwrap();
                std::fs::hard_link(other, path).unwrap();
            },
            |path| {
                rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o644.into(), 0)
                    .unwrap();
            },
            |path| std::fs::create_dir(path).unwrap(),
            |path| std::fs::File::create(path).unwrap().set_len(BYTECODE_BYTES + 1).unwrap(),
            |_| {},
        ];
        for name in ["prepare.pyc", PREPARED_FILE] {
            for attack in attacks {
                let home = tempfile::tempdir().unwrap();
                let output = output(home.path());
                std::fs::remove_file(output.join(name)).unwrap();
                attack(&output.join(name));
                assert!(assemble(&home.path().join("tree"), &output).is_err());
            }
        }
        for tag in ["", "../x", "a/b", "cpython 312"] {
            let home = tempfile::tempdir().unwrap();
            let output = output(home.path());
            let prepared =
                format!(r#"{{"cache_tag": "{tag}", "packages": [], "main_packages": [], "site": "/s"}}"#);
            std::fs::write(output.join(PREPARED_FILE), prepared).unwrap();
            assert!(assemble(&home.path().join("tree"), &output).is_err(), "{tag}");
        }
    }

    #[test]
    fn a_tree_that_somebody_else_could_have_changed_is_not_sound() {
        type Change = fn(&Path);
        let changes: [Change; 11] = [
            |tree| std::fs::write(tree.join(GUARDIAN_FILE), "#!/bin/sh").unwrap(),
            |tree| std::fs::remove_file(tree.join(GUARDIAN_FILE)).unwrap(),
            |tree| std::fs::write(tree.join("__main__.py"), "import evil").unwrap(),
            |tree| std::fs::write(tree.join("more.py"), "").unwrap(),
            |tree| {
                let bytecode = tree.join("__pycache__/prepare.cpython-312.pyc");
                let changed = std::fs::read_to_string(&bytecode).unwrap().replace("bytecode", "evilcode");
                std::fs::write(bytecode, changed).unwrap();
            },
            |tree| {
                std::fs::write(tree.join(PACKAGES_FILE), r#"{"installed":[],"main":[],"site":"/evil"}"#)
                    .unwrap();
            },
            |tree| std::fs::remove_file(tree.join(SUM_FILE)).unwrap(),
            |tree| std::fs::remove_file(tree.join(PACKAGES_FILE)).unwrap(),
            |tree| std::os::unix::fs::symlink("/tmp", tree.join("link")).unwrap(),
            |tree| std::fs::hard_link(tree.join("__main__.py"), tree.parent().unwrap().join("held")).unwrap(),
            |tree| {
                let open = std::fs::Permissions::from_mode(0o666);
                std::fs::set_permissions(tree.join("__main__.py"), open).unwrap();
            },
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let home = tempfile::tempdir().unwrap();
            let tree = home.path().join("tree");
            assemble(&tree, &output(home.path())).unwrap();
            assert!(is_sound(&tree));
            change(&tree);
            assert!(!is_sound(&tree), "{number}");
        }
    }
}
