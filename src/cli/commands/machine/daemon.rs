//! `belljar daemon`: run the daemon, show its status, stop it.

use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::cli::client::autostart::READY;
use crate::cli::client::http::{connect, is_absent};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::config::{Paths, Serving};
use crate::protocol::api::{Health, HealthStatus, Shutdown, Version};
use crate::protocol::config::ConfigReloaded;
use crate::protocol::exit_codes as exit;
use crate::protocol::limits::DRAIN;

/// Time for the daemon to stop, on top of the time that it gives its sessions.
const STOP_MARGIN: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(25);

/// Run the daemon in the foreground, ask about it, or stop it.
///
/// Commands start a daemon by themselves when they find none, unless `BELLJAR_NO_AUTOSTART` is set.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(in crate::cli) struct Daemon {
    /// Serve all users of this machine; needs root.
    #[arg(long)]
    system: bool,
    /// The group whose members may use a daemon of the whole machine, instead of `belljar`.
    #[arg(long, requires = "system")]
    group: Option<String>,
    #[command(subcommand)]
    command: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Stop the daemon.
    Stop {
        /// Remove the sandboxes too.
        #[arg(long)]
        remove: bool,
    },
    /// Show whether the daemon runs, and how it is.
    Status,
    /// Have the daemon read its configuration again, for what can change while it runs.
    Reload,
}

impl Daemon {
    /// Without a subcommand, this process becomes the daemon.
    pub fn is_foreground(&self) -> bool {
        self.command.is_none()
    }

    pub fn serving(&self) -> Serving {
        Serving { system: self.system, group: self.group.clone() }
    }

    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        match self.command {
            Some(Action::Stop { remove }) => stop(context, remove).await,
            Some(Action::Status) => status(context).await,
            Some(Action::Reload) => reload(context).await,
            None => Err(Failure::new("the daemon cannot run inside of a command")),
        }
    }
}

async fn stop(context: &mut Context, remove: bool) -> Result<u8, Failure> {
    let deadline = Instant::now() + READY;
    while !is_served(context).await {
        // A daemon locks its home before it listens, so it may be just starting.
        let Some(pid) = holder(&context.paths) else { return not_running(context, exit::SUCCESS) };
        if Instant::now() > deadline {
            return Err(Failure::new(format!(
                "a daemon has this home, but does not listen at `{}`",
                context.paths.socket().display()
            ))
            .hint(format!("set `BELLJAR_SOCKET` as it was for that daemon; its process id is {pid}")));
        }
        sleep(POLL).await;
    }
    let client = context.client_of_running_daemon();
    let version: Version = client.get("/v1/version").await?.parse()?;
    let answer = client.post("/v1/shutdown", &Shutdown { remove }).await?;
    let deadline = Instant::now() + DRAIN + STOP_MARGIN;
    while has_not_ended(&version) {
        if Instant::now() > deadline {
            return Err(Failure::new("the daemon was told to stop, but still runs")
                .hint(format!("its process id is {}", version.pid)));
        }
        sleep(POLL).await;
    }
    context.show(&answer, |screen, _: Value| screen.note("the daemon has stopped"))
}

/// A daemon that stops closes its connections first, then removes its sandboxes; the file with its process id goes
/// last. The socket does not show it: a socket of systemd stays, and connecting to it would start another daemon.
fn has_not_ended(daemon: &Version) -> bool {
    let is_there = Path::new("/proc").join(daemon.pid.to_string()).exists();
    match std::fs::read_to_string(Path::new(&daemon.home).join("daemon.pid")) {
        Ok(pid) => is_there && pid.trim() == daemon.pid.to_string(),
        // The daemon's home may not be readable for this user.
        Err(error) => is_there && error.kind() == std::io::ErrorKind::PermissionDenied,
    }
}

/// Whether a daemon listens; a daemon that cannot be reached for another reason counts as listening, too.
pub(super) async fn is_served(context: &Context) -> bool {
    !connect(context.paths.socket()).await.is_err_and(|e| is_absent(&e))
}

/// The process that holds this home, whether it serves yet or not. This function does not try the lock itself: a
/// daemon that starts at that very moment would find it taken. A process id that was left behind may belong to
/// another process by now, so the process has to have the lock file open.
fn holder(paths: &Paths) -> Option<u32> {
    let lock = paths.lock_file().canonicalize().ok()?;
    let pid: u32 = std::fs::read_to_string(&lock).ok()?.trim().parse().ok()?;
    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let holds = open.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|file| file == lock));
    holds.then_some(pid)
}

async fn status(context: &mut Context) -> Result<u8, Failure> {
    if !is_served(context).await {
        return not_running(context, exit::FAILURE);
    }
    let client = context.client_of_running_daemon();
    let version: Version = client.get("/v1/version").await?.parse()?;
    let health: Health = client.get("/v1/health").await?.parse()?;
    let status_json = json!({ "running": true, "version": version, "health": health });
    let socket = context.paths.socket().display().to_string();
    context.show_value(&status_json, |screen, _| {
        let status = match health.status {
            HealthStatus::Ok => "runs",
            HealthStatus::Degraded => "runs, but cannot make new sandboxes",
        };
        let pool = health.pool.map_or_else(|| "off, or not yours to see".to_owned(), |pool| pool.to_string());
        screen.facts(&[
            ("daemon", status.to_owned()),
            ("pid", version.pid.to_string()),
            ("version", version.version),
            ("engine", version.engine.unwrap_or_else(|| "not there".to_owned())),
            ("sessions", health.sessions.to_string()),
            ("pool", pool),
            ("socket", socket),
            ("home", version.home),
        ])?;
        health.problems.iter().try_for_each(|problem| screen.warn(problem))
    })
}

async fn reload(context: &mut Context) -> Result<u8, Failure> {
    if !is_served(context).await {
        return not_running(context, exit::FAILURE);
    }
    let answer = context.client_of_running_daemon().post_empty("/v1/config/reload").await?;
    context.show(&answer, |screen, reloaded: ConfigReloaded| {
        let ConfigReloaded { file, applied, needs_restart } = reloaded;
        if applied.is_empty() && needs_restart.is_empty() {
            return screen.note(&format!("nothing has changed in {file}"));
        }
        if !applied.is_empty() {
            screen.note(&format!("in use from now on: {}", applied.join(", ")))?;
        }
        if !needs_restart.is_empty() {
            let keys = needs_restart.join(", ");
            screen.warn(&format!(
                "a restart of the daemon is needed for: {keys} (`belljar daemon stop`; sessions live on)"
            ))?;
        }
        Ok(())
    })
}

fn not_running(context: &mut Context, code: u8) -> Result<u8, Failure> {
    context.show_value(&json!({ "running": false }), |screen, _| screen.note("the daemon is not running"))?;
    Ok(code)
}
