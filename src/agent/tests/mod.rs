//! Tests of the whole machine. Each file plays the model, the sandbox and the person itself.

mod approval;
mod catalogue;
mod conversation;
mod dialects;
mod failures;
mod random;

use serde_json::{Value, json};

use super::{AskMachine, Effect, Input, ModelApprovals, Setup};
use crate::protocol::api::ImagePackages;
use crate::protocol::ask::{ApprovalPolicy, AskEnd, AskLimits, AskSpec, Dialect, Language};
use crate::protocol::chat::{
    ChatReply, ChatRequest, Finish, FunctionCall, Message, ModelTool, Role, ToolCall, Usage,
};
use crate::protocol::event::ToolOutcome;
use crate::protocol::exit_codes;
use crate::protocol::frames::ToolFailure;
use crate::protocol::result::{ExceptionView, ExecutionResult, Reason, Status};

fn tool(name: &str, properties: Value, required: &[&str]) -> ModelTool {
    ModelTool {
        name: name.into(),
        description: format!("Does {name}."),
        parameters: json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        }),
    }
}

fn setup() -> Setup {
    let code = json!({
        "python_code_snippet": {"type": "string"},
        "timeout": {"type": "integer", "minimum": 1, "default": 30},
        "tool_call_purpose": {"type": "string"},
    });
    let compute = json!({"code": {"type": "string"}, "description": {"type": "string"}});
    Setup {
        approvals: ModelApprovals::default(),
        tools: vec![
            tool("execute_python_code", code, &["python_code_snippet"]),
            tool("compute_with_python", compute, &["code", "description"]),
            tool("get_secret", json!({}), &[]),
            tool("provide_answer", json!({"answer": {"type": "string"}}), &["answer"]),
            tool(
                "recursive_plan_tree_todo",
                json!({"recursive_plan_tree": {"type": "object"}}),
                &["recursive_plan_tree"],
            ),
        ],
        malformed: 2,
        legacy_function_call: true,
        told_chars: 2_000,
        python: true,
        degrade_after: 0,
        context_tokens: 100_000,
        vision: false,
        model_tools: true,
        cell_timeout_s: 30.0,
        max_cell_timeout_s: 3_600.0,
        workspace: "/workspace".into(),
        dependencies: ImagePackages {
            installed: vec!["numpy".into(), "pandas".into(), "pytz".into()],
            main: vec!["numpy".into(), "pandas".into()],
        },
        prompt: None,
    }
}

fn approvals(cells: bool, tools: &[&str]) -> ModelApprovals {
    ModelApprovals { cells, tools: tools.iter().map(|name| (*name).to_owned()).collect() }
}

fn spec(dialect: Dialect) -> AskSpec {
    AskSpec {
        text: "Return the secret backwards.".into(),
        model: "m".into(),
        dialect,
        language: Language::English,
        approval: ApprovalPolicy::Auto,
        also_approve: Vec::new(),
        tools: setup().tools.into_iter().map(|tool| tool.name).collect(),
        lean: false,
        schema: None,
        context: serde_json::Map::new(),
        system: None,
        restricted: false,
        limits: AskLimits { steps: 10, failures: 4, tokens: 1_000_000, seconds: 60.0 },
        fresh: false,
        depth: 0,
    }
}

fn started(spec: AskSpec, setup: Setup) -> (AskMachine, Vec<Effect>) {
    let mut machine = AskMachine::new(spec, setup, Vec::new());
    let effects = machine.step(Input::Begin);
    (machine, effects)
}

fn text(content: &str) -> ChatReply {
    ChatReply {
        message: Message::new(Role::Assistant, content),
        reasoning: None,
        refusal: None,
        finish: Finish::Stop,
        usage: Some(Usage { prompt_tokens: 100, completion_tokens: 10 }),
    }
}

fn calls(content: &str, calls: &[(&str, &str, &str)]) -> ChatReply {
    let mut reply = text(content);
    reply.finish = Finish::ToolCalls;
    reply.message.tool_calls = calls
        .iter()
        .map(|(id, name, arguments)| ToolCall {
            id: (*id).into(),
            name: (*name).into(),
            arguments: (*arguments).into(),
        })
        .collect();
    reply
}

fn legacy(name: &str, arguments: &str) -> ChatReply {
    let mut reply = text("");
    reply.message.function_call = Some(FunctionCall { name: name.into(), arguments: arguments.into() });
    reply
}

fn cell_call(id: &str, code: &str) -> ChatReply {
    calls("", &[(id, "execute_python_code", &json!({"python_code_snippet": code}).to_string())])
}

fn reply(machine: &mut AskMachine, reply: ChatReply) -> Vec<Effect> {
    machine.step(Input::ModelReplied { step: machine.steps(), reply: Box::new(reply) })
}

fn cell_result(stdout: &str, exception: Option<&str>) -> Box<ExecutionResult> {
    let (status, reason) = match exception {
        Some(_) => (Status::Failure, Reason::Exception),
        None => (Status::Success, Reason::Ok),
    };
    Box::new(ExecutionResult {
        code: "print(amount)".into(),
        stdout: stdout.into(),
        exception: exception.map(|text| ExceptionView {
            type_name: text.split(':').next().unwrap().into(),
            value: String::new(),
            repr: text.into(),
            traceback: text.into(),
        }),
        duration_ms: 1.0,
        ..exit_codes::tests::result(status, reason, Some(0))
    })
}

fn ran(machine: &mut AskMachine, id: &str, stdout: &str) -> Vec<Effect> {
    machine.step(Input::CellFinished { id: id.into(), result: cell_result(stdout, None) })
}

fn raised(machine: &mut AskMachine, id: &str, exception: &str) -> Vec<Effect> {
    machine.step(Input::CellFinished { id: id.into(), result: cell_result("", Some(exception)) })
}

fn gave(machine: &mut AskMachine, id: &str, value: Value) -> Vec<Effect> {
    machine.step(Input::ToolFinished { id: id.into(), outcome: ToolOutcome::Value(value) })
}

fn broke(machine: &mut AskMachine, id: &str, message: &str) -> Vec<Effect> {
    let failure = ToolFailure { code: "failed".into(), message: message.into() };
    machine.step(Input::ToolFinished { id: id.into(), outcome: ToolOutcome::Failure(failure) })
}

fn request(effects: &[Effect]) -> &ChatRequest {
    match effects.last() {
        Some(Effect::AskModel { request, .. }) => request,
        other => panic!("no request, but {other:#?}"),
    }
}

fn last_message(effects: &[Effect]) -> &Message {
    request(effects).messages.last().unwrap()
}

fn end(effects: &[Effect]) -> &AskEnd {
    match effects.last() {
        Some(Effect::Finish { end }) => end,
        other => panic!("not ended, but {other:#?}"),
    }
}

/// A line for each effect.
fn effect_names(effects: &[Effect]) -> Vec<String> {
    let line = |effect: &Effect| match effect {
        Effect::AskModel { step, .. } => format!("model {step}"),
        Effect::RunCell { id, code, .. } => format!("cell {id} {code}"),
        Effect::CallTool { id, name, .. } => format!("tool {id} {name}"),
        Effect::AskPerson { id, .. } => format!("person {id}"),
        Effect::Note { .. } => "note".to_owned(),
        Effect::Finish { end } => format!("finish {:?}", end.outcome),
    };
    effects.iter().map(line).collect()
}
