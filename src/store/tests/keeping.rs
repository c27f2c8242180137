use serde_json::json;
use std::time::SystemTime;

use super::*;
use crate::protocol::ids::JobId;
use crate::store::idempotency::KEY_LIFE;
use crate::store::sessions::CleanupCounts;
use crate::store::{Answered, Claim, JournalError, KEEP_REMOVED, ROW_BYTES};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn sessions_live_until_they_are_removed_and_their_names_are_free_again() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let (first, second) = (record("a"), record("a"));
    let other = SessionRecord { owner: Principal::new(7), ..record("a") };
    journal.create_session(&first).await.unwrap();
    assert!(matches!(journal.create_session(&second).await, Err(JournalError::NameTaken)));
    journal.create_session(&other).await.unwrap();
    assert_eq!(journal.sessions().unwrap(), [first.clone(), other.clone()]);
    journal.remove_session(first.id).await.unwrap();
    journal.create_session(&second).await.unwrap();
    journal.close();
    let journal = Journal::open(folder.path()).unwrap();
    let mut living = vec![other, second];
    living.sort_by_key(|record| record.id);
    assert_eq!(journal.sessions().unwrap(), living);
}

#[tokio::test]
async fn what_is_left_of_removed_sessions_goes_after_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let now = SystemTime::now();
    let [old, recent, living] = ["old", "recent", "living"].map(record);
    let large = "x".repeat(2 * crate::store::blobs::INLINE_BYTES);
    for session in [&old, &recent, &living] {
        journal.create_session(session).await.unwrap();
        let log = journal.log(session.id).unwrap();
        append(&log, 12_000);
        log.append(created(&large));
        std::fs::create_dir_all(log.spill_folder()).unwrap();
        std::fs::write(log.spill_folder().join("1.out"), "output").unwrap();
        log.flushed().await;
    }
    std::fs::write(folder.path().join("blobs/.x.draft"), "half").unwrap();
    journal.remove_session_at(old.id, now - KEEP_REMOVED).await.unwrap();
    journal.remove_session_at(recent.id, now - KEEP_REMOVED + 2 * SECOND).await.unwrap();
    let blobs = || std::fs::read_dir(folder.path().join("blobs")).unwrap().count();
    assert_eq!(blobs(), 4);
    let tidied = journal.tidy(now, KEEP_REMOVED).await.unwrap();
    // The session's large value was deleted together with the session; the one blob that is found in addition is the
    // draft.
    assert_eq!(tidied, CleanupCounts { sessions: 1, blobs: 1, keys: 0 });
    assert_eq!(journal.tidy(now, KEEP_REMOVED).await.unwrap(), CleanupCounts::default());
    assert_eq!(blobs(), 2);
    assert!(!journal.spill_folder(old.id).exists() && journal.spill_folder(recent.id).exists());
    journal.close();
    let journal = Journal::open(folder.path()).unwrap();
    let event_counts =
        [&old, &recent, &living].map(|session| bodies(&journal.log(session.id).unwrap()).len());
    assert_eq!(event_counts, [0, 12_001, 12_001]);
}

#[tokio::test]
async fn the_keys_of_one_owner_can_be_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    for (owner, key) in [(Principal::ANN, "one"), (Principal::ANN, "two"), (Principal::BOB, "one")] {
        assert_eq!(journal.claim(owner, key, "hash").await.unwrap(), Claim::New);
        journal.answer(owner, key, 200, &json!({}), None).await.unwrap();
    }
    journal.forget_owner(Principal::ANN).await.unwrap();
    for key in ["one", "two"] {
        assert_eq!(journal.claim(Principal::ANN, key, "another").await.unwrap(), Claim::New);
    }
    assert!(matches!(journal.claim(Principal::BOB, "one", "hash").await.unwrap(), Claim::Known { .. }));
}

