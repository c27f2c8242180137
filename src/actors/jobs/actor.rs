//! The jobs actor: it starts, handles its messages, and ends with the daemon.

use ractor::{Actor, ActorProcessingErr, SpawnErr, SupervisionEvent};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::messages::{JobsArgs, JobsMsg, JobsRef};
use super::state::JobsState;

/// The interval at which old records and unused files are removed.
const TIDY: Duration = Duration::from_secs(60);
/// The interval at which a user's room is checked again: sessions that serve no job take room too.
const PUMP: Duration = Duration::from_secs(1);

pub struct Jobs;

impl Jobs {
    /// Starts the actor, which resumes the jobs that an earlier daemon, or an earlier run of the actor, left.
    pub async fn spawn(
        args: JobsArgs,
        lifetime: CancellationToken,
    ) -> Result<(JobsRef, JoinHandle<()>), SpawnErr> {
        Actor::spawn(None, Self, (args, lifetime)).await
    }
}

impl Actor for Jobs {
    type Msg = JobsMsg;
    type State = JobsState;
    type Arguments = (JobsArgs, CancellationToken);

    async fn pre_start(
        &self,
        myself: JobsRef,
        (args, lifetime): (JobsArgs, CancellationToken),
    ) -> Result<JobsState, ActorProcessingErr> {
        let mut state = JobsState::new(args, lifetime, myself.clone());
        state.restore().await?;
        myself.send_interval(TIDY, || JobsMsg::Tidy);
        myself.send_interval(PUMP, || JobsMsg::Pump);
        let _ = myself.cast(JobsMsg::Tidy);
        Ok(state)
    }

    async fn handle(
        &self,
        _: JobsRef,
        message: JobsMsg,
        state: &mut JobsState,
    ) -> Result<(), ActorProcessingErr> {
        crate::panics::panic_if_requested("jobs");
        match message {
            JobsMsg::Submit { owner, job, memory, reply_to } => {
                state.submit(owner, *job, reply_to);
                drop(memory);
            }
            JobsMsg::SubmitBatch { owner, order, memory, reply_to } => {
                state.submit_batch(owner, *order, memory, reply_to);
            }
            JobsMsg::WatchBatch { id, reply_to } => drop(reply_to.send(state.watch_batch(id))),
            JobsMsg::CancelBatch { id, reply_to } => state.cancel_batch(id, Some(reply_to)),
            JobsMsg::BatchReleased(id) => state.batch_released(id),
            JobsMsg::BatchNoted { id, noted, reply_to } => state.batch_noted(id, noted, reply_to),
            JobsMsg::Watch { id, reply_to } => drop(reply_to.send(state.watch(id))),
            JobsMsg::Cancel { id, reply_to } => {
                state.cancel(id, Some(reply_to));
                // The next job of its batch may have its turn.
                state.pump();
            }
            JobsMsg::Released(id) => {
                if let Some(entry) = state.jobs.get_mut(&id) {
                    entry.holders.release();
                }
            }
            JobsMsg::Noted { id, noted, reply_to } => state.noted(id, noted, reply_to),
            JobsMsg::Started { id, started, reply_to } => state.started(id, *started, reply_to),
            JobsMsg::Judged { id, end, reply_to } => state.judged(id, end, reply_to),
            JobsMsg::Done { id, end } => state.done(id, end),
            JobsMsg::NoRoom { id, problem } => state.refused_room(id, &problem),
            JobsMsg::Waits { id } => {
                state.enqueue(id);
                state.pump();
            }
            JobsMsg::Settled { id } => state.settled(id),
            JobsMsg::Tidy => state.tidy(),
            JobsMsg::Pump => {
                state.cancel_forsaken();
                state.cancel_forsaken_batches();
                state.pump();
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _: JobsRef,
        _: SupervisionEvent,
        _: &mut JobsState,
    ) -> Result<(), ActorProcessingErr> {
        Ok(())
    }
}
