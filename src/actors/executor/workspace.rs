//! Looks at the workspace: what a cell changed in it, and whether it grows beyond what it may hold.

use std::sync::Arc;
use std::time::Duration;

use super::messages::{ExecutorMsg, ExecutorRef};
use super::state::ExecutorState;
use crate::panics::spawn_reporting;
use crate::protocol::ids::CellNumber;
use crate::protocol::quota::Kind;
use crate::sandbox::workspace::Workspace;
use crate::sandbox::workspace::artifacts::{self, Snapshot};
use crate::sandbox::workspace::owner::WorkKind;
use crate::sandbox::workspace::usage::{self, Hidden, Usage};
use crate::session::outcome::EndedBy;

/// Looks in a row that find a too large workspace growing, with no cell to blame.
const GROWING_LOOKS: u32 = 3;
/// Why what writes is ended where others need the space.
const DISK_SHORT: &str = "The disk that all workspaces share is nearly full, and this one still grew.";

impl ExecutorState {
    /// Looks at the workspace before a cell, if other hands changed it: that is not the cell's doing. Until then the
    /// cell waits, and whatever the session wants after it. None if the message waits.
    pub(super) fn stash(&mut self, myself: &ExecutorRef, message: ExecutorMsg) -> Option<ExecutorMsg> {
        if !message.is_command() {
            return Some(message);
        }
        let wants_look = matches!(message, ExecutorMsg::Run(_)) && self.connected.is_some();
        if self.stashed.is_none() && wants_look && std::mem::take(&mut self.snapshot_is_old) {
            self.stashed = Some(Vec::new());
            let (workspace, executor) = (Arc::clone(&self.args.workspace), myself.clone());
            spawn_reporting(async move { scanned(&workspace).await }, move |seen| {
                let _ = executor.cast(ExecutorMsg::Scanned(seen.unwrap_or_else(Snapshot::unseen)));
            });
        }
        let Some(stashed) = &mut self.stashed else { return Some(message) };
        stashed.push(message);
        None
    }

    /// Does what waited.
    pub(super) fn unstash(&mut self, myself: &ExecutorRef) {
        for message in self.stashed.take().into_iter().flatten() {
            // No command ends the actor.
            let _ = self.act(myself, message);
        }
    }

    /// One look at a time: a guest decides how long it takes. The longer it took, the later is the next, and
    /// until then this one counts as going on.
    pub(super) fn look_at_quota(&mut self, myself: &ExecutorRef) {
        if self.quota_look.as_ref().is_some_and(|look| !look.is_finished()) {
            return;
        }
        let (workspace, executor) = (Arc::clone(&self.args.workspace), myself.clone());
        let reserve = self.args.launcher.settings.sandbox.disk_reserve_bytes;
        let first = self.connected.as_ref().and_then(|connected| connected.sandbox.pid());
        self.quota_look = Some(tokio::spawn(async move {
            let Some((usage, took)) = measured(workspace, first, reserve).await else { return };
            let _ = executor.cast(ExecutorMsg::QuotaLooked(usage));
            tokio::time::sleep(usage::pause_after(took)).await;
        }));
    }

    /// Only growth is held against anybody: a workspace that is too large and stays as it is may still
    /// be read and tidied up. A cell under which it grew is ended. Growth that no running cell can be
    /// blamed for ends the sandbox if it goes on: something that an earlier cell left behind writes.
    /// What cannot be seen grows; but a folder of the caller's is the caller's disk, and what the caller has there
    /// may be more than is looked at. Folders that a guest closes to the watch are never so.
    pub(super) fn quota_looked(&mut self, myself: &ExecutorRef, usage: Usage) {
        let before = self.usage.replace(usage);
        let cell_ended = std::mem::take(&mut self.cell_ended_since_look);
        // What is written and not to be seen matters when the disk is full.
        let seen = |before: Usage| {
            usage.bytes > before.bytes
                || usage.entries > before.entries
                || usage.is_disk_short && usage.written > before.written
        };
        let managed = self.args.workspace.managed;
        let hides = usage.hidden.is_some_and(|hidden| managed || hidden == Hidden::Closed);
        let grew = before.is_some_and(seen) || hides;
        let limit = self.args.launcher.settings.sandbox.workspace_bytes;
        let of_user = self.args.gauge.as_ref();
        let of_user = of_user.and_then(|gauge| gauge.measure(Kind::Workspace, usage.counted(limit)).err());
        let short = usage.is_disk_short.then(|| DISK_SHORT.to_owned());
        let why = usage.beyond(limit).or_else(|| of_user.map(|refusal| refusal.sentence())).or(short);
        let Some(why) = why.filter(|_| grew) else {
            self.growing_looks = 0;
            return;
        };
        let cells: Vec<CellNumber> = self.running.keys().copied().collect();
        if !cells.is_empty() && !cell_ended {
            for cell in &cells {
                self.end_cell(myself, *cell, EndedBy::Policy(format!("{why} Remove some files.")));
            }
            return;
        }
        self.growing_looks += 1;
        if self.growing_looks >= GROWING_LOOKS {
            self.give_up(myself, why);
        }
    }
}

/// How large the workspace is, with what the sandbox of that first process holds, and how long it took to see;
/// nothing if the machine has trouble of its own.
pub(super) async fn measured(
    workspace: Arc<Workspace>,
    first: Option<i32>,
    disk_reserve: u64,
) -> Option<(Usage, Duration)> {
    let measured = workspace.measure(first, disk_reserve).await.map_err(|problem| problem.message);
    let measured = measured.and_then(|measured| measured.map_err(|error| error.to_string()));
    measured.inspect_err(|error| tracing::warn!(error, "a workspace cannot be measured")).ok()
}

/// The files of the workspace. Of a folder that does not answer nothing is known.
pub(super) async fn scanned(workspace: &Workspace) -> Snapshot {
    let scanned = workspace.access(WorkKind::Look, artifacts::scan).await;
    scanned.unwrap_or_else(|problem| {
        tracing::warn!(problem = problem.message, "a workspace cannot be looked at");
        Snapshot::unseen()
    })
}
