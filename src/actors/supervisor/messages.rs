//! The messages to the supervisor.

use ractor::{ActorRef, RpcReplyPort};
use std::time::Duration;

use crate::actors::branches::beginning::Beginning;
use crate::actors::calls::Reply;
use crate::actors::session::messages::SessionRef;
use crate::memory::Charge;
use crate::protocol::api::{NewSession, SessionView};
use crate::protocol::ids::{JobId, SessionId};
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::quota::Permit;

pub type SupervisorRef = ActorRef<SupervisorMsg>;

pub struct ForJob {
    pub id: JobId,
    /// The resources for the job's sandbox. Without them the supervisor tries to reserve them, and its
    /// refusal is the answer.
    pub sandbox_permit: Option<Permit>,
}

pub enum SupervisorMsg {
    /// Admit and start a session. Answered when its first sandbox is ready, or could not be made.
    Create {
        id: SessionId,
        owner: Principal,
        request: Box<NewSession>,
        /// Whether a cell of the owner requested the session and waits for it.
        nested: bool,
        /// The job that the session serves. Lists of sessions leave such a session out; only its job uses it.
        job: Option<ForJob>,
        /// What it begins with of another session.
        base: Option<Box<Beginning>>,
        /// The charge for the client's request, until the session has its own.
        memory: Option<Charge>,
        reply_to: Reply<SessionView>,
    },
    /// The sessions of jobs.
    OfJobs {
        reply_to: RpcReplyPort<Vec<(JobId, SessionRef)>>,
    },
    Count {
        reply_to: RpcReplyPort<usize>,
    },
    /// A session could not be made.
    NotCreated {
        id: SessionId,
        problem: Problem,
        reply_to: Reply<SessionView>,
    },
    /// A session could not begin. Its callers know, because it dropped their requests.
    NotBegun {
        id: SessionId,
    },
    /// The journal has the removal of a session: it is gone for clients, and its name is free from now on.
    Removed {
        id: SessionId,
        /// The callers that waited for that.
        removers: Vec<Reply<()>>,
    },
    /// A session has ended, and its quotas are free.
    Ended {
        id: SessionId,
        /// The callers that wait for the end.
        removers: Vec<Reply<()>>,
    },
    /// Take no more sessions; remove all there are, or leave them to the next daemon. Answered when
    /// the last actor has ended.
    Shutdown {
        remove: bool,
        /// Time for programs of the host to end in sessions that are left.
        within: Duration,
        reply_to: RpcReplyPort<()>,
    },
}
