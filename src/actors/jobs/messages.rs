//! The messages to the jobs actor.

use ractor::{ActorRef, RpcReplyPort};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::inputs::Inputs;
use crate::actors::calls::Reply;
use crate::actors::holds::Hold;
use crate::actors::supervisor::messages::SupervisorRef;
use crate::memory::Charge;
use crate::protocol::batch::BatchView;
use crate::protocol::ids::{BatchId, JobId, SessionId};
use crate::protocol::job::{JobEnd, JobReceipt, JobState, JobView, NewJob};
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::quota::Ledger;
use crate::sandbox::launch::Launcher;
use crate::store::Journal;

pub type JobsRef = ActorRef<JobsMsg>;

/// The sender has checked that the client may see or end the job.
pub enum JobsMsg {
    /// Answered as soon as the job is in the journal.
    Submit {
        owner: Principal,
        job: Box<NewJob>,
        /// The charge for the client's request, until the job has its own.
        memory: Charge,
        reply_to: Reply<JobView>,
    },
    /// Answered as soon as all jobs of the batch are in the journal.
    SubmitBatch {
        owner: Principal,
        order: Box<BatchOrder>,
        /// The charge for the client's request, until the jobs have their own.
        memory: Charge,
        reply_to: Reply<BatchView>,
    },
    /// Watch a batch of which some job has not ended. None if all have, or there is no such batch.
    WatchBatch {
        id: BatchId,
        reply_to: RpcReplyPort<Option<WatchedBatch>>,
    },
    /// Answered when all jobs of the batch have ended; false if there is nothing to cancel.
    CancelBatch {
        id: BatchId,
        reply_to: RpcReplyPort<bool>,
    },
    /// Watch a job that waits or runs. None if it has ended already, or never existed.
    Watch {
        id: JobId,
        reply_to: RpcReplyPort<Option<WatchedJob>>,
    },
    /// Answered when the job has ended; false if there is no job to cancel.
    Cancel {
        id: JobId,
        reply_to: RpcReplyPort<bool>,
    },

    /// A client stopped watching the job.
    Released(JobId),
    /// A client stopped watching the batch.
    BatchReleased(BatchId),
    /// The batch is in the journal, or could not be put there.
    BatchNoted {
        id: BatchId,
        noted: Result<BatchView, Problem>,
        reply_to: Reply<BatchView>,
    },
    /// The job is in the journal, or could not be put there.
    Noted {
        id: JobId,
        noted: Result<(), Problem>,
        reply_to: Reply<JobView>,
    },
    /// The job's sandbox is ready. Answered when that is in the journal, and the script may run.
    Started {
        id: JobId,
        started: Box<StartedJob>,
        reply_to: Reply<()>,
    },
    /// How the job ended, while its sandbox still exists. Answered when that is in the journal.
    Judged {
        id: JobId,
        end: Box<JobEnd>,
        reply_to: Reply<()>,
    },
    /// The job's sandbox is removed, and its slot is free. Without an end, the next daemon resumes the job.
    Done {
        id: JobId,
        end: Option<JobEnd>,
    },
    /// The job's session was refused for want of room, and nothing of it is left: the job waits again.
    NoRoom {
        id: JobId,
        problem: Problem,
    },
    /// The earlier daemon's sandbox of the job is removed, so the job waits for a slot.
    Waits {
        id: JobId,
    },
    /// The verdict is in the journal.
    Settled {
        id: JobId,
    },
    Tidy,
    /// Quota may have been freed elsewhere, and clients that watched jobs may have left.
    Pump,
}

/// A job whose end a client waits for. An ephemeral job exists as long as it has one of these.
pub struct WatchedJob {
    /// Closed when the verdict is in the journal.
    pub state: watch::Receiver<JobState>,
    pub hold: Hold,
}

/// A batch as a client asks for it, with its jobs in their order.
pub struct BatchOrder {
    pub jobs: Vec<NewJob>,
    /// How many run at once; as many as there are slots if absent.
    pub parallel: Option<usize>,
    pub ephemeral: bool,
    /// The idempotency key of the request.
    pub key: Option<String>,
}

/// A batch whose end a client waits for. An ephemeral batch goes on as long as it has one of these.
pub struct WatchedBatch {
    /// Told of each event in the journal, and closed when the ends of all jobs are there.
    pub changes: watch::Receiver<()>,
    pub hold: Hold,
}

pub struct StartedJob {
    pub session: SessionId,
    pub receipt: Option<JobReceipt>,
}

#[derive(Clone)]
pub struct JobsArgs {
    pub journal: Journal,
    pub launcher: Arc<Launcher>,
    pub supervisor: SupervisorRef,
    pub inputs: Inputs,
    pub ledger: Ledger,
    pub shutdown: CancellationToken,
}
