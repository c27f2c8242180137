//! `belljar logs`: what happened in a session.

use clap::Args;

use crate::protocol::event::{EventBody, ToolOutcome};
use crate::protocol::ids::Seq;
use crate::protocol::result::{Status, Stream};

use super::approval::{decided_line, summary};
use super::args::SessionArg;
use super::ask::{steps, why_not};
use super::cell::show_event;
use super::context::Context;
use super::exit;
use super::failure::Failure;
use super::follow::Trail;
use super::human::clipped;
use super::sanitize::one_line;
use super::shown::call_line;

/// Of what a model, a tool or a person said; `--json` has all of it.
const LINE_CHARS: usize = 160;

/// Show what happened in a session: output on stdout and stderr, everything else on stderr.
#[derive(Debug, Args)]
pub(super) struct Logs {
    #[command(flatten)]
    session: SessionArg,
    /// Go on with what happens from now on.
    #[arg(short, long)]
    follow: bool,
    /// Only events after this number.
    #[arg(long, value_name = "N")]
    after: Option<Seq>,
}

impl Logs {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let session = self.session.resolve()?;
        let mut path = format!("/v1/sessions/{session}/events?follow={}", self.follow);
        // Without a number it is from the oldest event that is still kept.
        if let Some(after) = self.after {
            path = format!("{path}&after={after}");
        }
        let mut events = context.client().events::<()>(&path, None).await?;
        let mut trail = Trail::after(self.after.unwrap_or(0));
        let mut removed = false;
        loop {
            let event = match events.next().await {
                Ok(Some(event)) => event,
                Ok(None) if removed || !self.follow => break,
                Err(failure) if failure.problem.is_some() || !self.follow => return Err(failure),
                Ok(None) | Err(_) => {
                    // Whoever only looks on does not bring back a daemon that was meant to end.
                    let hint = "no daemon has come back; any other command starts one";
                    events = trail.resume(&context.client_of_running_daemon(), &session, hint).await?;
                    continue;
                }
            };
            trail.saw(event.seq);
            removed = matches!(event.body, EventBody::SessionRemoved);
            if context.json {
                context.screen.json(&event)?;
                continue;
            }
            if let Some(line) = milestone(&event.body) {
                // Anything else may come in the middle of a line that the cell is still writing.
                if matches!(event.body, EventBody::CellFinished { .. }) {
                    context.screen.end_line(Stream::Stdout)?;
                }
                context.screen.note(&line)?;
            } else {
                show_event(&mut context.screen, &event.body)?;
            }
        }
        context.screen.end_line(Stream::Stdout)?;
        context.screen.end_line(Stream::Stderr)?;
        Ok(exit::SUCCESS)
    }
}

fn short(text: &str) -> String {
    clipped(&one_line(text), LINE_CHARS)
}

/// `was answered: …` or `failed: …`
fn answer(outcome: &ToolOutcome) -> String {
    match outcome {
        ToolOutcome::Value(value) => {
            let text = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            format!("was answered: {}", short(&text))
        }
        ToolOutcome::Failure(failure) => format!("failed: {}: {}", failure.code, short(&failure.message)),
    }
}

/// Who decided on an approval.
fn decider(by: Option<u32>) -> String {
    by.map_or_else(|| "its deadline".to_owned(), |by| format!("user {by}"))
}

