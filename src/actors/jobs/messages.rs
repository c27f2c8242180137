//! What the actor of jobs is told.

use ractor::{ActorRef, RpcReplyPort};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::actors::calls::Reply;
use crate::actors::holding::Hold;
use crate::actors::jobs::Inputs;
use crate::actors::supervisor::messages::SupervisorRef;
use crate::protocol::ids::{JobId, SessionId};
use crate::protocol::job::{JobEnd, JobReceipt, JobState, JobView, NewJob};
use crate::protocol::problem::Problem;
use crate::quota::Ledger;
use crate::sandbox::launch::Launcher;
use crate::store::Journal;

pub type JobsRef = ActorRef<JobsMsg>;

/// Who may see a job or end it was asked before.
pub enum JobsMsg {
    /// Answered as soon as it is in the journal.
    Submit {
        owner: u32,
        job: Box<NewJob>,
        reply_to: Reply<JobView>,
    },
    /// A job that waits or runs. None if it has ended already, or never was.
    Watch {
        id: JobId,
        reply_to: RpcReplyPort<Option<Watched>>,
    },
    /// False if there is nothing to cancel.
    Cancel {
        id: JobId,
        reply_to: RpcReplyPort<bool>,
    },

    /// Somebody does not watch it any more.
    Released(JobId),
    /// It is in the journal, or could not be put there.
    Noted {
        id: JobId,
        noted: Result<(), Problem>,
        reply_to: Reply<JobView>,
    },
    /// Its sandbox is ready. Answered when that is in the journal, and the script may run.
    Started {
        id: JobId,
        started: Box<Started>,
        reply_to: Reply<()>,
    },
    /// How it ended, while its sandbox is still there. Answered when that is in the journal.
    Judged {
        id: JobId,
        end: Box<JobEnd>,
        reply_to: Reply<()>,
    },
    /// Nothing is left of its sandbox, and its slot is free. Without an end the next daemon goes on with it.
    Done {
        id: JobId,
        end: Option<JobEnd>,
    },
    /// Nothing of an earlier daemon's is left of it, so it waits for a slot.
    Waits {
        id: JobId,
    },
    /// The verdict is in the journal.
    Settled {
        id: JobId,
    },
    Tidy,
    /// Room may have come from elsewhere, and who watched may have gone.
    Pump,
}

/// A job of which somebody wants to know the end. An ephemeral one lives as long as there is one of these.
pub struct Watched {
    /// Ends when the verdict is in the journal.
    pub state: watch::Receiver<JobState>,
    pub hold: Hold,
}

pub struct Started {
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
