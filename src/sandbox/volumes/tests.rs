use super::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use crate::config::load_text;

const MOST: u64 = 1 << 20;
/// Times that a test can wait out.
const SHORT: Times = Times {
    look: Duration::from_millis(50),
    remove_again: Duration::from_millis(300),
    change: Duration::from_secs(2),
};

/// The volumes of a daemon of the user who runs the tests.
struct Home {
    folder: tempfile::TempDir,
    service: Service,
    ledger: Ledger,
    volumes: Volumes,
}

fn home() -> Home {
    let folder = tempfile::tempdir().unwrap();
    let settings = load_text(&folder.path().join("config.toml"), "").unwrap().settings;
    let service = Service { system: false, ..Service::of_this_process() };
    let ledger = Ledger::new(&settings.quota);
    let volumes = Volumes { times: SHORT, ..Volumes::new(folder.path().join("v"), service) };
    Home { folder, service, ledger, volumes }
}

impl Home {
    async fn makes(&self, owner: Principal, name: &str) -> VolumeName {
        let name = named(name);
        self.volumes.create(&self.ledger, owner, &name, MOST).await.unwrap();
        name
    }

    /// The volumes as the next daemon finds them, with its books.
    fn restarts(&self) -> (Volumes, Ledger) {
        let settings = load_text(&self.folder.path().join("config.toml"), "").unwrap().settings;
        let ledger = Ledger::new(&settings.quota);
        let volumes = Volumes { times: SHORT, ..Volumes::new(self.folder.path().join("v"), self.service) };
        volumes.load(&ledger, MOST, &self.folder.path().join("s"));
        (volumes, ledger)
    }
}

fn named(name: &str) -> VolumeName {
    VolumeName::parse(name).unwrap()
}

/// Waits until something holds that another thread or a task brings about.
async fn until(holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(20), "waited in vain");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_volume_is_found_again_and_stays_while_a_session_names_it() {
    let home = home();
    let (owner, other) = (home.service.principal(), Principal::new(home.service.uid + 1));
    let session = SessionName::parse("s").unwrap();
    let name = home.makes(owner, "v").await;
    let again = home.volumes.create(&home.ledger, owner, &name, MOST).await.unwrap_err();
    assert_eq!(again.code, Code::VolumeExists);
    home.volumes.measured(owner, &name, 4096).unwrap();
    assert_eq!(home.ledger.used(owner, Kind::Workspace), 4096);
    let (volumes, _) = home.restarts();
    assert_eq!((volumes.list(Some(owner)).len(), volumes.list(Some(other)).len()), (1, 0));
    let used = volumes.use_by(owner, SessionId::fresh(), &session, vec![name.clone()]).unwrap();
    assert_eq!(volumes.list(None)[0].sessions, std::slice::from_ref(&session));
    let refused = volumes.use_by(other, SessionId::fresh(), &session, vec![name.clone()]).err().unwrap();
    assert_eq!(refused.code, Code::NoSuchVolume);
    let refused = volumes.remove(owner, &name).await.unwrap_err();
    assert!(refused.code == Code::Busy && refused.message.contains("the session `s`"), "{refused:?}");
    drop(used);
    // One that is gone leaves the others in use.
    let used = volumes.use_again(owner, SessionId::fresh(), &session, vec![named("gone"), name.clone()]);
    assert_eq!(volumes.remove(owner, &name).await.unwrap_err().code, Code::Busy);
    drop(used);
    let transfer = volumes.transfer(owner, &name).unwrap();
    let refused = volumes.remove(owner, &name).await.unwrap_err();
    assert!(refused.message.contains("a transfer of files"), "{refused:?}");
    drop(transfer);
    volumes.remove(owner, &name).await.unwrap();
    assert_eq!(volumes.remove(owner, &name).await.unwrap_err().code, Code::NoSuchVolume);
    assert!(!volumes.path(owner, &name).exists());
}

/// The folder does not answer for longer than a client waits: the outcome counts when it comes.
#[tokio::test]
async fn a_change_that_a_client_gave_up_is_settled_when_it_is_done() {
    let home = home();
    // A user of whom no other test lets threads hang.
    let owner = Principal::new(70_001);
    let name = home.makes(owner, "v").await;
    let released = Arc::new(AtomicBool::new(false));
    let hung: Vec<_> = (0..8)
        .map(|_| {
            let released = Arc::clone(&released);
            let hang = move || {
                while !released.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(2));
                }
            };
            folders::begin(owner, WorkKind::Look, None, hang).unwrap()
        })
        .collect();
    let late = home.volumes.remove(owner, &name).await.unwrap_err();
    assert_eq!(late.code, Code::Storage, "{late:?}");
    let late = home.volumes.create(&home.ledger, owner, &named("w"), MOST).await.unwrap_err();
    assert_eq!(late.code, Code::Storage, "{late:?}");
    // The two volumes can neither be used, made nor removed meanwhile, and their user still has them.
    for name in [&name, &named("w")] {
        assert_eq!(home.volumes.transfer(owner, name).err().map(|problem| problem.code), Some(Code::Busy));
        let again = home.volumes.create(&home.ledger, owner, name, MOST).await.unwrap_err();
        assert_eq!(again.code, Code::Busy);
        assert_eq!(home.volumes.remove(owner, name).await.unwrap_err().code, Code::Busy);
    }
    assert!(home.volumes.list(None).is_empty() && home.volumes.has_some(owner));
    released.store(true, Ordering::SeqCst);
    for hung in hung {
        hung.await.unwrap();
    }
    until(|| {
        home.volumes.list(Some(owner)).len() == 1
            && !home.volumes.known.lock().contains_key(&(owner, name.clone()))
    })
    .await;
    assert_eq!(home.volumes.list(Some(owner))[0].name, named("w"));
    assert!(home.volumes.path(owner, &named("w")).exists() && !home.volumes.path(owner, &name).exists());
    home.makes(owner, "v").await;
}

