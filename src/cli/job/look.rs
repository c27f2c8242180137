//! Looking at jobs that were sent, and ending them.

use std::path::Path;

use crate::protocol::event::EventBody;
use crate::protocol::exit_codes as exit;
use crate::protocol::job::{JobList, JobState, JobView};

use super::super::cell::show_event;
use super::super::client::escaped_path;
use super::super::context::Context;
use super::super::failure::Failure;
use super::super::human::{Table, size};
use super::super::ps::owner;
use super::super::screen::Tint;
use super::watch::fetch;

pub(super) async fn list(context: &mut Context, all: bool) -> Result<u8, Failure> {
    let answer = context.client().get(if all { "/v1/jobs?all=true" } else { "/v1/jobs" }).await?;
    if context.json {
        context.screen.line(&answer.text())?;
        return Ok(exit::SUCCESS);
    }
    let list: JobList = answer.parse()?;
    if list.jobs.is_empty() {
        context.screen.note("no jobs; run one with `belljar job run FILE`")?;
        return Ok(exit::SUCCESS);
    }
    let heads = ["OWNER", "ID", "NAME", "STATE", "EXIT", "TIME", "CREATED"];
    let left_out = usize::from(!all);
    let mut table = Table::new(&heads[left_out..]);
    for job in &list.jobs {
        let cells = [
            owner(job.owner),
            job.id.to_string(),
            job.name.clone(),
            state(job),
            job.end.as_ref().map_or_else(|| "-".to_owned(), |end| end.exit_code.to_string()),
            job.end
                .as_ref()
                .map_or_else(|| "-".to_owned(), |end| format!("{:.2}s", end.duration_ms / 1000.0)),
            job.created_at.clone(),
        ];
        table.row(&cells[left_out..]);
    }
    for (index, line) in table.lines().iter().enumerate() {
        let line = if index == 0 { context.screen.tinted(Tint::Bold, line) } else { line.clone() };
        context.screen.line(&line)?;
    }
    Ok(exit::SUCCESS)
}

fn state(job: &JobView) -> String {
    match (&job.end, job.state) {
        (Some(end), _) => end.verdict.name().replace('_', " "),
        (None, JobState::Queued) => "waits".to_owned(),
        (None, _) => "runs".to_owned(),
    }
}

pub(super) async fn show(context: &mut Context, id: &str) -> Result<u8, Failure> {
    let answer = context.client().get(&path(id, "")).await?;
    if context.json {
        context.screen.line(&answer.text())?;
        return Ok(exit::SUCCESS);
    }
    context.screen.facts(&facts(&answer.parse()?))?;
    Ok(exit::SUCCESS)
}

fn facts(job: &JobView) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("name", job.name.clone()),
        ("id", job.id.to_string()),
        ("state", state(job)),
        ("script", job.script.clone()),
        ("arguments", job.args.join(" ")),
        ("variables", job.env.join(" ")),
        ("timeout", format!("{} s", job.timeout_s)),
        ("created", job.created_at.clone()),
    ];
    facts.extend(job.started_at.iter().map(|at| ("started", at.clone())));
    facts.extend(job.ended_at.iter().map(|at| ("ended", at.clone())));
    if let Some(end) = &job.end {
        facts.push(("exit code", end.exit_code.to_string()));
        facts.push(("reason", end.reason.clone()));
        for artifact in &end.artifacts {
            facts.push((
                "artifact",
                format!("{} ({}, sha256 {})", artifact.path, size(artifact.bytes), artifact.sha256),
            ));
        }
    }
    if let Some(receipt) = &job.receipt {
        let input = &receipt.input;
        facts.push((
            "input",
            format!("{} files, {}, sha256 {}", input.files, size(input.bytes), input.sha256),
        ));
        facts.push(("script is", format!("sha256 {}", receipt.script_sha256)));
        if job.started_at.is_some() {
            facts.push(("image", format!("{} ({})", receipt.image.reference, receipt.image.id)));
            facts.push(("python", receipt.python.clone()));
            facts.push(("isolation", receipt.isolation.clone()));
        }
    }
    for act in &job.admin_acts {
        facts.push(("admin", format!("{} {}: {}", act.at, owner(act.admin), act.act)));
    }
    facts
}

pub(super) async fn logs(context: &mut Context, id: &str, follow: bool) -> Result<u8, Failure> {
    let client = context.client();
    let mut events = client.events::<()>(&path(id, &format!("/events?follow={follow}")), None).await?;
    let mut any = false;
    while let Some(event) = events.next().await? {
        any = true;
        if context.json {
            context.screen.json(&event)?;
        } else if matches!(event.body, EventBody::Output { .. } | EventBody::OutputCut { .. }) {
            show_event(&mut context.screen, &event.body)?;
        }
    }
    if !any && client.get(&path(id, "")).await?.parse::<JobView>()?.started_at.is_some() {
        context.screen.warn("what it wrote is no longer kept: it is old, or `quota.journal` was used up")?;
    }
    Ok(exit::SUCCESS)
}

pub(super) async fn cancel(context: &mut Context, ids: &[String]) -> Result<u8, Failure> {
    let client = context.client();
    for id in ids {
        client.post_empty(&path(id, "/cancel")).await?;
    }
    for id in ids {
        // Answered when nothing of it is left.
        let answer = client.get(&path(id, "?wait=true")).await?;
        if context.json {
            context.screen.line(&answer.text())?;
        }
    }
    Ok(exit::SUCCESS)
}

pub(super) async fn artifacts(context: &mut Context, id: &str, folder: &Path) -> Result<u8, Failure> {
    fetch(&context.client(), &escaped_path(id), folder).await.map(|()| exit::SUCCESS)
}

pub(super) async fn forget(context: &mut Context, ids: &[String]) -> Result<u8, Failure> {
    let client = context.client();
    for id in ids {
        client.delete(&path(id, "")).await?;
    }
    Ok(exit::SUCCESS)
}

fn path(id: &str, rest: &str) -> String {
    format!("/v1/jobs/{}{rest}", escaped_path(id))
}