#[tokio::test]
async fn a_key_stands_for_one_request_of_one_owner_for_a_day() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let now = SystemTime::now();
    let claim = |owner, hash: &'static str, at| {
        let journal = journal.clone();
        async move { journal.claim_at(owner, "key", hash, at).await.unwrap() }
    };
    assert_eq!(claim(Principal::ANN, "h1", now).await, Claim::New);
    assert_eq!(claim(Principal::ANN, "h1", now).await, Claim::Known { target: None, answer: None });
    assert_eq!(claim(Principal::ANN, "h2", now).await, Claim::Conflict);
    assert_eq!(claim(Principal::BOB, "h2", now).await, Claim::New);
    journal.aim(Principal::ANN, "key", Some(&json!({ "cell": 4 }))).await.unwrap();
    journal.answer(Principal::ANN, "key", 202, &json!({ "ok": true }), None).await.unwrap();
    journal.release(Principal::BOB, "key").await.unwrap();
    journal.close();

    let journal = Journal::open(folder.path()).unwrap();
    let answer = Some(Answered { status: 202, body: json!({ "ok": true }) });
    let known = Claim::Known { target: Some(json!({ "cell": 4 })), answer };
    assert_eq!(journal.claim(Principal::ANN, "key", "h1").await.unwrap(), known);
    journal.release(Principal::ANN, "key").await.unwrap();
    assert_eq!(
        journal.claim(Principal::ANN, "key", "h1").await.unwrap(),
        known,
        "an answered key is not given back"
    );
    assert_eq!(journal.claim(Principal::BOB, "key", "h3").await.unwrap(), Claim::New);
    // A key with a target is released only after the target is cleared.
    journal.aim(Principal::BOB, "key", Some(&json!({ "cell": 5 }))).await.unwrap();
    journal.release(Principal::BOB, "key").await.unwrap();
    assert_eq!(journal.claim(Principal::BOB, "key", "h4").await.unwrap(), Claim::Conflict);
    journal.aim(Principal::BOB, "key", None).await.unwrap();
    journal.release(Principal::BOB, "key").await.unwrap();
    assert_eq!(journal.claim(Principal::BOB, "key", "h4").await.unwrap(), Claim::New);
    // The key keeps leading to a session for as long as the session exists, even after its creation was reported as
    // failed.
    let session = record("late");
    journal.create_session(&session).await.unwrap();
    let target = json!({ "new_session": session.id });
    journal.aim(Principal::BOB, "key", Some(&target)).await.unwrap();
    journal.aim_at_nothing(Principal::BOB, "key", session.id).await.unwrap();
    let known = Claim::Known { target: Some(target), answer: None };
    assert_eq!(journal.claim(Principal::BOB, "key", "h4").await.unwrap(), known);
    assert!(journal.is_living(session.id).unwrap());
    journal.remove_session(session.id).await.unwrap();
    assert!(!journal.is_living(session.id).unwrap());
    journal.aim_at_nothing(Principal::BOB, "key", session.id).await.unwrap();
    journal.release(Principal::BOB, "key").await.unwrap();
    assert_eq!(journal.claim(Principal::BOB, "key", "h4").await.unwrap(), Claim::New);
    let later = now + KEY_LIFE;
    assert_eq!(journal.claim_at(Principal::ANN, "key", "h9", later).await.unwrap(), Claim::New);
    assert_eq!(journal.tidy(later + 2 * SECOND, KEEP_REMOVED).await.unwrap().keys, 1);
    assert_eq!(
        journal.claim_at(Principal::ANN, "key", "h9", later).await.unwrap(),
        Claim::Known { target: None, answer: None }
    );
}

#[tokio::test]
async fn of_many_who_claim_a_key_at_once_one_gets_it() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let claims: Vec<_> = (0..600)
        .map(|_| {
            let journal = journal.clone();
            tokio::spawn(async move { journal.claim(Principal::ANN, "key", "hash").await.unwrap() })
        })
        .collect();
    let mut new = 0;
    for claim in claims {
        new += usize::from(claim.await.unwrap() == Claim::New);
    }
    assert_eq!(new, 1);
}

