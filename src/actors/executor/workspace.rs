//! Watches the workspace: what a cell changed in it, and whether it grows beyond its limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::messages::{Command, ExecutorMsg, ExecutorRef};
use super::state::ExecutorState;
use crate::panics::spawn_reporting;
use crate::protocol::ids::CellNumber;
use crate::protocol::quota::Kind;
use crate::quota::Gauge;
use crate::sandbox::workspace::Workspace;
use crate::sandbox::workspace::artifacts::{self, Snapshot};
use crate::sandbox::workspace::measuring::{HoldingSandbox, MeasuredFolder};
use crate::sandbox::workspace::owner::WorkKind;
use crate::sandbox::workspace::usage::{self, DiskUsage, UnmeasuredReason};
use crate::security_controls;
use crate::session::outcome::EndedBy;

/// How many checks may find an oversized workspace growing while no cell can be blamed, as long as it stays oversized: not in
/// a row, because what writes may rest between two checks.
const GROWING_LOOKS: u32 = 3;
/// Growth that was seen longer ago than this has nothing to do with growth that is seen now.
const GROWTH_REMEMBERED: Duration = Duration::from_secs(60);
/// The reason for ending a cell that writes while the shared disk is nearly full.
const DISK_SHORT: &str = "The disk that all workspaces share is nearly full, and this one still grew.";

impl ExecutorState {
    /// Scans the workspace before a cell if something else has changed it, so that the cell is not credited
    /// with that change. Until then the cell and all later commands of the session wait. None if the command
    /// waits.
    pub(super) fn stash(&mut self, myself: &ExecutorRef, command: Command) -> Option<Command> {
        let wants_look = matches!(command, Command::Run(_)) && self.connected.is_some();
        if self.stashed.is_none() && wants_look && std::mem::take(&mut self.snapshot_is_old) {
            self.stashed = Some(Vec::new());
            let (workspace, executor) = (Arc::clone(&self.args.workspace), myself.clone());
            spawn_reporting(async move { scanned(&workspace).await }, move |seen| {
                let _ = executor.cast(ExecutorMsg::Scanned(seen.unwrap_or_else(Snapshot::unseen)));
            });
        }
        let Some(stashed) = &mut self.stashed else { return Some(command) };
        stashed.push(command);
        None
    }

    /// Carries out the commands that waited.
    pub(super) fn unstash(&mut self, myself: &ExecutorRef) {
        for command in self.stashed.take().into_iter().flatten() {
            self.command(myself, command);
        }
    }

    /// Starts a measurement, unless nothing can have changed since the last one, or one is running: the guest's files
    /// determine how long it takes. The longer it took, the later is the next one; the pause counts as part of the
    /// measurement.
    pub(super) fn start_measurement(&mut self, myself: &ExecutorRef) {
        if self.measuring.as_ref().is_some_and(|look| !look.is_finished()) {
            return;
        }
        let sandbox = self.connected.as_ref().map(|connected| &connected.sandbox);
        let (activity, now) = (sandbox.and_then(|sandbox| sandbox.activity()), Instant::now());
        if self.last_look.is_current(activity, now) {
            return;
        }
        self.last_look.begin(activity, now);
        let (workspace, executor) = (Arc::clone(&self.args.workspace), myself.clone());
        let reserve = self.args.launcher.settings.sandbox.disk_reserve_bytes;
        let volumes = &self.args.launcher.volumes;
        let sandbox = sandbox.and_then(|sandbox| {
            let (id, first) = (sandbox.id().clone(), sandbox.pid()?);
            Some(HoldingSandbox { id, volumes: volumes.clone(), first })
        });
        self.measuring = Some(tokio::spawn(async move {
            let Some((sizes, took)) = measured(workspace, sandbox, reserve).await else { return };
            let _ = executor.cast(ExecutorMsg::Measured(sizes));
            tokio::time::sleep(usage::pause_after(took)).await;
        }));
    }

