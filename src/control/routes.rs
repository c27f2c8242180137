//! The routes, one file per resource; `requests` has what several of them read from a request.

mod approvals;
mod asks;
pub mod batches;
mod branches;
pub mod cells;
mod client_tools;
mod commands;
mod events;
mod files;
mod images;
mod jobs;
mod machine;
mod packages;
mod requests;
pub mod sessions;
mod snapshots;
mod volumes;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::{delete, get, post, put};

use super::app::App;
use super::caller::Caller;
use super::problems::RefusedRequest;
use super::{body, idempotency, unread_bodies};
use crate::protocol::config::CONFIG_HEADER;
use crate::protocol::problem::{Code, Problem};
use crate::security_controls;

impl App {
    pub fn router(self) -> Router {
        Router::new()
            .route("/openapi.json", get(machine::openapi))
            .route("/v1/health", get(machine::health))
            .route("/v1/version", get(machine::version))
            .route("/v1/shutdown", post(machine::shut_down))
            .route("/v1/config", get(machine::config))
            .route("/v1/config/reload", post(machine::reload))
            .route("/v1/images", get(images::list).post(images::pull))
            .route("/v1/images/build", post(images::build))
            .route("/v1/images/{*image}", delete(images::remove))
            .route("/v1/job-inputs", put(jobs::receive))
            .route("/v1/jobs", get(jobs::list).post(jobs::submit))
            .route("/v1/jobs/{job}", get(jobs::show).delete(jobs::forget))
            .route("/v1/jobs/{job}/cancel", post(jobs::cancel))
            .route("/v1/jobs/{job}/events", get(jobs::events))
            .route("/v1/jobs/{job}/artifacts", get(jobs::artifacts))
            .route(batches::PATH, get(batches::list).post(batches::submit))
            .route("/v1/batches/{batch}", get(batches::show).delete(batches::cancel))
            .route("/v1/batches/{batch}/events", get(batches::events))
            .route("/v1/models", get(asks::models))
            .route("/v1/tools", get(asks::tools))
            .route("/v1/quota", get(machine::quota))
            .route("/v1/approvals", get(approvals::list))
            .route("/v1/approvals/{approval}", post(approvals::decide))
            .route("/v1/packages", get(packages::list).delete(packages::clear))
            .route("/v1/volumes", get(volumes::list).post(volumes::create))
            .route("/v1/volumes/{volume}", delete(volumes::remove))
            .route("/v1/volumes/{volume}/files", get(volumes::get_file).put(volumes::put_file))
            .route("/v1/volumes/{volume}/files/", get(volumes::get_file).put(volumes::put_file))
            .route(
                "/v1/volumes/{volume}/files/{*path}",
                get(volumes::get_file).put(volumes::put_file).delete(volumes::remove_file),
            )
            .route(sessions::PATH, get(sessions::list).post(sessions::create))
            .route("/v1/sessions/{session}", get(sessions::show).delete(sessions::remove))
            .route("/v1/sessions/{session}/cells", post(cells::run))
            .route("/v1/sessions/{session}/cells/{cell}", get(cells::show))
            .route("/v1/sessions/{session}/cells/{cell}/interrupt", post(commands::interrupt))
            .route("/v1/sessions/{session}/commands", get(commands::list).post(commands::run))
            .route("/v1/sessions/{session}/commands/{cell}", get(cells::show))
            .route("/v1/sessions/{session}/commands/{cell}/interrupt", post(commands::interrupt))
            .route("/v1/sessions/{session}/commands/{cell}/kill", post(commands::kill))
            .route("/v1/sessions/{session}/commands/{cell}/type", post(commands::type_into))
            .route("/v1/sessions/{session}/commands/{cell}/resize", post(commands::resize))
            .route("/v1/sessions/{session}/asks", get(asks::list).post(asks::start))
            .route("/v1/sessions/{session}/asks/{ask}", get(asks::show))
            .route("/v1/sessions/{session}/asks/{ask}/cancel", post(asks::cancel))
            .route("/v1/sessions/{session}/history", get(asks::history))
            .route("/v1/sessions/{session}/plan", get(asks::plan))
            .route("/v1/sessions/{session}/tools", post(client_tools::lend))
            .route("/v1/sessions/{session}/tool-calls/{call}", post(client_tools::answer))
            .route("/v1/sessions/{session}/eval", post(cells::eval))
            .route("/v1/sessions/{session}/install", post(packages::install))
            .route("/v1/sessions/{session}/interrupt", post(sessions::interrupt))
            .route("/v1/sessions/{session}/reset", post(sessions::reset))
            .route("/v1/sessions/{session}/undo", post(sessions::undo))
            .route("/v1/sessions/{session}/replay", post(sessions::replay))
            .route("/v1/sessions/{session}/branch", post(branches::branch))
            .route("/v1/sessions/{session}/diff/{other}", get(branches::diff))
            .route("/v1/sessions/{session}/archive", get(branches::archive))
            .route("/v1/archives", post(branches::import))
            .route("/v1/sessions/{session}/freeze", post(sessions::freeze))
            .route("/v1/sessions/{session}/thaw", post(sessions::thaw))
            .route("/v1/sessions/{session}/snapshots", get(snapshots::list).post(snapshots::take))
            .route("/v1/sessions/{session}/snapshots/{snapshot}", delete(snapshots::remove))
            .route("/v1/sessions/{session}/sleep", post(snapshots::sleep))
            .route("/v1/sessions/{session}/linger", post(sessions::linger))
            .route("/v1/sessions/{session}/events", get(events::stream))
            .route("/v1/sessions/{session}/hold", get(events::hold))
            .route("/v1/sessions/{session}/variables", get(sessions::variables))
            .route("/v1/sessions/{session}/receipt", get(sessions::receipt))
            .route("/v1/sessions/{session}/files", get(files::get).put(files::put))
            .route("/v1/sessions/{session}/files/", get(files::get).put(files::put))
            .route(
                "/v1/sessions/{session}/files/{*path}",
                get(files::get).put(files::put).delete(files::remove),
            )
            .fallback(no_such_route)
            .method_not_allowed_fallback(no_such_route)
            .layer(axum::middleware::from_fn_with_state(self.clone(), idempotency::once))
            .layer(axum::middleware::from_fn_with_state(self.clone(), body::charge_answer))
            .layer(axum::middleware::from_fn(unread_bodies::read_the_rest))
            .layer(axum::middleware::from_fn_with_state(self.clone(), name_config))
            .with_state(self)
    }
}

/// Tells whoever runs the daemon in a header which configuration file it has read, so that a command that names another
/// one can say so.
async fn name_config(State(app): State<App>, request: Request, next: Next) -> Response {
    let is_told = request.extensions().get::<Caller>().is_some_and(|caller| app.is_run_by(caller));
    let mut response = next.run(request).await;
    if !is_told && security_controls::holds("the_config_path_is_for_its_owner") {
        return response;
    }
    let file = std::path::absolute(app.launcher.paths.config_file());
    // A path that no header can hold is not told.
    if let Ok(name) = file
        .map_err(drop)
        .and_then(|file| HeaderValue::from_bytes(file.as_os_str().as_encoded_bytes()).map_err(drop))
    {
        response.headers_mut().insert(CONFIG_HEADER, name);
    }
    response
}

async fn no_such_route(method: Method, uri: axum::http::Uri) -> RefusedRequest {
    let path: String = uri.path().chars().take(200).collect();
    Problem::new(Code::NoSuchRoute, format!("there is no `{method} {}`", path.escape_default()))
        .hint("see `GET /openapi.json`")
        .into()
}
