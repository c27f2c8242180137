//! The backend whose sandboxes are kernels of the test.

use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::kernel::FakeKernel;
use super::script::{Script, Step};
use crate::protocol::api::ImageView;
use crate::protocol::frames::Probe;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{ImageFact, LimitFact, ProcessFact, Receipt};
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::attest::tests as sample;
use crate::sandbox::backend::bridge_socket::BridgeSocket;
use crate::sandbox::backend::data_socket::DataSocket;
use crate::sandbox::backend::{
    ByteStream, ConnectError, DataListener, ErrandEnd, IsLive, Progress, Reaped, RunningSandbox,
    SandboxBackend, SandboxEnd, StartError,
};
use crate::sandbox::images::WantedImage;
use crate::sandbox::kernel::files::pretend_to_compile;
use crate::sandbox::spec::{
    BRIDGE_SOCKET_NAME, Errand, SandboxRequest, SandboxSpec, UserMapping, bridge_dir,
};

/// All sandboxes of a test. Clones are the same backend, so each daemon of the test gets one.
#[derive(Clone)]
pub struct FakeBackend(Arc<Shared>);

struct Shared {
    runtime: Handle,
    script: Arc<Script>,
    /// The sandboxes in the order of their start, with those that have ended.
    sandboxes: Mutex<Vec<(SandboxId, FakeKernel)>>,
    /// The sandboxes of errands that could not be removed.
    left_errands: Mutex<Vec<SandboxId>>,
    /// The freezes (true) and thaws (false) that were done.
    freezes: Mutex<Vec<bool>>,
    /// The next freezes fail, each when its sender is used or dropped.
    failing_freezes: Mutex<VecDeque<oneshot::Receiver<()>>>,
    /// The next thaws are reported late, each when its sender is used or dropped.
    late_thaws: Mutex<VecDeque<oneshot::Receiver<()>>>,
    /// The next starts take long, each until its sender is used or dropped.
    slow_starts: Mutex<VecDeque<oneshot::Receiver<()>>>,
    /// The next removals take long, each until its sender is used or dropped.
    slow_removals: Mutex<VecDeque<oneshot::Receiver<()>>>,
    /// Set while no sandbox can be removed.
    removals_fail: AtomicBool,
    /// Set while no sandbox can be started.
    starts_fail: AtomicBool,
    /// Set while sandboxes cannot be listed.
    lists_fail: AtomicBool,
    /// Set when sandboxes are isolated otherwise than when they were started.
    are_changed: AtomicBool,
}

impl FakeBackend {
    /// The kernels run in the runtime of the caller, which has to be that of the test.
    pub fn in_this_runtime() -> Self {
        Self(Arc::new(Shared {
            runtime: Handle::current(),
            script: Arc::default(),
            sandboxes: Mutex::default(),
            left_errands: Mutex::default(),
            freezes: Mutex::default(),
            failing_freezes: Mutex::default(),
            late_thaws: Mutex::default(),
            slow_starts: Mutex::default(),
            slow_removals: Mutex::default(),
            removals_fail: AtomicBool::new(false),
            starts_fail: AtomicBool::new(false),
            lists_fail: AtomicBool::new(false),
            are_changed: AtomicBool::new(false),
        }))
    }

    /// Says what a cell with this code does the next time; the last word on a code holds for all later times, too.
    pub fn plays(&self, code: &str, steps: &[Step]) {
        self.0.script.add(code, steps);
    }

    /// The newest sandbox.
    pub fn kernel(&self) -> FakeKernel {
        self.0.sandboxes.lock().last().expect("a sandbox").1.clone()
    }

    /// A sandbox by its place in the order of starts.
    pub fn kernel_at(&self, index: usize) -> FakeKernel {
        self.0.sandboxes.lock()[index].1.clone()
    }

    /// The number of sandboxes that have not ended.
    pub fn living(&self) -> usize {
        self.0.sandboxes.lock().iter().filter(|(_, kernel)| kernel.lives()).count()
    }

    /// From now on something has changed the limits of all sandboxes that run.
    pub fn changes_limits(&self) {
        self.0.are_changed.store(true, Ordering::Relaxed);
    }

    /// The number of sandboxes so far.
    pub fn started(&self) -> usize {
        self.0.sandboxes.lock().len()
    }

    /// The freezes (true) and thaws (false) that daemons had done so far.
    pub fn freezes(&self) -> Vec<bool> {
        self.0.freezes.lock().clone()
    }

    /// The next thaw is reported only when the test says so, as by an engine that is slow to answer.
    pub fn next_thaw_is_reported_late(&self) -> oneshot::Sender<()> {
        let (sender, receiver) = oneshot::channel();
        self.0.late_thaws.lock().push_back(receiver);
        sender
    }

