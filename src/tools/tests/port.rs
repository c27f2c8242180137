//! A session in memory: expressions that are looked up, files in a map.

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::protocol::api::{Computed, VariableList};
use crate::protocol::ask::{Language, PlanVersion};
use crate::protocol::command::NewCommand;
use crate::protocol::exit_codes;
use crate::protocol::packages::{InstalledPackage, InstalledPackages};
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::result::{ExceptionView, ExecutionResult, Reason, Status, ValueView};
use crate::protocol::tool::ClientAnswer;
use crate::tools::{FileRead, NestedAsk, OnWaiting, Owner, PlanHistory, PlanTree, SessionPort};

pub struct MemoryPort {
    pub language: Language,
    pub owner: Result<Owner, Problem>,
    pub files: BTreeMap<String, Vec<u8>>,
    pub variables: BTreeMap<String, String>,
    pub last_result: Mutex<Option<String>>,
    pub plan: Mutex<PlanHistory>,
    pub asks: Mutex<Vec<NestedAsk>>,
}

impl Default for MemoryPort {
    fn default() -> Self {
        Self {
            language: Language::English,
            owner: Ok(Owner {
                principal: Principal::new(rustix::process::getuid().as_raw()),
                gid: rustix::process::getgid().as_raw(),
            }),
            files: BTreeMap::new(),
            variables: BTreeMap::new(),
            last_result: Mutex::default(),
            plan: Mutex::default(),
            asks: Mutex::default(),
        }
    }
}

pub fn result(code: &str, value: Result<&str, &str>) -> ExecutionResult {
    let (status, reason) = match value {
        Ok(_) => (Status::Success, Reason::Ok),
        Err(_) => (Status::Failure, Reason::Exception),
    };
    let result =
        value.ok().map(|repr| ValueView { repr: repr.into(), type_name: "str".into(), mime: Map::new() });
    let exception = value.err().map(|text| ExceptionView {
        type_name: "NameError".into(),
        value: text.into(),
        repr: "NameError()".into(),
        traceback: "Traceback …".into(),
    });
    ExecutionResult {
        code: code.into(),
        result,
        exception,
        ..exit_codes::tests::result(status, reason, Some(0))
    }
}

#[async_trait]
impl SessionPort for MemoryPort {
    /// Knows `last_result`, `list(given)` and `1/0`, which fails; every other expression is its own value.
    async fn compute(
        &self,
        expression: String,
        values: Map<String, Value>,
        _timeout: Duration,
    ) -> Result<Computed, Problem> {
        let computed = match expression.as_str() {
            "last_result" => values.get("last_result").and_then(Value::as_str).map(str::to_owned),
            "1/0" => None,
            "list(given)" => Some(values.keys().cloned().collect::<Vec<_>>().join(" ")),
            other => Some(other.to_owned()),
        };
        let error = computed.is_none().then(|| "PythonError: ZeroDivisionError: division by zero".to_owned());
        Ok(Computed { result: computed, error })
    }

    async fn given(&self) -> Result<Map<String, Value>, Problem> {
        Ok(["given", "other"].map(|name| (name.to_owned(), json!([1]))).into_iter().collect())
    }

    async fn install(&self, packages: Vec<String>) -> Result<InstalledPackages, Problem> {
        let installed = packages.iter().map(|name| InstalledPackage {
            name: name.clone(),
            version: "1.0".into(),
            sha256: String::new(),
        });
        let (packages, in_image, replaced) = (installed.collect(), Vec::new(), Vec::new());
        Ok(InstalledPackages { packages, in_image, cached: false, replaced })
    }

    async fn variables(&self) -> Result<VariableList, Problem> {
        let variable = |(name, repr): (&String, &String)| json!({"name": name, "type": "str", "preview": repr, "bytes": null, "shape": "[3]"});
        let listed: Vec<Value> = self.variables.iter().map(variable).collect();
        let total = listed.len() + usize::from(!listed.is_empty());
        Ok(serde_json::from_value(json!({"variables": listed, "total": total})).unwrap())
    }

    async fn evaluate(&self, expression: String) -> Result<ExecutionResult, Problem> {
        let value = self.variables.get(&expression).map(String::as_str);
        let missing = format!("name '{expression}' is not defined");
        Ok(result(&expression, value.ok_or(&missing)))
    }

    /// A command prints itself.
    async fn run_command(&self, command: NewCommand) -> Result<Option<ExecutionResult>, Problem> {
        let ran = ExecutionResult { stdout: command.line.unwrap_or_default(), ..result("", Ok("")) };
        Ok((!command.background).then_some(ran))
    }

    async fn read_file(&self, path: String, max_bytes: u64) -> Result<FileRead, Problem> {
        if path.split('/').any(|part| part == "..") {
            return Err(Problem::new(Code::BadRequest, "the path leaves the workspace"));
        }
        let Some(content) = self.files.get(&path) else {
            return Err(Problem::new(Code::NoSuchFile, "no such file"));
        };
        if content.len() as u64 > max_bytes {
            let lines = content.split_inclusive(|byte| *byte == b'\n').count() as u64;
            return Ok(FileRead::TooLarge { bytes: content.len() as u64, lines });
        }
        Ok(FileRead::Whole(content.clone()))
    }

    fn last_result(&self) -> Option<String> {
        self.last_result.lock().clone()
    }

    fn keep_last_result(&self, result: String) {
        *self.last_result.lock() = Some(result);
    }

    async fn submit_plan(&self, plan: PlanTree) -> Result<PlanVersion, Problem> {
        let submitted = self.plan.lock().submit(plan, self.language);
        submitted.map_err(|problems| Problem::new(Code::BadRequest, problems.join("; ")))
    }

    async fn ask(&self, ask: NestedAsk, _on_waiting: Option<OnWaiting>) -> Result<Value, Problem> {
        self.asks.lock().push(ask);
        Ok(json!({"answer": 42}))
    }

    /// Says what it was told.
    async fn go_on(&self, ask: String, returned: Option<ClientAnswer>) -> Result<Value, Problem> {
        Ok(json!({"ask": ask, "returned": returned}))
    }

    async fn owner(&self) -> Result<Owner, Problem> {
        self.owner.clone()
    }

    fn language(&self) -> Language {
        self.language
    }
}
