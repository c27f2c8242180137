//! `belljar ls`: the files in the workspace of a session.

use clap::Args;

use crate::cli::args::SessionFlag;
use crate::cli::client::http::escaped_path;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{Table, size};
use crate::cli::render::screen::Screen;
use crate::protocol::api::{FileEntry, FileKind, FolderView};

/// List the files in the workspace of a session, or in one of its folders.
#[derive(Debug, Args)]
pub(in crate::cli) struct Ls {
    #[command(flatten)]
    session: SessionFlag,
    /// A folder below the workspace.
    #[arg(default_value = "")]
    path: String,
}

impl Ls {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let folder = self.path.trim_matches('/');
        let path = match folder {
            "" | "." => format!("/v1/sessions/{session}/files"),
            folder => format!("/v1/sessions/{session}/files/{}", escaped_path(folder)),
        };
        let answer = context.client().get(&path).await?;
        context.show(&answer, |screen, folder: FolderView| show_files(screen, &folder))
    }
}

pub(in crate::cli) fn show_files(screen: &mut Screen, folder: &FolderView) -> Result<(), Failure> {
    if folder.entries.is_empty() {
        return screen.note("no files");
    }
    screen.table(&Table::new(["FILE", "SIZE"], folder.entries.iter().map(row)))?;
    if folder.truncated { screen.note("… and more") } else { Ok(()) }
}

fn row(entry: &FileEntry) -> [String; 2] {
    match entry.kind {
        FileKind::File => [entry.name.clone(), size(entry.bytes)],
        FileKind::Folder => [format!("{}/", entry.name), "-".to_owned()],
        FileKind::Other => [format!("{}?", entry.name), "-".to_owned()],
    }
}
