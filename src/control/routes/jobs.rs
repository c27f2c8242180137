//! Jobs: input files, submission, verdicts, output and artifacts.

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use std::io::{BufReader, Read, Seek, Write};
use std::time::Duration;
use tokio_util::io::{ReaderStream, StreamReader, SyncIoBridge};

use super::events::{EventsQuery, last_event_id};
use super::files::pass_over;
use super::requests::{ListQuery, WaitQuery};
use crate::actors::jobs::{InputReservation, JobsMsg, WatchedJob, artifacts_of};
use crate::control::app::App;
use crate::control::body::{JsonBody, Path, Query, in_time, upload_slot};
use crate::control::caller::Caller;
use crate::control::problems::{ApiResult, RefusedRequest};
use crate::control::sse::{self, Until};
use crate::memory::{MemoryPurpose, offload_if_large};
use crate::protocol::api::Done;
use crate::protocol::ids::JobId;
use crate::protocol::job::{JobInput, JobList, JobState, JobView, NewJob};
use crate::protocol::limits::{JOB_INPUT_BYTES, JOBS_LISTED};
use crate::protocol::problem::{Code, Problem};
use crate::protocol::text::quotable;
use crate::sandbox::workspace::job_files;
use crate::security_controls;
use crate::store::{JobRecord, act_bytes};

const CHUNK: usize = 64 * 1024;
/// Copies of a job's record in memory while a list is made: text, values and answer.
const LIST_COPIES: u64 = 3;

/// Receives the input files of a job. The answer comes after the whole stream is on disk and checked.
pub async fn receive(State(app): State<App>, caller: Caller, request: Request) -> ApiResult<Json<JobInput>> {
    let slot = upload_slot(&app, caller.principal)?;
    let reserved = app.inputs.reserve(caller.principal);
    let mut input = SyncIoBridge::new(StreamReader::new(in_time(request.into_body())));
    let stored = tokio::task::spawn_blocking(move || {
        let _slot = slot;
        let stored = reserved.and_then(|reserved| keep(reserved, &mut input));
        if stored.is_err() {
            pass_over(&mut input);
        }
        stored
    });
    Ok(Json(stored.await.map_err(|error| Problem::new(Code::Internal, error.to_string()))??))
}

fn keep(reserved: InputReservation, input: &mut impl Read) -> Result<JobInput, Problem> {
    let storage = |error: std::io::Error| {
        Problem::new(Code::Storage, format!("the files of the job cannot be kept: {error}"))
    };
    let options = std::fs::File::options().read(true).write(true).create_new(true).open(reserved.path());
    let mut file = options.map_err(storage)?;
    // Twice the limit allows for the header and padding that tar adds to each small file.
    let mut bytes_left = 2 * JOB_INPUT_BYTES;
    let mut buffer = vec![0; CHUNK];
    loop {
        let count = input
            .read(&mut buffer)
            .map_err(|error| Problem::new(Code::BadRequest, format!("the upload broke off: {error}")))?;
        let Some(chunk) = buffer.get(..count).filter(|chunk| !chunk.is_empty()) else { break };
        bytes_left = bytes_left.checked_sub(count as u64).ok_or_else(job_files::too_large)?;
        reserved.charge(count as u64)?;
        file.write_all(chunk).map_err(storage)?;
    }
    file.sync_all().and_then(|()| file.rewind()).map_err(storage)?;
    let manifest = job_files::look_through(BufReader::new(file))?;
    Ok(reserved.finish(manifest))
}

pub async fn submit(
    State(app): State<App>,
    caller: Caller,
    JsonBody(job, memory): JsonBody<NewJob>,
) -> ApiResult<(StatusCode, Json<JobView>)> {
    let job = Box::new(job);
    let view =
        app.jobs.call(|reply_to| JobsMsg::Submit { owner: caller.principal, job, memory, reply_to }).await?;
    Ok((StatusCode::ACCEPTED, Json(view?)))
}

pub async fn list(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ListQuery>,
) -> ApiResult<Response> {
    let owner = query.owner(&app, &caller)?;
    let mut memory = app.ledger.memory(caller.principal).open(MemoryPurpose::Answers);
    // Each record is charged before it is read, and so is the answer that all of them become.
    let jobs = app.journal.job_views(owner, JOBS_LISTED, |bytes| {
        memory.try_grow(bytes.saturating_mul(LIST_COPIES)).map_err(Problem::from)
    })?;
    let response = offload_if_large(memory.bytes(), || Json(JobList { jobs }).into_response());
    drop(memory);
    Ok(response)
}

pub async fn show(
    Query(query): Query<WaitQuery>,
    JobRequest { app, record, .. }: JobRequest,
) -> ApiResult<Json<JobView>> {
    let id = record.view.id;
    while query.wait
        && let Some(mut watched) = watch(&app, id).await?
    {
        tokio::select! {
            () = app.shutdown.cancelled() => {
                return Err(Problem::new(Code::ShuttingDown, "the daemon ends; the job goes on with the next one")
                    .hint("ask for it again when the next daemon runs")
                    .into());
            }
            () = ended(&mut watched) => {}
        }
    }
    let mut view = known_job(&app, id)?.view;
    view.admin_acts = app.journal.acts(id)?;
    Ok(Json(view))
}

/// Waits until the job has ended or the jobs actor has died; its successor takes up the job.
async fn ended(watched: &mut WatchedJob) {
    while watched.state.changed().await.is_ok() {}
}

