//! Files that were sent for jobs: kept on the disk until the last job that uses them has ended, or until they
//! have been unused for too long.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::protocol::ids::InputId;
use crate::protocol::job::JobInput;
use crate::protocol::limits::{JOB_INPUT_BYTES, JOB_INPUT_UNUSED, JOB_INPUTS, JOB_INPUTS_BYTES};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::Kind;
use crate::quota::{Amounts, Ledger, Permit};
use crate::sandbox::workspace::job_files::Manifest;
use crate::security_controls;

/// The suffix of input files in the folder of jobs.
const INPUT: &str = ".input";
/// The name of these files in a user's quota.
const NAME: &str = "files sent for jobs";

#[derive(Clone)]
pub struct Inputs(Arc<SharedInputs>);

struct SharedInputs {
    folder: PathBuf,
    ledger: Ledger,
    inputs: Mutex<BTreeMap<InputId, Input>>,
}

struct Input {
    owner: Principal,
    /// None while the input is being received, and after a restart, when no new job can use it.
    manifest: Option<Arc<Manifest>>,
    /// The size on the disk, or the largest possible one during the upload.
    bytes: u64,
    /// The charge for the bytes on the disk, made before they were written.
    permit: Permit,
    jobs: usize,
    /// Whether any job has used it, even if that job has ended.
    used: bool,
    since: Instant,
}

/// The use of an input by one job.
pub struct InputRef {
    inputs: Inputs,
    id: InputId,
}

impl Drop for InputRef {
    fn drop(&mut self) {
        if let Some(input) = self.inputs.0.inputs.lock().get_mut(&self.id) {
            input.jobs = input.jobs.saturating_sub(1);
            // The unused time begins again: another job may be about to use the same input.
            input.since = Instant::now();
        }
    }
}

/// The place of an input that is being received. It is released unless the upload succeeds.
pub struct InputReservation {
    inputs: Inputs,
    id: InputId,
    whole: bool,
}

impl Drop for InputReservation {
    fn drop(&mut self) {
        if !self.whole {
            self.inputs.0.inputs.lock().remove(&self.id);
            remove(&self.inputs.path(self.id));
        }
    }
}

