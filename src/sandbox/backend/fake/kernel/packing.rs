//! Saves and loads what the kernel has for variables: the number of the newest cell, as text.

use std::io::{Error, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::super::script::{Step, WHILE_LOADING, WHILE_PACKING};
use super::FakeKernel;
use crate::protocol::frames::{KernelFrame, RefusedCode};
use crate::protocol::ids::CellNumber;
use crate::protocol::snapshot::{MissingVariable, RestoreReport, SNAPSHOT_FORMAT, SnapshotManifest};

/// The variables that were not among those that were loaded, or why nothing was.
type Loaded = std::result::Result<Vec<MissingVariable>, RefusedCode>;

fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short record").to_be_bytes();
    [&[kind][..], &length, payload].concat()
}

impl FakeKernel {
    pub(super) fn pack(&self, request: u64, token: String, path: String) {
        let kernel = self.clone();
        self.0.runtime.spawn(async move {
            let state_of = kernel.0.state.lock().newest_kept;
            kernel.send(&KernelFrame::Snapshotting { request, state_of });
            let sent = kernel.send_state(state_of, &token, &path).await;
            let reason = sent.is_err().then(|| "the test wants it so".to_owned());
            kernel.send(&KernelFrame::SnapshotEnded { request, reason });
        });
    }

    async fn send_state(&self, state_of: CellNumber, token: &str, path: &str) -> Result<()> {
        let mut stream = UnixStream::connect(path).await?;
        stream.write_all(format!("{token}\n").as_bytes()).await?;
        let state = state_of.to_string();
        stream.write_all(&record(b'P', state.as_bytes())).await?;
        for step in self.0.script.steps(WHILE_PACKING) {
            match step {
                Step::Die => return Err(Error::other("it died")),
                Step::EndSandbox => {
                    self.end();
                    return Err(Error::other("its sandbox ended"));
                }
                Step::Wait => self.until("it may go on", |state| state.released.contains(&0)).await,
                _ => {}
            }
        }
        let manifest = SnapshotManifest {
            format: SNAPSHOT_FORMAT,
            python: "3.12.0".into(),
            variables: 1,
            missing: Vec::new(),
            files: Vec::new(),
            sections: 1,
            bytes: state.len() as u64,
            modules: 0,
        };
        stream.write_all(&record(b'S', b"")).await?;
        stream.write_all(&record(b'E', &serde_json::to_vec(&manifest)?)).await?;
        stream.shutdown().await
    }

    pub(super) fn load(&self, request: u64, token: String, path: String, state_of: CellNumber) {
        let kernel = self.clone();
        self.0.runtime.spawn(async move {
            let loaded = kernel.receive_state(&token, &path).await;
            let report = match loaded {
                Ok(Ok(missing)) => {
                    kernel.change(|state| state.newest_kept = state_of);
                    RestoreReport { restored: 1, missing, ..RestoreReport::default() }
                }
                Ok(Err(code)) => {
                    let message = "as the test wants it".into();
                    kernel.send(&KernelFrame::Refused { code, message, request: Some(request), cell: None });
                    return;
                }
                Err(error) => RestoreReport { error: Some(error.to_string()), ..RestoreReport::default() },
            };
            kernel.send(&KernelFrame::Restored { request, report });
        });
    }

    /// What it lacks, or why it is refused.
    async fn receive_state(&self, token: &str, path: &str) -> Result<Loaded> {
        // Taken at once, also if the daemon dies before it has sent all.
        let steps = self.0.script.steps(WHILE_LOADING);
        let mut stream = UnixStream::connect(path).await?;
        stream.write_all(format!("{token}\n").as_bytes()).await?;
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await?;
        let mut missing = Vec::new();
        for step in steps {
            match step {
                Step::Lacks(name) => {
                    missing
                        .push(MissingVariable { name: name.into(), reason: "as the test wants it".into() });
                }
                Step::Die => return Err(Error::other("the test wants it so")),
                Step::Refuse(code) => return Ok(Err(code)),
                Step::EndSandbox => self.end(),
                Step::Wait => self.until("it may go on", |state| state.released.contains(&0)).await,
                _ => {}
            }
        }
        Ok(Ok(missing))
    }
}