/// Deletes an ended job: its verdict, its artifacts and its output.
pub async fn forget(JobRequest { app, record, .. }: JobRequest) -> ApiResult<Json<Done>> {
    let id = record.view.id;
    if !app.journal.forget_job(id).await? {
        return Err(Problem::new(Code::Busy, "the job has not ended")
            .hint(format!("cancel it first: `belljar job cancel {id}`"))
            .into());
    }
    let _ = tokio::fs::remove_file(artifacts_of(&app.launcher, id)).await;
    if let Some(session) = record.session {
        app.journal.forget(session).await?;
    }
    Ok(Json(Done {}))
}

/// How long the answer to a cancellation waits for the end of the job.
const CANCELLED_WITHIN: Duration = Duration::from_secs(60);

pub async fn cancel(JobRequest { app, record, .. }: JobRequest) -> ApiResult<Json<Done>> {
    let id = record.view.id;
    let cancelled = app.jobs.call(|reply_to| JobsMsg::Cancel { id, reply_to });
    tokio::time::timeout(CANCELLED_WITHIN, cancelled).await.map_err(|_| {
        Problem::new(Code::Storage, "the job is being cancelled, and its end is not in the journal yet")
            .hint("look at it with `belljar job show`")
    })??;
    Ok(Json(Done {}))
}

/// Streams the events of the job's sandbox; with `follow`, from the moment there is a sandbox until the job has ended.
pub async fn events(
    headers: HeaderMap,
    Query(query): Query<EventsQuery>,
    JobRequest { app, caller, mut record }: JobRequest,
) -> ApiResult<Response> {
    let follow = query.follow.unwrap_or(true);
    let mut watching = if follow { watch(&app, record.view.id).await? } else { None };
    if let Some(watched) = &mut watching
        && *watched.state.borrow_and_update() == JobState::Queued
    {
        tokio::select! {
            () = app.shutdown.cancelled() => {}
            // The state also changes if the job ends without ever having run.
            _ = watched.state.changed() => {}
        }
        record = known_job(&app, record.view.id)?;
    }
    let Some(session) = record.session else { return Ok(sse::event_stream(Body::empty())) };
    let log = app.journal.log(session)?;
    let after = last_event_id(&headers)?.or(query.after).unwrap_or(0);
    let Some(WatchedJob { mut state, hold }) = watching else {
        return app.stream(&caller, log, after, Until::Now);
    };
    // The sandbox may be gone already, and then its log never gets an event about the end of the job.
    let ended = app.shutdown.child_token();
    let ends = ended.clone();
    tokio::spawn(async move {
        tokio::select! {
            () = ends.cancelled() => {}
            () = async { while state.changed().await.is_ok() {} } => ends.cancel(),
        }
    });
    let pool = app.ledger.memory(caller.principal);
    Ok(sse::respond(log, after, Until::SessionEnd, ended, pool, Some(hold))?)
}

pub async fn artifacts(JobRequest { app, record, .. }: JobRequest) -> ApiResult<Response> {
    let file = tokio::fs::File::open(artifacts_of(&app.launcher, record.view.id)).await.map_err(|_| {
        Problem::new(Code::NoSuchFile, "nothing was kept of this job")
            .hint("name patterns of files with `artifacts`")
    })?;
    let body = Body::from_stream(ReaderStream::with_capacity(file, CHUNK));
    Ok(([(header::CONTENT_TYPE, "application/x-tar")], body).into_response())
}

/// A request about one job of the caller's. Administrators also reach jobs of other users; each such access is recorded
/// first.
pub struct JobRequest {
    app: App,
    caller: Caller,
    record: JobRecord,
}

impl FromRequestParts<App> for JobRequest {
    type Rejection = RefusedRequest;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, RefusedRequest> {
        let caller = Caller::from_request_parts(parts, app).await?;
        let Path(key) = Path::<String>::from_request_parts(parts, app).await?;
        let id = JobId(uuid::Uuid::parse_str(&key).map_err(|_| no_such_job(&key))?);
        let record = known_job(app, id)?;
        if !caller.reaches(record.view.owner) && security_controls::holds("jobs_have_an_owner") {
            // In the words for a job that does not exist: however the id is spelt, both read the same.
            return Err(no_such_job(&id.to_string()).into());
        }
        if record.view.owner != caller.principal {
            // However the id is spelt, it is the same act.
            let act = caller.act.replace(&key, &id.to_string());
            let bytes = act_bytes(&act);
            app.answer_charges.charge_anyway(caller.principal, bytes).await;
            if !app.journal.note_act(id, caller.principal, &act).await? {
                app.answer_charges.refund(caller.principal, bytes);
            }
        }
        Ok(Self { app: app.clone(), caller, record })
    }
}

fn known_job(app: &App, id: JobId) -> ApiResult<JobRecord> {
    Ok(app.journal.job(id)?.ok_or_else(|| no_such_job(&id.to_string()))?)
}

fn no_such_job(key: &str) -> Problem {
    Problem::new(Code::NoSuchJob, format!("there is no job `{}`", quotable(key)))
        .hint("list yours with `belljar job ls`")
}

/// Watches a job that has not ended. As long as the result is kept, an ephemeral job is not cancelled.
async fn watch(app: &App, id: JobId) -> ApiResult<Option<WatchedJob>> {
    Ok(app.jobs.call(|reply_to| JobsMsg::Watch { id, reply_to }).await?)
}