/// A client that hangs up drops the future of its request.
#[tokio::test]
async fn a_client_that_hangs_up_leaves_no_volume_in_limbo() {
    let home = home();
    let owner = home.service.principal();
    for polls in 0..3 {
        let name = named(&format!("v{polls}"));
        let mut create = Box::pin(home.volumes.create(&home.ledger, owner, &name, MOST));
        for _ in 0..=polls {
            let _ = futures_util::poll!(&mut create);
        }
        drop(create);
        until(|| home.volumes.list(Some(owner)).iter().any(|volume| volume.name == name)).await;
        let mut remove = Box::pin(home.volumes.remove(owner, &name));
        for _ in 0..=polls {
            let _ = futures_util::poll!(&mut remove);
        }
        drop(remove);
        until(|| !home.volumes.has_some(owner)).await;
        home.makes(owner, name.as_str()).await;
        home.volumes.remove(owner, &name).await.unwrap();
    }
}

/// How often folders could not be removed.
static FAILED: AtomicUsize = AtomicUsize::new(0);

#[tokio::test]
async fn the_bytes_of_a_removed_volume_count_until_they_are_gone_and_it_is_tried_again() {
    let mut home = home();
    let owner = home.service.principal();
    home.volumes.remover = |path| {
        if FAILED.fetch_add(1, Ordering::SeqCst) < 3 {
            return Err(std::io::Error::other("as the test wants it"));
        }
        remove_tree(path)
    };
    let name = home.makes(owner, "v").await;
    home.volumes.measured(owner, &name, 4096).unwrap();
    home.volumes.remove(owner, &name).await.unwrap();
    until(|| FAILED.load(Ordering::SeqCst) == 1).await;
    assert_eq!(home.ledger.used(owner, Kind::Workspace), 4096);
    assert!(home.volumes.list(None).is_empty());
    until(|| FAILED.load(Ordering::SeqCst) == 2).await;
    assert_eq!(home.ledger.used(owner, Kind::Workspace), 4096);
    until(|| home.ledger.used(owner, Kind::Workspace) == 0).await;
    assert_eq!(names_in(&home.folder.path().join("v").join(owner.uid().to_string())), Vec::<String>::new());
}

/// The daemon ended before the files were gone.
#[tokio::test]
async fn what_an_earlier_daemon_was_removing_counts_until_it_is_gone() {
    let home = home();
    // A user of whom no other test lets threads hang.
    let owner = Principal::new(70_002);
    let left = home.folder.path().join("v").join(owner.uid().to_string()).join(format!("{REMOVED}x"));
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("file"), vec![1; 64 * 1024]).unwrap();
    let (release, hold) = std::sync::mpsc::channel::<()>();
    let hold = Arc::new(parking_lot::Mutex::new(hold));
    let hung: Vec<_> = (0..2)
        .map(|_| {
            let hold = Arc::clone(&hold);
            folders::begin(owner, WorkKind::Removal, None, move || hold.lock().recv().is_ok()).unwrap()
        })
        .collect();
    let (_volumes, ledger) = home.restarts();
    until(|| ledger.used(owner, Kind::Workspace) >= 64 * 1024).await;
    drop(release);
    for hung in hung {
        hung.await.unwrap();
    }
    until(|| ledger.used(owner, Kind::Workspace) == 0).await;
    assert!(!left.exists());
}

/// Only a process of the host writes, and no session has the volume.
#[tokio::test]
async fn a_volume_is_measured_again_and_again_whoever_writes() {
    let home = home();
    let owner = home.service.principal();
    let name = home.makes(owner, "v").await;
    let (volumes, ledger) = home.restarts();
    for kib in [64, 192] {
        std::fs::write(volumes.path(owner, &name).join("file"), vec![1; kib * 1024]).unwrap();
        until(|| ledger.used(owner, Kind::Workspace) >= kib as u64 * 1024).await;
        assert!(volumes.list(None)[0].bytes >= kib as u64 * 1024);
        assert_eq!(ledger.used(owner, Kind::Workspace), volumes.list(None)[0].bytes);
    }
    std::fs::remove_file(volumes.path(owner, &name).join("file")).unwrap();
    until(|| ledger.used(owner, Kind::Workspace) < 64 * 1024).await;
}

