//! Makes a session of an archive. An archive is a stranger's word: it is read to its end before anything of it is used, its
//! variables are loaded nowhere but in the sandbox of who imports it, and its code has the rules of what a model writes,
//! unless that user says that it is their own. The rules that its code had before hold in any case.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::beginning::{Carried, Files};
use super::maker::{NewBase, PutSnapshot, SessionMaker};
use super::packages;
use super::place::{self, Place};
use super::spool::Spool;
use crate::actors::asks::spec::default_approval;
use crate::actors::replay::{self, Recorded};
use crate::memory::{Charge, MemoryPurpose};
use crate::protocol::api::{NewSession, SessionView};
use crate::protocol::ask::ApprovalPolicy;
use crate::protocol::branch::{ArchiveManifest, Imported};
use crate::protocol::clock::{self, Moment};
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{CellNumber, SessionName};
use crate::protocol::limits::FRAME_BYTES;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Backend;
use crate::protocol::saved_state::BaseSource;
use crate::protocol::snapshot::RECORD_BYTES;
use crate::protocol::values::parsed_bytes;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::session_archive::{self, Member};
use crate::security_controls;
use crate::session::replay::Replay;
use crate::session::restore::{Fold, Recording};
use crate::session::rules::CellRules;
use crate::store::snapshots::{SnapshotAbout, SnapshotError, WRITING_BYTES};

/// How many times its own size a journal takes in memory while it is read.
const EVENT_COPIES: u64 = 4;
/// What the pieces of variables take in memory on their way to the disk: those that are read, and the chunks that they become.
const PIECES_BYTES: u64 = 4 * RECORD_BYTES as u64 + WRITING_BYTES;
/// Bytes of one event of an archive: the longest has what a frame of a kernel can have, with each byte escaped.
const EVENT_BYTES: usize = 2 * FRAME_BYTES;

/// How an archive becomes a session.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// The name of the session; as in the archive without one.
    pub name: Option<SessionName>,
    /// The backend; that of the archive without one, if it may be used here.
    pub backend: Option<Backend>,
    /// The image; the same.
    pub image: Option<String>,
    /// Run the cells again, and do not load the variables.
    pub replay: bool,
    /// The code is the importing user's own.
    pub trust: bool,
    pub ephemeral: bool,
}

/// Makes the session.
pub async fn import(
    maker: &SessionMaker,
    owner: Principal,
    spool: Spool,
    options: ImportOptions,
) -> Result<Imported, Problem> {
    let spool = Arc::new(spool);
    let memory = maker.ledger.memory(owner);
    let mut charge = memory.open(MemoryPurpose::Requests);
    let (manifest, _charge) = read(owner, &spool, move |spool| {
        let mut grow = |bytes| charge.try_grow(bytes).map_err(Problem::from);
        let manifest = session_archive::read(spool.reader(), &mut grow, |_, _| Ok(()))?;
        Ok((manifest, charge))
    })
    .await?;
    let is_trusted = options.trust || !security_controls::holds("imported_code_is_a_models");
    let made_variables = manifest.cells > 0 && manifest.snapshot.is_none();
    if made_variables && !options.replay {
        let message = "the archive has cells and no variables, because its session was not saved";
        return Err(Problem::new(Code::BadRequest, message).hint("run its cells again (`--replay`)"));
    }
    // Whatever can fail because of the archive does so before there is a session.
    let place = place::find(maker, owner, &manifest, &options).await?;
    let request = request_of(&manifest, &options, place, is_trusted);
    let past = if options.replay { Some(read_cells(maker, owner, &spool).await?) } else { None };
    let packages = packages::install(maker, owner, (&manifest, &options), &request, is_trusted).await?;
    let contained = request.backend.unwrap_or(maker.settings.sandbox.backend) != Backend::Process;
    let policy = default_approval(&maker.settings.agent, contained);
    let rules = rules_of(&manifest, (!is_trusted).then_some(&policy));
    let loads = manifest.snapshot.as_ref().filter(|_| !options.replay);
    let pieces_charge = match loads {
        Some(_) => Some(memory.try_charge(MemoryPurpose::Snapshots, PIECES_BYTES)?),
        None => None,
    };
    let put = loads.zip(pieces_charge).map(|(archived, charge)| {
        let about = SnapshotAbout {
            cell: archived.cell,
            python: manifest.python.clone().unwrap_or_default(),
            image: manifest.image.as_ref().map(|image| image.id.clone()).unwrap_or_default(),
            manifest: archived.manifest.clone(),
            name: None,
            packages: packages.clone(),
            at: clock::now(),
        };
        put(about, Arc::clone(&spool), charge)
    });
    let is_loaded = put.is_some();
    let cell = loads.map_or(manifest.cells, |archived| archived.cell);
    let source = BaseSource::Archive { name: manifest.session.to_string(), cell };
    // Without variables, too, code of the archive runs in the session: its cells, and what its files have.
    let base = NewBase { source, bound: rules.bound(), put };
    let carried = Carried { files: Some(Files::of_archive(Arc::clone(&spool))), packages };
    let view = maker.make(owner, request, carried, Some(base)).await?;
    let gone = || Problem::new(Code::NoSuchSession, "the session has just ended");
    let filled = async {
        if is_loaded {
            same_python(&manifest, &view)?;
            maker.check_loaded(owner, &view).await?;
        }
        let Some(ImportedCells { records, replay, _charge }) = past else { return Ok(None) };
        let session = maker.directory.find(owner, &view.id.to_string(), false).ok_or_else(gone)?;
        replay::replay_records(&session.session, replay, records).await.map(Some)
    };
    let filled = filled.await;
    match filled {
        Ok(replay) => Ok(Imported { session: view, replay }),
        Err(problem) => {
            maker.take_back(owner, &view);
            Err(problem)
        }
    }
}

