//! The start of a session's state: for a new session, after a panic, or after a restart of the daemon.

use super::admin_acts::AdminActs;
use super::generations::Inheritance;
use super::messages::OwnSession;
use super::packages::{self, SessionPackages};
use super::sandbox_place::make_place;
use super::snapshots::SavedSession;
use super::state::{CellPermits, SessionActorState, expiry};
use super::waking::Rebuilding;
use crate::actors::journal_charges::JournalAccount;
use crate::actors::session::agent;
use crate::actors::session::restore;
use crate::protocol::ids::CellNumber;
use crate::session::machine::SessionMachine;
use crate::session::restore::{RecalledAsks, Restored};
use crate::session::rules::CellRules;
use crate::store::{OutputCaps, Recorder, Spill};
use ractor::ActorProcessingErr;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

impl SessionActorState {
    /// Starts a generation: the first one, or another from the journal and what the previous one left.
    #[expect(clippy::too_many_lines, reason = "one field of the state a line")]
    pub(super) async fn begin(
        myself: OwnSession,
        inheritance: Inheritance,
    ) -> Result<Self, ActorProcessingErr> {
        let Inheritance {
            args,
            clients,
            common,
            holders,
            tickets,
            unanswered,
            deferred,
            undoing,
            views,
            workspace_and_slot,
            replays,
        } = inheritance;
        let log = args.journal.log(args.id)?;
        let account = Arc::new(JournalAccount::new(args.gauge.clone(), &args.request));
        log.charge_to(args.owner, account, args.ledger.memory(args.owner));
        let cells = &args.launcher.settings.cells;
        let size = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let caps = OutputCaps { head: size(cells.output_head), tail: size(cells.output_tail) };
        let settings = &args.launcher.settings;
        let rules = CellRules::of_client(&settings.agent, settings.packages.by_owner, &args.tools);
        let client_rules = Arc::new(rules);
        let (restored, asks_before) = if args.before.is_some() {
            Box::pin(restore::read_restored(&args, &log, &client_rules)).await?
        } else {
            let packages = args.carried.packages.clone();
            (Restored { packages, ..Restored::default() }, RecalledAsks::default())
        };
        packages::use_again(&args, restored.packages.clone());
        if let Some(receipt) = &restored.last_sandbox {
            common.image_is(&receipt.image.id);
        }
        if let Some(receipt) = &restored.sandbox {
            args.launcher.expect(&receipt.sandbox);
            // The sandbox has the volumes of the session, also if no executor is ever attached to it.
            let names = args.volumes.iter().map(|volume| volume.name.clone());
            args.launcher.volumes.hold_again(&receipt.sandbox, receipt.backend, args.owner, names);
        }
        let running: Vec<CellNumber> = restored.running.iter().map(|begun| begun.start.cell).collect();
        let sandbox = restored.sandbox.as_ref().map(|receipt| receipt.sandbox.clone());
        let (recorded, most) = (Arc::clone(&log), cells.spill);
        let recover = move || {
            let spill = Spill::open(recorded.spill_folder(), most)?;
            Ok::<_, ActorProcessingErr>(Recorder::recover(recorded, spill, caps, sandbox, &running)?)
        };
        // The recorder reads the output of running cells again, which blocks.
        let recorder = Arc::new(tokio::task::spawn_blocking(recover).await??);
        let began = restored.last_sandbox.as_ref();
        let making = workspace_and_slot.is_none().then(|| make_place(&myself, &args, began));
        let (workspace, slot) =
            workspace_and_slot.map_or((None, None), |(workspace, slot)| (Some(workspace), slot));
        let asks = agent::spawn_asks(&myself, &args, &log, &clients, &common, asks_before).await?;
        let machine = match args.before {
            Some(_) => restore::machine(&args, &restored, replays),
            None => SessionMachine::new(expiry(&args), Instant::now()),
        };
        let admin_acts = AdminActs::charged(&args.ledger, &restored.admin_acts);
        let mut state = Self {
            args,
            myself,
            asks,
            clients,
            common,
            client_rules,
            machine,
            executor: None,
            deferred,
            undoing: None,
            log,
            recorder,
            making,
            place_again: None,
            removers: None,
            workspace,
            slot,
            ready_ahead: None,
            receipt: None,
            preloaded: None,
            packages: SessionPackages::of(restored.packages.clone()),
            saving: SavedSession::of(restored.saved.clone()),
            rebuilding: Rebuilding::of_before(&restored),
            tickets: HashMap::new(),
            ended_commands: VecDeque::new(),
            admin_acts,
            holders,
            leaving: false,
            cgroup: None,
            counters: Arc::default(),
            cell_permits: CellPermits::default(),
            waiting_for_handles: unanswered,
            restored: None,
            expected: HashMap::new(),
        };
        if state.args.before.is_some() {
            state.remove_unknown();
        }
        state.end_installation_of_before(restored.installing, restored.reset_due);
        state.recall(restored, tickets);
        state.inherit_undo(undoing);
        for view in views {
            state.apply(view);
        }
        if state.workspace.is_some() {
            state.is_placed();
        }
        Ok(state)
    }
}