#[tokio::test]
async fn of_listed_jobs_each_takes_room_before_it_is_read() {
    use crate::protocol::ids::JobId;
    use crate::protocol::job::{JobState, JobView, NewJob};
    use crate::store::JobRecord;
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    for owner in [1, 2, 1, 1].map(Principal::new) {
        let view = JobView {
            id: JobId::fresh(),
            name: "a".into(),
            owner,
            state: JobState::Queued,
            script: "a.py".into(),
            args: vec!["x".repeat(10_000)],
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
        let record = JobRecord { view, job: NewJob::default(), session: None, judged: None };
        journal.put_job(&record).await.unwrap();
    }
    let listed = |owner, limit: usize, mut left: u64| {
        journal.job_views(owner, limit, |bytes| {
            assert!(bytes > 10_000);
            left = left.checked_sub(bytes).ok_or(JournalError::Closed)?;
            Ok::<(), JournalError>(())
        })
    };
    assert_eq!(listed(Some(Principal::ANN), 10, u64::MAX).unwrap().len(), 3);
    assert_eq!(listed(None, 10, u64::MAX).unwrap().len(), 4);
    assert_eq!(listed(None, 2, 30_000).unwrap().len(), 2);
    assert!(listed(None, 10, 30_000).is_err(), "without room nothing more is read");
    let ids: Vec<_> = listed(None, 10, u64::MAX).unwrap().into_iter().map(|view| view.id.0).collect();
    assert!(ids.is_sorted_by(|one, next| one > next), "the newest first");
}

fn cost(tokens: u64) -> EventBody {
    EventBody::ModelSpent { ask: 1, step: 1, tokens }
}

/// What each user has spent today, by the journal.
fn spent_today(journal: &Journal) -> Vec<(u32, u64)> {
    let mut sums = std::collections::BTreeMap::new();
    for spent in journal.tokens_of_day(&crate::protocol::clock::now()).unwrap() {
        *sums.entry(spent.owner.uid()).or_insert(0) += spent.tokens;
    }
    sums.into_iter().collect()
}

/// Otherwise a user gets back the quota of the day by filling the disk until the session is forgotten.
#[tokio::test]
async fn tokens_of_the_day_stay_spent_when_their_session_is_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let [first, second, living] = ["first", "second", "living"].map(record);
    let other = SessionRecord { owner: Principal::new(7), ..record("other") };
    for (session, tokens) in [(&first, 100), (&second, 20), (&living, 3), (&other, 5)] {
        journal.create_session(session).await.unwrap();
        let log = journal.log(session.id).unwrap();
        log.append(cost(tokens));
        // The costs lie in several of the steps in which events are deleted.
        append(&log, 6_000);
        log.append(cost(tokens));
        log.flushed().await;
    }
    let before = spent_today(&journal);
    assert_eq!(before, [(7, 10), (1000, 246)]);
    for session in [&first, &second, &other] {
        journal.remove_session(session.id).await.unwrap();
        journal.forget(session.id).await.unwrap();
        assert_eq!(spent_today(&journal), before);
    }
    journal.close();
    let journal = Journal::open(folder.path()).unwrap();
    assert_eq!(spent_today(&journal), before);
    assert_eq!(journal.tokens_of_day("9999-01-01T00:00:00.000Z").unwrap(), []);
}

/// The next account of a user id has its quota of the day for itself.
#[tokio::test]
async fn what_an_owner_has_spent_goes_with_the_removed_sessions() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let [forgotten, removed] = ["forgotten", "removed"].map(record);
    let other = SessionRecord { owner: Principal::new(7), ..record("other") };
    for session in [&forgotten, &removed, &other] {
        journal.create_session(session).await.unwrap();
        let log = journal.log(session.id).unwrap();
        log.append(cost(10));
        log.flushed().await;
        journal.remove_session(session.id).await.unwrap();
    }
    journal.forget(forgotten.id).await.unwrap();
    assert_eq!(spent_today(&journal), [(7, 10), (1000, 20)]);
    journal.forget_owner(removed.owner).await.unwrap();
    // The quota of the machine counts it still.
    assert_eq!(spent_today(&journal), [(7, 10), (Principal::FORMER_ACCOUNTS.uid(), 20)]);
    assert_eq!(journal.removed().unwrap(), [(other.owner, other.id)]);
}

/// Takes back what the newest step of the schema adds.
const WITHOUT_BATCHES: &str = "
    DROP TABLE batches;
    DROP INDEX jobs_of_batch;
    DROP INDEX batch_starts;
    DROP INDEX batch_ends;
    ALTER TABLE jobs DROP COLUMN batch;
    ALTER TABLE jobs DROP COLUMN started_event;
    ALTER TABLE jobs DROP COLUMN ended_event;
    PRAGMA user_version = 6;";