/// The rules of the archive's code: those that it had before, and those of the importing user for what a model writes, unless
/// the code is that user's own. An archive can add rules, and lift none.
fn rules_of(manifest: &ArchiveManifest, policy: Option<&ApprovalPolicy>) -> CellRules {
    let before = if security_controls::holds("archives_keep_their_rules") {
        CellRules::of_bound(&manifest.rules)
    } else {
        CellRules::default()
    };
    policy.map_or_else(|| before.clone(), |policy| before.tightened(&CellRules::of_policy(policy)))
}

/// The request that the session of the archive was made with, without what is not the archive's to say.
fn request_of(
    manifest: &ArchiveManifest,
    options: &ImportOptions,
    Place { backend, image }: Place,
    is_trusted: bool,
) -> NewSession {
    // Modules are imported before any cell, and the archive's own files could be what is found by their names.
    let preload = if is_trusted { manifest.request.preload.clone() } else { Some(Vec::new()) };
    NewSession {
        name: Some(options.name.clone().unwrap_or_else(|| manifest.session.clone())),
        image,
        backend,
        workspace: None,
        volumes: Vec::new(),
        mounts: Vec::new(),
        preload,
        ephemeral: options.ephemeral,
        lingers: false,
        lazy: false,
        ..manifest.request.clone()
    }
}

/// Reads the archive on a thread of its user.
async fn read<T: Send + 'static>(
    owner: Principal,
    spool: &Arc<Spool>,
    work: impl FnOnce(&Spool) -> Result<T, Problem> + Send + 'static,
) -> Result<T, Problem> {
    let spool = Arc::clone(spool);
    folders::run(owner, WorkKind::Transfer, None, move || {
        // A journal that somebody made up may break what reads journals.
        let done = catch_unwind(AssertUnwindSafe(|| work(&spool)));
        done.unwrap_or_else(|_| {
            Err(Problem::new(Code::BadRequest, "the archive cannot be used: its journal makes no sense")
                .hint(session_archive::EXPORT_AGAIN))
        })
    })
    .await?
}

/// Variables that come out of an archive. `memory` is that of the pieces.
fn put(about: SnapshotAbout, spool: Arc<Spool>, memory: Charge) -> PutSnapshot {
    Box::new(move |store, to, limits, charge| {
        let _memory = memory;
        let mut writer = store.writer(to, limits, charge)?;
        let mut current = 0;
        let mut failed = None;
        let copied = session_archive::read_again(spool.reader(), |member, data| {
            let Member::Piece { section } = member else { return Ok(()) };
            let mut piece = Vec::new();
            data.read_to_end(&mut piece).map_err(|error| broken(&error))?;
            let put = if section == current { Ok(()) } else { writer.end_section() };
            current = section;
            put.and_then(|()| writer.piece(&piece)).map_err(|error| {
                let problem = Problem::from(SnapshotError::Untrue(error.to_string()));
                failed = Some(error);
                problem
            })
        });
        match (failed, copied) {
            (Some(error), _) => return Err(error),
            (None, Err(problem)) => return Err(SnapshotError::Refused(problem)),
            (None, Ok(())) => {}
        }
        writer.end_section()?;
        writer.finish(about)
    })
}

fn broken(error: &std::io::Error) -> Problem {
    Problem::new(Code::BadRequest, format!("the archive cannot be read: {error}"))
        .hint(session_archive::EXPORT_AGAIN)
}

