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
        let build = build(owner, name, id);
        let permit = self.ledger.take(owner, &entry_name(name), disk(build.bytes)).unwrap();
        images.begin(build, permit).unwrap();
        images.set_state(&SandboxId(id.into()), &BuildState::Named(format!("sha256:{id}"))).unwrap();
    }

    fn used(&self, owner: Principal) -> u64 {
        self.ledger.used(owner, Kind::Workspace)
    }
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
    let name = SessionName::parse("s").unwrap();
    let in_use = images.use_by(SessionId::fresh(), &name, Some("a")).unwrap();
    let remove = |owner| images.removable("a", |of| of == owner);
    let refused = remove(ANN).unwrap_err();
    assert!(refused.code == Code::Busy && refused.message.contains("`s`"), "{refused:?}");
    assert_eq!(remove(BOB).unwrap_err().code, Code::NoSuchImage);
    // A new build takes the name; the session still needs the image that it began with.
    world.make(&images, ANN, "a:latest", "2");
    assert_eq!(images.wanted(ANN, Some("a"), &[]), WantedImage::Built(fact("a:latest", "2")));
    assert_eq!(images.unsettled(), []);
    assert!(images.is_ours("a:latest", "sha256:1") && !images.is_ours("b:latest", "sha256:1"));
    drop(in_use);
    let old: Vec<SandboxId> = images.unsettled().into_iter().map(|build| build.id).collect();
    assert_eq!(old, [SandboxId("1".into())]);
    assert_eq!(remove(ANN).unwrap().2, fact("a:latest", "2"));
    assert!(images.use_by(SessionId::fresh(), &name, None).is_none());
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
    std::fs::write(world.home.path().join("images.json"), "[{").unwrap();
    assert_eq!(world.images().list(None), []);
}
