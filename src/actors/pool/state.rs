//! The sandboxes that wait in the pool, and what is done when one is claimed, made or given up.

use futures_util::future::join_all;
use ractor::{MessagingErr, RpcReplyPort};
use std::sync::Arc;
use std::time::Instant;

use super::fill::fill;
use super::messages::{PoolArgs, PoolMsg, PoolRef};
use super::waiting::WaitingSandbox;
use crate::panics::spawn_reporting;
use crate::protocol::api::PoolView;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::sandbox::pool::{Bounds, Class, MachineLoad, QUIET, Shelf};

/// The memory that a sandbox is taken to have where it is not counted.
const ASSUMED_BYTES: u64 = 64 * 1024 * 1024;

pub struct PoolState {
    args: PoolArgs,
    myself: PoolRef,
    shelf: Shelf<WaitingSandbox>,
    /// Why the last start failed, until one succeeds.
    problem: Option<String>,
}

impl PoolState {
    pub fn new(args: PoolArgs, myself: PoolRef) -> Self {
        let settings = &args.launcher.settings;
        let (size, memory_bytes) = (settings.pool.size, settings.pool.memory_bytes);
        let shelf = Shelf::new(Bounds { size, memory_bytes, idle: settings.sessions.idle });
        Self { args, myself, shelf, problem: None }
    }

    pub fn claim(&mut self, class: &Class, reply_to: RpcReplyPort<Option<Box<WaitingSandbox>>>) {
        let given = self.shelf.claim(class, Instant::now()).map(Box::new);
        if let Err(MessagingErr::SendErr(Some(unwanted))) = reply_to.send(given) {
            discard([*unwanted]);
        }
        // What was given is replaced as soon as the machine is quiet.
        self.myself.send_after(QUIET, || PoolMsg::Refill);
    }

    pub fn dead(&mut self, sandbox: WaitingSandbox) {
        self.shelf.failed(Instant::now());
        discard([sandbox]);
    }

    pub fn refill(&mut self) {
        let now = Instant::now();
        let mut gone = self.shelf.remove_dead(now, WaitingSandbox::seems_alive);
        gone.extend(self.shelf.remove_surplus(now, self.load()));
        discard(gone);
        let load = self.load();
        let Some(class) = self.shelf.next(now, load) else { return };
        let myself = self.myself.clone();
        let start = fill(Arc::clone(&self.args.launcher), class);
        spawn_reporting(start, move |started| {
            let panicked = || Err(Problem::new(Code::Internal, "an internal error"));
            let started = started.unwrap_or_else(panicked).map(Box::new);
            // The actor has died meanwhile, and the next one starts its own.
            if let Err(MessagingErr::SendErr(PoolMsg::Started(Ok(unwanted)))) =
                myself.cast(PoolMsg::Started(started))
            {
                discard([*unwanted]);
            }
        });
    }

    pub fn started(&mut self, outcome: Result<Box<WaitingSandbox>, Problem>) {
        match &outcome {
            Ok(_) => self.problem = None,
            Err(problem) => {
                tracing::warn!(problem = problem.message, "no sandbox could be started for the pool");
                self.problem = Some(problem.message.clone());
            }
        }
        discard(self.shelf.started(outcome.ok().map(|sandbox| *sandbox), Instant::now()));
        self.refill();
    }

    fn load(&self) -> MachineLoad {
        let taken = self.shelf.waiting().map(|sandbox| sandbox.memory_bytes().unwrap_or(ASSUMED_BYTES));
        let (held_bytes, largest) = taken.fold((0_u64, None), |(sum, largest), bytes| {
            (sum.saturating_add(bytes), largest.max(Some(bytes)))
        });
        MachineLoad {
            is_busy: self.args.ledger.used_by_all(Kind::Cells) > 0,
            is_short: self.args.launcher.check_memory().is_err(),
            held_bytes,
            next_bytes: largest.unwrap_or(ASSUMED_BYTES),
        }
    }

    pub fn view(&self) -> PoolView {
        let counts = self.shelf.counts();
        PoolView {
            size: self.args.launcher.settings.pool.size,
            classes: self.shelf.classes(),
            waiting: self.shelf.waiting().len(),
            starting: self.shelf.is_starting(),
            hits: counts.hits,
            misses: counts.misses,
            starts: counts.starts,
            failures: counts.failures,
            memory_bytes: self.load().held_bytes,
            problem: self.problem.clone(),
        }
    }

    pub fn drain(&mut self, reply_to: RpcReplyPort<()>) {
        let all = self.shelf.close();
        tokio::spawn(async move {
            join_all(all.into_iter().map(WaitingSandbox::discard)).await;
            let _ = reply_to.send(());
        });
    }
}

/// Removes sandboxes that no session has had, in a task.
fn discard(sandboxes: impl IntoIterator<Item = WaitingSandbox>) {
    for sandbox in sandboxes {
        tokio::spawn(sandbox.discard());
    }
}
