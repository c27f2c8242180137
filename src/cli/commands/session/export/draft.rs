//! A file that is written beside its place, and is moved there when it is whole.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use tokio::io::AsyncWriteExt as _;

use crate::cli::failure::Failure;

/// A file under another name. It is removed when it is dropped, unless it has got its place.
pub struct Draft<'a> {
    /// The file that the user named, which is the one that errors name.
    target: &'a Path,
    file: tokio::fs::File,
    beside: Beside,
}

/// The name of the draft, under which no file remains.
struct Beside(PathBuf);

impl Drop for Beside {
    fn drop(&mut self) {
        // There is none any more if it has got its place.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl<'a> Draft<'a> {
    /// Begins one that only its user can read, because variables may be a secret.
    pub fn begin(target: &'a Path) -> Result<Self, Failure> {
        // What a draft of a killed process has left behind has another name.
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", uuid::Uuid::new_v4().simple()));
        let beside = target.with_file_name(name);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&beside);
        let file = file.map_err(|e| unwritten(target, &e))?;
        Ok(Self { target, file: file.into(), beside: Beside(beside) })
    }

    pub async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.file.write_all(bytes).await.map_err(|e| unwritten(self.target, &e))
    }

    /// Moves it to its place.
    pub async fn finish(mut self) -> Result<(), Failure> {
        let failed = |e| unwritten(self.target, &e);
        self.file.flush().await.map_err(failed)?;
        self.file.sync_all().await.map_err(failed)?;
        std::fs::rename(&self.beside.0, self.target).map_err(failed)
    }
}

/// Why the file that the user named could not be written, and what to do.
pub fn unwritten(target: &Path, error: &io::Error) -> Failure {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let hint = match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => "make room there, or name a file on another disk",
        _ => "name a file in a folder that is there and that you may write to",
    };
    Failure::io(format_args!("failed to write `{}`", target.display()), error).hint(hint)
}

/// What the export comes to, or the exit code of a signal that stops it. It is dropped then, and its draft with it.
pub async fn unless_stopped(
    stop: impl Future<Output = u8>,
    export: impl Future<Output = Result<u8, Failure>>,
) -> Result<u8, Failure> {
    tokio::select! {
        code = stop => Ok(code),
        exported = export => exported,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::exit_codes as exit;
    use std::os::unix::fs::PermissionsExt as _;

    fn files(folder: &Path) -> usize {
        std::fs::read_dir(folder).unwrap().count()
    }

    #[tokio::test]
    async fn an_export_that_is_stopped_leaves_no_draft() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("lab.belljar");
        let (told, begun) = tokio::sync::oneshot::channel();
        let export = async {
            let mut draft = Draft::begin(&target)?;
            draft.write(b"a part").await?;
            let _ = told.send(files(folder.path()));
            std::future::pending().await
        };
        let stop = async {
            assert_eq!(begun.await.unwrap(), 1, "the draft is there");
            exit::INTERRUPTED
        };
        assert_eq!(unless_stopped(stop, export).await.unwrap(), exit::INTERRUPTED);
        assert_eq!(files(folder.path()), 0);
    }

    #[tokio::test]
    async fn an_export_that_fails_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("lab.belljar");
        std::fs::write(&target, "before").unwrap();
        let export = async {
            let mut draft = Draft::begin(&target)?;
            draft.write(b"a part").await?;
            Err(Failure::new("the daemon has gone"))
        };
        unless_stopped(std::future::pending(), export).await.unwrap_err();
        assert_eq!((files(folder.path()), std::fs::read(&target).unwrap()), (1, b"before".to_vec()));
        let mut draft = Draft::begin(&target).unwrap();
        draft.write(b"all of it").await.unwrap();
        draft.finish().await.unwrap();
        assert_eq!((files(folder.path()), std::fs::read(&target).unwrap()), (1, b"all of it".to_vec()));
        assert_eq!(target.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn errors_name_the_file_that_the_user_named_and_say_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("none/lab.belljar");
        let named = format!("failed to write `{}`: ", target.display());
        let Err(missing) = Draft::begin(&target) else { panic!("there is no such folder") };
        assert!(missing.message.starts_with(&named) && !missing.message.contains(".belljar."), "{missing}");
        assert!(missing.hint.unwrap_or_default().contains("a folder that is there"));
        let full = File::options().write(true).open("/dev/full").unwrap();
        let beside = Beside(folder.path().join("draft"));
        let mut draft = Draft { target: &target, file: full.into(), beside };
        // The first error comes with whatever is done next.
        let written = draft.write(b"a part").await;
        let full = match written {
            Ok(()) => draft.finish().await.unwrap_err(),
            Err(full) => full,
        };
        assert!(full.message.starts_with(&named), "{full}");
        assert!(full.hint.unwrap_or_default().contains("make room"));
    }
}
