//! Branches: sessions that begin with the variables and files of another one.

use futures_util::future::join_all;
use std::sync::Arc;

use super::beginning::{Carried, Files};
use super::maker::{NewBase, SessionMaker};
use crate::actors::calls::{call_promptly, try_call};
use crate::actors::replay;
use crate::actors::session::messages::{Handles, SessionMsg, SessionRef};
use crate::protocol::api::{NewSession, SessionView};
use crate::protocol::branch::{BRANCHES_AT_ONCE, BranchList, NewBranches};
use crate::protocol::ids::{CellNumber, SessionId, SessionName};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::saved_state::BaseSource;
use crate::protocol::snapshot::SnapshotRecord;
use crate::protocol::text::quotable;
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::security_controls;
use crate::store::SessionRecord;
use crate::store::snapshots::{HeldSnapshot, SnapshotError};

/// Branches that are made at the same time.
const TOGETHER: usize = 8;

/// Makes the branches of a session: all of them, or none.
pub async fn branch(
    maker: &SessionMaker,
    caller: Principal,
    (session, handles): (&SessionRef, &Handles),
    wanted: NewBranches,
) -> Result<BranchList, Problem> {
    let names = names(&wanted)?;
    let (view, record) = (view_of(session).await?, record_of(maker, handles)?);
    if record.owner != caller && security_controls::holds("branches_are_the_owners") {
        return Err(Problem::new(Code::Forbidden, "only its owner makes branches of a session")
            .hint("export it, and import the archive as a session of your own"));
    }
    if let Some(cell) = wanted.at.filter(|cell| *cell > view.cells) {
        let message = format!("there is no cell {cell} yet: the session has {}", view.cells);
        return Err(Problem::new(Code::OutOfReach, message).hint("`belljar logs -s SESSION` shows its cells"));
    }
    // The variables may be of code that a reset ends before the journal is read, or has ended long ago.
    let (snapshot, since) = match (&wanted.snapshot, wanted.at) {
        (None, at) => {
            let before = handles.log.newest();
            match (snapshot(session, at).await, at) {
                (Err(problem), Some(cell)) if problem.code == Code::OutOfReach => {
                    let hint = "`belljar snapshots -s SESSION` lists the cells whose variables were saved";
                    (saved_after(handles, cell).await?.ok_or_else(|| problem.hint(hint))?, 0)
                }
                (taken, _) => (taken?, before),
            }
        }
        (Some(name), None) => (saved(session, name).await?, 0),
        (Some(_), Some(_)) => {
            let message =
                "a branch begins with a snapshot (`snapshot`) or as after a cell (`at`), not with both";
            return Err(Problem::new(Code::BadRequest, message));
        }
    };
    // Held first: reading the journal takes a while, in which others could take the snapshot's place.
    let held = Arc::new(hold_snapshot(maker, record.owner, view.id, snapshot.clone()).await?);
    let (past, rules) = replay::fold_journal_with_rules(&handles.log, since).await?;
    let mut settings = settings_of(&record);
    // A branch begins where its session is, whatever the configuration says by now.
    if let Some(receipt) = &past.last_sandbox {
        settings.backend = Some(receipt.backend);
        settings.image = Some(receipt.image.reference.clone());
    }
    let (cell, bound) = (snapshot.cell, rules.bound());
    let source = BaseSource::Session { name: view.name.clone(), id: view.id, cell };
    let make = |name: Option<SessionName>| {
        let request = NewSession { name, ephemeral: wanted.ephemeral, ..settings.clone() };
        let (files, left_out) = Files::of_workspace(Arc::clone(&handles.workspace));
        let carried = Carried { files: Some(files), packages: past.packages.clone() };
        let held = Arc::clone(&held);
        let base = NewBase {
            source: source.clone(),
            bound: bound.clone(),
            put: Some(Box::new(move |store, to, limits, charge| store.copy(&held, to, limits, charge))),
        };
        async move { (one(maker, record.owner, request, carried, base).await, left_out) }
    };
    let (mut sessions, mut left_out, mut failure) = (Vec::new(), 0, None);
    // Each has a copy of the request while it is made.
    for names in names.chunks(TOGETHER) {
        for (made, uncopied) in join_all(names.iter().cloned().map(&make)).await {
            match made {
                Ok(view) => sessions.push(view),
                Err(problem) => failure = failure.or(Some(problem)),
            }
            left_out = uncopied.get();
        }
        if failure.is_some() {
            break;
        }
    }
    match failure {
        None => Ok(BranchList { sessions, cell, left_out }),
        Some(problem) => {
            for view in &sessions {
                maker.take_back(record.owner, view);
            }
            Err(problem)
        }
    }
}

