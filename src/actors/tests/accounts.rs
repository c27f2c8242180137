use super::*;
use crate::protocol::event::ToolOutcome;
use crate::protocol::problem::Code;
use crate::protocol::result::Status;
use crate::sandbox::workspace::owner::WorkKind;

/// The tool `program`, which would run as the owner of the session.
pub(super) struct Program;

impl Tool for Program {
    fn definition(&self) -> Definition {
        let parameters = json!({"type": "object", "properties": {}, "additionalProperties": false});
        Definition::new("program", "", parameters)
    }

    fn run(&self, _: Map<String, Value>, context: Context) -> ToolFuture {
        Box::pin(async move {
            let owner = context.port()?.owner().await;
            Ok(ToolOutput::Text(
                owner.map_or_else(|problem| problem.message, |owner| owner.principal.to_string()),
            ))
        })
    }
}

async fn what_the_program_says(client: &Client) -> String {
    let ticket = client.run("call").await;
    let cell = ticket.cell;
    assert_eq!(client.result(ticket).await.status, Status::Success);
    let answer = client.events().into_iter().rev().find_map(|event| match event {
        EventBody::ToolAnswered { outcome: ToolOutcome::Value(Value::String(answer)), .. } => Some(answer),
        _ => None,
    });
    answer.unwrap_or_else(|| panic!("cell {cell} called no program"))
}

/// An account was deleted, and its user id was given to another, while a session of the first one runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_an_earlier_account_does_nothing_in_the_name_of_the_present_one() {
    let home = Home::new();
    home.backend.plays("call", &[Step::Call("program")]);
    home.backend.plays("end", &[Step::EndSandbox]);
    let daemon = home.daemon().await;
    let own = Service::of_this_process().principal();
    let folder = tempfile::tempdir().unwrap();
    let request =
        NewSession { workspace: Some(folder.path().display().to_string()), ..NewSession::default() };
    let client = daemon.makes(own, request.clone()).await.unwrap();
    assert_eq!(what_the_program_says(&client).await, own.to_string());
    let files = || async {
        let handles = try_call(&client.session, |reply_to| SessionMsg::Handles { reply_to }).await.unwrap();
        handles.workspace.access(WorkKind::Look, |_| ()).await
    };
    files().await.unwrap();

    daemon.launcher.accounts.note(own, Some("an-account-that-was-deleted")).unwrap();
    let answer = what_the_program_says(&client).await;
    assert!(answer.contains("an-account-that-was-deleted"), "{answer}");
    assert_eq!(files().await.unwrap_err().code, Code::Forbidden);
    assert_eq!(daemon.makes(own, request).await.err().map(|problem| problem.code), Some(Code::Forbidden));
    // Nor does it get another sandbox, whose guest would be that user.
    client.run("end").await;
    client.has_event(|event| matches!(event, EventBody::SandboxGone { .. })).await;
    let ticket = client.run("next").await;
    let result = within("the next cell has ended", ticket.result(&client.session)).await;
    assert!(result.is_ok_and(|result| result.status != Status::Success));
    assert_eq!(home.backend.started(), 1);
}
