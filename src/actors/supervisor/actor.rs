//! The supervisor actor: it starts, handles its messages, and hears of the end of the actors that it started.

use ractor::{Actor, ActorProcessingErr, SpawnErr, SupervisionEvent};

use super::messages::{SupervisorMsg, SupervisorRef};
use super::state::{Creation, SupervisorArgs, SupervisorState};
use crate::actors::session::messages::SessionMsg;

pub struct Supervisor;

impl Supervisor {
    pub async fn spawn(
        args: SupervisorArgs,
    ) -> Result<(SupervisorRef, tokio::task::JoinHandle<()>), SpawnErr> {
        Actor::spawn(None, Self, args).await
    }
}

impl Actor for Supervisor {
    type Msg = SupervisorMsg;
    type State = SupervisorState;
    type Arguments = SupervisorArgs;

    async fn pre_start(
        &self,
        myself: SupervisorRef,
        args: SupervisorArgs,
    ) -> Result<SupervisorState, ActorProcessingErr> {
        args.models.start(&myself.get_cell()).await?;
        let mut state = SupervisorState::new(args);
        state.restore(&myself).await?;
        Ok(state)
    }

    async fn handle(
        &self,
        myself: SupervisorRef,
        message: SupervisorMsg,
        state: &mut SupervisorState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMsg::Create { id, owner, request, nested, job, base, memory, reply_to } => {
                let request = *request;
                state.create(&myself, Creation { id, owner, request, nested, job, base, memory, reply_to });
            }
            SupervisorMsg::OfJobs { reply_to } => {
                let sessions = state.sessions.values();
                let found = sessions.filter_map(|entry| Some((entry.job?, entry.session.clone())));
                let _ = reply_to.send(found.collect());
            }
            SupervisorMsg::Count { reply_to } => drop(reply_to.send(state.sessions.len())),
            SupervisorMsg::NotCreated { id, problem, reply_to } => {
                state.not_created(id);
                let _ = reply_to.send(Err(problem));
            }
            SupervisorMsg::NotBegun { id } => state.not_created(id),
            SupervisorMsg::Removed { id, removers } => {
                state.removed(id);
                for reply_to in removers {
                    let _ = reply_to.send(Ok(()));
                }
            }
            SupervisorMsg::Ended { id, removers } => {
                state.forget(id);
                for reply_to in removers {
                    let _ = reply_to.send(Ok(()));
                }
                state.create_waiting(&myself);
            }
            SupervisorMsg::Shutdown { remove, within, reply_to } => {
                state.shutting_down.get_or_insert_default().push(reply_to);
                for entry in state.sessions.values() {
                    let _ = entry.session.cast(if remove {
                        SessionMsg::Remove { remover: None }
                    } else {
                        SessionMsg::Leave { within }
                    });
                }
                state.answer_shutdown();
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: SupervisorRef,
        event: SupervisionEvent,
        state: &mut SupervisorState,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(child, error) => {
                tracing::error!(%error, actor = %child.get_id(), "an actor failed; what a session left goes to the reaper");
                state.args.models.revive(child.get_id(), &myself.get_cell()).await;
                state.forget_actor(child.get_id());
                state.create_waiting(&myself);
            }
            SupervisionEvent::ActorTerminated(child, _, _) => {
                state.forget_actor(child.get_id());
                state.create_waiting(&myself);
            }
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}
