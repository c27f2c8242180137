//! Files that were sent for jobs: kept on disk until the last job that wants them has ended, or none
//! has asked for them in time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::protocol::ids::InputId;
use crate::protocol::job::JobInput;
use crate::protocol::limits::{JOB_INPUT_BYTES, JOB_INPUT_UNUSED, JOB_INPUTS, JOB_INPUTS_BYTES};
use crate::protocol::problem::{Code, Problem};
use crate::sandbox::gather::Manifest;

/// Ends of the names of files in the folder of jobs.
const INPUT: &str = ".input";

#[derive(Clone)]
pub struct Inputs(Arc<Shared>);

struct Shared {
    folder: PathBuf,
    inputs: Mutex<BTreeMap<InputId, Input>>,
}

struct Input {
    owner: u32,
    /// None while it is being received, and after a restart, when nobody else can ask for it.
    manifest: Option<Arc<Manifest>>,
    /// On disk, or as much as it may become.
    bytes: u64,
    jobs: usize,
    since: Instant,
}

/// One job that needs an input.
pub struct Use {
    inputs: Inputs,
    id: InputId,
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(input) = self.inputs.lock().get_mut(&self.id) {
            input.jobs = input.jobs.saturating_sub(1);
            // Of the next job of the same input it may be the moment before.
            input.since = Instant::now();
        }
    }
}

/// Room for an input that is being received. It is given back unless that comes to a good end.
pub struct Reserved {
    inputs: Inputs,
    id: InputId,
    whole: bool,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if !self.whole {
            self.inputs.lock().remove(&self.id);
            remove(&self.inputs.path(self.id));
        }
    }
}

impl Reserved {
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.inputs.path(self.id)
    }

    pub fn finish(mut self, manifest: Manifest) -> JobInput {
        self.whole = true;
        let view = view(self.id, &manifest);
        if let Some(input) = self.inputs.lock().get_mut(&self.id) {
            input.bytes = manifest.bytes;
            input.manifest = Some(Arc::new(manifest));
            input.since = Instant::now();
        }
        view
    }
}

#[must_use]
pub fn view(id: InputId, manifest: &Manifest) -> JobInput {
    JobInput { id, sha256: manifest.sha256(), files: manifest.files.len(), bytes: manifest.bytes }
}

impl Inputs {
    #[must_use]
    pub fn new(folder: PathBuf) -> Self {
        Self(Arc::new(Shared { folder, inputs: Mutex::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<InputId, Input>> {
        self.0.inputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[must_use]
    pub fn path(&self, id: InputId) -> PathBuf {
        self.0.folder.join(format!("{id}{INPUT}"))
    }

    /// Before a byte is received.
    pub fn reserve(&self, owner: u32) -> Result<Reserved, Problem> {
        let mut inputs = self.lock();
        let own = || inputs.values().filter(|input| input.owner == owner);
        let bytes: u64 = own().map(|input| input.bytes).sum();
        if own().count() >= JOB_INPUTS || bytes.saturating_add(JOB_INPUT_BYTES) > JOB_INPUTS_BYTES {
            return Err(Problem::new(
                Code::TooMany,
                format!("files of {} jobs of yours, {bytes} bytes, are kept already", own().count()),
            )
            .hint("wait until some of your jobs have ended"));
        }
        let id = InputId::fresh();
        let since = Instant::now();
        inputs.insert(id, Input { owner, manifest: None, bytes: JOB_INPUT_BYTES, jobs: 0, since });
        drop(inputs);
        Ok(Reserved { inputs: self.clone(), id, whole: false })
    }

    /// For one more job; none if there is no such input of this owner.
    pub fn take(&self, owner: u32, id: InputId) -> Option<(Arc<Manifest>, Use)> {
        let mut inputs = self.lock();
        let input = inputs.get_mut(&id).filter(|input| input.owner == owner)?;
        let manifest = input.manifest.clone()?;
        input.jobs += 1;
        Some((manifest, Use { inputs: self.clone(), id }))
    }

    /// For a job that was taken before.
    #[must_use]
    pub fn take_again(&self, owner: u32, id: InputId, bytes: u64) -> Use {
        let fresh = Input { owner, manifest: None, bytes, jobs: 0, since: Instant::now() };
        self.lock().entry(id).or_insert(fresh).jobs += 1;
        Use { inputs: self.clone(), id }
    }

    /// Removes what no job has asked for in time, and files that belong to nothing.
    pub fn sweep(&self) {
        let mut inputs = self.lock();
        inputs.retain(|_, input| {
            input.jobs > 0 || input.manifest.is_none() || input.since.elapsed() < JOB_INPUT_UNUSED
        });
        let known: Vec<PathBuf> = inputs.keys().map(|id| self.path(*id)).collect();
        drop(inputs);
        for entry in std::fs::read_dir(&self.0.folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.to_string_lossy().ends_with(INPUT) && !known.contains(&path) {
                remove(&path);
            }
        }
    }

    /// What nobody but one ended job can want.
    pub fn forget_unused(&self, id: InputId) {
        let mut inputs = self.lock();
        if inputs.get(&id).is_some_and(|input| input.jobs == 0 && input.manifest.is_none()) {
            inputs.remove(&id);
            remove(&self.path(id));
        }
    }
}

fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "a file of a job is left");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_its_owners_and_goes_when_its_upload_fails() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = Inputs::new(folder.path().to_owned());
        let broken = inputs.reserve(1).unwrap();
        std::fs::write(broken.path(), "half").unwrap();
        drop(broken);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let whole = inputs.reserve(1).unwrap();
        std::fs::write(whole.path(), "tar").unwrap();
        let input = whole.finish(Manifest::default());
        assert!(inputs.take(2, input.id).is_none() && inputs.take(1, input.id).is_some());
        inputs.sweep();
        assert!(inputs.path(input.id).exists());
    }

    #[test]
    fn room_is_bounded_and_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = Inputs::new(folder.path().to_owned());
        let most = usize::try_from(JOB_INPUTS_BYTES / JOB_INPUT_BYTES).unwrap();
        let held: Vec<_> = (0..most).map(|_| inputs.reserve(1).unwrap()).collect();
        assert!(inputs.reserve(1).is_err() && inputs.reserve(2).is_ok());
        drop(held);
        assert!(inputs.reserve(1).is_ok());
    }
}
