//! `belljar history`: the conversation that the next ask of a session continues.

use clap::Args;

use crate::cli::args::SessionArg;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::word;
use crate::cli::render::screen::Tint;
use crate::protocol::ask;
use crate::protocol::chat::Message;
use crate::protocol::text::one_line;

/// Show what was said between a session and its models, as the next ask continues it.
#[derive(Debug, Args)]
pub(in crate::cli) struct History {
    #[command(flatten)]
    session: SessionArg,
}

impl History {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let answer = context.client().get(&self.session.path("/history")?).await?;
        context.show(&answer, |screen, history: ask::History| {
            if history.messages.is_empty() {
                screen.note("nothing was said yet; ask with `belljar ask`")?;
            }
            history.messages.iter().try_for_each(|message| {
                screen.line(&screen.tinted(Tint::Bold, &head(message)))?;
                screen.guest_line(&body(message))
            })
        })
    }
}

/// `── tool · call_1`
fn head(message: &Message) -> String {
    let role = word(&message.role);
    match message.tool_call_id.as_ref().or(message.name.as_ref()) {
        Some(of) => format!("── {role} · {}", one_line(of)),
        None => format!("── {role}"),
    }
}

/// The text of the message, and a line for each call.
fn body(message: &Message) -> String {
    let content = Some(message.content.trim_end().to_owned()).filter(|content| !content.is_empty());
    let tools = message.tool_calls.iter();
    let tools = tools.map(|call| format!("→ {} {} {}", call.id, call.name, one_line(&call.arguments)));
    let functions = message.function_call.iter();
    let functions = functions.map(|call| format!("→ {} {}", call.name, one_line(&call.arguments)));
    content.into_iter().chain(tools).chain(functions).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::chat::Role;
    use crate::protocol::chat::ToolCall;

    #[test]
    fn messages_are_told_with_their_calls() {
        let mut call = Message::new(Role::Assistant, "");
        let arguments = "{\n  \"code\": \"1+1\"\n}".to_owned();
        call.tool_calls = vec![ToolCall { id: "c1".into(), name: "execute_python_code".into(), arguments }];
        let mut answer = Message::new(Role::Tool, "2\n");
        answer.tool_call_id = Some("c1".into());
        let all = [Message::new(Role::User, "how much?"), call, answer];
        insta::assert_snapshot!(all.map(|m| format!("{}\n{}", head(&m), body(&m))).join("\n"), @r#"
        ── user
        how much?
        ── assistant
        → c1 execute_python_code { "code": "1+1" }
        ── tool · c1
        2
        "#);
    }
}
