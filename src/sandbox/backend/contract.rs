//! The traits of a backend and of a sandbox that it holds.

use async_trait::async_trait;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::protocol::api::ImageView;
use crate::protocol::frames::Probe;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{ImageFact, Receipt};
use crate::sandbox::attest::cgroup::Cgroup;
use crate::sandbox::backend::data_socket::DataListener;
use crate::sandbox::images::WantedImage;
use crate::sandbox::spec::{Errand, SandboxRequest, SandboxSpec, UserMapping};

/// Receives a line for each step of a long operation.
pub type Progress<'a> = &'a (dyn Fn(String) + Sync);

/// Whether a sandbox of this name belongs to a session or a launch.
pub type IsLive<'a> = &'a (dyn Fn(&str) -> bool + Sync);

/// Bytes in both directions between the daemon and the kernel of a sandbox.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Why there is no byte stream to a kernel.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("the bridge's socket cannot be made: {0}")]
    Socket(#[source] std::io::Error),
    #[error("the kernel did not connect within {} s", .0.as_secs())]
    NoKernel(Duration),
    #[error("within {} s only processes that are not pid 1 of the sandbox connected to the bridge", .0.as_secs())]
    ForeignPeers(Duration),
    #[error("the sandbox ended at once")]
    Ended,
    #[error("the socket for data cannot be made: {0}")]
    Data(#[source] std::io::Error),
    #[error("the kernel did not connect to send or get data within {} s", .0.as_secs())]
    NoData(Duration),
    #[error("{0} connections to the socket for data were not those of the kernel")]
    ForeignDataPeers(usize),
}

impl From<ConnectError> for Problem {
    fn from(error: ConnectError) -> Self {
        let problem = Self::new(Code::SandboxFailed, error.to_string());
        match error {
            ConnectError::ForeignPeers(_) => problem.hint(
                "the engine's runtime has to start processes of the host's kernel, as `runc` does; `runsc` does not: \
                 see `sandbox.runtime`",
            ),
            ConnectError::ForeignDataPeers(_) => {
                problem.hint("end what runs in the sandbox and connects to the daemon's sockets, then try again")
            }
            ConnectError::Socket(_)
            | ConnectError::NoKernel(_)
            | ConnectError::Ended
            | ConnectError::Data(_)
            | ConnectError::NoData(_) => problem,
        }
    }
}

/// One way to hold sandboxes. The daemon has one value of each backend.
#[async_trait]
pub trait SandboxBackend: Send + Sync {
    /// How user ids of guests are mapped to those of the host.
    async fn user_mapping(&self) -> Result<UserMapping, Problem>;

    /// The image of a sandbox that is started before its session is known. `None` if the image is not there, or if a
    /// guest would notice that its workspace gets the path of the session later.
    async fn image_ahead(&self, image: &WantedImage) -> Option<ImageFact>;

    /// Whether a sandbox could be started now, with this image if one is named. Nothing is downloaded for the check.
    async fn check(&self, image: &WantedImage) -> Result<(), Problem>;

    /// The image of a new sandbox, which is downloaded where the settings allow that.
    async fn resolve_image(
        &self,
        wanted: &SandboxRequest,
        progress: Progress<'_>,
    ) -> Result<ImageFact, Problem>;

    /// The images that sessions may name, each with its id if it is present.
    async fn images(&self) -> Result<Vec<ImageView>, Problem>;

    /// Runs a program to its end in a sandbox of its own; an exit code other than 0 is a problem. `folder` is the
    /// daemon's own folder for this sandbox.
    async fn run_errand(&self, spec: &SandboxSpec, folder: &Path, errand: &Errand) -> ErrandEnd;

    /// Starts a sandbox, to whose kernel `RunningSandbox::connect` leads. If it fails to start, its remains are removed
    /// here or by the reaper.
    async fn start(&self, spec: &SandboxSpec, folder: &Path) -> Result<Box<dyn RunningSandbox>, StartError>;

    /// Takes over a sandbox that an earlier daemon left running; `None` if it is gone. A frozen sandbox is thawed,
    /// because its kernel has to answer.
    async fn adopt(
        &self,
        receipt: &Receipt,
        folder: &Path,
    ) -> Result<Option<Box<dyn RunningSandbox>>, Problem>;

    /// Removes every sandbox of this daemon's home that is not live.
    async fn reap(&self, is_live: IsLive<'_>) -> Reaped;
}

/// How a program ended that ran in a sandbox of its own.
#[derive(Debug)]
pub struct ErrandEnd {
    pub outcome: Result<(), Problem>,
    /// Whether the sandbox could not be removed, so that the reaper has to.
    pub is_left: bool,
}

/// An end of which nothing is left.
impl From<Result<(), Problem>> for ErrandEnd {
    fn from(outcome: Result<(), Problem>) -> Self {
        Self { outcome, is_left: false }
    }
}

/// Why a sandbox did not start.
#[derive(Debug)]
pub struct StartError {
    pub problem: Problem,
    /// Whether remains of the sandbox could not be removed, so that the reaper has to.
    pub is_left: bool,
}

/// A problem from before anything was made, or whose remains are gone.
impl From<Problem> for StartError {
    fn from(problem: Problem) -> Self {
        Self { problem, is_left: false }
    }
}

/// What the reaper did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reaped {
    /// The number of sandboxes that were removed.
    pub count: usize,
    /// The sandboxes that are still there, those with a session among them; `None` if they could not be listed.
    pub left: Option<BTreeSet<SandboxId>>,
}

/// A sandbox that a backend holds. Dropping it leaves the sandbox running.
#[async_trait]
pub trait RunningSandbox: Send + Sync {
    /// The guardian's pid on this host; `None` if it has ended, or is a process of another host.
    fn pid(&self) -> Option<i32>;

    /// Opens the byte stream to the kernel, which has `limit` to answer. No process but the guardian gets it. Each call
    /// opens another stream, because the kernel connects again where the last one ended.
    async fn connect(&self, limit: Duration) -> Result<Box<dyn ByteStream>, ConnectError>;

    /// Opens the socket to which a process of the sandbox connects to send or get large data. It is there until the
    /// answer is dropped; a sandbox has one at a time.
    fn open_data(&self) -> Result<DataListener, ConnectError>;

    /// Reads the sandbox's properties back from the host: the names of all differences from the spec, and the receipt.
    /// `None` if they cannot be read.
    fn read_back(&self, spec: &SandboxSpec, python: String, probe: Probe) -> Option<(Vec<String>, Receipt)>;

    /// The hint for a person whose sandbox has these differences.
    fn remedy(&self, differences: &[String]) -> &'static str;

    async fn freeze(&self) -> Result<(), Problem>;

    /// Succeeds also if the sandbox is not frozen.
    async fn thaw(&self) -> Result<(), Problem>;

    /// Whether the sandbox's processes are stopped, by the daemon or by another process; false if that cannot be read.
    fn is_frozen(&self) -> bool;

    /// Limits the CPU time of all the sandbox's processes together, or removes the limit; false if the backend cannot.
    fn limit_cpus(&self, cpus: Option<f64>) -> bool {
        self.cgroup().is_some_and(|cgroup| cgroup.limit_cpus(cpus).is_ok())
    }

    /// CPU time of all the sandbox's processes together; `None` if it is not counted here.
    fn cpu_time(&self) -> Option<Duration>;

    /// A number that is another one once any process of the sandbox has run; `None` if that cannot be told. The host's
    /// kernel says it, and no guest.
    fn activity(&self) -> Option<u64> {
        self.cgroup().and_then(Cgroup::activity)
    }

    /// The control group of the sandbox, if it has one of its own.
    fn cgroup(&self) -> Option<&Cgroup>;

    /// The state of the sandbox after its end; `None` if it cannot be learnt.
    async fn end(&self) -> Option<SandboxEnd>;

    /// Waits for the sandbox's end, or for ever if the backend cannot see it.
    async fn gone(&self);

    /// What the sandbox itself wrote about its end, if anything.
    fn last_words(&self) -> String;

    /// Kills the sandbox with all its processes, removes it, and returns when it is gone.
    async fn remove(&self) -> Result<(), Problem>;
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxEnd {
    pub running: bool,
    pub exit_code: Option<i64>,
    pub out_of_memory: bool,
}
