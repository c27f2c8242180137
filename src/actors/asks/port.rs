//! The operations that tools may perform on the session in which they are called.

use async_trait::async_trait;
use parking_lot::Mutex;
use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

use super::messages::{AsksMsg, AsksRef};
use super::shared_budget::ParentBudget;
use super::state::AsksState;
use crate::actors::calls::{call_own, try_call};
use crate::actors::directory::Directory;
use crate::actors::session::install_request::InstallRequest;
use crate::actors::session::messages::{CellRequest, OwnSession, SessionMsg, SessionRef};
use crate::actors::supervisor::messages::{SupervisorMsg, SupervisorRef};
use crate::config::LiveSettings;
use crate::packages::requirement::parse_all;
use crate::protocol::api::{Computed, NewSession, SessionView, VariableList, VariablesFilter};
use crate::protocol::ask::{Approval, AskNumber, AskOutcome, AskView, Language, NewAsk, PlanVersion};
use crate::protocol::command::NewCommand;
use crate::protocol::ids::SessionId;
use crate::protocol::limits::FILE_BYTES;
use crate::protocol::packages::InstalledPackages;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::{ExecutionResult, Mode};
use crate::protocol::text::quotable;
use crate::sandbox::attest::facts::primary_group;
use crate::sandbox::uid_accounts::UidAccounts;
use crate::sandbox::workspace::Root;
use crate::sandbox::workspace::files::{self, Opened};
use crate::sandbox::workspace::owner::{self as folders, WorkKind};
use crate::security_controls;
use crate::session::rules::{CallOrigin, CellRules, SandboxRules};
use crate::store::EventLog;
use crate::tools::{FileRead, NestedAsk, OnWaiting, Owner, PlanTree, SessionPort};

/// The time limit of an expression that reads a variable.
const EVALUATE: Duration = Duration::from_secs(10);

/// The interval at which the end of an ask is checked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The caller on whose behalf a tool works.
#[derive(Clone)]
pub enum PortCaller {
    /// The model of the present ask.
    Model(Option<(AskNumber, Arc<CellRules>)>),
    /// Code in the sandbox.
    Code(CallerContext),
}

/// Code in the sandbox that calls a tool.
#[derive(Clone)]
pub struct CallerContext {
    /// The code that calls: a cell, a program, or what an earlier cell left behind.
    pub origin: CallOrigin,
    /// The rules of all code in the sandbox, because any of it may be the caller.
    pub rules: SandboxRules,
}

/// The access of a tool to its session.
#[derive(Clone)]
pub struct Port {
    pub session: OwnSession,
    pub asks: AsksRef,
    pub supervisor: SupervisorRef,
    pub directory: Directory,
    pub owner: Principal,
    pub accounts: UidAccounts,
    pub language: Language,
    pub image: Option<String>,
    pub settings: LiveSettings,
    pub last_result: LastResult,
    pub caller: PortCaller,
}

/// The last result of `compute_with_python` that the model of an ask has; empty where an ask begins. Code has variables of
/// its own and gets none.
pub type LastResult = Arc<Mutex<Option<String>>>;

impl AsksState {
    pub(super) fn port(&self, myself: &AsksRef) -> Arc<Port> {
        let language = self.args.settings.now().agent.language;
        Arc::new(Port {
            session: self.args.session.clone(),
            asks: myself.clone(),
            supervisor: self.args.supervisor.clone(),
            directory: self.args.directory.clone(),
            owner: self.args.owner,
            accounts: self.args.accounts.clone(),
            language: self.current.as_ref().map_or(language, |current| current.spec.language),
            image: self.args.image.clone(),
            settings: self.args.settings.clone(),
            last_result: self
                .current
                .as_ref()
                .map(|current| Arc::clone(&current.last_result))
                .unwrap_or_default(),
            caller: PortCaller::Model(
                self.current
                    .as_ref()
                    .map(|current| (current.ask, Arc::new(CellRules::of_ask(&current.spec)))),
            ),
        })
    }
}

