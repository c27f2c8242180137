//! `belljar export`: write what a session ran as a notebook, or all that it is as an archive.

mod draft;
mod notebook;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use self::draft::{Draft, unless_stopped, unwritten};
use self::notebook::Notebook;
use crate::cli::args::SessionFlag;
use crate::cli::client::session_key::SessionKey;
use crate::cli::commands::cell::notebook::is_notebook;
use crate::cli::commands::cell::stream::Stops;
use crate::cli::commands::session::cp::receive_counted;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::size;
use crate::protocol::api::SessionView;

/// Write a session to a file: its cells as a notebook, or all of it as an archive.
///
/// The ending of the file says what is written. `.ipynb` is a notebook with the cells, their output and pictures; cells that
/// were undone are left out, and so are commands and what was computed on copies of the variables. `.belljar` is an
/// archive with variables, files, packages and journal, for `belljar import`.
#[derive(Debug, Args)]
pub(in crate::cli) struct Export {
    #[command(flatten)]
    session: SessionFlag,
    /// The file, as in `analysis.ipynb` or `analysis.belljar`.
    file: PathBuf,
    /// Replace a file that is there, with all that was written into it by hand.
    #[arg(long)]
    force: bool,
}

impl Export {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let mut stops = Stops::new()?;
        let ended = unless_stopped(stops.next(), self.write(context)).await;
        context.screen.progress("")?;
        ended
    }

    async fn write(&self, context: &mut Context) -> Result<u8, Failure> {
        let file = self.file.display().to_string();
        if !is_notebook(&self.file) && !is_archive(&self.file) {
            return Err(Failure::usage(format!("the ending of `{file}` says no format that can be written"))
                .hint("`.ipynb` is a notebook, and `.belljar` an archive of the whole session"));
        }
        if !self.force && self.file.symlink_metadata().is_ok() {
            return Err(Failure::new(format!("`{file}` is there already"))
                .hint("name another file, or replace it with `--force`"));
        }
        let session = self.session.resolve()?;
        if is_archive(&self.file) {
            return write_archive(context, &session, &self.file).await;
        }
        let view: SessionView = context.client().get(&format!("/v1/sessions/{session}")).await?.parse()?;
        let path = format!("/v1/sessions/{session}/events?follow=false");
        let mut events = context.client().events::<()>(&path, None).await?;
        let (mut notebook, mut last) = (Notebook::default(), 0);
        while let Some(event) = events.next().await? {
            // A stream also ends when the daemon does.
            if event.seq != last + 1 {
                break;
            }
            last = event.seq;
            notebook.take(event.body)?;
        }
        if last < view.last_event {
            return Err(Failure::new(
                "the daemon did not send all events of the session, so nothing was written",
            )
            .hint("try it again; events that are no longer kept cannot be exported"));
        }
        let text = notebook
            .text()
            .map_err(|e| Failure::io(format_args!("failed to write `{file}`"), &io::Error::from(e)))?;
        write_whole(&self.file, &text).map_err(|e| unwritten(&self.file, &e))?;
        let cells = notebook.cells();
        context.show_value(&json!({"file": file, "cells": cells}), |screen, _| {
            screen.note(&format!("cells in `{file}`: {cells}"))
        })
    }
}

/// Whether the ending of a file says that it is an archive of a session.
fn is_archive(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "belljar")
}

/// Writes the archive of a session beside its place, and moves it there when it is whole.
async fn write_archive(context: &mut Context, session: &SessionKey, path: &Path) -> Result<u8, Failure> {
    let file = path.display().to_string();
    // Before the daemon is asked, which saves the session for it.
    let mut draft = Draft::begin(path)?;
    let url = format!("/v1/sessions/{session}/archive");
    let body = context.client().download::<()>(&url, None).await?;
    let received = receive_counted(context, body, async |chunk| draft.write(&chunk).await).await?;
    draft.finish().await?;
    let told = json!({"file": file, "bytes": received.bytes, "left_out": received.left_out});
    context.show_value(&told, |screen, _| {
        if received.left_out > 0 {
            let count = received.left_out;
            screen
                .warn(&format!("{count} left out, being neither plain files nor folders that may be read"))?;
        }
        screen.note(&format!("`{session}` is in `{file}`, {}", size(received.bytes)))
    })
}

/// Writes a file that is either complete or as it was before.
fn write_whole(path: &Path, text: &[u8]) -> io::Result<()> {
    // For a link, its target is written.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = target.file_name().ok_or(io::ErrorKind::IsADirectory)?.to_string_lossy();
    let beside = target.with_file_name(format!(".{name}.{}", std::process::id()));
    let before = std::fs::metadata(&target).ok();
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        return Err(io::Error::other("it is not a file"));
    }
    let mut file = File::options().write(true).create_new(true).open(&beside)?;
    // The output of cells may be a secret, so who could not read the file before cannot read the new one.
    let mode = before.map_or(Ok(()), |before| file.set_permissions(before.permissions()));
    let written = mode
        .and_then(|()| file.write_all(text))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&beside, &target));
    written.inspect_err(|_| drop(std::fs::remove_file(&beside)))
}
