mod replays;

use super::*;
use crate::actors::branches::beginning::Beginning;
use crate::actors::snapshots::{SessionBase, SessionSnapshots, SnapshotRoom, TakenSnapshot};
use crate::protocol::quota::Kind;
use crate::protocol::saved_state::{BaseSource, BoundRules};
use crate::protocol::snapshot::{SNAPSHOT_FORMAT, SnapshotManifest};
use crate::sandbox::backend::fake::WHILE_LOADING;
use crate::store::snapshots::SnapshotAbout;

/// The snapshots of a session in the folder of the daemon, and what is charged for them.
fn on_disk(home: &Home, daemon: &Daemon, id: SessionId) -> (SessionSnapshots, Arc<SnapshotRoom>) {
    let store = SnapshotStore::open(&home.path()).unwrap();
    let room = Arc::new(SnapshotRoom::keep(&daemon.ledger, OWNER, "lab", 0));
    (SessionSnapshots::new(store, id, Arc::clone(&room), Arc::clone(&daemon.launcher)), room)
}

fn take(on_disk: &SessionSnapshots, text: &[u8]) -> TakenSnapshot {
    let mut writer = on_disk.writer().unwrap();
    writer.piece(text).unwrap();
    writer.end_section().unwrap();
    let manifest = SnapshotManifest {
        format: SNAPSHOT_FORMAT,
        python: "3.12.0".into(),
        variables: 1,
        missing: Vec::new(),
        files: Vec::new(),
        sections: 1,
        bytes: text.len() as u64,
        modules: 0,
    };
    let (python, image, at) = ("3.12.0".into(), String::new(), String::new());
    let about = SnapshotAbout { cell: 1, python, image, manifest, name: None, packages: None, at };
    TakenSnapshot::new(writer.finish(about).unwrap(), on_disk.clone())
}

/// Otherwise it would be charged until the next daemon.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_nothing_waits_for_any_more_does_not_stay_on_the_disk() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let used = || daemon.ledger.used(OWNER, Kind::Workspace);
    let (on_disk, _room) = on_disk(&home, &daemon, SessionId::fresh());
    let before = used();
    drop(take(&on_disk, b"given up"));
    within("it is gone", async {
        while used() > before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let record = take(&on_disk, b"kept").keep();
    assert!(on_disk.read(&record).is_ok() && used() > before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_not_made_if_its_sandbox_ends_over_the_variables_that_it_begins_with() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[Step::EndSandbox]);
    let daemon = home.daemon().await;
    let (id, made) = replays::makes_with_variables(&home, &daemon).await;
    let problem = made.unwrap_err();
    assert_eq!(problem.code, Code::SandboxFailed, "{problem}");
    assert!(daemon.directory.find(OWNER, &id.to_string(), false).is_none(), "nothing is left of it");
}
