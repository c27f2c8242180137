//! The operations that tools may perform on the session in which they are called.

use async_trait::async_trait;
use parking_lot::Mutex;
use std::io::Read as _;
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::{Map, Value};

use super::lending::LendingAsks;
use super::messages::{AsksMsg, AsksRef};
use super::state::AsksState;
use crate::actors::calls::{call_own, try_call};
use crate::actors::directory::Directory;
use crate::actors::session::install_request::InstallRequest;
use crate::actors::session::messages::{CellRequest, OwnSession, SessionMsg};
use crate::actors::supervisor::messages::SupervisorRef;
use crate::config::LiveSettings;
use crate::memory::Pool;
use crate::packages::requirement::parse_all;
use crate::protocol::api::{Computed, VariableList, VariablesFilter};
use crate::protocol::ask::{AskNumber, AskView, Language, PlanVersion};
use crate::protocol::command::NewCommand;
use crate::protocol::ids::CellNumber;
use crate::protocol::limits::FILE_BYTES;
use crate::protocol::packages::InstalledPackages;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::{ExecutionResult, Mode};
use crate::protocol::text::quotable;
use crate::protocol::tool::ClientAnswer;
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
    /// The cell in whose name the call is made; none if no cell runs.
    pub cell: Option<CellNumber>,
    /// The inner asks that wait for functions of this sandbox. They hold this context, so that it must not hold them.
    pub lending: Weak<LendingAsks>,
    /// The owner's share of the daemon's memory.
    pub memory: Pool,
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
        let is_models = match &self.caller {
            PortCaller::Model(asking) => asking.is_some(),
            PortCaller::Code(calling) => calling.origin.ask().is_some(),
        };
        let rules = &self.settings.now().packages;
        let requirements =
            if is_models { parse_all(&packages, &rules.names) } else { rules.wanted_by_owner(&packages) }?;
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
        if rules.as_ref().is_some_and(|rules| rules.restricted)
            && security_controls::holds("restricted_code_runs_no_commands")
        {
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
        if nested.functions.is_empty() {
            self.nested(nested, None, on_waiting).await
        } else {
            self.lend(nested, on_waiting).await
        }
    }

    async fn go_on(&self, ask: String, returned: Option<ClientAnswer>) -> Result<Value, Problem> {
        self.go_on_lending(ask, returned).await
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