impl Port {
    /// The ask and the rules that bind what the caller has run.
    fn binding(&self) -> (Option<AskNumber>, Option<Arc<CellRules>>) {
        match &self.caller {
            PortCaller::Model(Some((ask, rules))) => (Some(*ask), Some(Arc::clone(rules))),
            PortCaller::Model(None) => (None, None),
            PortCaller::Code(calling) => {
                (calling.origin.ask(), Some(Arc::new(calling.rules.combined(calling.origin))))
            }
        }
    }
}

#[async_trait]
impl SessionPort for Port {
    async fn compute(
        &self,
        expression: String,
        values: Map<String, Value>,
        timeout: Duration,
    ) -> Result<Computed, Problem> {
        let memory = None;
        let message = |reply_to| SessionMsg::Compute { expression, values, timeout, memory, reply_to };
        self.session.try_call(message).await
    }

    async fn install(&self, packages: Vec<String>) -> Result<InstalledPackages, Problem> {
        let requirements = parse_all(&packages, &self.settings.now().packages.names)?;
        let message = |reply_to| {
            SessionMsg::Install(InstallRequest { requirements, replace: false, sources: false, reply_to })
        };
        self.session.try_call(message).await
    }

    async fn variables(&self) -> Result<VariableList, Problem> {
        let which = VariablesFilter::default();
        self.session.try_call(|reply_to| SessionMsg::Variables { which, patient: false, reply_to }).await
    }

    async fn evaluate(&self, expression: String) -> Result<ExecutionResult, Problem> {
        // The code that this runs, such as the `repr` of a variable, obeys the rules of the caller.
        let (bound_by, rules) = self.binding();
        let usual = CellRequest::new(expression, Mode::Fork, EVALUATE);
        let request = CellRequest { expression: true, bound_by, rules, ..usual };
        Ok((*self.session.run(request).await?).clone())
    }

    async fn run_command(&self, command: NewCommand) -> Result<Option<ExecutionResult>, Problem> {
        let (bound_by, rules) = self.binding();
        if rules.as_ref().is_some_and(|rules| rules.restricted) {
            let message = "only restricted Python may run here, and no commands";
            return Err(Problem::new(Code::Forbidden, message));
        }
        let timeout = self.settings.now().cells.timeouts().nearest(command.timeout_s);
        let in_background = command.background;
        let request = CellRequest { bound_by, rules, ..CellRequest::command(command.checked()?, timeout) };
        if in_background {
            self.session.try_call(|reply_to| SessionMsg::Run { request, reply_to }).await?;
            return Ok(None);
        }
        Ok(Some((*self.session.run(request).await?).clone()))
    }

    async fn read_file(&self, path: String, max_bytes: u64) -> Result<FileRead, Problem> {
        let handles = self.session.try_call(|reply_to| SessionMsg::Handles { reply_to }).await?;
        handles.workspace.access(WorkKind::Look, move |root| read_file(root, &path, max_bytes)).await?
    }

    async fn given(&self) -> Result<Map<String, Value>, Problem> {
        self.session.call(|reply_to| SessionMsg::Given { reply_to }).await
    }

    fn last_result(&self) -> Option<String> {
        self.last_result.lock().clone()
    }

    fn keep_last_result(&self, result: String) {
        *self.last_result.lock() = Some(result);
    }

    async fn submit_plan(&self, plan: PlanTree) -> Result<PlanVersion, Problem> {
        try_call(&self.asks, |reply_to| AsksMsg::SubmitPlan { plan: Box::new(plan), reply_to }).await
    }

    async fn ask(&self, nested: NestedAsk, on_waiting: Option<OnWaiting>) -> Result<Value, Problem> {
        self.nested(nested, on_waiting).await
    }

    async fn owner(&self) -> Result<Owner, Problem> {
        let (principal, accounts) = (self.owner, self.accounts.clone());
        let check_account = move || {
            accounts.check(principal)?;
            Ok(Owner { principal, gid: primary_group(principal.uid()) })
        };
        folders::run(principal, WorkKind::Look, None, check_account).await?
    }

    fn language(&self) -> Language {
        self.language
    }
}

