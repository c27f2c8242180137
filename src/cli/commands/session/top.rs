//! `belljar top`: the sessions and the resources that they use, updated continually.

use std::collections::HashMap;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use std::io::IsTerminal as _;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::cli::client::http::Client;
use crate::cli::commands::session::inspect::{owner, state};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::keyboard::{KeyboardMode, keys};
use crate::cli::render::human::{Table, age, or_dash, size};
use crate::protocol::api::{SessionLimits, SessionList, SessionView};
use crate::protocol::exit_codes as exit;
use crate::protocol::ids::SessionId;
use crate::protocol::problem::Code;

/// Time between two samples.
const EVERY: Duration = Duration::from_secs(1);
/// Time between the first two samples, which a CPU share needs.
const FIRST: Duration = Duration::from_millis(500);
/// What the terminal sends for Ctrl-C.
const CTRL_C: u8 = 3;
/// Clears a terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Watch sessions: owner, state, CPU, memory and last activity; `q` ends it. Administrators see all of them.
///
/// `OF` is the memory of a session and, behind the plus, the reserve for its checkpoints; what is used has both.
#[derive(Debug, Args)]
pub(in crate::cli) struct Top {
    /// Show it once and end.
    #[arg(long)]
    once: bool,
}

/// CPU time of each session at some moment.
struct Sample {
    at: Instant,
    cpu_us: HashMap<SessionId, u64>,
    sessions: Vec<SessionView>,
}

impl Top {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let client = context.client();
        let live = !self.once && (context.json || context.screen.is_one_terminal());
        let mut before = sample(&client).await?;
        sleep(FIRST).await;
        let is_watched = live && !context.json && std::io::stdin().is_terminal();
        let mut keyboard = if is_watched { Some((KeyboardMode::single_keys()?, keys())) } else { None };
        loop {
            let now = sample(&client).await?;
            show(context, &before, &now, live)?;
            if !live {
                return Ok(exit::SUCCESS);
            }
            before = now;
            if let Some(code) = left_within(EVERY, keyboard.as_mut().map(|(_, keys)| keys)).await {
                return Ok(code);
            }
        }
    }
}

/// Waits. Gives the exit code if the person has typed `q` or Ctrl-C meanwhile.
async fn left_within(time: Duration, keys: Option<&mut mpsc::Receiver<Vec<u8>>>) -> Option<u8> {
    let Some(keys) = keys else {
        sleep(time).await;
        return None;
    };
    let until = Instant::now() + time;
    while let Ok(typed) = timeout_at(until, keys.recv()).await {
        match typed {
            Some(typed) if typed.contains(&CTRL_C) => return Some(exit::INTERRUPTED),
            Some(typed) if typed.contains(&b'q') => return Some(exit::SUCCESS),
            Some(_) => {}
            // The keyboard is gone.
            None => {
                sleep_until(until).await;
                return None;
            }
        }
    }
    None
}

async fn sample(client: &Client) -> Result<Sample, Failure> {
    let answer = match client.get("/v1/sessions?all=true").await {
        Err(failure) if failure.has_code(Code::Forbidden) => client.get("/v1/sessions").await,
        answer => answer,
    };
    let list: SessionList = answer?.parse()?;
    let cpu_us = list.sessions.iter().filter_map(|session| Some((session.id, session.load?.cpu_us)));
    Ok(Sample { at: Instant::now(), cpu_us: cpu_us.collect(), sessions: list.sessions })
}

fn show(context: &mut Context, before: &Sample, now: &Sample, live: bool) -> Result<(), Failure> {
    if context.json {
        let row = |session: &SessionView| {
            json!({
                "id": session.id,
                "name": session.name,
                "owner": session.owner,
                "state": session.state,
                "cpu_percent": percent(before, now, session),
                "memory_bytes": session.load.map(|load| load.memory_bytes),
                "idle_for_s": session.idle_for_s,
            })
        };
        let rows: Vec<_> = now.sessions.iter().map(row).collect();
        return context.screen.json(&json!({ "sessions": rows }));
    }
    let cells = |session: &SessionView| {
        [
            session.name.to_string(),
            owner(session.owner),
            state(session),
            or_dash(percent(before, now, session).map(|percent| format!("{percent:.0}%"))),
            or_dash(session.load.map(|load| size(load.memory_bytes))),
            of(&session.limits),
            age(session.idle_for_s),
        ]
    };
    if live {
        context.screen.raw(CLEAR.as_bytes())?;
    }
    let heads = ["NAME", "OWNER", "STATE", "CPU", "MEMORY", "OF", "IDLE"];
    context.screen.table(&Table::new(heads, now.sessions.iter().map(cells)))
}

/// `1 GiB + 512 MiB`: the session's own memory, and the reserve for its checkpoints, which are in what is used.
fn of(limits: &SessionLimits) -> String {
    match limits.checkpoint_bytes {
        0 => size(limits.memory_bytes),
        reserve => format!("{} + {}", size(limits.memory_bytes), size(reserve)),
    }
}

/// The share of one CPU that a session used since the previous sample.
#[expect(clippy::cast_precision_loss, reason = "microseconds between two looks are few")]
fn percent(before: &Sample, now: &Sample, session: &SessionView) -> Option<f64> {
    let elapsed = now.at.duration_since(before.at).as_micros();
    let used = session.load?.cpu_us.saturating_sub(*before.cpu_us.get(&session.id)?);
    (elapsed > 0).then(|| used as f64 * 100.0 / elapsed as f64)
}