impl InputReservation {
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.inputs.path(self.id)
    }

    /// Charges bytes before they are written. Inputs that are only kept for possible later jobs make room.
    pub fn charge(&self, bytes: u64) -> Result<(), Problem> {
        if !security_controls::holds("job_input_charge") {
            return Ok(());
        }
        let mut inputs = self.inputs.0.inputs.lock();
        let Some((owner, gauge)) = inputs.get(&self.id).map(|input| (input.owner, input.permit.gauge()))
        else {
            return Err(Problem::new(Code::Internal, "the upload is not known any more"));
        };
        loop {
            let Err(refusal) = gauge.grow(Kind::Journal, bytes) else { return Ok(()) };
            if !self.inputs.drop_spare(&mut inputs, owner) {
                return Err(refusal.into());
            }
        }
    }

    pub fn finish(mut self, manifest: Manifest) -> JobInput {
        self.whole = true;
        let view = view(self.id, &manifest);
        if let Some(input) = self.inputs.0.inputs.lock().get_mut(&self.id) {
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
    pub fn new(folder: PathBuf, ledger: Ledger) -> Self {
        Self(Arc::new(SharedInputs { folder, ledger, inputs: Mutex::default() }))
    }

    /// Removes the owner's oldest input that is only kept for possible later jobs; false if there is none.
    fn drop_spare(&self, inputs: &mut BTreeMap<InputId, Input>, owner: Principal) -> bool {
        let spare = inputs.iter().filter(|(_, input)| input.owner == owner && input.used && input.jobs == 0);
        let Some(oldest) = spare.min_by_key(|(_, input)| input.since).map(|(id, _)| *id) else {
            return false;
        };
        inputs.remove(&oldest);
        remove(&self.path(oldest));
        true
    }

    fn permit(&self, owner: Principal, bytes: u64) -> Permit {
        self.0.ledger.keep(owner, NAME, Amounts::of([(Kind::Journal, bytes)]))
    }

    #[must_use]
    pub fn path(&self, id: InputId) -> PathBuf {
        self.0.folder.join(format!("{id}{INPUT}"))
    }

    /// Reserves a place before the first byte is received.
    pub fn reserve(&self, owner: Principal) -> Result<InputReservation, Problem> {
        let mut inputs = self.0.inputs.lock();
        loop {
            let own = || inputs.iter().filter(|(_, input)| input.owner == owner);
            let bytes: u64 = own().map(|(_, input)| input.bytes).sum();
            if own().count() < JOB_INPUTS && bytes.saturating_add(JOB_INPUT_BYTES) <= JOB_INPUTS_BYTES {
                break;
            }
            let count = own().count();
            if !self.drop_spare(&mut inputs, owner) {
                return Err(Problem::new(
                    Code::TooMany,
                    format!("files of {count} jobs of yours, {bytes} bytes, are kept already"),
                )
                .hint("wait until some of your jobs have ended"));
            }
        }
        let id = InputId::fresh();
        let since = Instant::now();
        let (bytes, permit) = (JOB_INPUT_BYTES, self.permit(owner, 0));
        inputs.insert(id, Input { owner, manifest: None, bytes, permit, jobs: 0, used: false, since });
        drop(inputs);
        Ok(InputReservation { inputs: self.clone(), id, whole: false })
    }

    /// Uses an input for one more job; none if the owner has no such input.
    pub fn take(&self, owner: Principal, id: InputId) -> Option<(Arc<Manifest>, InputRef)> {
        let mut inputs = self.0.inputs.lock();
        let input = inputs.get_mut(&id).filter(|input| input.owner == owner)?;
        let manifest = input.manifest.clone()?;
        input.jobs += 1;
        input.used = true;
        Some((manifest, InputRef { inputs: self.clone(), id }))
    }

    /// Uses the input of a job that an earlier daemon accepted.
    #[must_use]
    pub fn take_again(&self, owner: Principal, id: InputId, bytes: u64) -> InputRef {
        let fresh = || {
            let on_disk = std::fs::metadata(self.path(id)).map_or(bytes, |file| file.len());
            let permit = self.permit(owner, on_disk);
            Input { owner, manifest: None, bytes, permit, jobs: 0, used: true, since: Instant::now() }
        };
        self.0.inputs.lock().entry(id).or_insert_with(fresh).jobs += 1;
        InputRef { inputs: self.clone(), id }
    }

    /// Removes inputs that were unused for too long, and files that belong to no input.
    pub fn sweep(&self) {
        // Listed first, so that files of later uploads are not among them.
        let found: Vec<PathBuf> = std::fs::read_dir(&self.0.folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect();
        let mut inputs = self.0.inputs.lock();
        inputs.retain(|_, input| {
            input.jobs > 0 || input.manifest.is_none() || input.since.elapsed() < JOB_INPUT_UNUSED
        });
        let known: Vec<PathBuf> = inputs.keys().map(|id| self.path(*id)).collect();
        drop(inputs);
        for path in found {
            if path.to_string_lossy().ends_with(INPUT) && !known.contains(&path) {
                remove(&path);
            }
        }
    }

    /// Removes an input that only one ended job could use.
    pub fn forget_unused(&self, id: InputId) {
        let mut inputs = self.0.inputs.lock();
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
    use crate::config::Quota;

    #[test]
    fn an_input_is_charged_before_it_is_written_and_what_is_spare_makes_room() {
        let folder = tempfile::tempdir().unwrap();
        let quota = Quota { everyone: [(Kind::Journal, 100)].into_iter().collect(), ..Quota::default() };
        let ledger = Ledger::new(&quota);
        let inputs = Inputs::new(folder.path().to_owned(), ledger.clone());
        let first = inputs.reserve(Principal::ANN).unwrap();
        first.charge(80).unwrap();
        let first = first.finish(Manifest::default());
        let second = inputs.reserve(Principal::ANN).unwrap();
        assert_eq!(second.charge(30).unwrap_err().code, Code::QuotaExceeded);
        let used = inputs.take(Principal::ANN, first.id).unwrap();
        assert!(second.charge(30).is_err(), "a job needs the first");
        drop(used);
        second.charge(30).unwrap();
        assert!(inputs.take(Principal::ANN, first.id).is_none());
        assert_eq!(ledger.used(Principal::ANN, Kind::Journal), 30);
        drop(second);
        assert_eq!(ledger.used(Principal::ANN, Kind::Journal), 0);
    }

    #[test]
    fn an_input_is_its_owners_and_goes_when_its_upload_fails() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = Inputs::new(folder.path().to_owned(), Ledger::new(&Quota::default()));
        let broken = inputs.reserve(Principal::ANN).unwrap();
        std::fs::write(broken.path(), "half").unwrap();
        drop(broken);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let whole = inputs.reserve(Principal::ANN).unwrap();
        std::fs::write(whole.path(), "tar").unwrap();
        let input = whole.finish(Manifest::default());
        assert!(
            inputs.take(Principal::BOB, input.id).is_none()
                && inputs.take(Principal::ANN, input.id).is_some()
        );
        inputs.sweep();
        assert!(inputs.path(input.id).exists());
    }

    #[test]
    fn room_is_bounded_and_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let inputs = Inputs::new(folder.path().to_owned(), Ledger::new(&Quota::default()));
        let most = usize::try_from(JOB_INPUTS_BYTES / JOB_INPUT_BYTES).unwrap();
        let reservations: Vec<_> = (0..most).map(|_| inputs.reserve(Principal::ANN).unwrap()).collect();
        assert!(inputs.reserve(Principal::ANN).is_err() && inputs.reserve(Principal::BOB).is_ok());
        drop(reservations);
        assert!(inputs.reserve(Principal::ANN).is_ok());
    }
}
