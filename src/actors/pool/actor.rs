//! The pool actor: it starts, and handles its messages.

use ractor::{Actor, ActorProcessingErr, SpawnErr};
use std::time::Duration;
use tokio::task::JoinHandle;

use super::messages::{PoolArgs, PoolMsg, PoolRef};
use super::state::PoolState;
use crate::protocol::periods::period;

/// The interval at which dead and surplus sandboxes are removed and missing ones started.
const REFILL_EVERY: Duration = Duration::from_secs(1);

pub struct PoolActor;

impl PoolActor {
    pub async fn spawn(args: PoolArgs) -> Result<(PoolRef, JoinHandle<()>), SpawnErr> {
        Actor::spawn(None, Self, args).await
    }
}

impl Actor for PoolActor {
    type Msg = PoolMsg;
    type State = PoolState;
    type Arguments = PoolArgs;

    async fn pre_start(&self, myself: PoolRef, args: PoolArgs) -> Result<PoolState, ActorProcessingErr> {
        myself.send_interval(period("pool", REFILL_EVERY), || PoolMsg::Refill);
        Ok(PoolState::new(args, myself))
    }

    async fn handle(
        &self,
        _: PoolRef,
        message: PoolMsg,
        state: &mut PoolState,
    ) -> Result<(), ActorProcessingErr> {
        crate::panics::panic_if_requested("pool");
        match message {
            PoolMsg::Claim { class, reply_to } => state.claim(&class, reply_to),
            PoolMsg::Dead(sandbox) => state.dead(*sandbox),
            PoolMsg::Refill => state.refill(),
            PoolMsg::Started(outcome) => state.started(outcome),
            PoolMsg::View { reply_to } => drop(reply_to.send(state.view())),
            PoolMsg::Drain { reply_to } => state.drain(reply_to),
        }
        Ok(())
    }
}
