//! The messages to the pool actor.

use ractor::{ActorRef, RpcReplyPort};
use std::sync::Arc;

use super::waiting::WaitingSandbox;
use crate::protocol::api::PoolView;
use crate::protocol::problem::Problem;
use crate::quota::Ledger;
use crate::sandbox::launch::Launcher;
use crate::sandbox::pool::Class;

pub type PoolRef = ActorRef<PoolMsg>;

#[derive(Clone)]
pub struct PoolArgs {
    pub launcher: Arc<Launcher>,
    /// Tells whether cells run.
    pub ledger: Ledger,
}

pub enum PoolMsg {
    /// Give a sandbox of this class away, if one waits.
    Claim {
        class: Box<Class>,
        reply_to: RpcReplyPort<Option<Box<WaitingSandbox>>>,
    },
    /// A sandbox that was claimed does not answer as it did.
    Dead(Box<WaitingSandbox>),
    /// Remove what ended or is not wanted any more, and start what is missing.
    Refill,
    Started(Result<Box<WaitingSandbox>, Problem>),
    View {
        reply_to: RpcReplyPort<PoolView>,
    },
    /// Remove everything that waits, and start nothing more. Answered when it is removed.
    Drain {
        reply_to: RpcReplyPort<()>,
    },
}
