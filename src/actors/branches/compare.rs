//! Compares two sessions of which both are asked for what they have.

use crate::actors::calls::try_call;
use crate::actors::session::messages::{Handles, SessionMsg, SessionRef};
use crate::protocol::api::{VariableList, VariablesFilter};
use crate::protocol::branch::SessionDiff;
use crate::protocol::principal::Principal;
use crate::protocol::problem::Problem;
use crate::sandbox::workspace::Root;
use crate::sandbox::workspace::compare::{self, ContentDigest, FileSizes};
use crate::sandbox::workspace::owner::WorkKind;
use crate::session::comparison::{self, Contents};

/// Bytes of each workspace that are read for a comparison.
const COMPARED_BYTES: u64 = 512 * 1024 * 1024;

/// A session that is compared.
pub type Compared = (SessionRef, Handles);

/// What the second session has otherwise than the first. Files are read on threads of the caller, who need not be the owner.
pub async fn compare(caller: Principal, first: &Compared, second: &Compared) -> Result<SessionDiff, Problem> {
    let (of_first, of_second) = tokio::try_join!(variables(first), variables(second))?;
    let variables = comparison::of_variables(of_first, of_second);
    let (sizes_of_first, sizes_of_second) = tokio::try_join!(sizes(caller, first), sizes(caller, second))?;
    let read = comparison::to_read(&sizes_of_first, &sizes_of_second);
    let (of_first, of_second) =
        tokio::try_join!(digests(caller, first, &read), digests(caller, second, &read))?;
    let contents = Contents { first: &of_first, second: &of_second };
    let files = comparison::of_files(&sizes_of_first, &sizes_of_second, &read, contents);
    Ok(SessionDiff { variables, files })
}

async fn variables((session, _): &Compared) -> Result<VariableList, Problem> {
    let which = VariablesFilter { private: true, digests: true, ..VariablesFilter::default() };
    try_call(session, |reply_to| SessionMsg::Variables { which, patient: false, reply_to }).await
}

async fn sizes(caller: Principal, (_, handles): &Compared) -> Result<FileSizes, Problem> {
    handles.workspace.access_for(caller, WorkKind::Transfer, compare::sizes).await?
}

async fn digests(
    caller: Principal,
    (_, handles): &Compared,
    paths: &[std::path::PathBuf],
) -> Result<Vec<Option<ContentDigest>>, Problem> {
    let paths = paths.to_vec();
    let read = move |root: &Root<'_>| compare::digests(root, &paths, COMPARED_BYTES);
    handles.workspace.access_for(caller, WorkKind::Transfer, read).await?
}
