//! Commands that show, cancel and remove jobs that were sent.

use std::path::Path;

use super::key::{JobKey, Wanted};
use super::watch::fetch;
use crate::cli::client::http::Client;
use crate::cli::commands::session::inspect::owner;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::cell::show_event;
use crate::cli::render::human::{Table, or_dash, size};
use crate::protocol::event::EventBody;
use crate::protocol::exit_codes as exit;
use crate::protocol::job::{JobArtifact, JobList, JobState, JobView};
use crate::protocol::result::WORKSPACE;

pub(in crate::cli) async fn list(context: &mut Context, all: bool) -> Result<u8, Failure> {
    let path = if all { "/v1/jobs?all=true" } else { "/v1/jobs" };
    let answer = context.client().get(path).await?;
    context.show(&answer, |screen, list: JobList| match list.jobs.as_slice() {
        [] => screen.note("no jobs; run one with `belljar job run FILE`"),
        jobs => screen.table(&table(jobs, all)),
    })
}

fn table(jobs: &[JobView], of_all: bool) -> Table {
    let heads = ["OWNER", "ID", "NAME", "STATE", "EXIT", "TIME", "CREATED"];
    let cells = |job: &JobView| {
        let end = job.end.as_ref();
        [
            owner(job.owner),
            job.id.to_string(),
            job.name.clone(),
            state(job),
            or_dash(end.map(|end| end.exit_code.to_string())),
            or_dash(end.map(|end| format!("{:.2}s", end.duration_ms / 1000.0))),
            job.created_at.clone(),
        ]
    };
    Table::new(heads, jobs.iter().map(cells)).without_first(usize::from(!of_all))
}

fn state(job: &JobView) -> String {
    match (&job.end, job.state) {
        (Some(end), _) => end.verdict.name().replace('_', " "),
        (None, JobState::Queued) => "waits".to_owned(),
        (None, _) => "runs".to_owned(),
    }
}

pub(in crate::cli) async fn show(context: &mut Context, job: &JobKey) -> Result<u8, Failure> {
    let client = context.client();
    let id = job.resolve(context, &client, Wanted::Newest).await?;
    let answer = client.get(&path(&id, "")).await?;
    context.show(&answer, |screen, job| screen.facts(&facts(&job)))
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
            facts.push(("artifact", artifact_line(artifact)));
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

/// Where the script found the file, whatever its working directory was.
fn artifact_line(artifact: &JobArtifact) -> String {
    format!("{WORKSPACE}/{} ({}, sha256 {})", artifact.path, size(artifact.bytes), artifact.sha256)
}

pub(in crate::cli) async fn logs(context: &mut Context, job: &JobKey, follow: bool) -> Result<u8, Failure> {
    let client = context.client();
    let id = job.resolve(context, &client, Wanted::Newest).await?;
    let mut events = client.events::<()>(&path(&id, &format!("/events?follow={follow}")), None).await?;
    let mut any = false;
    while let Some(event) = events.next().await? {
        any = true;
        if context.json {
            context.screen.json(&event)?;
        } else if matches!(event.body, EventBody::Output { .. } | EventBody::OutputCut { .. }) {
            show_event(&mut context.screen, &event.body)?;
        }
    }
    if !any && client.get(&path(&id, "")).await?.parse::<JobView>()?.started_at.is_some() {
        context.screen.warn("what it wrote is no longer kept: it is old, or `quota.journal` was used up")?;
    }
    Ok(exit::SUCCESS)
}

pub(in crate::cli) async fn cancel(context: &mut Context, jobs: &[JobKey]) -> Result<u8, Failure> {
    let client = context.client();
    let ids = resolve_all(context, &client, jobs, Wanted::Unended).await?;
    // The daemon answers when a job has ended, so all are asked to end before the first answer.
    let cancelled = ids.iter().map(async |id| client.post_empty(&path(id, "/cancel")).await);
    for cancelled in futures_util::future::join_all(cancelled).await {
        cancelled?;
    }
    for id in &ids {
        // The daemon answers when the job has ended and nothing of it is left.
        let answer = client.get(&path(id, "?wait=true")).await?;
        context.show(&answer, |_, _: JobView| Ok(()))?;
    }
    Ok(exit::SUCCESS)
}

pub(in crate::cli) async fn artifacts(
    context: &mut Context,
    job: &JobKey,
    folder: &Path,
) -> Result<u8, Failure> {
    let client = context.client();
    let id = job.resolve(context, &client, Wanted::Newest).await?;
    fetch(&client, &id, folder).await.map(|()| exit::SUCCESS)
}

pub(in crate::cli) async fn forget(context: &mut Context, jobs: &[JobKey]) -> Result<u8, Failure> {
    let client = context.client();
    for id in resolve_all(context, &client, jobs, Wanted::Ended).await? {
        client.delete(&path(&id, "")).await?;
    }
    Ok(exit::SUCCESS)
}

/// The ids of all jobs, before anything is done to one of them.
async fn resolve_all(
    context: &mut Context,
    client: &Client,
    jobs: &[JobKey],
    wanted: Wanted,
) -> Result<Vec<String>, Failure> {
    let mut ids = Vec::new();
    for job in jobs {
        ids.push(job.resolve(context, client, wanted).await?);
    }
    Ok(ids)
}

fn path(id: &str, rest: &str) -> String {
    format!("/v1/jobs/{id}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_have_absolute_paths() {
        let artifact = JobArtifact { path: "out/a.csv".into(), bytes: 2048, sha256: "0a1b".into() };
        assert_eq!(artifact_line(&artifact), "/workspace/out/a.csv (2 KiB, sha256 0a1b)");
    }
}
