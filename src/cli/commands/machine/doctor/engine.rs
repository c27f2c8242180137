//! Queries the container engine over its own socket, so that the doctor works without a daemon.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::header::HOST;
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use tokio::time::timeout;

use super::facts::{Engine, EngineTrouble, PERMISSIONS};
use crate::cli::client::http::{connect, escaped_path};

const DEFAULT_SOCKET: &str = "/var/run/docker.sock";
/// An engine that does not answer within this time counts as faulty.
const CALL: Duration = Duration::from_secs(10);
/// Most bytes of the engine's answer about itself or an image.
const ANSWER_BYTES: usize = 1024 * 1024;
/// Most images of a configuration that are checked; no realistic configuration has more.
const IMAGES: usize = 64;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
struct VersionAnswer {
    version: String,
    api_version: String,
    components: Vec<Component>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Component {
    name: String,
    version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct InfoAnswer {
    default_runtime: String,
    /// Runtimes by name; their details do not matter here.
    runtimes: Option<BTreeMap<String, serde_json::Value>>,
    security_options: Option<Vec<String>>,
    memory_limit: bool,
    pids_limit: bool,
    cpu_cfs_quota: bool,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct ImageAnswer {
    size: u64,
}

/// The socket that `DOCKER_HOST` names, interpreted as the daemon does.
pub fn socket(host: Option<&str>) -> Result<PathBuf, EngineTrouble> {
    match host {
        None | Some("") => Ok(PathBuf::from(DEFAULT_SOCKET)),
        Some(host) => match host.strip_prefix("unix://") {
            Some(path) => Ok(PathBuf::from(path)),
            None => Err(EngineTrouble::Elsewhere(host.to_owned())),
        },
    }
}

pub async fn examine(socket: &Path) -> Result<Engine, EngineTrouble> {
    let version: VersionAnswer = get(socket, "/version").await?.unwrap_or_default();
    let info: InfoAnswer = get(socket, "/info").await?.unwrap_or_default();
    let component = |name: &str| version.components.iter().find(|component| component.name == name);
    let limits =
        [("memory", info.memory_limit), ("processes", info.pids_limit), ("CPUs", info.cpu_cfs_quota)];
    let mode = std::fs::metadata(socket).ok().map(|found| found.permissions().mode() & PERMISSIONS);
    Ok(Engine {
        podman: component("Podman Engine").is_some(),
        runc: component("runc").map(|runc| runc.version.clone()),
        default_runtime: info.default_runtime,
        runtimes: info.runtimes.unwrap_or_default().into_keys().collect(),
        security: info.security_options.unwrap_or_default(),
        no_limits: limits.into_iter().filter(|(_, can)| !can).map(|(name, _)| name).collect(),
        version: version.version,
        api: version.api_version,
        socket_mode: mode,
        socket: socket.to_owned(),
    })
}

/// The size of each image; none if the engine does not have it or does not tell.
pub async fn images(socket: &Path, references: &[String]) -> Vec<(String, Option<u64>)> {
    let mut found = Vec::new();
    for reference in references.iter().take(IMAGES) {
        let path = format!("/images/{}/json", escaped_path(reference));
        let image = get::<ImageAnswer>(socket, &path).await.ok().flatten();
        found.push((reference.clone(), image.map(|image| image.size)));
    }
    found
}

/// None if the engine answers that it does not exist.
async fn get<T: DeserializeOwned>(socket: &Path, path: &str) -> Result<Option<T>, EngineTrouble> {
    let silent = |why: &dyn std::fmt::Display| EngineTrouble::Silent(why.to_string());
    let call = async {
        let stream = connect(socket).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                EngineTrouble::Absent(socket.to_owned())
            }
            io::ErrorKind::PermissionDenied => EngineTrouble::Denied(socket.to_owned()),
            _ => silent(&error),
        })?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|e| silent(&e))?;
        // Errors of the connection appear where the answer is read.
        tokio::spawn(connection);
        let request = Request::get(path).header(HOST, "docker").body(Empty::<Bytes>::new());
        let answer = sender.send_request(request.map_err(|e| silent(&e))?).await.map_err(|e| silent(&e))?;
        match answer.status() {
            StatusCode::NOT_FOUND => return Ok(None),
            status if !status.is_success() => return Err(silent(&format_args!("`{path}`: {status}"))),
            _ => {}
        }
        let body = Limited::new(answer.into_body(), ANSWER_BYTES).collect().await.map_err(|e| silent(&e))?;
        serde_json::from_slice(&body.to_bytes()).map(Some).map_err(|e| silent(&e))
    };
    let limit = CALL.as_secs();
    let late = |_| EngineTrouble::Silent(format!("it took longer than {limit} s"));
    timeout(CALL, call).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unix_sockets_are_engines_of_this_machine() {
        assert_eq!(socket(None).ok(), Some(PathBuf::from(DEFAULT_SOCKET)));
        assert_eq!(socket(Some("unix:///run/x.sock")).ok(), Some(PathBuf::from("/run/x.sock")));
        assert!(matches!(socket(Some("tcp://127.0.0.1:1")), Err(EngineTrouble::Elsewhere(_))));
    }

    /// A server that sends one of the JSON answers to each connection.
    fn serve(answers: &'static [&'static str]) -> (tempfile::TempDir, PathBuf) {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("engine");
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut asked = [0; 4096];
                let _ = stream.read(&mut asked).await.unwrap();
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
                stream.write_all(format!("{head}{answer}").as_bytes()).await.unwrap();
            }
        });
        (dir, path)
    }

    #[tokio::test]
    async fn an_engine_tells_what_it_is() {
        let (_dir, path) = serve(&[
            r#"{"Version":"27.1","ApiVersion":"1.46","Components":[{"Name":"runc","Version":"1.1.13"}]}"#,
            r#"{"DefaultRuntime":"runc","Runtimes":{"runc":{}},"SecurityOptions":null,"MemoryLimit":true,"CpuCfsQuota":true}"#,
        ]);
        let Ok(engine) = examine(&path).await else { panic!("no engine") };
        assert_eq!((engine.version.as_str(), engine.runc.as_deref()), ("27.1", Some("1.1.13")));
        assert_eq!((engine.runtimes, engine.no_limits), (vec!["runc".to_owned()], vec!["processes"]));
    }

    #[tokio::test]
    async fn nonsense_and_silence_are_told_apart_from_absence() {
        let (_dir, path) = serve(&["hello"]);
        assert!(matches!(examine(&path).await, Err(EngineTrouble::Silent(_))));
        let none = path.with_extension("none");
        assert!(matches!(examine(&none).await, Err(EngineTrouble::Absent(_))));
    }
}
