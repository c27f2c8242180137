//! A sandbox that is a container of an engine.

use async_trait::async_trait;
use bollard::models::ContainerInspectResponse;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::engine::{Engine, EngineError};
use super::{attest, config};
use crate::protocol::frames::Probe;
use crate::protocol::problem::Problem;
use crate::protocol::receipt::Receipt;
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::backend::bridge_socket::BridgeSocket;
use crate::sandbox::backend::data_socket::DataSocket;
use crate::sandbox::backend::{ByteStream, ConnectError, DataListener, RunningSandbox, SandboxEnd};
use crate::sandbox::spec::{BRIDGE_DIR, GUARDIAN_PRIORITY, SandboxSpec, bridge_dir};
use crate::security_controls;

/// How often, and after which pause, the engine is asked again while it has not heard of the change before.
const PAUSE_TRIES: u32 = 40;
const PAUSE_RETRY: Duration = Duration::from_millis(25);

pub struct Container {
    engine: Arc<Engine>,
    name: String,
    inspected: ContainerInspectResponse,
    cgroup: Option<Cgroup>,
    socket: BridgeSocket,
    data: DataSocket,
}

impl Container {
    pub async fn start(
        engine: &Arc<Engine>,
        spec: &SandboxSpec,
        socket: BridgeSocket,
    ) -> Result<Self, EngineError> {
        let name = config::container_name(&spec.sandbox);
        engine.create(&name, config::session_container(spec)).await?;
        engine.start(&name).await?;
        let inspected = engine.inspect(&name).await?;
        let started = Self::seen(engine, name, inspected, socket, &spec.bridge_dir);
        if let Some(pid) = attest::container_pid(&started.inspected)
            && security_controls::holds("container_guardian_goes_first")
        {
            let _ =
                rustix::process::setpriority_process(rustix::process::Pid::from_raw(pid), GUARDIAN_PRIORITY);
        }
        Ok(started)
    }

    fn seen(
        engine: &Arc<Engine>,
        name: String,
        inspected: ContainerInspectResponse,
        socket: BridgeSocket,
        bridge_dir: &Path,
    ) -> Self {
        let cgroup = attest::container_pid(&inspected).and_then(Cgroup::of_process);
        let data = DataSocket::new(bridge_dir.to_owned(), BRIDGE_DIR);
        Self { engine: Arc::clone(engine), name, inspected, cgroup, socket, data }
    }

    /// Takes over a container that an earlier daemon left running; `None` if it is gone. A frozen one is thawed.
    pub async fn adopt(
        engine: &Arc<Engine>,
        receipt: &Receipt,
        folder: &Path,
    ) -> Result<Option<Self>, Problem> {
        let name = config::container_name(&receipt.sandbox);
        let inspected = match engine.inspect(&name).await {
            Ok(inspected) => inspected,
            Err(EngineError::NotFound(_)) => return Ok(None),
            // The state of the container is unknown, so it is left alone.
            Err(error) => return Err(error.problem()),
        };
        let state = inspected.state.clone().unwrap_or_default();
        if state.running != Some(true) || inspected.id.as_deref() != Some(receipt.container.as_str()) {
            return Ok(None);
        }
        if state.paused == Some(true) {
            engine.unpause(&name).await.map_err(|error| error.problem())?;
        }
        let bridge_dir = bridge_dir(folder);
        let socket = BridgeSocket::unbound(bridge_dir.clone());
        Ok(Some(Self::seen(engine, name, inspected, socket, &bridge_dir)))
    }

    /// Freezes or thaws the container. Either is done if it is so already.
    ///
    /// The engine hears of its own changes through events, so that for a moment after one it may hold the container for
    /// what it was before, and refuse. The container's own group tells how it is; the engine is asked again until it has
    /// heard of it, too.
    async fn pause(&self, wanted: bool) -> Result<(), Problem> {
        for tried in 0.. {
            let (answer, refusal) = if wanted {
                (self.engine.pause(&self.name).await, "already paused")
            } else {
                (self.engine.unpause(&self.name).await, "not paused")
            };
            let is_refused =
                matches!(&answer, Err(EngineError::Refused { message, .. }) if message.contains(refusal));
            let is_frozen = || self.cgroup.as_ref().and_then(Cgroup::is_frozen).unwrap_or(wanted);
            if is_refused && is_frozen() == wanted {
                break;
            }
            if !is_refused || tried >= PAUSE_TRIES {
                return answer.map_err(|error| error.problem());
            }
            tokio::time::sleep(PAUSE_RETRY).await;
        }
        Ok(())
    }
}

#[async_trait]
impl RunningSandbox for Container {
    fn pid(&self) -> Option<i32> {
        attest::container_pid(&self.inspected)
    }

    async fn connect(&self, limit: Duration) -> Result<Box<dyn ByteStream>, ConnectError> {
        let stream = self.socket.accept(self.pid().ok_or(ConnectError::Ended)?, limit).await?;
        Ok(Box::new(stream) as Box<dyn ByteStream>)
    }

    fn open_data(&self) -> Result<DataListener, ConnectError> {
        self.data.open()
    }

    fn read_back(&self, spec: &SandboxSpec, python: String, probe: Probe) -> Option<(Vec<String>, Receipt)> {
        let evidence = attest::gather(spec, &self.inspected)?;
        let differences = attest::differences(spec, &self.inspected, &evidence, &probe);
        Some((differences, attest::receipt(spec, &self.inspected, evidence, python, probe)))
    }

    fn remedy(&self, differences: &[String]) -> &'static str {
        attest::remedy(differences)
    }

    async fn freeze(&self) -> Result<(), Problem> {
        self.pause(true).await
    }

    async fn thaw(&self) -> Result<(), Problem> {
        self.pause(false).await
    }

    fn is_frozen(&self) -> bool {
        self.cgroup.as_ref().and_then(Cgroup::is_frozen).unwrap_or(false)
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.cgroup.as_ref().and_then(Cgroup::cpu_time)
    }

    fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    async fn end(&self) -> Option<SandboxEnd> {
        match self.engine.inspect(&self.name).await {
            Ok(found) => {
                let state = found.state.unwrap_or_default();
                Some(SandboxEnd {
                    running: state.running.unwrap_or(false),
                    exit_code: state.exit_code,
                    out_of_memory: state.oom_killed.unwrap_or(false),
                })
            }
            Err(error) => {
                tracing::warn!(%error, container = self.name, "the end of a sandbox cannot be read");
                None
            }
        }
    }

    async fn gone(&self) {
        std::future::pending::<()>().await;
    }

    fn last_words(&self) -> String {
        String::new()
    }

    async fn remove(&self) -> Result<(), Problem> {
        self.engine.remove(&self.name).await.map_err(|error| error.problem())
    }
}
