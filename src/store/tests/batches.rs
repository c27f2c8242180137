//! Batches in the journal: what happens to their jobs has numbers, each once, and they go with their jobs.

use std::time::{Duration, SystemTime};

use crate::protocol::batch::{BatchPlace, BatchView};
use crate::protocol::ids::{BatchId, JobId};
use crate::protocol::job::{JobEnd, JobState, JobView, NewJob, Verdict};
use crate::protocol::principal::Principal;
use crate::store::{BatchRecord, JobRecord, Journal};

fn job(batch: BatchId, index: usize) -> JobRecord {
    let view = JobView {
        id: JobId::fresh(),
        name: "a".into(),
        owner: Principal::ANN,
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
        batch: Some(BatchPlace { id: batch, index }),
        admin_acts: Vec::new(),
    };
    JobRecord { view, job: NewJob::default(), session: None, judged: None }
}

async fn ends(journal: &Journal, record: &mut JobRecord, verdict: Verdict) {
    let (reason, artifacts) = (String::new(), Vec::new());
    let end = JobEnd { verdict, exit_code: 0, reason, duration_ms: 1.0, artifacts, artifacts_cut: false };
    record.view.state = JobState::Ended;
    record.view.end = Some(end);
    journal.put_job(record).await.unwrap();
}

#[tokio::test]
async fn what_happens_to_jobs_of_a_batch_is_numbered_once() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let id = BatchId::fresh();
    let view = BatchView {
        id,
        owner: Principal::ANN,
        created_at: "2026-01-01T00:00:00.000Z".into(),
        ended_at: None,
        parallel: 2,
        size: 2,
        ended: 0,
        passed: 0,
        jobs: Vec::new(),
    };
    let batch = BatchRecord { view, ephemeral: true, events: 0 };
    let (mut first, mut second) = (job(id, 0), job(id, 1));
    journal.put_batch(&batch, &[first.clone(), second.clone()], None).await.unwrap();
    assert_eq!(journal.open_batches().unwrap(), std::slice::from_ref(&batch));
    assert_eq!(journal.batches(Principal::ANN, 10).unwrap(), std::slice::from_ref(&batch.view));
    assert_eq!(journal.batches(Principal::BOB, 10).unwrap(), []);
    assert_eq!(journal.jobs_of_batch(id).unwrap(), [first.view.id, second.view.id]);
    assert_eq!(journal.next_batch_event(id, 0).unwrap(), None);
    // A job that has a slot, and no sandbox yet, has not begun.
    second.view.state = JobState::Running;
    journal.put_job(&second).await.unwrap();
    assert_eq!(journal.next_batch_event(id, 0).unwrap(), None);
    second.view.started_at = Some("2026-01-01T00:00:01.000Z".into());
    for _ in 0..2 {
        journal.put_job(&second).await.unwrap();
    }
    ends(&journal, &mut first, Verdict::Cancelled).await;
    ends(&journal, &mut second, Verdict::Passed).await;
    let mut told = Vec::new();
    while let Some(row) = journal.next_batch_event(id, told.len() as u64).unwrap() {
        assert!(row.bytes > 0);
        told.push((row.seq, row.job, row.is_end));
    }
    let (first, second) = (first.view.id, second.view.id);
    assert_eq!(told, [(1, second, false), (2, first, true), (3, second, true)]);
    let ended = journal.batch(id).unwrap().unwrap();
    assert_eq!((ended.view.ended, ended.view.passed, ended.events), (2, 1, 3));
    assert!(ended.view.ended_at.is_some() && journal.open_batches().unwrap().is_empty());
    // It is there as long as one of its jobs is.
    journal.forget_job(first).await.unwrap();
    journal.forget_jobs(SystemTime::now(), Duration::from_secs(60)).await.unwrap();
    assert!(journal.batch(id).unwrap().is_some());
    journal.forget_job(second).await.unwrap();
    journal.forget_jobs(SystemTime::now(), Duration::from_secs(60)).await.unwrap();
    assert_eq!(journal.batch(id).unwrap(), None);
}

/// The next account of a user id does not see the batches of the one before.
#[tokio::test]
async fn batches_of_an_owner_without_jobs_can_be_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let mut ids = Vec::new();
    for owner in [Principal::ANN, Principal::ANN, Principal::BOB] {
        let id = BatchId::fresh();
        let view = BatchView {
            id,
            owner,
            created_at: "2026-01-01T00:00:00.000Z".into(),
            ended_at: None,
            parallel: 1,
            size: 1,
            ended: 0,
            passed: 0,
            jobs: Vec::new(),
        };
        let mut record = job(id, 0);
        record.view.owner = owner;
        let batch = BatchRecord { view, ephemeral: false, events: 0 };
        journal.put_batch(&batch, std::slice::from_ref(&record), None).await.unwrap();
        ends(&journal, &mut record, Verdict::Passed).await;
        ids.push((id, record.view.id));
    }
    assert!(journal.forget_job(ids[0].1).await.unwrap());
    journal.forget_owner(Principal::ANN).await.unwrap();
    let left =
        |owner| journal.batches(owner, 10).unwrap().into_iter().map(|view| view.id).collect::<Vec<_>>();
    assert_eq!((left(Principal::ANN), left(Principal::BOB)), (vec![ids[1].0], vec![ids[2].0]));
}
