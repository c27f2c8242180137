//! Branches of sessions, what two sessions differ in, and archives by which sessions move.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Deserialize;
use std::io::BufWriter;
use tokio::sync::oneshot;
use tokio_util::io::{StreamReader, SyncIoBridge};

use super::files::{CHUNK, Outgoing, pass_over, tar_response};
use super::requests::SessionRequest;
use crate::actors::branches::import::ImportOptions;
use crate::actors::branches::{SessionMaker, Spool, branch, compare, export, import};
use crate::actors::calls::try_call;
use crate::actors::session::messages::SessionMsg;
use crate::control::app::App;
use crate::control::body::{JsonBody, Path, Query, in_time, upload_slot};
use crate::control::caller::Caller;
use crate::control::problems::ApiResult;
use crate::protocol::branch::{BranchList, Imported, NewBranches, SessionDiff};
use crate::protocol::ids::SessionName;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Backend;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};

fn maker(app: &App) -> SessionMaker {
    SessionMaker {
        supervisor: app.supervisor.clone(),
        directory: app.directory.clone(),
        launcher: app.launcher.clone(),
        settings: app.settings.clone(),
        ledger: app.ledger.clone(),
        journal: app.journal.clone(),
        snapshots: app.snapshots.clone(),
    }
}

/// Does the work to its end also if the client hangs up: half of it would leave sessions that nobody knows of.
async fn to_the_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Problem>> + Send + 'static,
) -> ApiResult<T> {
    let done = tokio::spawn(work).await;
    Ok(done.map_err(|error| Problem::new(Code::Internal, error.to_string()))??)
}

pub async fn branch(
    request: SessionRequest,
    JsonBody(wanted, charge): JsonBody<NewBranches>,
) -> ApiResult<(StatusCode, Json<BranchList>)> {
    let (session, handles) = request.handles().await?;
    let (maker, caller) = (maker(&request.app), request.caller.principal);
    let made = to_the_end(async move {
        let _charge = charge;
        branch::branch(&maker, caller, (&session, &handles), wanted).await
    });
    Ok((StatusCode::CREATED, Json(made.await?)))
}

/// The second session of a comparison.
#[derive(Deserialize)]
pub struct OtherParameter {
    other: String,
}

pub async fn diff(
    request: SessionRequest,
    Path(OtherParameter { other }): Path<OtherParameter>,
) -> ApiResult<Json<SessionDiff>> {
    let first = request.handles().await?;
    let session = request.app.session(&request.caller, &other).await?;
    let handles = try_call(&session, |reply_to| SessionMsg::Handles { reply_to }).await?;
    Ok(Json(compare::compare(request.caller.principal, &first, &(session, handles)).await?))
}

/// Sends all of a session. What fails before the first byte is a problem; what fails later cuts the stream off.
pub async fn archive(request: SessionRequest) -> ApiResult<Response> {
    let (session, handles) = request.handles().await?;
    let exported = export::prepare(&maker(&request.app), request.caller.principal, &session, handles).await?;
    let (writer, reader) = Outgoing::new();
    let (outcome_sender, outcome) = oneshot::channel();
    tokio::spawn(async move {
        let name = exported.name().to_owned();
        let written = exported.write(BufWriter::with_capacity(CHUNK, writer)).await;
        if let Err(error) = &written {
            tracing::warn!(%error, session = name, "a session could not be exported");
        }
        let _ = outcome_sender.send(written);
    });
    Ok(tar_response(reader, outcome))
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImportQuery {
    name: Option<String>,
    backend: Option<Backend>,
    image: Option<String>,
    replay: bool,
    trust: bool,
    ephemeral: bool,
}

pub async fn import(
    State(app): State<App>,
    caller: Caller,
    Query(query): Query<ImportQuery>,
    request: Request,
) -> ApiResult<(StatusCode, Json<Imported>)> {
    let ImportQuery { name, backend, image, replay, trust, ephemeral } = query;
    let bad = |message| Problem::new(Code::BadRequest, message);
    let name = name.map(|name| SessionName::parse(&name)).transpose().map_err(bad)?;
    let options = ImportOptions { name, backend, image, replay, trust, ephemeral };
    let owner = caller.principal;
    let slot = upload_slot(&app, owner)?;
    let mut input = SyncIoBridge::new(StreamReader::new(in_time(request.into_body())));
    let (ledger, home) = (app.ledger.clone(), app.launcher.paths.home().to_owned());
    let reserve = app.settings.sandbox.disk_reserve_bytes;
    let received = folders::run(owner, WorkKind::Transfer, None, move || {
        let received = Spool::receive((&home, reserve), &ledger, owner, &mut input);
        if received.is_err() {
            pass_over(&mut input);
        }
        received.map(|spool| (spool, slot))
    });
    let (spool, slot) = received.await??;
    let maker = maker(&app);
    let made = to_the_end(async move {
        // An archive is read several times, so it has its place among the uploads to the end.
        let _slot = slot;
        import::import(&maker, owner, spool, options).await
    });
    Ok((StatusCode::CREATED, Json(made.await?)))
}
