use super::*;
use crate::actors::jobs::{Inputs, Jobs, JobsArgs, JobsMsg};
use crate::protocol::ids::JobId;
use crate::protocol::job::{JobState, JobView, NewJob};
use crate::protocol::quota::Kind;
use crate::quota::Amounts;
use crate::store::JobRecord;
use ractor::ActorRef;

/// Longer than the pause between two looks at the queue of jobs.
const SEVERAL_LOOKS: Duration = Duration::from_millis(2500);

/// The record of a job that waits. Its files are not there, so it fails as soon as it has a sandbox.
pub(super) fn queued() -> JobRecord {
    let view = JobView {
        id: JobId::fresh(),
        name: "a".into(),
        owner: OWNER,
        state: JobState::Queued,
        script: "a.py".into(),
        args: Vec::new(),
        env: Vec::new(),
        timeout_s: 1.0,
        created_at: "2026-01-01T00:00:00.000Z".into(),
        started_at: None,
        ended_at: None,
        receipt: None,
        end: None,
        batch: None,
        admin_acts: Vec::new(),
    };
    JobRecord { view, job: NewJob::default(), session: None, judged: None }
}

/// Starts the jobs of a daemon, which go on with those in its journal.
pub(super) async fn spawned(daemon: &Daemon, shutdown: CancellationToken) -> ActorRef<JobsMsg> {
    let args = JobsArgs {
        journal: daemon.journal.clone(),
        launcher: Arc::clone(&daemon.launcher),
        supervisor: daemon.supervisor.clone(),
        inputs: Inputs::new(daemon.launcher.paths.jobs_dir(), daemon.ledger.clone()),
        ledger: daemon.ledger.clone(),
        shutdown,
    };
    Jobs::spawn(args, CancellationToken::new()).await.unwrap().0
}

/// Otherwise a job that had waited for hours would end over what another session, or the machine, lacks for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_session_is_refused_for_want_of_room_waits_again() {
    let home = Home::new();
    let daemon = home.daemon_with(&format!("{SETTINGS}[quota]\njournal = \"64MiB\"\n")).await;
    let record = queued();
    let id = record.view.id;
    daemon.journal.put_job(&record).await.unwrap();
    // The queue looks at the room of sandboxes alone; this is of another kind.
    let full = daemon.ledger.keep(OWNER, "other data", Amounts::of([(Kind::Journal, 64 << 20)]));
    let jobs = spawned(&daemon, CancellationToken::new()).await;
    tokio::time::sleep(SEVERAL_LOOKS).await;
    let watched = within("a watch", call(&jobs, |reply_to| JobsMsg::Watch { id, reply_to })).await.unwrap();
    let mut state = watched.expect("it waits").state;
    drop(full);
    within("the job has ended", async { while state.changed().await.is_ok() {} }).await;
    let end = daemon.journal.job(id).unwrap().unwrap().view.end.unwrap();
    assert!(end.reason.contains("the files of the job cannot be read"), "it had a sandbox at last: {end:?}");
}