#[tokio::test]
async fn a_journal_without_sums_of_tokens_gets_them() {
    let folder = tempfile::tempdir().unwrap();
    drop(Journal::open(folder.path()).unwrap());
    let file = rusqlite::Connection::open(folder.path().join("journal.db")).unwrap();
    file.execute_batch(WITHOUT_BATCHES).unwrap();
    file.execute_batch("DROP TABLE spent_tokens; PRAGMA user_version = 5;").unwrap();
    drop(file);
    let journal = Journal::open(folder.path()).unwrap();
    let session = record("a");
    journal.create_session(&session).await.unwrap();
    journal.log(session.id).unwrap().append(cost(8));
    journal.remove_session(session.id).await.unwrap();
    journal.forget(session.id).await.unwrap();
    assert_eq!(spent_today(&journal), [(1000, 8)]);
}

/// Otherwise an administrator fills the disk by looking.
#[tokio::test]
async fn acts_of_an_administrator_with_a_job_are_bounded_and_those_that_look_go_first() {
    use crate::protocol::limits::JOB_ACTS_KEPT;
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let job = JobId::fresh();
    let (root, other) = (Principal::new(0), Principal::new(1));
    assert!(journal.note_act(job, root, "POST cancel").await.unwrap());
    assert!(journal.note_act(job, other, "GET it").await.unwrap());
    for number in 0..JOB_ACTS_KEPT {
        assert!(journal.note_act(job, root, &format!("GET {number}")).await.unwrap());
    }
    let last = format!("GET {}", JOB_ACTS_KEPT - 1);
    assert!(!journal.note_act(job, root, &last).await.unwrap(), "it was recorded a moment ago");
    assert!(journal.note_act(job, other, &last).await.unwrap());
    let file = rusqlite::Connection::open(folder.path().join("journal.db")).unwrap();
    let count = |what: &str| {
        let query = format!("SELECT count(*) FROM job_acts WHERE {what}");
        file.query_row(&query, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    assert_eq!((count("admin = 0"), count("admin = 1")), (i64::try_from(JOB_ACTS_KEPT).unwrap(), 2));
    assert_eq!((count("act = 'POST cancel'"), count("act = 'GET 0'"), count("act = 'GET 1'")), (1, 0, 1));
    let kept = journal.kept_for_requests(Some(root)).unwrap();
    assert!(kept.len() == 1 && kept[0].0 == root && kept[0].1 > JOB_ACTS_KEPT as u64 * ROW_BYTES, "{kept:?}");
}

#[tokio::test]
async fn acts_on_forgotten_jobs_go_in_steps() {
    let folder = tempfile::tempdir().unwrap();
    let journal = Journal::open(folder.path()).unwrap();
    let most = crate::store::sessions::ROWS_DELETED;
    let file = rusqlite::Connection::open(folder.path().join("journal.db")).unwrap();
    let many = "WITH RECURSIVE some(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM some WHERE n < ?1)
        INSERT INTO job_acts (job, at, noted, admin, act) SELECT x'00', '', 1, 0, '' FROM some";
    file.execute(many, [2 * most + 1]).unwrap();
    assert_eq!(i64::try_from(journal.forget_some_acts(1).await.unwrap()), Ok(most));
    journal.forget_jobs(SystemTime::now(), SECOND).await.unwrap();
    let left: i64 = file.query_row("SELECT count(*) FROM job_acts", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn a_journal_without_batches_gets_them_and_keeps_its_jobs() {
    let folder = tempfile::tempdir().unwrap();
    drop(Journal::open(folder.path()).unwrap());
    let file = rusqlite::Connection::open(folder.path().join("journal.db")).unwrap();
    file.execute_batch(WITHOUT_BATCHES).unwrap();
    let old = "INSERT INTO jobs (id, owner, ended_at, record) VALUES (x'00000000000070008000000000000001', 1, 2, '{}')";
    file.execute(old, []).unwrap();
    drop(file);
    let journal = Journal::open(folder.path()).unwrap();
    assert_eq!(journal.ended_jobs().unwrap().len(), 1);
    assert_eq!(journal.open_batches().unwrap(), []);
}
