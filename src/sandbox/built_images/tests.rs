use super::*;

const ANN: Principal = Principal::new(1000);
const BOB: Principal = Principal::new(1001);

fn build(owner: Principal, name: &str, id: &str) -> Build {
    let origin = ImageOrigin { owner, built_at: String::new(), from: None, packages: Vec::new() };
    Build { id: SandboxId(id.into()), name: name.into(), origin, bytes: 100, state: BuildState::Begun }
}

struct World {
    home: tempfile::TempDir,
    ledger: Ledger,
}

impl World {
    fn new() -> Self {
        let settings = crate::config::load_text("c.toml".as_ref(), "").unwrap().settings;
        Self { home: tempfile::tempdir().unwrap(), ledger: Ledger::new(&settings.quota) }
    }

    fn images(&self) -> BuiltImages {
        BuiltImages::load(self.home.path().join("images.json"))
    }

    /// Builds an image whose id is `sha256:` and the id of its build.
    fn make(&self, images: &BuiltImages, owner: Principal, name: &str, id: &str) {
        self.begin(images, owner, name, id);
        set(images, id, BuildState::Named);
    }

    fn begin(&self, images: &BuiltImages, owner: Principal, name: &str, id: &str) {
        let build = build(owner, name, id);
        let permit = self.ledger.take(owner, &entry_name(name), disk(build.bytes)).unwrap();
        images.begin(build, permit).unwrap();
    }

    fn used(&self, owner: Principal) -> u64 {
        self.ledger.used(owner, Kind::Workspace)
    }
}

fn set(images: &BuiltImages, id: &str, state: impl Fn(String) -> BuildState) {
    images.set_state(&SandboxId(id.into()), &state(format!("sha256:{id}"))).unwrap();
}

fn session(name: &str) -> SessionName {
    SessionName::parse(name).unwrap()
}

fn ids(builds: &[Build]) -> Vec<&str> {
    builds.iter().map(|build| build.id.0.as_str()).collect()
}

fn fact(name: &str, id: &str) -> ImageFact {
    ImageFact { reference: name.into(), id: format!("sha256:{id}") }
}

#[test]
fn an_image_is_its_builders_and_a_listed_one_everybodys() {
    let world = World::new();
    let images = world.images();
    world.make(&images, ANN, "plots:latest", "1");
    let allowed = ["python:3.12".to_owned()];
    let wanted = |owner, name: &str| images.wanted(owner, Some(name), &allowed);
    for name in ["plots", "plots:latest"] {
        assert_eq!(wanted(ANN, name), WantedImage::Built(fact("plots:latest", "1")));
        assert_eq!(wanted(BOB, name), WantedImage::Named(name.into()));
    }
    assert_eq!(wanted(ANN, "plots:2"), WantedImage::Named("plots:2".into()));
    assert_eq!(wanted(ANN, "python:3.12"), WantedImage::Named("python:3.12".into()));
    assert_eq!(images.wanted(ANN, None, &allowed), WantedImage::Any);
    // Should the configuration list the name later, it is the list's.
    let listed = ["plots".to_owned()];
    assert_eq!(images.wanted(ANN, Some("plots"), &listed), WantedImage::Named("plots".into()));
    let refused = images.check_new(BOB, "plots:latest").unwrap_err();
    assert!(refused.message.contains("another user"), "{refused:?}");
    images.check_new(ANN, "plots:latest").unwrap();
    assert!(images.has_some(ANN) && !images.has_some(BOB));
    assert_eq!((images.list(Some(BOB)).len(), images.list(None).len()), (0, 1));
}

#[test]
fn what_was_begun_is_known_to_the_next_daemon_and_charged_until_it_is_gone() {
    let world = World::new();
    let images = world.images();
    world.make(&images, ANN, "a:latest", "1");
    let permit = world.ledger.take(ANN, "x", disk(100)).unwrap();
    images.begin(build(ANN, "b:latest", "2"), permit).unwrap();
    assert_eq!(world.used(ANN), 200);
    drop(images);
    assert_eq!(world.used(ANN), 0);

    let images = world.images();
    images.charge_all(&world.ledger);
    assert_eq!(world.used(ANN), 200);
    assert_eq!(images.unsettled(), [build(ANN, "b:latest", "2")]);
    assert_eq!(images.wanted(ANN, Some("b"), &[]), WantedImage::Named("b".into()), "it is not there yet");
    images.forget(&SandboxId("2".into())).unwrap();
    assert_eq!((world.used(ANN), images.unsettled().len()), (100, 0));
    assert_eq!(images.wanted(ANN, Some("a"), &[]), WantedImage::Built(fact("a:latest", "1")));
}

