//! The jobs that have not ended, and what is known of each.

use ractor::RpcReplyPort;
use std::collections::BTreeMap;
use std::time::Instant;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::batches::BatchEntry;
use super::inputs::InputRef;
use super::lack::LackOfRoom;
use super::messages::{JobsArgs, JobsMsg, JobsRef, WatchedJob};
use super::schedule::WAITING_PER_USER;
use crate::actors::holds::{Hold, Holders};
use crate::fair_queue::{FairQueue, QueueTicket};
use crate::memory::Charge;
use crate::protocol::ids::{BatchId, JobId};
use crate::protocol::job::JobState;
use crate::protocol::principal::Principal;
use crate::protocol::quota::Kind;
use crate::quota::Permit;
use crate::security_controls;
use crate::store::{JobRecord, ROW_BYTES};

/// The name under which the record of an ended job counts against `quota.journal`, until the look over the journal
/// (`daemon::journals`) has found the record and counts it itself.
const ENDED: &str = "jobs that have ended";

pub struct JobsState {
    pub(super) args: JobsArgs,
    /// Cancelled when this actor ends, for all tasks that work for it.
    pub(super) lifetime: CancellationToken,
    pub(super) myself: JobsRef,
    pub(super) jobs: BTreeMap<JobId, JobEntry>,
    pub(super) batches: BTreeMap<BatchId, BatchEntry>,
    pub(super) queue: FairQueue<Principal, JobId>,
    pub(super) running: usize,
    /// When a job got a sandbox for the last time.
    pub(super) last_start: Option<Instant>,
}

pub(super) struct JobEntry {
    pub(super) record: JobRecord,
    pub(super) state: watch::Sender<JobState>,
    pub(super) cancel: CancellationToken,
    /// The place in the queue, while the job waits.
    pub(super) queue_ticket: Option<QueueTicket>,
    /// Set while its session is refused for want of room.
    pub(super) lack: Option<LackOfRoom>,
    pub(super) holders: Holders,
    /// The clients that cancelled the job. They are answered when its end is in the journal: the next daemon would
    /// carry on with a job whose end it does not know.
    pub(super) cancelled_by: Vec<RpcReplyPort<bool>>,
    /// Whether the job was cancelled because no client held it.
    pub(super) forsaken: bool,
    pub(super) permit: Permit,
    /// The memory charged for the job's description, as long as this actor holds the job.
    _memory: Charge,
    _input: Option<InputRef>,
}

impl JobEntry {
    /// Leaves the charge of an ended job's record in place, because the record stays on the disk.
    pub(super) fn leave_record(self) {
        if self.record.view.state != JobState::Ended || !security_controls::holds("job_record_charge") {
            return;
        }
        let bytes = serde_json::to_string(&self.record).map_or(0, |text| text.len() as u64);
        let _ = self.permit.gauge().measure(Kind::Journal, bytes.saturating_add(ROW_BYTES));
        self.permit.leave(ENDED, Kind::Journal);
    }
}

impl JobsState {
    pub(super) fn new(args: JobsArgs, lifetime: CancellationToken, myself: JobsRef) -> Self {
        let (jobs, batches, queue) = (BTreeMap::new(), BTreeMap::new(), FairQueue::new(WAITING_PER_USER));
        Self { args, lifetime, myself, jobs, batches, queue, running: 0, last_start: None }
    }

    pub(super) fn insert(
        &mut self,
        record: JobRecord,
        (permit, memory): (Permit, Charge),
        input: Option<InputRef>,
    ) {
        let entry = JobEntry {
            state: watch::Sender::new(record.view.state),
            cancel: CancellationToken::new(),
            queue_ticket: None,
            lack: None,
            holders: Holders::default(),
            cancelled_by: Vec::new(),
            forsaken: false,
            permit,
            _memory: memory,
            _input: input,
            record,
        };
        let id = entry.record.view.id;
        self.jobs.insert(id, entry);
        if let Some(batch) = self.batch_of(id) {
            batch.open.insert(id);
        }
    }

    pub(super) fn watch(&mut self, id: JobId) -> Option<WatchedJob> {
        let entry = self.jobs.get_mut(&id)?;
        entry.holders.add();
        let (state, jobs) = (entry.state.subscribe(), self.myself.clone());
        Some(WatchedJob { state, hold: Hold::new(move || drop(jobs.cast(JobsMsg::Released(id)))) })
    }
}
