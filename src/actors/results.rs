//! Waiting for the result of a cell: the one way for clients, asks, tools, jobs and replays. A cell is waited for with a
//! ticket, which the caller that queues it gets, and others ask for; the result of an ended cell is in the journal.

use std::sync::Arc;

use super::calls;
use super::session::messages::{CellRequest, CellStatus, OwnSession, SessionMsg, SessionRef, Ticket};
use crate::protocol::event::{Event, EventBody};
use crate::protocol::ids::{CellNumber, Seq};
use crate::protocol::limits::JOURNAL_TIMEOUT;
use crate::protocol::problem::{Code, FREE_SPACE, Problem};
use crate::protocol::result::ExecutionResult;
use crate::store::EventLog;

impl Ticket {
    /// The result, once it is in the journal; a problem if the disk does not take it, or the session ends.
    pub async fn result(mut self, session: &SessionRef) -> Result<Arc<ExecutionResult>, Problem> {
        let cell = self.cell;
        let mut ended = false;
        loop {
            match tokio::time::timeout(JOURNAL_TIMEOUT, &mut self.done).await {
                Ok(Ok(result)) => return Ok(result),
                Ok(Err(_)) => {
                    if calls::lives(session) {
                        let message = format!("an internal error ended the wait for cell {cell}");
                        return Err(Problem::new(Code::Internal, message)
                            .hint("`belljar wait` says what became of it"));
                    }
                    let message = format!("the session, or the daemon, ended over cell {cell}");
                    return Err(Problem::new(Code::ShuttingDown, message)
                        .hint("the cell may go on: ask for it when the next daemon runs (`belljar wait`)"));
                }
                Err(_) if ended => return Err(unwritten(cell)),
                Err(_) => {}
            }
            // No event announces a result that cannot be written, so the status of the cell is queried.
            let status = calls::call(session, |reply_to| SessionMsg::CellStatus { cell, reply_to }).await;
            ended = matches!(status, Ok(CellStatus::Ended));
        }
    }
}

impl OwnSession {
    /// Runs a cell for a part of the session, and gives its result.
    pub async fn run(&self, request: CellRequest) -> Result<Arc<ExecutionResult>, Problem> {
        let ticket = self.try_call(|reply_to| SessionMsg::Run { request, reply_to }).await?;
        ticket.result(self.any_generation()).await
    }
}

/// Waits for the end of a cell that another request or an earlier daemon queued, and returns its result.
pub async fn result_of(
    session: &SessionRef,
    log: &EventLog,
    cell: CellNumber,
) -> Result<Arc<ExecutionResult>, Problem> {
    let outcome = match calls::call(session, |reply_to| SessionMsg::Ticket { cell, reply_to }).await {
        Ok(Some(ticket)) => ticket.result(session).await,
        Ok(None) => ended(log, cell).await.map(|(_, result)| Arc::new(result)),
        Err(problem) => Err(problem),
    };
    // A session that has ended may have written the result before.
    outcome.or_else(|problem| in_journal(log, cell).map(|(_, result)| Arc::new(result)).ok_or(problem))
}

/// The result of an ended cell, and the number of its event.
pub async fn ended(log: &EventLog, cell: CellNumber) -> Result<(Seq, ExecutionResult), Problem> {
    // The end of a cell that has just ended may still be on its way into the journal.
    let is_written = log.is_flushed().await;
    in_journal(log, cell).ok_or_else(|| {
        if is_written {
            Problem::new(Code::NoSuchCell, format!("the result of cell {cell} is no longer kept"))
        } else {
            unwritten(cell)
        }
    })
}

/// The result of a cell and the number of its event, if the journal has them.
pub fn in_journal(log: &EventLog, cell: CellNumber) -> Option<(Seq, ExecutionResult)> {
    let Event { seq, body, .. } = serde_json::from_str(&log.finished(cell)?.json).ok()?;
    match body {
        EventBody::CellFinished { result } => Some((seq, *result)),
        _ => None,
    }
}

/// The problem for an ended cell whose end is not in the journal.
fn unwritten(cell: CellNumber) -> Problem {
    let message = format!("cell {cell} has ended, but its result cannot be written into the journal");
    Problem::new(Code::Storage, message).hint(FREE_SPACE)
}
