//! The quotas that one session, cell or job takes.

use crate::actors::journal_charges::record_bytes;
use crate::protocol::ids::JobId;
use crate::protocol::job::NewJob;
use crate::protocol::quota::Kind;
use crate::quota::Amounts;
use crate::security_controls;

/// The quota of one session. A zero for the workspace refuses users who are over that quota already. The
/// session of a job is counted as the job. The record, with the seed, is the first thing stored of a session.
pub fn of_session(job: Option<JobId>, request: &serde_json::Value) -> Amounts {
    let sessions = u64::from(job.is_none() && security_controls::holds("session_quota"));
    Amounts::of([(Kind::Sessions, sessions), (Kind::Workspace, 0), (Kind::Journal, record_bytes(request))])
}

/// A cell that runs.
pub fn of_cell() -> Amounts {
    Amounts::of([(Kind::Cells, u64::from(security_controls::holds("cell_quota")))])
}

/// The bytes reserved for a job's end: its verdict, its receipt, the names of its artifacts.
const VERDICT_BYTES: u64 = 16 * 1024;

/// The quota of one job: the job itself, and its record including the later verdict.
pub fn of_job(job: &NewJob) -> Amounts {
    let record = description_bytes(job).saturating_add(VERDICT_BYTES);
    Amounts::of([(Kind::Jobs, u64::from(security_controls::holds("job_quota"))), (Kind::Journal, record)])
}

/// The bytes of a job's description, which is kept twice: as it was sent, and as it is shown.
pub fn description_bytes(job: &NewJob) -> u64 {
    let bytes = serde_json::to_string(job).map_or(0, |text| text.len() as u64);
    if security_controls::holds("job_record_charge") { bytes.saturating_mul(2) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_job_is_charged() {
        let job = NewJob { args: vec!["x".repeat(10_000)], ..NewJob::default() };
        assert!(description_bytes(&job) > 20_000);
        assert!(of_job(&job).get(Kind::Journal) > 20_000);
    }
}