impl Port {
    /// An inner session is never less isolated than the outer one, and gets no more resources.
    fn inner_session(&self, around: &SessionView) -> NewSession {
        let usual =
            NewSession { image: self.image.clone(), ephemeral: true, lazy: true, ..NewSession::default() };
        if !security_controls::holds("inner_sessions_are_as_isolated") {
            return usual;
        }
        let (limits, settings) = (&around.limits, self.settings.now());
        let most = &settings.sandbox;
        NewSession {
            backend: Some(around.backend),
            memory_bytes: Some(limits.memory_bytes.min(most.memory_bytes)),
            cpus: Some(limits.cpus.min(most.cpus)),
            pids: Some(limits.pids.min(most.pids)),
            ..usual
        }
    }

    /// Runs the ask in its own session, which sees only the given values and is removed after the answer.
    async fn nested(&self, nested: NestedAsk, on_waiting: Option<OnWaiting>) -> Result<Value, Problem> {
        let settings = self.settings.now();
        let template = nested.template.as_ref().and_then(|name| settings.templates.get(name));
        if template.is_some_and(|template| template.description.is_some()) && !nested.by_tool {
            // Rules for tools name it as a tool, and `ask` must be no way around them.
            let name = nested.template.as_deref().map(quotable).unwrap_or_default();
            let message = format!("the template `{name}` is a tool here");
            return Err(Problem::new(Code::BadRequest, message).hint(format!("call it as `{name}(…)`")));
        }
        let caller = self.caller.clone();
        let outer = try_call(&self.asks, |reply_to| AsksMsg::Outer { caller, reply_to }).await?;
        let around = self.session.call(|reply_to| SessionMsg::View { reply_to }).await?;
        let request = Box::new(self.inner_session(&around));
        let owner = self.owner;
        let made = try_call(&self.supervisor, |reply_to| SupervisorMsg::Create {
            id: SessionId::fresh(),
            owner,
            request,
            nested: true,
            job: None,
            base: None,
            memory: None,
            reply_to,
        })
        .await?;
        let found = self.directory.find(owner, &made.id.to_string(), false);
        let inner = found
            .map(|found| Inner(found.session))
            .ok_or_else(|| Problem::new(Code::SandboxFailed, "the session of the inner ask is gone"))?;
        let _held = try_call(&inner.0, |reply_to| SessionMsg::Hold { reply_to }).await?;
        let has_schema =
            nested.schema.is_some() || template.is_some_and(|template| template.schema.is_some());
        // A template may have a model and a dialect of its own.
        let model = template.is_some_and(|template| template.model.is_some());
        let dialect = template.is_some_and(|template| template.dialect.is_some());
        let new = Box::new(NewAsk {
            text: nested.prompt,
            template: nested.template,
            parameters: nested.parameters,
            schema: nested.schema,
            context: nested.context,
            model: outer.spec.as_ref().map(|spec| spec.model.clone()).filter(|_| !model),
            // A model that was chosen together with a dialect may know no other dialect.
            dialect: outer.spec.as_ref().map(|spec| spec.dialect).filter(|_| !model && !dialect),
            language: outer.spec.as_ref().map(|spec| spec.language),
            ..NewAsk::default()
        });
        let above = outer.above.clone();
        let asks = try_call(&inner.0, |reply_to| SessionMsg::Asks { reply_to }).await?;
        let start = |reply_to| AsksMsg::Start { new, outer: Some(outer), memory: None, reply_to };
        let begun = try_call(&asks, start).await?;
        let handles = try_call(&inner.0, |reply_to| SessionMsg::Handles { reply_to }).await?;
        let since = Instant::now();
        let mut pause = Pause { on_waiting, above, within: made.id, approvals: Vec::new(), since };
        let pause_while_waiting = |view: &AskView| pause.set(&view.waits_for);
        let view = ended(&asks, &handles.log, begun.ask, pause_while_waiting).await?;
        let end = view.end.ok_or_else(|| Problem::new(Code::Internal, "an ask ended without an end"))?;
        match end.outcome {
            AskOutcome::Answered if has_schema => Ok(end.value.unwrap_or_default()),
            AskOutcome::Answered => Ok(Value::String(end.answer.unwrap_or_default())),
            outcome => Err(Problem::new(
                Code::ModelFailed,
                format!("the inner ask was not answered ({outcome:?}): {}", end.message.unwrap_or_default()),
            )),
        }
    }
}

