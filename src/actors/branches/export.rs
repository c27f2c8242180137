//! Writes all of a session as an archive.

use std::io::{self, Write};
use std::sync::Arc;

use super::branch::{record_of, settings_of, snapshot, view_of};
use super::maker::SessionMaker;
use crate::actors::replay;
use crate::actors::session::messages::{Handles, SessionRef};
use crate::protocol::branch::{ARCHIVE_FORMAT, ArchiveManifest, ArchivedSnapshot};
use crate::protocol::clock;
use crate::protocol::ids::Seq;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::Backend;
use crate::sandbox::workspace::Workspace;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::sandbox::workspace::session_archive::{ArchiveWriter, MANIFEST_BYTES};
use crate::store::EventLog;
use crate::store::snapshots::{SnapshotPiece, SnapshotReader};

/// Events that are read at once, and bytes after which a piece of the journal is written.
const EVENTS_AT_ONCE: usize = 256;
const EVENTS_BYTES: usize = 1024 * 1024;

/// An archive that is about to be written.
pub struct Export {
    /// The user who asked for it, whose threads write: they are held up if that user reads slowly.
    caller: Principal,
    manifest: ArchiveManifest,
    log: Arc<EventLog>,
    /// The newest event that is written.
    newest: Seq,
    snapshot: Option<SnapshotReader>,
    workspace: Arc<Workspace>,
}

/// Takes a snapshot of the session, and finds all that its archive has.
pub async fn prepare(
    maker: &SessionMaker,
    caller: Principal,
    session: &SessionRef,
    handles: Handles,
) -> Result<Export, Problem> {
    let (view, record) = (view_of(session).await?, record_of(maker, &handles)?);
    let before = handles.log.newest();
    let past = replay::fold_journal(&handles.log).await?;
    let has_variables = view.cells > 0 || past.saved.base().is_some();
    let mut lacks = Vec::new();
    let taken = if has_variables { Some(snapshot(session, None).await) } else { None };
    let snapshot = match taken {
        // Its cells can run again on the other side.
        Some(Err(problem)) if problem.code == Code::Forbidden => {
            lacks.push("the variables, because the session is not saved".to_owned());
            None
        }
        taken => taken.transpose()?,
    };
    let reader = match &snapshot {
        None => None,
        Some(snapshot) => {
            let (store, id) = (maker.snapshots.clone(), view.id);
            let (name, digest) = (snapshot.id.clone(), snapshot.digest.clone());
            let opened = move || store.read(id, &name, &digest);
            Some(folders::run(caller, WorkKind::Transfer, None, opened).await??)
        }
    };
    // Before the rules are read, so that the archive has no cell whose rules are not among them.
    let newest = handles.log.newest();
    // Also of the cells that can run again where the archive is imported, whose sandboxes may be gone.
    let since = past.spans.values().map(|span| span.first.saturating_sub(1)).fold(before, Seq::min);
    let (_, rules) = replay::fold_journal_with_rules(&handles.log, since).await?;
    let archived = reader.as_ref().map(|reader| {
        let about = reader.about();
        ArchivedSnapshot { cell: about.cell, manifest: about.manifest.clone() }
    });
    let mut request = settings_of(&record);
    for volume in std::mem::take(&mut request.volumes) {
        lacks.push(format!("the volume `{}`", volume.name));
    }
    for mount in std::mem::take(&mut request.mounts) {
        lacks.push(format!("the folder at `{}`", mount.target));
    }
    if serde_json::to_vec(&request.seed).is_ok_and(|seed| seed.len() as u64 > MANIFEST_BYTES / 2) {
        request.seed.clear();
        lacks.push("the values that a reset begins with, which are too large".to_owned());
    }
    // An image is one of its backend.
    request.backend = Some(view.backend).filter(|backend| *backend != Backend::Auto);
    let (packages, installed, sources) =
        past.packages.map(|set| (set.requirements, set.packages, set.sources)).unwrap_or_default();
    let manifest = ArchiveManifest {
        format: ARCHIVE_FORMAT,
        belljar: env!("CARGO_PKG_VERSION").to_owned(),
        exported_at: clock::now(),
        session: view.name,
        request,
        image: view.image,
        python: view.python,
        packages,
        installed,
        sources,
        cells: view.cells,
        snapshot: archived,
        rules: rules.bound(),
        lacks,
    };
    let workspace = handles.workspace;
    Ok(Export { caller, manifest, log: handles.log, newest, snapshot: reader, workspace })
}

impl Export {
    /// The name of the session.
    #[must_use]
    pub fn name(&self) -> &str {
        self.manifest.session.as_str()
    }

    /// Writes the archive. Gives how many files were left out.
    pub async fn write(self, out: impl Write + Send + 'static) -> io::Result<usize> {
        let Self { caller, manifest, log, newest, snapshot, workspace } = self;
        let failed = |problem: Problem| io::Error::other(problem.message);
        let begun = folders::run(caller, WorkKind::Transfer, None, move || {
            let mut writer = ArchiveWriter::begin(out, &manifest)?;
            write_events(&log, newest, &mut writer)?;
            if let Some(snapshot) = snapshot {
                write_snapshot(snapshot, &mut writer)?;
            }
            Ok::<_, io::Error>(writer)
        });
        let mut writer = begun.await.map_err(failed)??;
        let written = workspace.access_for(caller, WorkKind::Transfer, move |root| {
            let left_out = writer.workspace(root)?;
            writer.finish()?.flush()?;
            Ok(left_out)
        });
        written.await.map_err(failed)?
    }
}

fn write_events(log: &EventLog, newest: Seq, writer: &mut ArchiveWriter<impl Write>) -> io::Result<()> {
    let (mut after, mut lines) = (0, Vec::new());
    while after < newest {
        let events = log.read(after, EVENTS_AT_ONCE).map_err(io::Error::other)?;
        let Some(last) = events.last().map(|event| event.seq) else { break };
        for event in events.iter().filter(|event| event.seq <= newest) {
            lines.extend_from_slice(event.json.as_bytes());
            lines.push(b'\n');
        }
        after = last;
        if lines.len() >= EVENTS_BYTES {
            writer.events(&lines)?;
            lines.clear();
        }
    }
    if lines.is_empty() { Ok(()) } else { writer.events(&lines) }
}

fn write_snapshot(mut snapshot: SnapshotReader, writer: &mut ArchiveWriter<impl Write>) -> io::Result<()> {
    while let Some(piece) = snapshot.next_piece().map_err(io::Error::other)? {
        match piece {
            SnapshotPiece::Bytes(bytes) => writer.piece(&bytes)?,
            SnapshotPiece::SectionEnd => writer.end_section()?,
        }
    }
    Ok(())
}