    /// The next start of a sandbox takes until the test says so.
    pub fn next_start_is_slow(&self) -> oneshot::Sender<()> {
        let (sender, receiver) = oneshot::channel();
        self.0.slow_starts.lock().push_back(receiver);
        sender
    }

    /// The next removal of a sandbox takes until the test says so.
    pub fn next_removal_is_slow(&self) -> oneshot::Sender<()> {
        let (sender, receiver) = oneshot::channel();
        self.0.slow_removals.lock().push_back(receiver);
        sender
    }

    /// From now on removals of sandboxes fail, or succeed again.
    pub fn let_removals_fail(&self, fail: bool) {
        self.0.removals_fail.store(fail, Ordering::Relaxed);
    }

    /// From now on starts of sandboxes fail, or succeed again. Where removals fail, too, remains are left.
    pub fn let_starts_fail(&self, fail: bool) {
        self.0.starts_fail.store(fail, Ordering::Relaxed);
    }

    /// From now on sandboxes cannot be listed, or can be again.
    pub fn let_lists_fail(&self, fail: bool) {
        self.0.lists_fail.store(fail, Ordering::Relaxed);
    }

    /// The next freeze fails, but only when the test says so.
    pub fn next_freeze_fails(&self) -> oneshot::Sender<()> {
        let (sender, receiver) = oneshot::channel();
        self.0.failing_freezes.lock().push_back(receiver);
        sender
    }
}

struct FakeSandbox {
    backend: FakeBackend,
    kernel: FakeKernel,
    socket: BridgeSocket,
    data: DataSocket,
}

impl FakeSandbox {
    fn change(&self, frozen: bool) {
        self.backend.0.freezes.lock().push(frozen);
        self.kernel.freeze(frozen);
    }
}

#[async_trait]
impl SandboxBackend for FakeBackend {
    async fn user_mapping(&self) -> Result<UserMapping, Problem> {
        Ok(UserMapping::Same)
    }

    async fn image_ahead(&self, _image: &WantedImage) -> Option<ImageFact> {
        Some(ImageFact { reference: "fake".into(), id: "fake".into() })
    }

    async fn check(&self, _image: &WantedImage) -> Result<(), Problem> {
        Ok(())
    }

    async fn resolve_image(
        &self,
        wanted: &SandboxRequest,
        _progress: Progress<'_>,
    ) -> Result<ImageFact, Problem> {
        // The name stands for another image at each start.
        let newest = || ImageFact { reference: "fake".into(), id: format!("fake-{}", self.started()) };
        Ok(wanted.first_image.clone().unwrap_or_else(newest))
    }

    async fn images(&self) -> Result<Vec<ImageView>, Problem> {
        Ok(Vec::new())
    }

    async fn run_errand(&self, spec: &SandboxSpec, _folder: &Path, errand: &Errand) -> ErrandEnd {
        if let Some(output) = errand.mounts.iter().find(|mount| mount.writable) {
            pretend_to_compile(&output.source);
        }
        let is_left = self.0.removals_fail.load(Ordering::Relaxed);
        if is_left {
            self.0.left_errands.lock().push(spec.sandbox.clone());
        }
        ErrandEnd { outcome: Ok(()), is_left }
    }

    async fn start(&self, spec: &SandboxSpec, _folder: &Path) -> Result<Box<dyn RunningSandbox>, StartError> {
        let slow = self.0.slow_starts.lock().pop_front();
        if let Some(slow) = slow {
            let _ = slow.await;
        }
        if self.0.starts_fail.load(Ordering::Relaxed) {
            let problem = Problem::new(Code::SandboxFailed, "as the test wants it");
            return Err(StartError { problem, is_left: self.0.removals_fail.load(Ordering::Relaxed) });
        }
        let socket = BridgeSocket::bind(&spec.bridge_dir).map_err(Problem::from)?;
        let path = spec.bridge_dir.join(BRIDGE_SOCKET_NAME);
        let kernel = FakeKernel::start(path, Arc::clone(&self.0.script), self.0.runtime.clone());
        self.0.sandboxes.lock().push((spec.sandbox.clone(), kernel.clone()));
        let data = DataSocket::new(spec.bridge_dir.clone(), spec.bridge_dir.clone());
        Ok(Box::new(FakeSandbox { backend: self.clone(), kernel, socket, data }) as Box<dyn RunningSandbox>)
    }

