//! What the supervisor is asked and told.

use ractor::{ActorRef, RpcReplyPort};
use std::time::Duration;

use crate::actors::calls::Reply;
use crate::actors::session::messages::SessionRef;
use crate::protocol::api::{NewSession, SessionView};
use crate::protocol::ids::{JobId, SessionId};
use crate::protocol::problem::Problem;
use crate::quota::Permit;

pub type SupervisorRef = ActorRef<SupervisorMsg>;

pub struct ForJob {
    pub id: JobId,
    /// For its sandbox. None if it could never be had, which is then the answer.
    pub room: Option<Permit>,
}

pub enum SupervisorMsg {
    /// Admit and start a session. Answered when its first sandbox is ready, or could not be made.
    Create {
        id: SessionId,
        peer: u32,
        request: Box<NewSession>,
        /// A cell of the owner's wants it and waits for it.
        nested: bool,
        /// The job that the session serves. Lists of sessions leave such a session out; only its job uses it.
        job: Option<ForJob>,
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
    /// A session has ended; its name is free from now on.
    Ended {
        id: SessionId,
        /// Who waits for that.
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