#[test]
fn an_image_stays_as_long_as_a_session_names_it() {
    let world = World::new();
    let images = world.images();
    world.make(&images, ANN, "a:latest", "1");
    let (wanted, in_use) = images.wanted_by(ANN, SessionId::fresh(), &session("s"), Some("a"), &[]);
    assert!(wanted == WantedImage::Built(fact("a:latest", "1")) && in_use.is_some());
    let remove = |owner| images.removable("a", |of| of == owner).map(|leaving| leaving.builds.clone());
    let refused = remove(ANN).unwrap_err();
    assert!(refused.code == Code::Busy && refused.message.contains("`s`"), "{refused:?}");
    assert_eq!(remove(BOB).unwrap_err().code, Code::NoSuchImage);
    // A new build takes the name; the session still needs the image that it began with.
    world.make(&images, ANN, "a:latest", "2");
    assert_eq!(images.wanted(ANN, Some("a"), &[]), WantedImage::Built(fact("a:latest", "2")));
    assert_eq!(images.unsettled(), []);
    assert!(images.is_ours("a:latest", "sha256:1") && !images.is_ours("b:latest", "sha256:1"));
    drop(in_use);
    assert_eq!(ids(&images.unsettled()), ["1"]);
    let removed = remove(ANN).unwrap();
    assert_eq!((ids(&removed), &removed[0].state), (vec!["2"], &BuildState::Old("sha256:2".into())));
    assert!(images.use_again(ANN, SessionId::fresh(), &session("s"), None).is_none());
}

#[test]
fn sessions_of_others_keep_an_image_without_being_named() {
    let world = World::new();
    let images = world.images();
    world.make(&images, ANN, "a:latest", "1");
    let by = |owner, name: &str, allowed: &[String]| {
        images.wanted_by(owner, SessionId::fresh(), &session(name), Some("a"), allowed).1
    };
    assert!(by(BOB, "secret", &[]).is_none(), "what is refused keeps nothing");
    // The configuration may list the name later.
    let _theirs = by(BOB, "secret", &["a".to_owned()]).unwrap();
    let remove = |may: fn(Principal) -> bool| images.removable("a", may).map(drop).unwrap_err().message;
    let refused = remove(|of| of == ANN);
    assert!(refused.ends_with("is used by 1 session of other users"), "{refused}");
    let _own = by(ANN, "mine", &[]).unwrap();
    let refused = remove(|of| of == ANN);
    assert!(refused.ends_with("is used by the session `mine` and 1 session of other users"), "{refused}");
    let refused = remove(|_| true);
    assert!(refused.contains("the sessions `") && refused.contains("`secret`"), "{refused}");
}

#[test]
fn no_session_gets_an_image_that_is_being_removed() {
    let world = World::new();
    let images = world.images();
    world.make(&images, ANN, "a:latest", "1");
    let leaving = images.removable("a", |_| true).unwrap();
    let (wanted, in_use) = images.wanted_by(ANN, SessionId::fresh(), &session("s"), Some("a"), &[]);
    assert!(wanted == WantedImage::Named("a".into()) && in_use.is_none());
    // Nobody removed it after all.
    drop(leaving);
    assert_eq!(images.wanted(ANN, Some("a"), &[]), WantedImage::Built(fact("a:latest", "1")));
}

#[test]
fn an_older_build_never_takes_the_name_from_a_newer_one() {
    let world = World::new();
    let images = world.images();
    for id in ["1", "2"] {
        world.begin(&images, ANN, "a:latest", id);
        set(&images, id, BuildState::Made);
    }
    let states = || images.unsettled().into_iter().map(|build| build.state).collect::<Vec<_>>();
    assert_eq!(states(), [BuildState::Old("sha256:1".into()), BuildState::Made("sha256:2".into())]);
    // Its owner can remove one that never got its name.
    assert_eq!(ids(&images.removable("a", |_| true).unwrap().builds), ["2"]);
    world.make(&images, ANN, "a:latest", "3");
    assert_eq!(states(), [BuildState::Old("sha256:1".into()), BuildState::Old("sha256:2".into())]);
    assert_eq!(images.wanted(ANN, Some("a"), &[]), WantedImage::Built(fact("a:latest", "3")));
}

#[test]
fn a_list_that_cannot_be_read_allows_nothing_and_images_are_bounded() {
    let world = World::new();
    let images = world.images();
    for number in 0..BUILT_IMAGES {
        world.make(&images, ANN, &format!("a{number}:latest"), &number.to_string());
    }
    assert_eq!(images.check_new(ANN, "b:latest").unwrap_err().code, Code::TooMany);
    images.check_new(BOB, "b:latest").unwrap();
    let file = world.home.path().join("images.json");
    std::fs::write(&file, "[{").unwrap();
    let images = world.images();
    assert_eq!(images.list(None), []);
    // What is on it is not lost: it stays until somebody repairs it.
    let permit = world.ledger.take(BOB, "x", disk(100)).unwrap();
    for refused in [
        images.check_new(BOB, "b:latest").unwrap_err(),
        images.removable("a1", |_| true).map(drop).unwrap_err(),
        images.begin(build(BOB, "b:latest", "b"), permit).unwrap_err(),
    ] {
        assert!(refused.code == Code::Storage && refused.message.contains("images.json"), "{refused:?}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "[{");
}
