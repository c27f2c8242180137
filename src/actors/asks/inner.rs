//! The operation of asking another model: an inner ask, in a session of its own that is removed after the answer.

use serde_json::Value;
use std::fs::File;
use std::io::Read as _;
use std::time::Instant;
use tokio::sync::oneshot;

use super::lending::{AnswerCall, Lent};
use super::messages::AsksMsg;
use super::port::{Port, ended};
use super::shared_budget::ParentBudget;
use crate::actors::calls::try_call;
use crate::actors::session::messages::{Handles, SessionMsg, SessionRef};
use crate::actors::supervisor::messages::SupervisorMsg;
use crate::memory::Charge;
use crate::protocol::api::{NewSession, SessionView};
use crate::protocol::ask::{Approval, AskOutcome, AskView, NewAsk};
use crate::protocol::ids::SessionId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::text::quotable;
use crate::protocol::tool::NewClientTools;
use crate::sandbox::spec::WORKSPACE;
use crate::sandbox::workspace::Root;
use crate::sandbox::workspace::files::{self, Opened, Upload};
use crate::sandbox::workspace::owner::WorkKind;
use crate::security_controls;
use crate::tools::{NestedAsk, OnWaiting};

/// The most bytes of all files that an inner ask is given.
const GIVEN_FILES_BYTES: u64 = 256 * 1024 * 1024;
/// The bytes of a file that are copied at once.
const COPIED_BYTES: usize = 256 * 1024;

/// Where the lease of the functions goes that an inner ask may call, and the charge for them.
pub(super) type LendTo = (oneshot::Sender<Lent>, Charge);

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
    pub(super) async fn nested(
        &self,
        nested: NestedAsk,
        lend_to: Option<LendTo>,
        on_waiting: Option<OnWaiting>,
    ) -> Result<Value, Problem> {
        let settings = self.settings.now();
        let template = nested.template.as_ref().and_then(|name| settings.templates.get(name));
        if template.is_some_and(|template| template.description.is_some()) && !nested.by_tool {
            // Rules for tools name it as a tool, and `ask` must be no way around them.
            let name = nested.template.as_deref().map(quotable).unwrap_or_default();
            let message = format!("the template `{name}` is a tool here");
            return Err(Problem::new(Code::BadRequest, message).hint(format!("call it as `{name}(…)`")));
        }
        let caller = self.caller.clone();
        let mut outer = try_call(&self.asks, |reply_to| AsksMsg::Outer { caller, reply_to }).await?;
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
        let handles = try_call(&inner.0, |reply_to| SessionMsg::Handles { reply_to }).await?;
        outer.files = self.give_files(nested.files, &inner, &handles).await?;
        if let Some((lent, memory)) = lend_to {
            outer.functions = nested.functions.iter().map(|function| function.name.clone()).collect();
            let new = NewClientTools { tools: nested.functions, again: false };
            let lease = try_call(&inner.0, |reply_to| SessionMsg::Lend { new, memory, reply_to }).await?;
            let session = inner.0.clone();
            let answer: AnswerCall = Box::new(move |call, answer, memory| {
                let session = session.clone();
                Box::pin(async move {
                    let message = |reply_to| SessionMsg::AnswerCall { call, answer, memory, reply_to };
                    let _: Result<(), Problem> = try_call(&session, message).await;
                })
            });
            let _ = lent.send(Lent { answer, lease });
        }
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

    /// Copies files of this session's workspace into that of an inner ask, under the paths that they have here. Gives the
    /// paths.
    async fn give_files(
        &self,
        paths: Vec<String>,
        inner: &Inner,
        to: &Handles,
    ) -> Result<Vec<String>, Problem> {
        if paths.is_empty() {
            return Ok(paths);
        }
        let from = self.session.try_call(|reply_to| SessionMsg::Handles { reply_to }).await?;
        let opened = from.workspace.access(WorkKind::Look, move |root| open_files(root, paths)).await??;
        let names = opened.iter().map(|given| given.path.clone()).collect();
        let open_room = to.upload_room(&self.settings.now().sandbox);
        let copied = to.workspace.access(WorkKind::Transfer, move |root| {
            let room = open_room(root)?;
            opened.into_iter().try_for_each(|given| given.copy(|path| Upload::begin(root, path, &room)))
        });
        copied.await??;
        let _ = inner.0.cast(SessionMsg::FilesChanged);
        Ok(names)
    }
}

/// A file that an inner ask is given.
struct GivenFile {
    /// Its path in both workspaces.
    path: String,
    file: File,
    bytes: u64,
}

impl GivenFile {
    fn copy<'a>(self, begin: impl FnOnce(&str) -> Result<Upload<'a>, Problem>) -> Result<(), Problem> {
        let mut upload = begin(&self.path)?;
        // The file may grow while it is read.
        let mut file = self.file.take(self.bytes);
        let mut chunk = vec![0; COPIED_BYTES];
        loop {
            let read = file.read(&mut chunk).map_err(|error| {
                Problem::new(Code::Storage, format!("`{}` cannot be read: {error}", quotable(&self.path)))
            })?;
            match chunk.get(..read) {
                Some(bytes) if read > 0 => upload.write(bytes)?,
                _ => return upload.finish().map(drop),
            }
        }
    }
}

/// Opens the files, without following links.
fn open_files(root: &Root<'_>, paths: Vec<String>) -> Result<Vec<GivenFile>, Problem> {
    let bad = |message: String| Problem::new(Code::BadRequest, message);
    let (mut opened, mut all_bytes) = (Vec::new(), 0u64);
    for given in paths {
        let quoted = quotable(&given);
        let within = given.strip_prefix(WORKSPACE).is_some_and(|rest| rest.starts_with('/'));
        if given.starts_with('/') && !within {
            return Err(bad(format!("`{quoted}` is not in the workspace"))
                .hint("name files by their paths in the workspace, such as `data/prices.csv`"));
        }
        let path = files::clean(&given)?;
        let (file, bytes) = match files::open(root, &path)? {
            Opened::File { file, bytes } => (file, bytes),
            Opened::Folder => return Err(bad(format!("`{quoted}` is a folder")).hint("name the files in it")),
        };
        all_bytes = all_bytes.saturating_add(bytes);
        if all_bytes > GIVEN_FILES_BYTES {
            let message = format!("the files of an ask have more than {GIVEN_FILES_BYTES} bytes together");
            return Err(
                Problem::new(Code::TooLarge, message).hint("give it only what it needs, or parts of it")
            );
        }
        opened.push(GivenFile { path, file, bytes });
    }
    Ok(opened)
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
