//! `belljar export`: write what a session ran as a notebook.

mod notebook;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use self::notebook::Notebook;
use crate::cli::args::SessionFlag;
use crate::cli::commands::cell::notebook::is_notebook;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::api::SessionView;

/// Write the cells of a session as a notebook, with their output and pictures.
///
/// The ending of the file says what is written: `.ipynb` for a notebook. Cells that were undone are left out, and
/// so are commands and what was computed on copies of the variables.
#[derive(Debug, Args)]
pub(in crate::cli) struct Export {
    #[command(flatten)]
    session: SessionFlag,
    /// The notebook, as in `analysis.ipynb`.
    file: PathBuf,
    /// Replace a file that is there, with all that was written into it by hand.
    #[arg(long)]
    force: bool,
}

impl Export {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let file = self.file.display().to_string();
        if !is_notebook(&self.file) {
            return Err(Failure::usage(format!("the ending of `{file}` says no format that can be written"))
                .hint("`.ipynb` is a notebook"));
        }
        if !self.force && self.file.symlink_metadata().is_ok() {
            return Err(Failure::new(format!("`{file}` is there already"))
                .hint("name another file, or replace it with `--force`"));
        }
        let session = self.session.resolve()?;
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
        let failed = |e: io::Error| Failure::io(format_args!("failed to write `{file}`"), &e);
        let text = notebook.text().map_err(|e| failed(e.into()))?;
        write_whole(&self.file, &text)
            .map_err(|e| failed(e).hint("name a file in a folder that is there and that you may write to"))?;
        let cells = notebook.cells();
        context.show_value(&json!({"file": file, "cells": cells}), |screen, _| {
            screen.note(&format!("cells in `{file}`: {cells}"))
        })
    }
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
