//! The root file system of a jail: the host's own system, read-only, or a folder that was built for it. A jail shows
//! only the parts of the host that programs need to start, and nothing of its users.

use std::path::{Path, PathBuf};

use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::ImageFact;
use crate::sandbox::etc;
use crate::sandbox::images;
pub use crate::sandbox::images::HOST;

/// Folders that are links into `/usr` on most systems.
const TOP: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Files that the loader and libraries read, with the names of protocols and ports.
const HOST_ETC: [&str; 5] = ["ld.so.cache", "alternatives", "localtime", "protocols", "services"];
const PYTHONS: [&str; 2] = ["usr/local/bin/python3", "usr/bin/python3"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root {
    pub entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A read-only bind mount.
    Bind {
        source: PathBuf,
        target: String,
    },
    Link {
        to: String,
        target: String,
    },
}

impl Entry {
    /// The entry as options of bubblewrap.
    pub(super) fn words(&self) -> [&str; 3] {
        match self {
            Self::Bind { source, target } => ["--ro-bind", source.to_str().unwrap_or_default(), target],
            Self::Link { to, target } => ["--symlink", to, target],
        }
    }
}

impl Root {
    /// The root file system in a folder; `/` is the host's own.
    pub fn of(folder: &Path) -> Self {
        let bind = |name: &str| Entry::Bind { source: folder.join(name), target: format!("/{name}") };
        let mut entries = vec![bind("usr")];
        for name in TOP {
            let path = folder.join(name);
            match std::fs::read_link(&path) {
                Ok(to) => entries
                    .push(Entry::Link { to: to.to_string_lossy().into_owned(), target: format!("/{name}") }),
                Err(_) if path.is_dir() => entries.push(bind(name)),
                Err(_) => {}
            }
        }
        if folder == Path::new("/") {
            let there = HOST_ETC.iter().map(|name| format!("etc/{name}"));
            entries.extend(there.filter(|name| folder.join(name).exists()).map(|name| bind(&name)));
        } else {
            entries.push(bind("etc"));
        }
        Self { entries }
    }
}

/// The files of `/etc` that are made for each jail, as far as there is a place for them. The folder `/etc` that was
/// built is read-only, so a file can only be mounted where there is one.
pub fn etc_files(folder: &Path) -> Vec<&'static str> {
    let is_host = folder == Path::new("/");
    let has = |name: &&str| is_host || folder.join("etc").join(name).is_file();
    let lookups = is_host.then_some(etc::LOOKUP_FILES).into_iter().flatten();
    etc::FILES.into_iter().filter(has).chain(lookups).collect()
}

/// The folder of an image name: one that was built, or the host's root.
pub fn folder(built: &Path, reference: &str) -> PathBuf {
    if reference == HOST { PathBuf::from("/") } else { built.join(short(reference)) }
}

/// `belljar/science:latest` becomes `science`; characters that could lead out of the folder are dropped.
fn short(reference: &str) -> String {
    let name = reference.strip_prefix("belljar/").unwrap_or(reference);
    let name = name.strip_suffix(":latest").unwrap_or(name);
    name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect()
}

/// Picks the image: the requested one, else the first allowed one that was built, else the host.
pub fn resolve(built: &Path, requested: Option<&str>, allowed: &[String]) -> Result<ImageFact, Problem> {
    let candidates: Vec<&str> = match requested {
        Some(requested) => vec![requested],
        None => allowed.iter().map(String::as_str).chain([HOST]).collect(),
    };
    let found = candidates.iter().find_map(|reference| {
        let id = id(&folder(built, reference))?;
        Some(ImageFact { reference: (*reference).to_owned(), id })
    });
    found.ok_or_else(|| match requested {
        Some(name) => {
            let short = short(name);
            let known = name.starts_with("belljar/");
            Problem::new(
                Code::ImageMissing,
                format!("the image `{}` is not there as a folder for bubblewrap", name.escape_default()),
            )
            .hint(if known {
                format!(
                    "build it with `belljar image build --rootfs {short}`, or leave the image out for the host's own Python"
                )
            } else {
                "images of an engine cannot be used without one; leave the image out for the host's own Python".into()
            })
        }
        None => Problem::new(Code::ImageMissing, "the host has no `python3` in `/usr`")
            .hint("install it (`apt-get install python3`), or build a folder with `belljar image build --rootfs base`"),
    })
}

/// The image that a session began with. Its folder may hold another Python by now, which is another image.
pub fn again(built: &Path, first: &ImageFact) -> Result<ImageFact, Problem> {
    if id(&folder(built, &first.reference)).as_ref() == Some(&first.id) {
        return Ok(first.clone());
    }
    Err(images::is_gone(first))
}

/// The allowed images that were built, and the host.
pub fn list(built: &Path, allowed: &[String]) -> Vec<ImageFact> {
    let names = allowed.iter().map(String::as_str).chain([HOST]);
    let found = names
        .filter_map(|name| Some(ImageFact { reference: name.to_owned(), id: id(&folder(built, name))? }));
    found.collect()
}

/// An id that changes whenever the Python in the folder changes, because compiled files depend on it.
fn id(folder: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let python = PYTHONS.iter().map(|name| folder.join(name)).find(|path| path.exists())?;
    let path = std::fs::canonicalize(python).ok()?;
    let found = std::fs::metadata(&path).ok()?;
    Some(format!("{}:{}:{}", path.display(), found.size(), found.mtime()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_folders_come_before_the_host_and_nothing_else_is_reached() {
        let built = tempfile::tempdir().unwrap();
        let allowed = ["python:3.12", "belljar/science"].map(str::to_owned);
        let resolved = |requested| resolve(built.path(), requested, &allowed);
        assert_eq!(resolved(None).unwrap().reference, HOST);
        assert_eq!(resolved(Some(HOST)).unwrap().reference, HOST);
        let missing = resolved(Some("belljar/science")).unwrap_err();
        assert!(missing.hint.unwrap().contains("--rootfs science"));
        for outside in ["../..", "/", "", "python:3.12"] {
            assert_eq!(resolved(Some(outside)).unwrap_err().code, Code::ImageMissing, "{outside}");
        }
        let listed = |allowed: &[String]| {
            list(built.path(), allowed).into_iter().map(|found| found.reference).collect::<Vec<_>>()
        };
        assert_eq!(listed(&allowed), [HOST]);
        std::fs::create_dir_all(built.path().join("science/usr/bin")).unwrap();
        std::fs::write(built.path().join("science/usr/bin/python3"), "").unwrap();
        assert_eq!(resolved(None).unwrap().reference, "belljar/science");
        assert_eq!(listed(&allowed), ["belljar/science", HOST]);
        assert_eq!(resolved(Some("belljar/science:latest")).unwrap().reference, "belljar/science:latest");
    }

    #[test]
    fn of_the_host_only_the_system_is_shown() {
        let root = Root::of(Path::new("/"));
        let sources = root.entries.iter().filter_map(|entry| match entry {
            Entry::Bind { source, .. } => Some(source),
            Entry::Link { .. } => None,
        });
        for source in sources {
            let system = ["/usr", "/bin", "/sbin", "/lib", "/lib32"].map(PathBuf::from);
            let of_etc = HOST_ETC.map(|name| Path::new("/etc").join(name));
            assert!(system.iter().chain(&of_etc).any(|name| source.starts_with(name)), "{source:?}");
        }
    }
}