    /// Records the size of the workspace, or of a volume, and says why it is too much.
    fn excess(&self, index: usize, folder: &MeasuredFolder) -> Option<String> {
        let usage = &folder.usage;
        let limit = self.args.launcher.settings.sandbox.workspace_bytes;
        let holds = security_controls::holds("workspace_quota");
        let short = usage.is_disk_short.then(|| DISK_SHORT.to_owned());
        let volume = index.checked_sub(1).and_then(|index| self.args.workspace.written_volumes().nth(index));
        let (what, of_user) = if let Some((name, volume)) = volume {
            let record = |counted| self.args.launcher.volumes.measured(volume.payer(), name, counted);
            (format!("volume `{name}`"), folder.record(limit, record).err().filter(|_| holds))
        } else {
            let gauge = self.args.gauge.as_ref().filter(|_| holds);
            let record =
                |gauge: &Gauge| folder.record(limit, |counted| gauge.measure(Kind::Workspace, counted));
            ("workspace".to_owned(), gauge.and_then(|gauge| record(gauge).err()))
        };
        usage.beyond(&what, limit).or_else(|| of_user.map(|refusal| refusal.sentence())).or(short)
    }

    /// Only growth has consequences: an oversized workspace that does not grow may still be read and cleaned
    /// up. A cell under which it grew is ended. Continued growth without a running cell to blame ends the
    /// sandbox, because something that an earlier cell left behind writes. Files that cannot be measured
    /// count as growth, except in a folder of the caller: it is on the caller's disk, and may hold more than
    /// is measured. Folders that a guest makes inaccessible always count.
    pub(super) fn measured_usage(&mut self, myself: &ExecutorRef, sizes: &[MeasuredFolder]) {
        let usage = sizes.iter().map(|folder| folder.usage).collect();
        let before = std::mem::replace(&mut self.usage, usage);
        let activity = self.connected.as_ref().and_then(|connected| connected.sandbox.activity());
        let known = std::mem::replace(&mut self.usage_activity, self.last_look.activity());
        // Nothing ran in the sandbox since the look began that found the sizes of before.
        let is_at_rest = known.is_some() && known == activity;
        let cell_ended = std::mem::take(&mut self.cell_ended_since_look);
        let (mut why, mut is_oversized) = (None, false);
        for (index, folder) in sizes.iter().enumerate() {
            // Every size is recorded, whatever is too large already.
            let (excess, usage) = (self.excess(index, folder), &folder.usage);
            let managed = index > 0 || self.args.workspace.managed;
            let hides = usage.hidden.is_some_and(|hidden| managed || hidden == UnmeasuredReason::Closed);
            let grew = before.get(index).is_some_and(|before| grew_since(before, usage)) || hides;
            // Other sessions write to a volume, too.
            let is_of_others = index > 0 && is_at_rest;
            is_oversized |= excess.is_some();
            why = why.or(excess.filter(|_| grew && !is_of_others));
        }
        self.last_look.end(why.is_none());
        let Some(why) = why else {
            if !is_oversized {
                self.growing_looks = 0;
            }
            return;
        };
        let cells: Vec<CellNumber> = self.running.keys().copied().collect();
        if !cells.is_empty() && !cell_ended {
            for cell in &cells {
                self.end_cell(myself, *cell, EndedBy::Policy(format!("{why} Remove some files.")));
            }
            return;
        }
        let is_long_ago =
            self.grew_at.replace(Instant::now()).is_none_or(|at| at.elapsed() > GROWTH_REMEMBERED);
        self.growing_looks = if is_long_ago { 1 } else { self.growing_looks + 1 };
        if self.growing_looks >= GROWING_LOOKS {
            self.give_up(myself, why);
        }
    }
}

/// Whether a folder grew between two looks. Written data that the measurement does not see matters when the disk is
/// nearly full.
fn grew_since(before: &DiskUsage, now: &DiskUsage) -> bool {
    now.bytes > before.bytes
        || now.entries > before.entries
        || now.is_disk_short && now.bytes_written > before.bytes_written
}

/// The sizes of the workspace and of the volumes that can be written to, including data that processes of the sandbox hold,
/// and how long the measurement took; none if the measurement fails.
pub(super) async fn measured(
    workspace: Arc<Workspace>,
    sandbox: Option<HoldingSandbox>,
    disk_reserve: u64,
) -> Option<(Vec<MeasuredFolder>, Duration)> {
    let measured = workspace.measure_all(sandbox, disk_reserve).await.map_err(|problem| problem.message);
    let measured = measured.and_then(|measured| measured.map_err(|error| error.to_string()));
    measured.inspect_err(|error| tracing::warn!(error, "a workspace cannot be measured")).ok()
}

/// The files of the workspace; unseen if the folder does not answer.
pub(super) async fn scanned(workspace: &Workspace) -> Snapshot {
    let scanned = workspace.access(WorkKind::Look, artifacts::scan).await;
    scanned.unwrap_or_else(|problem| {
        tracing::warn!(problem = problem.message, "a workspace cannot be looked at");
        Snapshot::unseen()
    })
}