/// Events that are worth a line of their own.
fn milestone(event: &EventBody) -> Option<String> {
    Some(match event {
        EventBody::SessionCreated { name } => format!("-- session {name} was made"),
        EventBody::SandboxStarting { backend, image } => {
            format!("-- a sandbox starts: {}, {image}", backend.name())
        }
        EventBody::ImagePulling { status } => format!("-- pulling the image: {status}"),
        EventBody::SandboxReady { python, isolation, .. } => {
            format!("-- the sandbox is ready: Python {python}, {isolation}")
        }
        EventBody::CellQueued { cell, .. } => format!("-- cell {cell} waits"),
        EventBody::CellStarted { cell, .. } => format!("-- cell {cell} runs"),
        EventBody::ToolCalled { call, name, .. } => format!("-- tool call {call}: {name}"),
        EventBody::ToolBegun { call, .. } => format!("-- tool call {call} is made"),
        EventBody::ToolAnswered { call, outcome: ToolOutcome::Value(_) } => {
            format!("-- tool call {call} was answered")
        }
        EventBody::ToolAnswered { call, outcome: ToolOutcome::Failure(failure) } => {
            format!("-- tool call {call} failed: {}", failure.code)
        }
        EventBody::SandboxAttached => "-- the daemon was started anew; the sandbox goes on".to_owned(),
        EventBody::Interrupting { cell } => format!("-- cell {cell} is being interrupted"),
        EventBody::CellFinished { result } => {
            let how = match result.status {
                Status::Success => "succeeded",
                Status::Failure => "failed",
                Status::Timeout => "ran out of time",
                Status::Crashed => "crashed",
                Status::Interrupted => "was interrupted",
            };
            let why = result.exception.as_ref().map(|e| format!(": {}", e.repr)).unwrap_or_default();
            format!("-- cell {} {how} after {:.0} ms{why}", result.cell, result.duration_ms)
        }
        EventBody::Undone { state_of: 0 } => "-- all cells were undone".to_owned(),
        EventBody::Undone { state_of } => format!("-- cells after {state_of} were undone"),
        EventBody::Reset => "-- the session was reset".to_owned(),
        EventBody::ReplayStarted { cells } => format!("-- {} cells are run again", cells.len()),
        EventBody::ReplayFinished => "-- all of them have run again".to_owned(),
        EventBody::Frozen => "-- the sandbox is frozen".to_owned(),
        EventBody::Thawed => "-- the sandbox goes on".to_owned(),
        EventBody::AdminActed { admin, act } => format!("-- administrator {admin}: {act}"),
        EventBody::SessionRemoved => "-- the session was removed".to_owned(),
        EventBody::AskStarted { ask, spec } => {
            format!("-- ask {ask} to {}: {}", spec.model, short(&spec.text))
        }
        EventBody::ModelAsked { ask, step } => format!("-- ask {ask}: request {step} to the model"),
        EventBody::ModelReplied { ask, reply, .. } => {
            let calls = reply.message.tool_calls.iter().map(|call| call.name.as_str());
            let calls: Vec<&str> =
                calls.chain(reply.message.function_call.iter().map(|call| call.name.as_str())).collect();
            let calls =
                if calls.is_empty() { String::new() } else { format!(" [calls {}]", calls.join(", ")) };
            let tokens = reply.usage.map(|usage| format!(" ({} tokens)", usage.total())).unwrap_or_default();
            format!("-- ask {ask}: the model says{tokens}: {}{calls}", short(&reply.message.content))
        }
        EventBody::ModelFailed { ask, failure, retry_in_s, .. } => {
            let again = retry_in_s.map(|s| format!(", again in {s:.1} s")).unwrap_or_default();
            format!("-- ask {ask}: the model failed: {}{again}", short(&failure.message))
        }
        EventBody::ModelSpent { ask, tokens, .. } => {
            format!("-- ask {ask}: a request without a reply cost about {tokens} tokens")
        }
        EventBody::AskSpentWithin { ask, usage, .. } => {
            format!("-- ask {ask}: an ask within it used {} tokens", usage.total())
        }
        EventBody::AskWaitsWithin { ask, approvals } => {
            format!("-- ask {ask}: {} decisions are wanted by asks within it", approvals.len())
        }
        EventBody::AskToolCalled { ask, id, name, arguments } => {
            format!("-- ask {ask}: {id} calls {}", call_line(name, arguments))
        }
        EventBody::AskToolAnswered { ask, id, outcome } => format!("-- ask {ask}: {id} {}", answer(outcome)),
        EventBody::AskNoted { ask, note } => format!("-- ask {ask}: {}", short(note)),
        EventBody::ApprovalWanted { approval } => {
            format!("-- approval {} is wanted: {}", approval.id, short(&summary(&approval.subject)))
        }
        EventBody::ApprovalDecided { id, decision, by } => {
            format!("-- approval {id}: {}, by {}", short(&decided_line(decision)), decider(*by))
        }
        EventBody::PlanChanged { plan, .. } => {
            format!("-- plan version {}: {}", plan.version, short(&plan.changes.join("; ")))
        }
        EventBody::AskFinished { ask, end } => {
            let how = why_not(end)
                .unwrap_or_else(|| format!("answered: {}", end.answer.as_deref().unwrap_or_default()));
            format!(
                "-- ask {ask} ended after {}, {} tokens: {}",
                steps(end.steps),
                end.usage.total(),
                short(&how)
            )
        }
        EventBody::Output { .. }
        | EventBody::ModelText { .. }
        | EventBody::OutputCut { .. }
        | EventBody::Display { .. }
        | EventBody::SandboxGone { .. }
        | EventBody::CellDied { .. }
        | EventBody::ResetDone { .. }
        | EventBody::StateLost { .. } => return None,
    })
}