/// Refuses variables that another Python packed: they hold its bytecode.
fn same_python(manifest: &ArchiveManifest, view: &SessionView) -> Result<(), Problem> {
    let minor = |version: &Option<String>| -> Vec<String> {
        version.iter().flat_map(|version| version.split('.').take(2)).map(ToOwned::to_owned).collect()
    };
    if minor(&manifest.python) == minor(&view.python) {
        return Ok(());
    }
    let shown = |version: &Option<String>| version.clone().unwrap_or_else(|| "another version".to_owned());
    let message = format!(
        "the variables are of Python {}, and the image has {}",
        shown(&manifest.python),
        shown(&view.python)
    );
    Err(Problem::new(Code::SnapshotMismatch, message)
        .hint("name an image with that version (`--image`), or run the cells again (`--replay`)"))
}

/// The cells of the archive that made its variables, with what they were answered.
struct ImportedCells {
    records: BTreeMap<CellNumber, Recorded>,
    replay: Replay,
    /// For the memory of the records.
    _charge: Charge,
}

async fn read_cells(
    maker: &SessionMaker,
    owner: Principal,
    spool: &Arc<Spool>,
) -> Result<ImportedCells, Problem> {
    let charge = maker.ledger.memory(owner).open(MemoryPurpose::Reads);
    let (records, replay, charge) = read(owner, spool, move |spool| {
        let mut charge = charge;
        let (now, mut fold) = (Moment::now(), Fold::new(&Arc::default()));
        let mut is_based = false;
        each_event(spool, &mut charge, |event| {
            is_based |= matches!(event.body, EventBody::Based { snapshot: Some(_), .. });
            let _ = fold.take(&event, now);
            0
        })?;
        if is_based {
            let message = "the session began with variables of another one, which its own cells do not make";
            return Err(Problem::new(Code::BadRequest, message).hint("import it without `--replay`"));
        }
        let past = fold.end(&BTreeMap::new(), now);
        let mut recordings: BTreeMap<CellNumber, Recording> =
            past.replayable.iter().map(|cell| (*cell, Recording::of(*cell))).collect();
        let mut calls: HashMap<u64, CellNumber> = HashMap::new();
        each_event(spool, &mut charge, |event| {
            let cell = match &event.body {
                EventBody::ToolCalled { cell: Some(cell), call, .. } => {
                    calls.insert(*call, *cell);
                    Some(*cell)
                }
                EventBody::ToolAnswered { call, .. } => calls.remove(call),
                EventBody::CellQueued { cell, .. } | EventBody::Interrupting { cell, .. } => Some(*cell),
                EventBody::CellFinished { result } => Some(result.cell),
                _ => None,
            };
            let recording = cell.and_then(|cell| recordings.get_mut(&cell));
            recording.map_or(0, |recording| {
                let before = recording.bytes();
                recording.take(event);
                recording.bytes().saturating_sub(before)
            })
        })?;
        Ok((recordings, Replay::of(&past), charge))
    })
    .await?;
    let recorded = |recording: Recording| {
        // The asks of the archive are not those of this session.
        let was = recording.end().map(|mut was| {
            was.ask = None;
            was
        })?;
        // The session has the rules of the archive already.
        Some(Recorded { was, rules: None, _charge: None })
    };
    let records = records.into_iter().filter_map(|(cell, recording)| Some((cell, recorded(recording)?)));
    Ok(ImportedCells { records: records.collect(), replay, _charge: charge })
}

/// Passes the events of an archive to `take`, which gives the bytes of values that it keeps of each. What they are in memory is
/// charged before they are parsed.
fn each_event(spool: &Spool, charge: &mut Charge, mut take: impl FnMut(Event) -> u64) -> Result<(), Problem> {
    session_archive::read_again(spool.reader(), |member, data| {
        if member != Member::Events {
            return Ok(());
        }
        let mut lines = BufReader::new(data);
        let mut line = Vec::new();
        while next_line(&mut lines, &mut line, charge)? {
            let kept = charge.bytes();
            let event = parse_event(&line, charge)?;
            let more = take(event);
            charge.shrink_to(kept);
            charge.try_grow(more).map_err(Problem::from)?;
        }
        Ok(())
    })
}

/// A list of small values takes many times as much memory as its text, so parsed events are charged by what is in them.
fn parse_event(line: &[u8], charge: &mut Charge) -> Result<Event, Problem> {
    let senseless = |why: &dyn std::fmt::Display| {
        Problem::new(Code::BadRequest, format!("the archive has an event that makes no sense: {why}"))
            .hint(session_archive::EXPORT_AGAIN)
    };
    let text = std::str::from_utf8(line).map_err(|error| senseless(&error))?;
    charge.try_grow(parsed_bytes(text)).map_err(Problem::from)?;
    serde_json::from_str(text).map_err(|error| senseless(&error))
}

