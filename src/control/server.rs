//! The accept loop. It replaces `axum::serve`, which does not install the timer that a header timeout needs, and it
//! attaches the credentials of the caller to each connection.

use axum::Router;
use axum::response::IntoResponse;
use hyper::Request;
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;

use super::app::App;
use super::connected_user::ConnectedUser;
use super::problems::RefusedRequest;
use super::refused_connections::RefusedConnections;
use super::request_slots::{Connection, RequestSlot, RequestSlots};
use crate::protocol::limits::{CONNECTION_BUFFER_BYTES, DRAIN, REQUEST_HEAD};
use crate::protocol::principal::Principal;
use crate::security_controls;

/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`, then waits up to [`DRAIN`] for requests in flight.
pub async fn serve(listener: UnixListener, app: App, shutdown: CancellationToken) {
    let router = app.clone().router();
    let connections = RequestSlots::of_connections();
    // A daemon of one user serves only that user and root, even if the socket is accessible to others.
    let only = (!app.launcher.paths.system()).then(|| app.launcher.service.principal());
    let tasks = TaskTracker::new();
    let (mut hang_ups, mut failures) = (RefusedConnections::default(), RefusedConnections::default());
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                if let Some(count) = failures.add(Instant::now()) {
                    tracing::warn!(%error, count, "accept failed");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (principal, slot) = match let_in(&stream, only, &connections) {
            Ok(caller) => caller,
            Err(why) => {
                if let Some(count) = hang_ups.add(Instant::now()) {
                    tracing::warn!(count, last = why, "connections were hung up on");
                }
                continue;
            }
        };
        let (user, router, shutdown) =
            (ConnectedUser::new(app.clone(), principal), router.clone(), shutdown.clone());
        tasks.spawn(async move {
            // The user is looked up before the first request is read, so that a client which closes its sending half
            // early still gets an immediate answer. If the lookup fails, each request is refused.
            let _ = user.caller().await;
            serve_connection(stream, router, Arc::new(user), Connection(Arc::new(slot)), shutdown).await;
        });
    }
    drop(listener);
    tasks.close();
    if tokio::time::timeout(DRAIN, tasks.wait()).await.is_err() {
        tracing::warn!(connections = tasks.len(), "connections were still open at the end of the drain");
    }
}

/// The user id of the connection and a slot for it, or why the connection is refused.
fn let_in(
    stream: &UnixStream,
    only: Option<Principal>,
    slots: &RequestSlots,
) -> Result<(Principal, RequestSlot), String> {
    let credentials = stream.peer_cred().map_err(|error| format!("it has no credentials: {error}"))?;
    let user = Principal::new(credentials.uid());
    if security_controls::holds("one_user_is_served")
        && only.is_some_and(|own| user != own && !user.is_root())
    {
        return Err(format!("user {user} is not the one who is served"));
    }
    let slot = slots.take(user).ok_or_else(|| format!("user {user} has too many"))?;
    Ok((user, slot))
}

async fn serve_connection(
    stream: UnixStream,
    router: Router,
    user: Arc<ConnectedUser>,
    connection: Connection,
    shutdown: CancellationToken,
) {
    let uid = user.principal.uid();
    let called = Arc::clone(&user);
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        let (mut router, user, connection) = (router.clone(), Arc::clone(&called), connection.clone());
        async move {
            match user.caller().await {
                Ok(caller) => {
                    request.extensions_mut().insert(caller);
                    request.extensions_mut().insert(connection);
                    router.call(request.map(axum::body::Body::new)).await
                }
                Err(problem) => Ok(RefusedRequest(problem).into_response()),
            }
        }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .max_buf_size(CONNECTION_BUFFER_BYTES)
        .header_read_timeout(security_controls::setting("requests_come_in_time", REQUEST_HEAD))
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = user.until_demoted() => {
            tracing::info!(uid, "hung up on a user who is no administrator any more");
            return;
        }
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, uid, "a connection ended with an error");
    }
}