/// The session of an inner ask. It is removed when the call that created it ends.
struct Inner(SessionRef);

impl Drop for Inner {
    fn drop(&mut self) {
        let _ = self.0.cast(SessionMsg::Remove { remover: None });
    }
}

/// While an inner ask waits for a person, the time of the outer ask stands still.
struct Pause {
    on_waiting: Option<OnWaiting>,
    above: Option<ParentBudget>,
    /// The session of the inner ask.
    within: SessionId,
    /// The approvals that wait in that session.
    approvals: Vec<Approval>,
    since: Instant,
}

impl Pause {
    fn set(&mut self, approvals: &[Approval]) {
        if self.approvals == approvals {
            return;
        }
        if let Some(on_waiting) = &self.on_waiting
            && self.approvals.is_empty() != approvals.is_empty()
        {
            on_waiting(!approvals.is_empty());
        }
        self.approvals = approvals.to_vec();
        if let Some(ParentBudget { asks, ask, .. }) = &self.above {
            let approvals = self.approvals.clone();
            let _ = asks.cast(AsksMsg::WaitsWithin { ask: *ask, within: self.within, approvals });
        }
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.set(&[]);
        if let Some(ParentBudget { asks, ended, .. }) =
            self.above.as_ref().filter(|above| !above.ended.is_empty())
        {
            let _ = asks.cast(AsksMsg::Lasted { asks: ended.clone(), took: self.since.elapsed() });
        }
    }
}

/// Waits until an ask has ended; dropping the future does not affect the ask. `look` gets its view on every
/// check.
pub async fn ended(
    asks: &AsksRef,
    log: &EventLog,
    ask: AskNumber,
    mut on_view: impl FnMut(&AskView),
) -> Result<AskView, Problem> {
    let mut watch = log.watch();
    loop {
        watch.borrow_and_update();
        let view = call_own(asks, |reply_to| AsksMsg::View { ask, reply_to }).await?;
        let view = view.ok_or_else(|| Problem::new(Code::NoSuchAsk, format!("there is no ask {ask}")))?;
        on_view(&view);
        if view.end.is_some() {
            return Ok(view);
        }
        // The view shows the end a moment after its event, so the view is checked again soon.
        if let Ok(Err(_)) = tokio::time::timeout(LOOK_AGAIN, watch.changed()).await {
            return Err(Problem::new(
                Code::ShuttingDown,
                format!("the daemon ends; ask {ask} goes on later"),
            ));
        }
    }
}

fn read_file(root: &Root<'_>, path: &str, max_bytes: u64) -> Result<FileRead, Problem> {
    let path = files::clean(path)?;
    let failed =
        |error: std::io::Error| Problem::new(Code::NoSuchFile, format!("`{}`: {error}", quotable(&path)));
    match files::open(root, &path)? {
        Opened::Folder => Err(Problem::new(Code::BadRequest, format!("`{}` is a folder", quotable(&path)))),
        Opened::File { file, bytes } if bytes > max_bytes => {
            let lines = count_lines(file).map_err(failed)?;
            Ok(FileRead::TooLarge { bytes, lines })
        }
        Opened::File { file, .. } => {
            let mut content = Vec::new();
            // The file may grow while it is read.
            file.take(max_bytes).read_to_end(&mut content).map_err(failed)?;
            Ok(FileRead::Whole(content))
        }
    }
}

fn count_lines(file: std::fs::File) -> std::io::Result<u64> {
    let mut file = file.take(FILE_BYTES);
    let mut chunk = vec![0; 64 * 1024];
    let mut lines = 0;
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok(lines);
        }
        lines += chunk.iter().take(read).filter(|byte| **byte == b'\n').count() as u64;
    }
}
