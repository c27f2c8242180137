//! `belljar import`: make a session of an archive.

use std::fmt::Write as _;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use clap::Args;
use hyper::Method;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::io::{AsyncRead, AsyncReadExt as _, Chain};
use tokio_util::io::ReaderStream;

use crate::cli::args::word;
use crate::cli::client::tar_stream::TAR;
use crate::cli::commands::session::cp::send_counted;
use crate::cli::commands::session::new::made_of;
use crate::cli::commands::session::replay::{is_same, show_replay};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::branch::{ARCHIVE_MAKER, ARCHIVE_MANIFEST, Imported};
use crate::protocol::exit_codes as exit;
use crate::protocol::ids::SessionName;
use crate::protocol::receipt::Backend;

const CHUNK_BYTES: usize = 256 * 1024;

/// Make a session of an archive that `belljar export` wrote, and print its name.
///
/// Its variables can only be loaded by the same major and minor version of Python. Code of the archive counts as code of a
/// model: what a person has to allow a model, a person has to allow it, unless `--trust` says that it is your own.
#[derive(Debug, Args)]
pub(in crate::cli) struct Import {
    /// The archive, as in `analysis.belljar`.
    file: PathBuf,
    /// The session's name; as in the archive if absent.
    #[arg(value_parser = SessionName::parse)]
    name: Option<SessionName>,
    /// Run the cells again, with the recorded answers of tools, and do not load the variables: for another version of Python.
    #[arg(long)]
    replay: bool,
    /// The code in the archive is your own: it keeps the rules that it had where it comes from, and gets no others.
    #[arg(long)]
    trust: bool,
    /// Use this backend and not that of the archive, with the archive's image if it has that.
    #[arg(long, value_parser = word::<Backend>())]
    backend: Option<Backend>,
    /// Use this image and not the one that the archive names.
    #[arg(long)]
    image: Option<String>,
}

impl Import {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let file = tokio::fs::File::open(&self.file).await.map_err(|e| {
            Failure::io(format_args!("failed to open `{}`", self.file.display()), &e).hint(ARCHIVE_MAKER)
        })?;
        let content = archive(&self.file, file).await?;
        let mut url = format!("/v1/archives?replay={}&trust={}", self.replay, self.trust);
        let named = [
            ("name", self.name.as_ref().map(SessionName::as_str)),
            ("backend", self.backend.map(Backend::name)),
            ("image", self.image.as_deref()),
        ];
        for (key, value) in named {
            if let Some(value) = value {
                let _ = write!(url, "&{key}={}", utf8_percent_encode(value, NON_ALPHANUMERIC));
            }
        }
        let content = ReaderStream::with_capacity(content, CHUNK_BYTES);
        let answer = send_counted(context, (Method::POST, &url), TAR, content).await?;
        let imported: Imported = answer.parse()?;
        let same = imported.replay.as_ref().is_none_or(is_same);
        context.show(&answer, |screen, imported: Imported| {
            screen.note(&made_of(&imported.session))?;
            if let Some(report) = &imported.replay {
                show_replay(screen, report)?;
            }
            screen.line(imported.session.name.as_str())
        })?;
        Ok(if same { exit::SUCCESS } else { exit::FAILURE })
    }
}

/// The content of a file that begins as an archive does. Anything else is not sent at all.
async fn archive<R: AsyncRead + Unpin>(
    path: &Path,
    mut file: R,
) -> Result<Chain<Cursor<Vec<u8>>, R>, Failure> {
    let mut begin = Vec::new();
    (&mut file).take(ARCHIVE_MANIFEST.len() as u64).read_to_end(&mut begin).await.map_err(|e| {
        Failure::io(format_args!("failed to read `{}`", path.display()), &e).hint(ARCHIVE_MAKER)
    })?;
    // The header of a tar stream's first member begins with its name.
    if begin != ARCHIVE_MANIFEST.as_bytes() {
        return Err(Failure::new(format!("`{}` is no Belljar archive", path.display())).hint(ARCHIVE_MAKER));
    }
    Ok(Cursor::new(begin).chain(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_no_archive_is_named_and_not_sent() {
        for junk in [&b"junk"[..], b"", b"manifest.jso", b"\x1f\x8b\x08 and more"] {
            let told = archive(Path::new("lab.txt"), Cursor::new(junk)).await.unwrap_err();
            assert_eq!(told.message, "`lab.txt` is no Belljar archive");
            assert_eq!(told.hint.as_deref(), Some(ARCHIVE_MAKER));
        }
        let mut whole = Vec::new();
        let content = Cursor::new(&b"manifest.json and the rest"[..]);
        let mut content = archive(Path::new("x"), content).await.unwrap();
        content.read_to_end(&mut whole).await.unwrap();
        assert_eq!(whole, b"manifest.json and the rest");
    }
}
