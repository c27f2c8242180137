use super::*;
use crate::actors::calls::{Reply, send_now};
use crate::actors::reaper::clear_folders;
use crate::actors::session::removers::Remover;
use crate::protocol::ids::{SessionName, VolumeName};
use crate::protocol::quota::Kind;
use crate::protocol::receipt::Backend;
use crate::sandbox::launch::{SandboxRequest, WantedImage};
use crate::sandbox::spec::{Choice, UserMapping};
use crate::sandbox::workspace::Workspace;
use crate::sandbox::workspace::own_user::MountedFolder;

const ONE_SESSION: &str = "[quota]\nsessions = 1\n";

fn named() -> NewSession {
    NewSession { name: Some(SessionName::parse("a").unwrap()), ..NewSession::default() }
}

fn is_removed(remover: fn(Reply<()>) -> Remover) -> impl Fn(Reply<()>) -> SessionMsg {
    move |reply_to| SessionMsg::Remove { remover: Some(remover(reply_to)) }
}

impl Daemon {
    /// How many sessions of the owner count.
    fn sessions(&self) -> u64 {
        let usage = self.ledger.usage(OWNER);
        usage.iter().find(|quota| quota.kind == Kind::Sessions).expect("it is counted").used
    }

    async fn removes(&self, client: &Client) {
        let remove = is_removed(Remover::of_record);
        within("the removal is recorded", try_call(&client.session, remove)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_is_answered_when_the_journal_has_it_and_frees_the_name_but_no_quota() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let slow = home.backend.next_removal_is_slow();
    let client = daemon.makes(OWNER, named()).await.unwrap();
    let patient = send_now(&client.session, is_removed(Remover::of_all));
    daemon.removes(&client).await;
    assert!(!daemon.journal.is_living(client.id).unwrap());
    // It is gone for clients, and only for them.
    assert!(daemon.directory.find(OWNER, "a", false).is_none());
    assert!(daemon.directory.find(OWNER, &client.id.to_string(), true).is_none());
    assert!(daemon.directory.list(None).is_empty() && daemon.directory.lists(client.id));
    assert_eq!(daemon.sessions(), 1);
    let next = daemon.makes(OWNER, named()).await.unwrap();
    assert_eq!(daemon.sessions(), 2);
    // Who still knows it is answered at once, too, and who waits for all of it is not.
    daemon.removes(&client).await;
    let mut patient = std::pin::pin!(patient);
    assert!(futures_util::poll!(patient.as_mut()).is_pending());
    drop(slow);
    within("all is gone", patient).await.expect("an answer").unwrap();
    assert_eq!((daemon.sessions(), daemon.directory.lists(client.id)), (1, false));
    let found = daemon.directory.find(OWNER, "a", false).expect("the next one");
    assert_eq!(found.session.get_id(), next.session.get_id());
}

/// Otherwise a client with a full quota could not remove a session and make another.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_waits_for_the_room_of_one_that_is_removed() {
    let home = Home::new();
    let daemon = home.daemon_with(&format!("{SETTINGS}{ONE_SESSION}")).await;
    let slow = home.backend.next_removal_is_slow();
    let client = daemon.makes(OWNER, named()).await.unwrap();
    let refused = daemon.makes(OWNER, NewSession::default()).await.err().expect("there is no room");
    assert_eq!(refused.code, Code::QuotaExceeded);
    daemon.removes(&client).await;
    let mut next = std::pin::pin!(daemon.makes(OWNER, named()));
    assert!(futures_util::poll!(next.as_mut()).is_pending());
    // The supervisor has looked at the request when it answers this.
    within("an answer", call(&daemon.supervisor, |reply_to| SupervisorMsg::Count { reply_to }))
        .await
        .unwrap();
    assert_eq!((home.backend.started(), daemon.sessions()), (1, 1));
    drop(slow);
    next.await.unwrap();
    assert_eq!((home.backend.started(), daemon.sessions()), (2, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_daemon_that_died_had_not_removed_yet_belongs_to_nobody() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let _slow = home.backend.next_removal_is_slow();
    let client = daemon.makes(OWNER, named()).await.unwrap();
    let receipt = within("a receipt", try_call(&client.session, |reply_to| SessionMsg::Receipt { reply_to }));
    let sandbox = receipt.await.unwrap().sandbox.clone();
    daemon.removes(&client).await;
    assert!(daemon.launcher.is_live(&sandbox.0));
    daemon.dies().await;
    let daemon = home.daemon().await;
    // The reaper removes what no session has.
    assert!(!daemon.launcher.is_live(&sandbox.0));
    assert!(daemon.directory.list(None).is_empty() && daemon.sessions() == 0);
    daemon.makes(OWNER, named()).await.unwrap();
}

/// The workspace of a sandbox that has this volume, and a request for such a sandbox.
fn beside_volume(daemon: &Daemon, name: &VolumeName) -> (Workspace, SandboxRequest) {
    let (launcher, volumes) = (&daemon.launcher, &daemon.launcher.volumes);
    let (service, owner) = (launcher.service, launcher.service.principal());
    let choice = || Choice { backend: Backend::Process, why: String::new() };
    let (same, accounts) = (UserMapping::Same, &launcher.accounts);
    let folder =
        Workspace::volume(volumes.path(owner, name), service, same, choice(), owner, accounts).unwrap();
    let mount = MountedFolder { target: "/data".into(), writable: true, volume: Some(name.clone()), folder };
    let path = launcher.paths.workspaces_dir().join("w");
    let workspace = Workspace::managed_for(path, service, same, choice(), owner, 1 << 20, accounts).unwrap();
    let workspace = workspace.beside(vec![mount]).unwrap();
    let limits = &launcher.settings.sandbox;
    let wanted = SandboxRequest {
        image: WantedImage::Any,
        first_image: None,
        memory_bytes: limits.memory_bytes,
        cpus: limits.cpus,
        pids: limits.pids,
        checkpoints: limits.checkpoints,
        checkpoints_at_rest: false,
        keep_cwd: false,
        env: std::collections::BTreeMap::new(),
    };
    (workspace, wanted)
}

/// The engine fails to remove a sandbox, which still has the volume then.
#[tokio::test(flavor = "multi_thread")]
async fn a_volume_stays_until_the_last_sandbox_that_has_it_is_gone() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let (launcher, volumes) = (&daemon.launcher, &daemon.launcher.volumes);
    let owner = launcher.service.principal();
    let name = VolumeName::parse("v").unwrap();
    volumes.create(&daemon.ledger, owner, &name, 1 << 20).await.unwrap();
    let (workspace, wanted) = beside_volume(&daemon, &name);
    let busy = async || {
        let refused = volumes.remove(owner, &name).await.unwrap_err();
        assert!(refused.code == Code::Busy && refused.message.contains("a sandbox"), "{refused:?}");
    };
    let start =
        async || launcher.prepare(&wanted, &workspace, &|_| {}).await.unwrap().start(()).await.unwrap();
    let (first, second) = (start().await, start().await);
    first.remove().await.unwrap();
    busy().await;
    home.backend.let_removals_fail(true);
    second.remove().await.unwrap_err();
    drop((first, second));
    busy().await;
    launcher.reap().await;
    busy().await;
    home.backend.let_removals_fail(false);
    assert_eq!(launcher.reap().await.0, 1);
    // A sandbox that never came to be lets go at once, and one that is left when it is not listed any more.
    let free = || assert!(volumes.holders(Backend::Process).is_empty());
    let prepare = async || launcher.prepare(&wanted, &workspace, &|_| {}).await.unwrap();
    let prepared = prepare().await;
    busy().await;
    drop(prepared);
    free();
    home.backend.let_starts_fail(true);
    assert!(prepare().await.start(()).await.is_err());
    free();
    home.backend.let_removals_fail(true);
    assert!(prepare().await.start(()).await.is_err());
    busy().await;
    home.backend.let_lists_fail(true);
    launcher.reap().await;
    busy().await;
    home.backend.let_lists_fail(false);
    home.backend.let_starts_fail(false);
    // Another sandbox that cannot be removed keeps only what it has itself.
    let stuck = start().await;
    let id = stuck.id().clone();
    drop(stuck);
    launcher.reap().await;
    assert_eq!(volumes.holders(Backend::Process), [id]);
    home.backend.let_removals_fail(false);
    assert_eq!(launcher.reap().await.0, 1);
    volumes.remove(owner, &name).await.unwrap();
}

/// Otherwise another user's session could get its user id, and nobody would pay for what still runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_cannot_be_removed_keeps_its_user_id_and_its_room() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let uid = daemon.journal.sessions().unwrap()[0].slot.expect("a user id");
    let has = || (daemon.launcher.slots.is_taken(uid), daemon.ledger.used(OWNER, Kind::Memory) > 0);
    home.backend.let_removals_fail(true);
    let remove = is_removed(Remover::of_all);
    within("the session is removed", try_call(&client.session, remove)).await.unwrap();
    for _ in 0..3 {
        daemon.launcher.reap().await;
        assert_eq!(has(), (true, true));
    }
    home.backend.let_removals_fail(false);
    // Something that has just measured the sandbox may hold on to it for a moment.
    let gone = async {
        while has() != (false, false) {
            daemon.launcher.reap().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the sandbox is gone", gone).await;
}

/// Otherwise its owner could start one after the other, and pay for none of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_never_was_ready_keeps_its_room_until_its_remains_are_gone() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let used = || daemon.ledger.used(OWNER, Kind::Memory);
    home.backend.let_starts_fail(true);
    daemon.makes(OWNER, NewSession::default()).await.err().expect("it cannot start");
    assert_eq!(used(), 0);
    home.backend.let_removals_fail(true);
    daemon.makes(OWNER, NewSession::default()).await.err().expect("it cannot start");
    assert!(used() > 0);
    // The backend knows nothing of it any more.
    daemon.launcher.reap().await;
    assert_eq!(used(), 0);
}

/// Otherwise a session of another user could get the user id of a sandbox that comes to be a moment later.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_nobody_waits_for_keeps_what_it_took_until_its_sandbox_is_gone() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let (launcher, owner) = (&daemon.launcher, daemon.launcher.service.principal());
    let name = VolumeName::parse("v").unwrap();
    launcher.volumes.create(&daemon.ledger, owner, &name, 1 << 20).await.unwrap();
    let (mut workspace, wanted) = beside_volume(&daemon, &name);
    let slot = launcher.slots.take().unwrap();
    let uid = slot.uid;
    workspace.slot = Some(uid);
    let room = Arc::new(());
    let begin = async || launcher.prepare(&wanted, &workspace, &|_| {}).await.unwrap();
    let has = || (Arc::strong_count(&room) == 2, launcher.volumes.holders(Backend::Process).len());
    let slow = home.backend.next_start_is_slow();
    let mut start = Box::pin(begin().await.start(Arc::clone(&room)));
    assert!(futures_util::poll!(start.as_mut()).is_pending());
    drop(start);
    drop(slot);
    launcher.reap().await;
    assert!(has() == (true, 1) && launcher.slots.is_taken(uid), "its sandbox may come to be");
    home.backend.let_removals_fail(true);
    drop(slow);
    within("it was tried to remove the sandbox", async {
        while !launcher.reap().await.1.iter().any(|left| !launcher.is_live(&left.0)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert!(has() == (true, 1) && launcher.slots.is_taken(uid), "it is there");
    home.backend.let_removals_fail(false);
    launcher.reap().await;
    assert!(has() == (false, 0) && !launcher.slots.is_taken(uid));
    assert_eq!((home.backend.started(), home.backend.living()), (1, 0));
    // Somebody has waited for this one, but no session has come to know it.
    drop(begin().await.start(Arc::clone(&room)).await.unwrap());
    assert!(has() == (true, 1) && launcher.slots.is_taken(uid));
    launcher.reap().await;
    assert!(has() == (false, 0) && !launcher.slots.is_taken(uid));
}

/// The sandbox of an earlier daemon fails attestation, and the engine fails to remove it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_cannot_be_taken_over_keeps_its_room_until_it_is_gone() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    daemon.dies().await;
    home.backend.changes_limits();
    home.backend.let_removals_fail(true);
    let daemon = home.daemon().await;
    let client = daemon.client(client.id);
    client.has_event(|event| matches!(event, EventBody::SandboxGone { .. })).await;
    let used = || daemon.ledger.used(OWNER, Kind::Memory);
    daemon.launcher.reap().await;
    assert!(used() > 0 && home.backend.living() == 1);
    home.backend.let_removals_fail(false);
    let gone = async {
        while used() > 0 {
            daemon.launcher.reap().await;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the sandbox is gone", gone).await;
    assert_eq!(home.backend.living(), 0);
}

/// The next daemon knows nothing of the session, and would give its user id to that of another user.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_a_daemon_left_keeps_its_user_id_from_sessions_of_the_next_one() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let uid = daemon.journal.sessions().unwrap()[0].slot.expect("a user id");
    home.backend.let_removals_fail(true);
    let remove = is_removed(Remover::of_all);
    within("the session is removed", try_call(&client.session, remove)).await.unwrap();
    daemon.dies().await;
    // The first of the next daemons does not even know whether it is there.
    for lists_fail in [true, false] {
        home.backend.let_lists_fail(lists_fail);
        let daemon = home.daemon().await;
        let launcher = &daemon.launcher;
        launcher.keep_left_user_ids();
        let (_, left) = launcher.reap().await;
        clear_folders(launcher, &left, &[], Vec::new()).await.unwrap();
        assert!(launcher.slots.is_taken(uid), "lists fail: {lists_fail}");
        daemon.dies().await;
    }
    let daemon = home.daemon().await;
    let launcher = &daemon.launcher;
    launcher.keep_left_user_ids();
    home.backend.let_removals_fail(false);
    launcher.reap().await;
    assert!(!launcher.slots.is_taken(uid));
}

/// Otherwise each restart would take the user ids of the sessions that are removed after it until the next sweep.
#[tokio::test(flavor = "multi_thread")]
async fn the_user_id_of_a_sandbox_that_was_taken_over_is_free_when_it_was_removed() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let client = daemon.makes_a_session().await;
    let uid = daemon.journal.sessions().unwrap()[0].slot.expect("a user id");
    daemon.dies().await;
    let daemon = home.daemon().await;
    daemon.launcher.keep_left_user_ids();
    let client = daemon.client(client.id);
    client.has_event(|event| matches!(event, EventBody::SandboxAttached)).await;
    let remove = is_removed(Remover::of_all);
    within("the session is removed", try_call(&client.session, remove)).await.unwrap();
    let is_free = async {
        while daemon.launcher.slots.is_taken(uid) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the user id is free", is_free).await;
}

/// The daemon ended when the sandbox of a removed session could not be removed. No session tells the next daemon of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_nobody_wants_keeps_its_volumes_and_its_folder_over_the_death_of_the_daemon() {
    let home = Home::new();
    let daemon = home.daemon().await;
    let owner = daemon.launcher.service.principal();
    let name = VolumeName::parse("v").unwrap();
    daemon.launcher.volumes.create(&daemon.ledger, owner, &name, 1 << 20).await.unwrap();
    let (workspace, wanted) = beside_volume(&daemon, &name);
    let sandbox =
        daemon.launcher.prepare(&wanted, &workspace, &|_| {}).await.unwrap().start(()).await.unwrap();
    let folder = sandbox.folder().to_owned();
    home.backend.let_removals_fail(true);
    sandbox.remove().await.unwrap_err();
    drop(sandbox);
    daemon.dies().await;
    // One of the next daemons cannot remove it, another does not even know whether it is there.
    for lists_fail in [false, true] {
        home.backend.let_lists_fail(lists_fail);
        let daemon = home.daemon().await;
        let (launcher, volumes) = (&daemon.launcher, &daemon.launcher.volumes);
        volumes.load(&daemon.ledger, 1 << 20, &launcher.paths.sandboxes_dir());
        let (_, left) = launcher.reap().await;
        clear_folders(launcher, &left, &[], Vec::new()).await.unwrap();
        assert!(folder.exists(), "lists fail: {lists_fail}");
        let refused = volumes.remove(owner, &name).await.unwrap_err();
        assert!(refused.code == Code::Busy && refused.message.contains("a sandbox"), "{refused:?}");
        daemon.dies().await;
    }
    home.backend.let_lists_fail(false);
    home.backend.let_removals_fail(false);
    let daemon = home.daemon().await;
    let (launcher, volumes) = (&daemon.launcher, &daemon.launcher.volumes);
    volumes.load(&daemon.ledger, 1 << 20, &launcher.paths.sandboxes_dir());
    let (count, left) = launcher.reap().await;
    assert_eq!(count, 1);
    clear_folders(launcher, &left, &[], Vec::new()).await.unwrap();
    assert!(!folder.exists());
    volumes.remove(owner, &name).await.unwrap();
}
