//! The files that a run writes. A path that cannot be written is reported before any job runs, not after the last.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;

/// A report file that is either complete or as it was before.
#[derive(Debug)]
pub(in crate::cli) struct Report {
    path: PathBuf,
    /// The temporary file that is renamed to `path`. None if only the file itself can be written: it is a pipe, or in
    /// a folder that this user may not write to.
    beside: Option<PathBuf>,
}

impl Report {
    pub fn prepare(path: &Path) -> Result<Self, Failure> {
        // For a link, its target is written.
        let target = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let found = std::fs::metadata(&target);
        let whole = |beside| Ok(Self { path: target.clone(), beside });
        let error = match &found {
            Ok(found) if found.is_dir() => io::ErrorKind::IsADirectory.into(),
            Ok(found) if !found.is_file() => return whole(None),
            Ok(_) | Err(_) => match try_beside(&target) {
                Ok(beside) => return whole(Some(beside)),
                Err(_) if found.is_ok() && File::options().append(true).open(&target).is_ok() => {
                    return whole(None);
                }
                Err(error) => error,
            },
        };
        Err(unusable("the report cannot be written to", path, &error)
            .hint("name a file in a folder that is there and that you may write to"))
    }

    pub fn write(&self, text: &str) -> Result<(), Failure> {
        let outcome = match &self.beside {
            None => std::fs::write(&self.path, text),
            Some(beside) => File::create(beside)
                .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
                .and_then(|()| std::fs::rename(beside, &self.path))
                .inspect_err(|_| drop(std::fs::remove_file(beside))),
        };
        outcome.map_err(|e| Failure::io(format_args!("failed to write `{}`", self.path.display()), &e))
    }
}

/// Checks that a folder exists or can be created; nothing is created yet.
pub(in crate::cli) fn check_folder(folder: &Path) -> Result<(), Failure> {
    let whole = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let there = whole.ancestors().find(|ancestor| std::fs::symlink_metadata(ancestor).is_ok());
    let usable = match there {
        Some(there) if there.is_dir() => try_beside(&there.join("artifacts")).map(drop),
        _ => Err(io::ErrorKind::NotADirectory.into()),
    };
    usable.map_err(|error| {
        unusable("artifacts cannot be put into", folder, &error)
            .hint("name a folder that you may write to, or one that can be made")
    })
}

/// Creates and removes a temporary file next to `path`, and returns its name.
fn try_beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    File::options().write(true).create_new(true).open(&beside)?;
    std::fs::remove_file(&beside)?;
    Ok(beside)
}

fn unusable(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("{what} `{}`: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_replaces_what_was_there_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("r.xml"), dir.path().join("link"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let report = Report::prepare(&file).unwrap();
        assert!(!file.exists(), "nothing is written before the end");
        report.write("<a/>").unwrap();
        Report::prepare(&link).unwrap().write("<b/>").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "<b/>");
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        Report::prepare(Path::new("/dev/null")).unwrap().write("<c/>").unwrap();
    }

    #[test]
    fn what_cannot_be_written_is_told_before() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for wrong in [dir.path().to_owned(), dir.path().join("no/r.xml"), file.join("r.xml")] {
            let failure = Report::prepare(&wrong).unwrap_err();
            assert_eq!(failure.exit, 64, "{failure}");
            assert!(failure.hint.is_some() && failure.message.contains("cannot be written"), "{failure}");
        }
        for right in [dir.path().to_owned(), dir.path().join("new/deep")] {
            check_folder(&right).unwrap();
        }
        assert!(!dir.path().join("new").exists());
        for wrong in [file.clone(), file.join("x"), PathBuf::from("/proc/x")] {
            assert_eq!(check_folder(&wrong).unwrap_err().exit, 64);
        }
    }
}
