//! Shows a cell or a command while it runs: shared by `exec`, `run`, `repl` and `sh`.

use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::client::follow::StreamPosition;
use crate::cli::client::http::{Client, Events};
use crate::cli::client::session_key::SessionKey;
use crate::cli::commands::cell::silence::{MoreTime, Silence};
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::cell::show_event;
use crate::protocol::api::RunCell;
use crate::protocol::command::NewCommand;
use crate::protocol::event::EventBody;
use crate::protocol::exit_codes as exit;
use crate::protocol::ids::CellNumber;
use crate::protocol::result::ExecutionResult;

/// How watching a cell ended.
pub(in crate::cli) enum End {
    Finished(Box<ExecutionResult>),
    /// A signal ended the watching; the cell may continue. The exit code says which signal.
    Left(u8),
}

/// Catches SIGINT and SIGTERM from its construction on.
pub(in crate::cli) struct Stops {
    interrupt: Signal,
    terminate: Signal,
}

impl Stops {
    pub fn new() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|e| Failure::io("failed to listen for signals", &e));
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// The exit code that the next signal asks for.
    pub async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.interrupt.recv() => exit::INTERRUPTED,
            _ = self.terminate.recv() => exit::TERMINATED,
        }
    }
}

/// Sends the cell and shows its output until it ends. A first Ctrl-C interrupts the cell, a second
/// leaves it.
pub(in crate::cli) async fn stream(
    context: &mut Context,
    client: &Client,
    session: &SessionKey,
    (cell, more_time): (&RunCell, MoreTime),
    stops: &mut Stops,
) -> Result<End, Failure> {
    let end = watch(context, client, session, ("cells", cell, more_time), stops).await;
    context.screen.progress("")?;
    end
}

/// The same for a command.
pub(in crate::cli) async fn stream_command(
    context: &mut Context,
    client: &Client,
    session: &SessionKey,
    command: &NewCommand,
    stops: &mut Stops,
) -> Result<End, Failure> {
    let end = watch(context, client, session, ("commands", command, MoreTime::COMMAND), stops).await;
    context.screen.progress("")?;
    end
}

async fn watch<T: Serialize>(
    context: &mut Context,
    client: &Client,
    session: &SessionKey,
    (kind, body, more_time): (&str, &T, MoreTime),
    stops: &mut Stops,
) -> Result<End, Failure> {
    let path = format!("/v1/sessions/{session}/{kind}?stream=true");
    let mut events: Events = tokio::select! {
        biased;
        code = stops.next() => return Ok(End::Left(code)),
        events = client.events(&path, Some(body)) => events?,
    };
    let mut interrupted = false;
    let mut seen: Option<CellProgress> = None;
    let mut silence = Silence::new(more_time);
    let is_watched = context.screen.is_watched() && !context.json;
    loop {
        let event = tokio::select! {
            code = stops.next() => {
                if interrupted || code == exit::TERMINATED {
                    return Ok(End::Left(code));
                }
                interrupted = true;
                context.screen.note("interrupting it; press Ctrl-C again to leave it")?;
                let path = match &seen {
                    Some(seen) if kind == "commands" => format!("/commands/{}/interrupt", seen.cell),
                    _ => "/interrupt".to_owned(),
                };
                client.post_empty(&format!("/v1/sessions/{session}{path}")).await?;
                continue;
            }
            line = silence.line(), if is_watched => {
                context.screen.progress(&line)?;
                continue;
            }
            event = events.next() => event,
        };
        let event = match (event, &mut seen) {
            (Ok(Some(event)), _) => event,
            (Ok(None), None) => {
                return Err(Failure::new("the daemon ended the stream before it told of the cell"));
            }
            (Err(failure), None) => return Err(failure),
            // The daemon itself says why the stream cannot continue.
            (Err(failure), Some(_)) if failure.problem.is_some() => return Err(failure),
            (Ok(None) | Err(_), Some(seen)) => {
                let hint =
                    format!("the cell goes on: `belljar wait -s {session} {}` shows its end", seen.cell);
                events = tokio::select! {
                    code = stops.next() => return Ok(End::Left(code)),
                    resumed = seen.trail.resume(client, session, &hint) => resumed?,
                };
                continue;
            }
        };
        let Some(cell) = event.body.cell().or(seen.as_ref().map(|seen| seen.cell)) else { continue };
        let seen = seen.get_or_insert(CellProgress { cell, trail: StreamPosition::after(event.seq) });
        seen.trail.saw(event.seq);
        // A resumed stream has the events of the whole session.
        if event.body.cell() != Some(seen.cell) && !event.body.befalls_session() {
            continue;
        }
        silence.heard(&event.body);
        match event.body {
            EventBody::CellFinished { result } => return Ok(End::Finished(result)),
            body if !context.json => show_event(&mut context.screen, &body)?,
            _ => {}
        }
    }
}

/// The cell that the stream is about, and how far the stream has been read.
struct CellProgress {
    cell: CellNumber,
    trail: StreamPosition,
}