/// The folders of one user do not answer.
#[tokio::test]
async fn the_volumes_of_other_users_are_measured_while_one_user_s_folders_hang() {
    let home = home();
    // A user of whom no other test lets threads hang, before the other one in the order of users.
    let (hangs, owner) = (Principal::new(70_003), Principal::new(70_004));
    home.makes(hangs, "v").await;
    let name = home.makes(owner, "v").await;
    let released = Arc::new(AtomicBool::new(false));
    let hung: Vec<_> = (0..4)
        .map(|_| {
            let released = Arc::clone(&released);
            let hang = move || {
                while !released.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(2));
                }
            };
            folders::begin(hangs, WorkKind::Look, None, hang).unwrap()
        })
        .collect();
    let (volumes, ledger) = home.restarts();
    std::fs::write(volumes.path(owner, &name).join("file"), vec![1; 64 * 1024]).unwrap();
    until(|| ledger.used(owner, Kind::Workspace) >= 64 * 1024).await;
    std::fs::write(volumes.path(hangs, &name).join("file"), vec![1; 64 * 1024]).unwrap();
    assert_eq!(ledger.used(hangs, Kind::Workspace), 0);
    released.store(true, Ordering::SeqCst);
    for hung in hung {
        hung.await.unwrap();
    }
    until(|| ledger.used(hangs, Kind::Workspace) >= 64 * 1024).await;
}

/// What a sandbox holds without a name is seen by the sandbox's own watch alone.
#[tokio::test]
async fn what_a_sandbox_holds_without_a_name_counts_to_its_volume_until_the_sandbox_is_gone() {
    let home = home();
    let owner = home.service.principal();
    let name = home.makes(owner, "v").await;
    let (volumes, ledger) = home.restarts();
    let sandbox = SandboxId::fresh();
    volumes.hold_all(&sandbox, Backend::Docker, [(owner, name.clone())].into_iter());
    volumes.set_unlinked(owner, &name, &sandbox, 1 << 20);
    until(|| ledger.used(owner, Kind::Workspace) >= 1 << 20).await;
    volumes.let_go(&sandbox);
    // A measurement that began before the end is recorded after it.
    volumes.set_unlinked(owner, &name, &sandbox, 1 << 20);
    assert_eq!(volumes.fill_level(owner, &name).unlinked_bytes(), 0);
    until(|| ledger.used(owner, Kind::Workspace) < 1 << 20).await;
}

/// The daemon was killed while it made the volume.
#[tokio::test]
async fn a_draft_of_a_volume_is_no_volume_and_is_removed_by_the_next_daemon() {
    let home = home();
    let owner = home.service.principal();
    let name = home.makes(owner, "v").await;
    let of_user = home.folder.path().join("v").join(owner.uid().to_string());
    assert_eq!(names_in(&of_user), ["v"]);
    std::fs::create_dir(of_user.join(format!("{DRAFT}x"))).unwrap();
    let (volumes, _ledger) = home.restarts();
    until(|| names_in(&of_user) == ["v"]).await;
    assert_eq!(volumes.list(None).len(), 1);
    // What is there already is left alone, and no draft stays.
    let path = volumes.path(owner, &name);
    make_volume(&path, home.service, owner, MOST).unwrap_err();
    assert_eq!(names_in(&of_user), ["v"]);
}

/// The sandbox of an earlier daemon has the volume before it is adopted, also when its session is gone.
#[tokio::test]
async fn a_sandbox_of_an_earlier_daemon_holds_its_volumes() {
    let home = home();
    let owner = home.service.principal();
    let name = home.makes(owner, "v").await;
    let sandbox = SandboxId::fresh();
    let folder = home.folder.path().join("s").join(&sandbox.0);
    std::fs::create_dir_all(&folder).unwrap();
    notes::write(&folder, Backend::Docker, vec![(owner, name.clone()), (owner, named("gone"))]).unwrap();
    let (volumes, _ledger) = home.restarts();
    assert_eq!(volumes.holders(Backend::Docker), std::slice::from_ref(&sandbox));
    assert_eq!(volumes.remove(owner, &name).await.unwrap_err().code, Code::Busy);
    volumes.let_go(&sandbox);
    volumes.remove(owner, &name).await.unwrap();
}

/// The daemon that started the sandbox wrote no note, or one that is not understood: the journal of the session says it.
#[tokio::test]
async fn a_sandbox_without_a_readable_note_holds_the_volumes_of_its_session() {
    let home = home();
    let owner = home.service.principal();
    let name = home.makes(owner, "v").await;
    let sandbox = SandboxId::fresh();
    let folder = home.folder.path().join("s").join(&sandbox.0);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("volumes"), "{").unwrap();
    let (volumes, _ledger) = home.restarts();
    assert!(volumes.holders(Backend::Docker).is_empty());
    volumes.hold_again(&sandbox, Backend::Docker, owner, [name.clone(), named("gone")].into_iter());
    assert_eq!(volumes.remove(owner, &name).await.unwrap_err().code, Code::Busy);
    volumes.let_go(&sandbox);
    volumes.remove(owner, &name).await.unwrap();
}
