//! A sandbox that is a container of an engine.

use bollard::models::ContainerInspectResponse;
use std::path::Path;
use std::time::Duration;

use super::attest;
use super::cgroup::Cgroup;
use super::engine::{Engine, EngineError};
use super::launch::SandboxEnd;
use super::spec::{self, SandboxSpec};
use crate::controls;
use crate::protocol::frames::Probe;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Receipt;

/// Time to compile the kernel's bytecode for a new image.
const COMPILE: Duration = Duration::from_secs(60);

pub struct Container {
    pub name: String,
    inspected: ContainerInspectResponse,
    cgroup: Option<Cgroup>,
}

impl Container {
    /// One that is about to be made. A create whose answer is lost still leaves a container, so it has to
    /// be removed from here on.
    #[must_use]
    pub fn named(spec: &SandboxSpec) -> Self {
        let name = spec::container_name(&spec.sandbox);
        Self { name, inspected: ContainerInspectResponse::default(), cgroup: None }
    }

    pub async fn start(&mut self, engine: &Engine, spec: &SandboxSpec) -> Result<(), EngineError> {
        engine.create(&self.name, spec::session_container(spec)).await?;
        engine.start(&self.name).await?;
        self.set(engine.inspect(&self.name).await?);
        Ok(())
    }

    fn set(&mut self, inspected: ContainerInspectResponse) {
        self.cgroup = attest::container_pid(&inspected).and_then(Cgroup::of_process);
        self.inspected = inspected;
    }

    /// One that an earlier daemon left running; none if it is gone. A frozen one is thawed.
    pub async fn adopt(engine: &Engine, receipt: &Receipt) -> Result<Option<Self>, Problem> {
        let name = spec::container_name(&receipt.sandbox);
        let inspected = match engine.inspect(&name).await {
            Ok(inspected) => inspected,
            Err(EngineError::NotFound(_)) => return Ok(None),
            // Nothing is known of it, so nothing of it is touched.
            Err(error) => return Err(error.problem()),
        };
        let state = inspected.state.clone().unwrap_or_default();
        if state.running != Some(true) || inspected.id.as_deref() != Some(receipt.container.as_str()) {
            return Ok(None);
        }
        if state.paused == Some(true) {
            engine.unpause(&name).await.map_err(|error| error.problem())?;
        }
        let mut container = Self { name, inspected: ContainerInspectResponse::default(), cgroup: None };
        container.set(inspected);
        Ok(Some(container))
    }

    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        attest::container_pid(&self.inspected)
    }

    #[must_use]
    pub fn cgroup(&self) -> Option<&Cgroup> {
        self.cgroup.as_ref()
    }

    /// Reads back what it is; an error names every difference.
    pub fn attest(&self, spec: &SandboxSpec, python: String, probe: Probe) -> Result<Receipt, Problem> {
        let evidence = attest::gather(spec, &self.inspected).ok_or_else(|| {
            Problem::new(
                Code::PolicyViolation,
                "the isolation of the sandbox cannot be read back from the host",
            )
            .hint("the daemon has to run on the host of the engine and see its `/proc`")
        })?;
        let differences = attest::differences(spec, &self.inspected, &evidence, &probe);
        if !differences.is_empty() && controls::holds("attestation") {
            return Err(Problem::new(
                Code::PolicyViolation,
                format!("the sandbox is not as isolated as it has to be: {}", differences.join("; ")),
            )
            .hint(attest::remedy(&differences)));
        }
        Ok(attest::receipt(spec, &self.inspected, evidence, python, probe))
    }

    /// As it is now; none if that cannot be read.
    #[must_use]
    pub fn receipt(&self, spec: &SandboxSpec, python: String, probe: Probe) -> Option<Receipt> {
        let evidence = attest::gather(spec, &self.inspected)?;
        Some(attest::receipt(spec, &self.inspected, evidence, python, probe))
    }

    pub async fn freeze(&self, engine: &Engine) -> Result<(), EngineError> {
        engine.pause(&self.name).await
    }

    /// One that is not frozen is a success.
    pub async fn thaw(&self, engine: &Engine) -> Result<(), EngineError> {
        match engine.unpause(&self.name).await {
            Err(EngineError::Refused { message, .. }) if message.contains("not paused") => Ok(()),
            other => other,
        }
    }

    /// Asks the engine what became of it.
    pub async fn end(&self, engine: &Engine) -> Option<SandboxEnd> {
        match engine.inspect(&self.name).await {
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
}

/// Compiles the kernel that is in the spec's kernel folder with the image's Python, into another folder.
pub async fn compile(engine: &Engine, spec: &SandboxSpec, output: &Path) -> Result<(), Problem> {
    let name = format!("{}-compile", spec::container_name(&spec.sandbox));
    let run = async {
        let container = engine.create(&name, spec::compile_container(spec, output)).await?;
        engine.start(&container).await?;
        engine.wait(&container, COMPILE).await
    };
    let outcome = run.await;
    if let Err(error) = engine.remove(&name).await {
        tracing::warn!(%error, container = name, "a compiling container could not be removed");
    }
    let code = outcome.map_err(|error| error.problem())?;
    if code == 0 {
        return Ok(());
    }
    let image = &spec.image.reference;
    Err(Problem::new(
        Code::SandboxFailed,
        format!("Python in the image `{image}` could not compile the kernel (exit code {code})"),
    )
    .hint("the image needs `python3` 3.9 or later on its PATH"))
}
