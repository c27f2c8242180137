//! A narrow interface to the container engine: every call has a deadline, and every error says whether the engine is
//! unavailable or refused the call.

use bollard::Docker;
use bollard::errors::Error as DockerError;
use bollard::models::{ContainerCreateBody, ContainerInspectResponse, SystemInfo};
use bollard::query_parameters::{
    CreateContainerOptions, InspectContainerOptions, ListContainersOptions, RemoveContainerOptions,
    StartContainerOptions, WaitContainerOptions,
};
use futures_util::StreamExt;
use std::collections::HashMap;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::OnceCell;

use crate::protocol::limits::{ENGINE_CALL, ENGINE_START};
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::backend::docker::config::{LABEL_INSTANCE, LABEL_SANDBOX};
use crate::sandbox::spec::UserMapping;
use crate::security_controls;

/// How often a container is looked for that another call removes.
const REMOVAL_POLL: Duration = Duration::from_millis(100);

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("the container engine does not answer: {0}")]
    Unavailable(String),
    #[error("everybody may use the engine's socket `{0}`, and with it become root")]
    Exposed(String),
    #[error("the container engine took longer than {}s to {what}", limit.as_secs())]
    Slow { what: &'static str, limit: Duration },
    #[error("not there: {0}")]
    NotFound(String),
    #[error("the container engine refused to {what}: {message}")]
    Refused { what: &'static str, message: String },
}

impl EngineError {
    #[must_use]
    pub fn problem(&self) -> Problem {
        match self {
            Self::Unavailable(_) => Problem::new(Code::EngineUnavailable, self.to_string()).hint(
                "start Docker (`systemctl start docker`), or set `DOCKER_HOST` to an engine you may use (`docker` group)",
            ),
            Self::Exposed(path) => Problem::new(Code::EngineUnavailable, self.to_string())
                .hint(format!("close it to others: `chmod o-rwx {path}`")),
            Self::Slow { .. } => Problem::new(Code::EngineUnavailable, self.to_string())
                .hint("look at the load of the machine and at the engine's own log"),
            Self::NotFound(_) | Self::Refused { .. } => Problem::new(Code::SandboxFailed, self.to_string()),
        }
    }
}

/// A container of this daemon, as the reaper sees it.
#[derive(Clone, Debug)]
pub struct OurContainer {
    pub id: String,
    pub sandbox: Option<String>,
}

/// Connects when it is first needed, and tries again until that succeeds, so a daemon may start before its engine does.
pub struct Engine {
    docker: OnceCell<Docker>,
    /// The address of the engine.
    host: String,
}

impl Engine {
    #[must_use]
    pub fn new() -> Self {
        let host = std::env::var("DOCKER_HOST").unwrap_or_else(|_| "unix:///var/run/docker.sock".into());
        Self { docker: OnceCell::new(), host }
    }

    /// The raw client, for calls that only one module makes.
    pub(super) async fn docker(&self) -> Result<&Docker, EngineError> {
        self.docker
            .get_or_try_init(|| async {
                self.check_socket()?;
                let docker = Docker::connect_with_defaults().map_err(|error| unavailable(&error))?;
                within("answer", ENGINE_CALL, docker.negotiate_version()).await
            })
            .await
    }

    /// Refuses an engine that every user of the machine can command. Its socket may be opened to others at any time, so
    /// this is asked again for every container; containers that run can still be ended.
    fn check_socket(&self) -> Result<(), EngineError> {
        match exposed_socket(&self.host).filter(|_| security_controls::holds("engine_socket_is_closed")) {
            Some(path) => Err(EngineError::Exposed(path.display().to_string())),
            None => Ok(()),
        }
    }

    pub async fn version(&self) -> Result<String, EngineError> {
        let version = within("tell its version", ENGINE_CALL, self.docker().await?.version()).await?;
        Ok(version.version.unwrap_or_else(|| "unknown".into()))
    }

    /// Whether the engine answers at all, which costs it much less than to tell its version.
    pub async fn ping(&self) -> Result<(), EngineError> {
        within("answer", ENGINE_CALL, self.docker().await?.ping()).await.map(drop)
    }

    pub async fn info(&self) -> Result<SystemInfo, EngineError> {
        within("describe itself", ENGINE_CALL, self.docker().await?.info()).await
    }

    pub async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<String, EngineError> {
        self.check_socket()?;
        let options =
            CreateContainerOptions { name: Some(name.to_owned()), ..CreateContainerOptions::default() };
        let docker = self.docker().await?;
        let created =
            within("create a container", ENGINE_START, docker.create_container(Some(options), body)).await?;
        Ok(created.id)
    }

    pub async fn start(&self, container: &str) -> Result<(), EngineError> {
        let docker = self.docker().await?;
        within(
            "start a container",
            ENGINE_START,
            docker.start_container(container, None::<StartContainerOptions>),
        )
        .await
    }

    pub async fn inspect(&self, container: &str) -> Result<ContainerInspectResponse, EngineError> {
        let docker = self.docker().await?;
        let call = docker.inspect_container(container, None::<InspectContainerOptions>);
        within("inspect a container", ENGINE_CALL, call).await
    }

    pub async fn pause(&self, container: &str) -> Result<(), EngineError> {
        within("freeze a container", ENGINE_CALL, self.docker().await?.pause_container(container)).await
    }

    pub async fn unpause(&self, container: &str) -> Result<(), EngineError> {
        within("thaw a container", ENGINE_CALL, self.docker().await?.unpause_container(container)).await
    }

    /// Kills and removes; a container that is already gone is a success.
    pub async fn remove(&self, container: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptions { force: true, v: true, link: false };
        let docker = self.docker().await?;
        match within("remove a container", ENGINE_START, docker.remove_container(container, Some(options)))
            .await
        {
            Err(EngineError::NotFound(_)) => Ok(()),
            // 409: another call is removing the container already, and it is there until that has ended.
            Err(EngineError::Refused { message, .. }) if message.contains("already in progress") => {
                let gone = tokio::time::timeout(ENGINE_START, self.gone(container)).await;
                gone.unwrap_or(Err(EngineError::Slow { what: "remove a container", limit: ENGINE_START }))
            }
            other => other,
        }
    }

    /// Waits until a container is gone whose removal is under way, by an earlier call or by the engine itself.
    async fn gone(&self, container: &str) -> Result<(), EngineError> {
        loop {
            match self.inspect(container).await {
                Err(EngineError::NotFound(_)) => return Ok(()),
                other => drop(other?),
            }
            tokio::time::sleep(REMOVAL_POLL).await;
        }
    }

    /// Waits for a short-lived container and returns its exit code.
    pub async fn wait(&self, container: &str, limit: Duration) -> Result<i64, EngineError> {
        let docker = self.docker().await?;
        let mut ends = docker.wait_container(container, None::<WaitContainerOptions>);
        match tokio::time::timeout(limit, ends.next()).await {
            Err(_) => Err(EngineError::Slow { what: "finish a container", limit }),
            Ok(Some(Ok(end))) => Ok(end.status_code),
            // bollard reports a code other than 0 as an error.
            Ok(Some(Err(DockerError::DockerContainerWaitError { code, .. }))) => Ok(code),
            Ok(Some(Err(error))) => Err(classify("wait for a container", error)),
            Ok(None) => Ok(0),
        }
    }

    /// Every container that carries this instance's id as a label, including stopped ones.
    pub async fn ours(&self, instance: &str) -> Result<Vec<OurContainer>, EngineError> {
        let filters = HashMap::from([("label".to_owned(), vec![format!("{LABEL_INSTANCE}={instance}")])]);
        let options =
            ListContainersOptions { all: true, filters: Some(filters), ..ListContainersOptions::default() };
        let docker = self.docker().await?;
        let listed = within("list containers", ENGINE_CALL, docker.list_containers(Some(options))).await?;
        Ok(listed
            .into_iter()
            .filter_map(|container| {
                Some(OurContainer {
                    id: container.id?,
                    sandbox: container.labels.and_then(|mut labels| labels.remove(LABEL_SANDBOX)),
                })
            })
            .collect())
    }
}

impl Default for Engine {
    fn default() -> Self {
        Self::new()
    }
}

/// The mapping by `docker info`: a rootless engine reports itself as such; a remapping engine puts its ids into the
/// name of its data folder (`…/165536.165536`).
#[must_use]
pub fn user_mapping(info: &SystemInfo) -> UserMapping {
    let options = info.security_options.clone().unwrap_or_default();
    let has = |name: &str| {
        options.iter().any(|option| option.split(',').any(|part| part == format!("name={name}")))
    };
    if has("rootless") {
        return UserMapping::Rootless;
    }
    if has("userns") {
        let folder = info.docker_root_dir.as_deref().unwrap_or_default();
        let ids = folder.rsplit('/').next().and_then(|name| name.split_once('.'));
        if let Some((uid_base, gid_base)) = ids.and_then(|(u, g)| Some((u.parse().ok()?, g.parse().ok()?))) {
            return UserMapping::Remapped { uid_base, gid_base };
        }
    }
    UserMapping::Same
}

pub(super) async fn within<T>(
    what: &'static str,
    limit: Duration,
    call: impl Future<Output = Result<T, DockerError>>,
) -> Result<T, EngineError> {
    match tokio::time::timeout(limit, call).await {
        Err(_) => Err(EngineError::Slow { what, limit }),
        Ok(Err(error)) => Err(classify(what, error)),
        Ok(Ok(value)) => Ok(value),
    }
}

pub(super) fn classify(what: &'static str, error: DockerError) -> EngineError {
    match error {
        DockerError::DockerResponseServerError { status_code: 404, message } => {
            EngineError::NotFound(message)
        }
        DockerError::RequestTimeoutError => EngineError::Slow { what, limit: ENGINE_START },
        DockerError::DockerResponseServerError { message, .. }
        | DockerError::DockerStreamError { error: message }
        | DockerError::JsonDataError { message, .. } => EngineError::Refused { what, message },
        other => unavailable(&other),
    }
}

/// The socket of an engine on this machine, if every user can write to it.
fn exposed_socket(host: &str) -> Option<PathBuf> {
    const OTHERS_WRITE: u32 = 0o002;
    const OTHERS_ENTER: u32 = 0o001;
    let path = PathBuf::from(host.strip_prefix("unix://")?);
    let mode = |path: &Path| std::fs::metadata(path).ok().map(|found| found.permissions().mode());
    let reached = path.parent().and_then(mode).is_none_or(|mode| mode & OTHERS_ENTER != 0);
    (mode(&path)? & OTHERS_WRITE != 0 && reached).then_some(path)
}

/// The innermost cause is the most specific one (`connection refused`, `permission denied`).
fn unavailable(error: &DockerError) -> EngineError {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    EngineError::Unavailable(cause.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(options: &[&str], folder: &str) -> SystemInfo {
        SystemInfo {
            security_options: Some(options.iter().map(|option| (*option).to_owned()).collect()),
            docker_root_dir: Some(folder.into()),
            ..SystemInfo::default()
        }
    }

    #[tokio::test]
    async fn an_engine_that_is_opened_to_everybody_later_gets_no_container() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("docker.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        mode(folder.path(), 0o755);
        mode(&path, 0o660);
        let host = format!("unix://{}", path.display());
        let connected = Docker::connect_with_unix(&host, 1, bollard::API_DEFAULT_VERSION).unwrap();
        let engine = Engine { docker: OnceCell::new_with(Some(connected)), host };
        assert!(engine.check_socket().is_ok());
        mode(&path, 0o666);
        let refused = engine.create("x", ContainerCreateBody::default()).await.unwrap_err();
        assert!(matches!(refused, EngineError::Exposed(_)), "{refused}");
        // No other user gets to the socket.
        mode(folder.path(), 0o700);
        assert!(engine.check_socket().is_ok());
    }

    #[test]
    fn the_engine_tells_how_ids_are_mapped() {
        let rootful = info(&["name=seccomp,profile=default"], "/var/lib/docker");
        assert_eq!(user_mapping(&rootful), UserMapping::Same);
        let rootless = info(&["name=rootless", "name=cgroupns"], "/home/a/.local/share/docker");
        assert_eq!(user_mapping(&rootless), UserMapping::Rootless);
        let remapped = info(&["name=userns"], "/var/lib/docker/165536.165536");
        assert_eq!(user_mapping(&remapped), UserMapping::Remapped { uid_base: 165_536, gid_base: 165_536 });
    }

    /// Plays an engine that gives these answers, one to each request.
    fn plays(socket: &Path, answers: Vec<(u16, &'static str)>) -> tokio::task::JoinHandle<()> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        tokio::spawn(async move {
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 4096]).await.unwrap();
                let head = "content-type: application/json\r\nconnection: close\r\n";
                let length = body.len();
                let answer = format!("HTTP/1.1 {status} x\r\n{head}content-length: {length}\r\n\r\n{body}");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        })
    }

    #[tokio::test]
    async fn a_container_that_another_call_removes_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("engine");
        let busy = r#"{"message": "removal of container x is already in progress"}"#;
        let answers =
            vec![(409, busy), (200, "{}"), (200, "{}"), (404, r#"{"message": "no such container"}"#)];
        let engine = plays(&socket, answers);
        let docker =
            Docker::connect_with_unix(&socket.to_string_lossy(), 10, bollard::API_DEFAULT_VERSION).unwrap();
        Engine { docker: OnceCell::new_with(Some(docker)), host: String::new() }.remove("x").await.unwrap();
        assert!(engine.is_finished(), "it was asked until the container was gone");
    }
}
