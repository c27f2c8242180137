//! Shows the progress of a run of jobs.

use std::collections::BTreeMap;

use super::github::{self, harmless};
use super::report::Outcome;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::ids::JobId;
use crate::protocol::result::Stream;
use crate::protocol::text::one_line;

/// How the progress of a run is shown.
pub(in crate::cli) struct ProgressView {
    quiet: bool,
    github: bool,
    /// Each line begins with the name of its job.
    prefix: bool,
    /// The beginnings of lines that have not ended, by job and stream.
    open: BTreeMap<(usize, bool), String>,
}

/// Longest line that is held back until it ends.
const LINE_BYTES: usize = 16 * 1024;

impl ProgressView {
    /// With `several` jobs, each line begins with the name of its job.
    pub fn new(quiet: bool, github: bool, several: bool) -> Self {
        Self { quiet, github, prefix: several, open: BTreeMap::new() }
    }

    /// Guest text is shown as it comes, except for GitHub, where it is shown at the end and cannot act as a command.
    pub fn is_live(&self, context: &Context) -> bool {
        !self.quiet && !self.github && !context.json
    }

    /// Says which id a job has; that of one of several is in the line of its end.
    pub fn begun(&self, context: &mut Context, id: JobId) -> Result<(), Failure> {
        if self.prefix || context.json { Ok(()) } else { context.screen.note(&format!("job {id}")) }
    }

    pub fn output(
        &mut self,
        context: &mut Context,
        index: usize,
        name: &str,
        stream: Stream,
        text: &str,
    ) -> Result<(), Failure> {
        if !self.prefix {
            return context.screen.guest(stream, text);
        }
        let mut open = self.open.remove(&(index, stream == Stream::Stderr)).unwrap_or_default();
        open.push_str(text);
        while let Some(end) =
            open.find('\n').map(|end| end + 1).or((open.len() > LINE_BYTES).then_some(open.len()))
        {
            let rest = open.split_off(end);
            context
                .screen
                .guest(stream, &format!("[{}] {}\n", one_line(name), open.trim_end_matches('\n')))?;
            open = rest;
        }
        if !open.is_empty() {
            self.open.insert((index, stream == Stream::Stderr), open);
        }
        Ok(())
    }

    pub fn ended(
        &mut self,
        context: &mut Context,
        index: usize,
        outcome: &Outcome,
        alone: bool,
    ) -> Result<(), Failure> {
        for (err, stream) in [(false, Stream::Stdout), (true, Stream::Stderr)] {
            if let Some(open) = self.open.remove(&(index, err)) {
                self.output(context, index, &outcome.name, stream, &format!("{open}\n"))?;
            }
        }
        if context.json {
            return context.screen.json(&outcome.json());
        }
        if self.github {
            context.screen.guest_line(github::block(outcome, &github::stop_word()).trim_end())?;
        }
        if alone && outcome.passed() {
            return Ok(());
        }
        let id = outcome.id().filter(|_| !alone).map(|id| format!(", job {id}")).unwrap_or_default();
        let line = format!(
            "{:<13} {} ({:.2} s{id}){}",
            outcome.word().replace('_', " "),
            one_line(&outcome.name),
            outcome.seconds(),
            if outcome.passed() { String::new() } else { format!(": {}", one_line(&outcome.reason())) }
        );
        let line = if self.github { harmless(&line) } else { line };
        let line = if context.screen.colors_watched() { outcome.tint().paint(&line) } else { line };
        context.screen.block(&line)
    }
}
