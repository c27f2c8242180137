//! The pool as sessions and the daemon use it.

use ractor::SpawnErr;
use std::sync::{Arc, OnceLock};
use tokio_util::sync::CancellationToken;

use super::actor::PoolActor;
use super::messages::{PoolArgs, PoolMsg};
use super::waiting::WaitingSandbox;
use crate::actors::restarting_actor::RestartingActor;
use crate::protocol::api::PoolView;
use crate::sandbox::launch::{Launcher, SandboxRequest};
use crate::sandbox::pool::Class;
use crate::sandbox::spec::Choice;

/// The pool, or what will be one: until it is started, and where it is switched off, no sandbox waits. Clones are the
/// same pool.
#[derive(Clone, Default)]
pub struct Pool(Arc<OnceLock<RestartingActor<PoolMsg>>>);

impl Pool {
    /// Starts the pool, unless the settings switch it off. The user ids of earlier sessions have to be taken before.
    pub async fn start(&self, args: PoolArgs, end: CancellationToken) -> Result<(), SpawnErr> {
        if args.launcher.settings.pool.size > 0 {
            let actor = RestartingActor::start("pool", end, move |_| PoolActor::spawn(args.clone())).await?;
            let _ = self.0.set(actor);
        }
        Ok(())
    }

    /// A sandbox for a request, which no other request gets; none if it needs a new one. It answers, and is attested.
    pub async fn claim(
        &self,
        launcher: &Launcher,
        choice: &Choice,
        wanted: &SandboxRequest,
        preloads: bool,
    ) -> Option<WaitingSandbox> {
        let actor = self.0.get()?;
        // What would keep a new sandbox from being started keeps a waiting one from being used.
        launcher.check_memory().ok()?;
        let image = launcher.backend(choice.backend).image_ahead(&wanted.image).await?;
        let class = Class::new(choice.backend, wanted, image, preloads);
        for _ in 0..=launcher.settings.pool.size {
            let class = Box::new(class.clone());
            let claim = |reply_to| PoolMsg::Claim { class, reply_to };
            let mut sandbox = actor.call(claim).await.ok().flatten()?;
            if sandbox.is_as_it_was().await {
                return Some(*sandbox);
            }
            tracing::warn!("a sandbox that waited does not answer as it did; the next one is taken");
            actor.cast(PoolMsg::Dead(sandbox));
        }
        None
    }

    /// What the pool has done so far; none if it is switched off.
    pub async fn view(&self) -> Option<PoolView> {
        self.0.get()?.call(|reply_to| PoolMsg::View { reply_to }).await.ok()
    }

    /// Removes everything that waits. No sandbox is started after that.
    pub async fn drain(&self) {
        if let Some(actor) = self.0.get() {
            let _ = actor.call(|reply_to| PoolMsg::Drain { reply_to }).await;
            actor.stop();
        }
    }
}
