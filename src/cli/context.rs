//! What every command gets, and how commands show their results.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::client::autostart::Starter;
use super::client::http::{Client, JsonResponse};
use super::client::machine_daemon::ClosedDaemon;
use super::failure::Failure;
use super::render::screen::Screen;
use crate::config::{Paths, SYSTEM_SOCKET};
use crate::protocol::exit_codes as exit;

/// What every command gets.
pub(in crate::cli) struct Context {
    pub screen: Screen,
    pub json: bool,
    pub paths: Paths,
    config: Option<PathBuf>,
    /// The daemon of the whole machine, if this user may not use it.
    pub closed: Option<ClosedDaemon>,
}

impl Context {
    pub fn new(
        screen: Screen,
        json: bool,
        paths: Paths,
        config: Option<PathBuf>,
        closed: Option<ClosedDaemon>,
    ) -> Self {
        Self { screen, json, paths, config, closed }
    }

    /// The client for commands that need a daemon, which starts one if there is none.
    pub fn client(&self) -> Client {
        let allowed =
            std::env::var_os("BELLJAR_NO_AUTOSTART").is_none_or(|value| value.is_empty() || value == "0");
        // Only the administrator starts the daemon of the machine.
        let is_ours = self.paths.system() || self.paths.socket() != Path::new(SYSTEM_SOCKET);
        let starter = (allowed && is_ours).then(|| Starter {
            logs_dir: self.paths.logs_dir(),
            config: self.config.clone(),
            announce: self.screen.is_watched(),
            closed: self.closed.clone(),
        });
        // A program that reads JSON is told nothing else.
        let config = self.config.clone().filter(|_| !self.json);
        Client::new(self.paths.socket().to_owned(), starter).with_config(config).tell_steps(!self.json)
    }

    /// The configuration file, if the caller named one.
    pub fn config(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Shows an answer of the daemon: as its JSON for programs, otherwise as `render` presents it to people.
    pub fn show<T: DeserializeOwned>(
        &mut self,
        answer: &JsonResponse,
        render: impl FnOnce(&mut Screen, T) -> Result<(), Failure>,
    ) -> Result<u8, Failure> {
        if self.json {
            self.screen.line(&answer.text())?;
        } else {
            render(&mut self.screen, answer.parse()?)?;
        }
        Ok(exit::SUCCESS)
    }

    /// Shows a value that the command made itself: as JSON for programs, otherwise as `render` presents it to people.
    pub fn show_value<T: Serialize + ?Sized>(
        &mut self,
        value: &T,
        render: impl FnOnce(&mut Screen, &T) -> Result<(), Failure>,
    ) -> Result<u8, Failure> {
        if self.json {
            self.screen.json(value)?;
        } else {
            render(&mut self.screen, value)?;
        }
        Ok(exit::SUCCESS)
    }

    /// The client for commands about the daemon itself, which must not start one.
    pub fn client_of_running_daemon(&self) -> Client {
        Client::new(self.paths.socket().to_owned(), None)
    }
}
