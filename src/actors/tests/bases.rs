mod replays;

use super::*;
use crate::actors::branches::beginning::Beginning;
use crate::actors::calls::send_now;
use crate::actors::snapshots::{RoomOnDisk, SessionBase, SessionSnapshots, SnapshotRoom, TakenSnapshot};
use crate::protocol::frames::HostFrame;
use crate::protocol::quota::Kind;
use crate::protocol::saved_state::{BaseSource, BoundRules};
use crate::protocol::snapshot::{SNAPSHOT_FORMAT, SnapshotManifest};
use crate::sandbox::backend::fake::WHILE_LOADING;
use crate::store::snapshots::{SnapshotAbout, SnapshotCharge as _};

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

/// A snapshot can be larger than what is free when it begins.
#[tokio::test(flavor = "multi_thread")]
async fn the_reserve_of_the_disk_is_looked_at_before_each_chunk() {
    let home = Home::new();
    // More than any disk has.
    let short = SETTINGS.replace("[sandbox]", "[sandbox]\ndisk_reserve = \"1000000TiB\"");
    let daemon = home.daemon_with(&short).await;
    let (on_disk, room) = on_disk(&home, &daemon, SessionId::fresh());
    assert_eq!(on_disk.writer().map(drop).unwrap_err().code, Code::Storage, "it does not begin");
    let used = || daemon.ledger.used(OWNER, Kind::Workspace);
    let before = used();
    let chunk = RoomOnDisk::new(&room, &daemon.launcher).take(4096).unwrap_err();
    assert_eq!((chunk.code, used()), (Code::Storage, before), "nothing is charged that is not written");
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

/// A session that was not made has no removal that could take them along.
#[tokio::test(flavor = "multi_thread")]
async fn the_variables_of_a_session_that_was_not_made_go_with_the_next_start() {
    let home = Home::new();
    home.backend.plays(WHILE_LOADING, &[Step::Wait]);
    let daemon = home.daemon().await;
    let id = SessionId::fresh();
    let (on_disk, room) = on_disk(&home, &daemon, id);
    let snapshot = take(&on_disk, b"1").keep();
    let source = BaseSource::Archive { name: "lab".into(), cell: 1 };
    let base = SessionBase { source, snapshot: Some(snapshot), bound: BoundRules::default(), room };
    let create = |reply_to| SupervisorMsg::Create {
        id,
        owner: OWNER,
        request: Box::default(),
        nested: false,
        job: None,
        base: Some(Box::new(Beginning { variables: Some(base), ..Beginning::default() })),
        memory: None,
        reply_to,
    };
    let _made = send_now(&daemon.supervisor, create);
    within("its sandbox is started", async {
        while home.backend.started() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let loads = |frame: &HostFrame| matches!(frame, HostFrame::Restore { .. });
    within("it loads them", home.backend.kernel().hears(loads)).await;
    let folder = home.path().join("snapshots").join(id.to_string());
    assert!(folder.exists());
    daemon.dies().await;
    let _daemon = home.daemon().await;
    within("they are gone", async {
        while folder.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
