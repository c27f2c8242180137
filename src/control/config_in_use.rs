//! The configuration in use: shown to whoever runs the daemon, and read again when they ask for it.

use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;

use super::app::App;
use crate::actors::llm::Models;
use crate::config::{Loaded, merged};
use crate::protocol::config::{ConfigReloaded, ConfigView};
use crate::protocol::problem::{Code, Problem};

/// Reads the configuration from where the daemon has it, checked as at its start.
type Read = dyn Fn() -> Result<Loaded, String> + Send + Sync;

/// What to do about a configuration that is wrong.
const MEND: &str = "the daemon goes on with what it had; mend the file";

pub struct ConfigInUse {
    file: PathBuf,
    read: Arc<Read>,
    loaded: Mutex<Arc<Loaded>>,
    /// Held while the configuration is read again, so that the newest reading is the one that stays.
    reading: tokio::sync::Mutex<()>,
}

impl ConfigInUse {
    pub fn new(
        file: PathBuf,
        loaded: Loaded,
        read: impl Fn() -> Result<Loaded, String> + Send + Sync + 'static,
    ) -> Self {
        Self {
            file,
            read: Arc::new(read),
            loaded: Mutex::new(Arc::new(loaded)),
            reading: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn view(&self) -> ConfigView {
        ConfigView { file: self.file.display().to_string(), values: self.loaded.lock().views() }
    }
}

impl App {
    /// Reads the configuration again and lets all hold that can change while the daemon runs. Nothing changes if the
    /// file is wrong.
    ///
    /// # Errors
    /// The file cannot be read or is wrong.
    pub async fn reload(&self) -> Result<ConfigReloaded, Problem> {
        let _reading = self.config.reading.lock().await;
        let read = Arc::clone(&self.config.read);
        let lost = |_| Problem::new(Code::Internal, "the configuration could not be read");
        let new = tokio::task::spawn_blocking(move || read()).await.map_err(lost)?;
        let new = new.map_err(|why| Problem::new(Code::BadRequest, why).hint(MEND))?;
        let old = Arc::clone(&self.config.loaded.lock());
        let (now, changes) = merged(&old, &new);
        let models: Vec<&str> = changes.applied.iter().filter_map(|key| key.strip_prefix("model.")).collect();
        let clients = Models::prepare(&now.settings.models, &models)
            .map_err(|failure| Problem::new(Code::BadRequest, failure.message).hint(MEND))?;
        self.launcher.live.replace(Arc::new(now.settings.clone()));
        *self.config.loaded.lock() = Arc::new(now);
        let renewed = self.models.renew(clients, &self.supervisor.get_cell()).await;
        renewed.map_err(|error| Problem::new(Code::ShuttingDown, error.to_string()))?;
        self.renew_limits().await;
        tracing::info!(?changes, "the configuration was read again");
        Ok(ConfigReloaded {
            file: self.config.file.display().to_string(),
            applied: changes.applied,
            needs_restart: changes.needs_restart,
        })
    }

    /// Lets the quotas in use hold for all users, also for those who are not connected.
    async fn renew_limits(&self) {
        let settings = self.live();
        self.ledger.set_everyone(settings.quota.everyone.clone());
        for owner in self.ledger.users() {
            // Who cannot be looked up keeps what was known until the next lookup.
            if let Ok(who) = self.users.of(owner).await {
                self.ledger.set_limits(owner, settings.quota.of(owner, who.name.as_deref(), &who.groups));
            }
        }
    }
}
