//! The files of a set of packages as they are put into an image: a tar stream of files that belong to root and that
//! only root can write.

use bytes::Bytes;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::mpsc;

use super::cache::UserCache;
use super::charges::CopyUse;
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::sandbox::launch::Launcher;
use crate::sandbox::spec::IMAGE_SITE;
use crate::security_controls;

/// Bytes of one piece of the stream.
const PIECE: usize = 64 * 1024;
/// The file in the folder of Python's own packages by which Python finds those of the image.
const PATH_FILE: &str = "belljar-image.pth";
/// What Python would run at every start, before any code asks for it. In a session nothing of packages is run so, either.
const RUN_AT_START: [&str; 3] = ["sitecustomize", "usercustomize", ".pth"];

/// The pieces of a tar stream, or why it ends.
pub type Pieces = mpsc::Sender<std::io::Result<Bytes>>;

impl Launcher {
    /// Sends a set of a user's cache, which is used as long as this takes, as a tar stream for an image whose Python has its
    /// packages in `python_site`.
    pub(in crate::sandbox) async fn send_packages(
        self: &Arc<Self>,
        owner: Principal,
        (key, used): (&str, Option<Arc<CopyUse>>),
        python_site: &str,
        pieces: Pieces,
    ) -> Result<(), Problem> {
        let (key, python_site) = (key.to_owned(), python_site.to_owned());
        let send = move |_: &Self, cache: &UserCache| {
            // The engine may read slowly, so the cache is not locked meanwhile.
            let _used = used;
            let set = cache.find(&key).ok_or_else(|| std::io::Error::other("the packages are gone"));
            let written = set.and_then(|set| {
                let out = BufWriter::with_capacity(PIECE, PieceWriter(pieces.clone()));
                write(&set.site, &python_site, out)
            });
            if let Err(error) = &written {
                // The receiver must not take what it has for the whole.
                let _ = pieces.blocking_send(Err(std::io::Error::other(error.to_string())));
            }
            written
        };
        self.in_cache(owner, false, send).await
    }
}

struct PieceWriter(Pieces);

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map(|()| bytes.len()).map_err(|_| std::io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes the stream. The packages have a folder of their own, after those of the image, so that none of their files
/// replaces a file or hides a module of the image.
fn write(site: &Path, python_site: &str, out: impl Write) -> std::io::Result<()> {
    let mut archive = tar::Builder::new(out);
    let target = Path::new(IMAGE_SITE.trim_start_matches('/'));
    if let Some(parent) = target.parent() {
        add_folder(&mut archive, parent)?;
    }
    add_tree(&mut archive, site, target, true)?;
    let path_file = Path::new(python_site.trim_start_matches('/')).join(PATH_FILE);
    add(&mut archive, &path_file, false, format!("{IMAGE_SITE}\n").as_bytes(), IMAGE_SITE.len() as u64 + 1)?;
    archive.into_inner()?.flush()
}

fn add_tree<W: Write>(
    archive: &mut tar::Builder<W>,
    source: &Path,
    target: &Path,
    is_top: bool,
) -> std::io::Result<()> {
    add_folder(archive, target)?;
    // A folder that cannot be listed would be left out of an image that is taken for whole.
    let unlisted = |error| std::io::Error::other(format!("`{}` cannot be listed: {error}", source.display()));
    let entries = std::fs::read_dir(source).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
    let mut paths: Vec<_> = entries.map_err(unlisted)?.iter().map(std::fs::DirEntry::path).collect();
    paths.sort();
    for path in paths {
        let Some(name) = path.file_name() else { continue };
        let facts = std::fs::symlink_metadata(&path)?;
        let runs_at_start = is_top && is_run_at_start(&name.to_string_lossy());
        if runs_at_start && security_controls::holds("packages_run_nothing_at_start") {
            continue;
        }
        let target = target.join(name);
        if facts.is_dir() {
            add_tree(archive, &path, &target, false)?;
        } else {
            use std::os::unix::fs::MetadataExt;
            let file = std::fs::File::open(&path)?;
            add(archive, &target, facts.mode() & 0o100 != 0, file, facts.len())?;
        }
    }
    Ok(())
}

fn is_run_at_start(name: &str) -> bool {
    RUN_AT_START
        .iter()
        .any(|word| if word.starts_with('.') { name.ends_with(word) } else { name.starts_with(word) })
}

fn add_folder<W: Write>(archive: &mut tar::Builder<W>, target: &Path) -> std::io::Result<()> {
    let mut header = header(0o755, 0);
    header.set_entry_type(tar::EntryType::Directory);
    archive.append_data(&mut header, target, std::io::empty())
}

fn add<W: Write>(
    archive: &mut tar::Builder<W>,
    target: &Path,
    is_program: bool,
    content: impl std::io::Read,
    bytes: u64,
) -> std::io::Result<()> {
    archive.append_data(&mut header(if is_program { 0o755 } else { 0o644 }, bytes), target, content)
}

/// A file of root, without a time: equal packages make equal streams.
fn header(mode: u32, bytes: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(bytes);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_folder_that_cannot_be_listed_is_named() {
        let home = tempfile::tempdir().unwrap();
        let site = home.path().join("site");
        let refused = write(&site, "/usr/lib/python3/site", std::io::sink()).unwrap_err().to_string();
        assert!(refused.contains(&format!("`{}` cannot be listed", site.display())), "{refused}");
    }

    #[test]
    fn files_are_roots_and_nothing_is_run_at_the_start_of_python() {
        let site = tempfile::tempdir().unwrap();
        for folder in ["bin", "p"] {
            std::fs::create_dir(site.path().join(folder)).unwrap();
        }
        for file in
            ["p/x.pth", "evil.pth", "sitecustomize.py", "usercustomize.py", "p/sitecustomize.py", "bin/run"]
        {
            std::fs::write(site.path().join(file), "text").unwrap();
        }
        std::fs::set_permissions(site.path().join("bin/run"), std::fs::Permissions::from_mode(0o4777))
            .unwrap();
        let mut stream = Vec::new();
        write(site.path(), "/usr/lib/python3/site", &mut stream).unwrap();
        let mut archive = tar::Archive::new(stream.as_slice());
        let members: Vec<(String, u32, u64)> = archive
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                let path = entry.path().unwrap().to_string_lossy().into_owned();
                (path, header.mode().unwrap(), header.uid().unwrap() + header.gid().unwrap())
            })
            .collect();
        let of_root = |path: &str, mode| (path.to_owned(), mode, 0);
        assert_eq!(
            members,
            [
                of_root("usr/lib/belljar", 0o755),
                of_root("usr/lib/belljar/site", 0o755),
                of_root("usr/lib/belljar/site/bin", 0o755),
                of_root("usr/lib/belljar/site/bin/run", 0o755),
                of_root("usr/lib/belljar/site/p", 0o755),
                of_root("usr/lib/belljar/site/p/sitecustomize.py", 0o644),
                of_root("usr/lib/belljar/site/p/x.pth", 0o644),
                of_root("usr/lib/python3/site/belljar-image.pth", 0o644),
            ]
        );
    }
}