/// Makes one branch, and takes it back if it has no variables.
async fn one(
    maker: &SessionMaker,
    owner: Principal,
    request: NewSession,
    carried: Carried,
    base: NewBase,
) -> Result<SessionView, Problem> {
    let view = maker.make(owner, request, carried, Some(base)).await?;
    match maker.check_loaded(owner, &view).await {
        Ok(()) => Ok(view),
        Err(problem) => {
            maker.take_back(owner, &view);
            Err(problem)
        }
    }
}

/// The names of the branches; none for a name that the daemon makes up.
fn names(wanted: &NewBranches) -> Result<Vec<Option<SessionName>>, Problem> {
    let count = wanted.count.unwrap_or(1);
    if !(1..=BRANCHES_AT_ONCE).contains(&count) {
        let message = format!("`count` has to be between 1 and {BRANCHES_AT_ONCE}");
        return Err(Problem::new(Code::BadRequest, message));
    }
    let bad = |message| Problem::new(Code::BadRequest, message);
    let numbered = |name: &SessionName, number| SessionName::parse(&format!("{name}-{number}")).map_err(bad);
    (1..=count)
        .map(|number| match &wanted.name {
            Some(name) if count > 1 => numbered(name, number).map(Some),
            name => Ok(name.clone()),
        })
        .collect()
}

/// A snapshot of the variables as they are, or as after a cell.
pub(super) async fn snapshot(
    session: &SessionRef,
    state_of: Option<CellNumber>,
) -> Result<SnapshotRecord, Problem> {
    let take = |reply_to| SessionMsg::TakeSnapshot { name: None, at: state_of, or_newest: true, reply_to };
    try_call(session, take).await
}

/// A snapshot that the session has already.
async fn saved(session: &SessionRef, name: &str) -> Result<SnapshotRecord, Problem> {
    let list = call_promptly(session, |reply_to| SessionMsg::Snapshots { reply_to }).await?;
    let is_it = |kept: &SnapshotRecord| kept.id == name || kept.name.as_deref() == Some(name);
    let none = || SnapshotError::NoSuch(quotable(name)).into();
    list.snapshots.into_iter().find(is_it).ok_or_else(none)
}

/// A snapshot that the session has already, of the variables as after a cell.
async fn saved_after(handles: &Handles, cell: CellNumber) -> Result<Option<SnapshotRecord>, Problem> {
    let past = replay::fold_journal(&handles.log).await?;
    Ok(past.saved.saved_after(cell).cloned())
}

/// Keeps the snapshot until all branches have it: others of the session may take its place meanwhile.
async fn hold_snapshot(
    maker: &SessionMaker,
    owner: Principal,
    session: SessionId,
    snapshot: SnapshotRecord,
) -> Result<HeldSnapshot, Problem> {
    let store = maker.snapshots.clone();
    let held = move || store.hold(session, &snapshot);
    Ok(folders::run(owner, WorkKind::Transfer, None, held).await??)
}

pub(super) async fn view_of(session: &SessionRef) -> Result<SessionView, Problem> {
    call_promptly(session, |reply_to| SessionMsg::View { reply_to }).await
}

pub(super) fn record_of(maker: &SessionMaker, handles: &Handles) -> Result<SessionRecord, Problem> {
    let record = maker.journal.session(handles.log.session())?;
    record.ok_or_else(|| Problem::new(Code::NoSuchSession, "the session has just ended"))
}

/// What a session was made with, without its name, its folder on this machine, and how long it lives.
pub(super) fn settings_of(record: &SessionRecord) -> NewSession {
    let request: NewSession = serde_json::from_value(record.request.clone()).unwrap_or_default();
    NewSession { name: None, workspace: None, ephemeral: false, lingers: false, lazy: false, ..request }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_branches_are_numbered_and_one_is_not() {
        let named =
            |count| NewBranches { name: SessionName::parse("b").ok(), count, ..NewBranches::default() };
        let shown = |wanted: &NewBranches| -> Vec<String> {
            names(wanted).unwrap().into_iter().flatten().map(|name| name.to_string()).collect()
        };
        assert_eq!(shown(&named(None)), ["b"]);
        assert_eq!(shown(&named(Some(1))), ["b"]);
        assert_eq!(shown(&named(Some(3))), ["b-1", "b-2", "b-3"]);
        assert_eq!(names(&NewBranches { count: Some(2), ..NewBranches::default() }).unwrap(), [None, None]);
        for count in [0, BRANCHES_AT_ONCE + 1] {
            assert!(names(&named(Some(count))).is_err());
        }
    }
}