/// Reads a line. What comes of it is charged before it is in memory.
fn next_line(lines: &mut impl BufRead, line: &mut Vec<u8>, charge: &mut Charge) -> Result<bool, Problem> {
    line.clear();
    loop {
        let found = lines.fill_buf().map_err(|error| broken(&error))?;
        let end = found.iter().position(|byte| *byte == b'\n');
        let count = end.map_or(found.len(), |end| end + 1);
        let piece = found.get(..count).unwrap_or_default();
        if piece.is_empty() {
            return Ok(!line.is_empty());
        }
        if line.len() + piece.len() > EVENT_BYTES {
            let message = format!("the archive has an event of more than {EVENT_BYTES} bytes");
            return Err(Problem::new(Code::BadRequest, message).hint("import it without `--replay`"));
        }
        charge.try_grow((piece.len() as u64).saturating_mul(EVENT_COPIES)).map_err(Problem::from)?;
        line.extend_from_slice(piece);
        lines.consume(count);
        if end.is_some() {
            return Ok(true);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::Quota;
    use crate::protocol::branch::ARCHIVE_FORMAT;
    use crate::protocol::saved_state::BoundRules;
    use crate::quota::Ledger;

    pub(in crate::actors::branches) fn manifest() -> ArchiveManifest {
        let preload = Some(vec!["evil".to_owned()]);
        ArchiveManifest {
            format: ARCHIVE_FORMAT,
            belljar: String::new(),
            exported_at: String::new(),
            session: SessionName::parse("lab").unwrap(),
            request: NewSession {
                preload,
                workspace: Some("/home".into()),
                lazy: true,
                ..NewSession::default()
            },
            image: None,
            python: None,
            packages: Vec::new(),
            installed: Vec::new(),
            sources: false,
            cells: 1,
            snapshot: None,
            rules: BoundRules::default(),
            lacks: Vec::new(),
        }
    }

    #[test]
    fn an_archive_adds_rules_to_those_of_its_user_and_lifts_none() {
        let rules = BoundRules { approve: vec!["mail".to_owned()], ..BoundRules::default() };
        let strict = ArchiveManifest { rules: rules.clone(), ..manifest() };
        let policy = ApprovalPolicy::Tools(vec!["pay".to_owned()]);
        assert_eq!(rules_of(&strict, None).bound(), rules, "also where its code is trusted");
        let both = rules_of(&strict, Some(&policy));
        assert!(both.approve.contains("mail") && both.approve.contains("pay"), "{both:?}");
        let loose = ArchiveManifest {
            rules: BoundRules { allowed: Some(vec!["pay".to_owned()]), ..BoundRules::default() },
            ..manifest()
        };
        let still = rules_of(&loose, Some(&policy));
        assert!(still.approve.contains("pay"), "what it allows is asked for nevertheless: {still:?}");
        assert_eq!(rules_of(&manifest(), None), CellRules::default());
    }

    #[test]
    fn an_event_of_an_archive_is_charged_for_what_it_is_when_it_is_parsed() {
        let ledger = Ledger::new(&Quota::default());
        let mut charge = ledger.memory(Principal::ANN).open(MemoryPurpose::Reads);
        let line = format!("[{}0]", "0,".repeat(1000));
        parse_event(line.as_bytes(), &mut charge).unwrap_err();
        assert!(charge.bytes() > 10 * line.len() as u64, "{}", charge.bytes());
        assert_eq!(parse_event(b"\xff", &mut charge).unwrap_err().code, Code::BadRequest);
    }

    #[test]
    fn nothing_of_an_archive_runs_before_the_first_cell_unless_it_is_trusted() {
        let options = ImportOptions::default();
        let made = request_of(&manifest(), &options, Place::default(), false);
        assert_eq!(
            made.preload,
            Some(Vec::new()),
            "not those of the settings, either: its files have any name"
        );
        assert_eq!((made.workspace, made.lazy), (None, false));
        let trusted = request_of(&manifest(), &options, Place::default(), true);
        assert_eq!(trusted.preload, Some(vec!["evil".to_owned()]));
    }

    #[test]
    fn a_line_of_an_archive_is_charged_before_it_is_read_and_has_a_bound() {
        let ledger = Ledger::new(&Quota::default());
        let mut charge = ledger.memory(Principal::ANN).open(MemoryPurpose::Reads);
        let mut line = Vec::new();
        let mut lines = &b"one\ntwo"[..];
        assert!(next_line(&mut lines, &mut line, &mut charge).unwrap());
        assert_eq!(line, b"one\n");
        assert!(next_line(&mut lines, &mut line, &mut charge).unwrap());
        assert_eq!(line, b"two");
        assert!(!next_line(&mut lines, &mut line, &mut charge).unwrap());
        assert_eq!(charge.bytes(), 7 * EVENT_COPIES);
        let endless = std::io::Read::take(std::io::repeat(b'x'), 2 * EVENT_BYTES as u64);
        let refused = next_line(&mut BufReader::new(endless), &mut line, &mut charge).unwrap_err();
        assert!(matches!(refused.code, Code::BadRequest | Code::QuotaExceeded), "{refused:?}");
        assert!(line.len() <= EVENT_BYTES);
    }
}