    async fn adopt(
        &self,
        receipt: &Receipt,
        folder: &Path,
    ) -> Result<Option<Box<dyn RunningSandbox>>, Problem> {
        let sandboxes = self.0.sandboxes.lock();
        let found = sandboxes.iter().find(|(id, kernel)| *id == receipt.sandbox && kernel.lives());
        let adopted = found.map(|(_, kernel)| {
            kernel.freeze(false);
            let socket = BridgeSocket::unbound(bridge_dir(folder));
            let data = DataSocket::new(bridge_dir(folder), bridge_dir(folder));
            let (backend, kernel) = (self.clone(), kernel.clone());
            Box::new(FakeSandbox { backend, kernel, socket, data }) as Box<dyn RunningSandbox>
        });
        Ok(adopted)
    }

    async fn reap(&self, is_live: IsLive<'_>) -> Reaped {
        if self.0.lists_fail.load(Ordering::Relaxed) {
            return Reaped::default();
        }
        let keeps_all = self.0.removals_fail.load(Ordering::Relaxed);
        let sandboxes = self.0.sandboxes.lock();
        // What cannot be removed is there, also where its kernel has ended on being told good-bye.
        let living = sandboxes.iter().filter(|(_, kernel)| keeps_all || kernel.lives());
        let (left, unowned): (Vec<_>, Vec<_>) = living.partition(|(id, _)| keeps_all || is_live(&id.0));
        for (_, kernel) in &unowned {
            kernel.end();
        }
        let mut errands = self.0.left_errands.lock();
        errands.retain(|_| keeps_all);
        let left = left.into_iter().map(|(id, _)| id).chain(&*errands).cloned();
        Reaped { count: unowned.len(), left: Some(left.collect()) }
    }
}

#[async_trait]
impl RunningSandbox for FakeSandbox {
    fn pid(&self) -> Option<i32> {
        None
    }

    async fn connect(&self, limit: Duration) -> Result<Box<dyn ByteStream>, ConnectError> {
        // The kernel is a task of this process.
        let pid = i32::try_from(std::process::id()).expect("a pid");
        let stream = self.socket.accept(pid, limit).await?;
        Ok(Box::new(stream) as Box<dyn ByteStream>)
    }

    fn open_data(&self) -> Result<DataListener, ConnectError> {
        self.data.open()
    }

    fn read_back(&self, spec: &SandboxSpec, python: String, probe: Probe) -> Option<(Vec<String>, Receipt)> {
        let mut receipt = receipt(spec, python, probe);
        if self.backend.0.are_changed.load(Ordering::Relaxed) {
            receipt.limits.pids += 1;
        }
        Some((Vec::new(), receipt))
    }

    fn remedy(&self, _differences: &[String]) -> &'static str {
        "a test has to say what"
    }

    async fn freeze(&self) -> Result<(), Problem> {
        let fails = self.backend.0.failing_freezes.lock().pop_front();
        if let Some(fails) = fails {
            let _ = fails.await;
            return Err(Problem::new(Code::SandboxFailed, "as the test wants it"));
        }
        self.change(true);
        Ok(())
    }

    async fn thaw(&self) -> Result<(), Problem> {
        self.change(false);
        let late = self.backend.0.late_thaws.lock().pop_front();
        if let Some(late) = late {
            let _ = late.await;
        }
        Ok(())
    }

    fn is_frozen(&self) -> bool {
        self.kernel.is_frozen()
    }

    fn limit_cpus(&self, _cpus: Option<f64>) -> bool {
        true
    }

    fn cpu_time(&self) -> Option<Duration> {
        None
    }

    fn cgroup(&self) -> Option<&Cgroup> {
        None
    }

    async fn end(&self) -> Option<SandboxEnd> {
        let running = self.kernel.lives();
        let exit_code = (!running).then_some(1);
        Some(SandboxEnd { running, exit_code, out_of_memory: false })
    }

    async fn gone(&self) {
        self.kernel.ended().await;
    }

    fn last_words(&self) -> String {
        String::new()
    }

    async fn remove(&self) -> Result<(), Problem> {
        let slow = self.backend.0.slow_removals.lock().pop_front();
        if let Some(slow) = slow {
            let _ = slow.await;
        }
        if self.backend.0.removals_fail.load(Ordering::Relaxed) {
            return Err(Problem::new(Code::SandboxFailed, "as the test wants it"));
        }
        self.kernel.end();
        Ok(())
    }
}

fn receipt(spec: &SandboxSpec, python: String, probe: Probe) -> Receipt {
    Receipt {
        sandbox: spec.sandbox.clone(),
        backend: spec.backend,
        container: spec.sandbox.0.clone(),
        runtime: "fake".into(),
        image: spec.image.clone(),
        python,
        process: ProcessFact { pid: 0, ..sample::process(spec) },
        network: "none".into(),
        read_only_root: true,
        seccomp_profile: String::new(),
        limits: LimitFact { cgroup_version: 0, ..sample::limits(spec) },
        mounts: Vec::new(),
        probe,
        namespaces: Vec::new(),
        chosen: String::new(),
    }
}
