//! What a backend has to do, and what a sandbox that it holds can be asked.

use futures_util::future::BoxFuture;
use std::path::Path;
use std::time::Duration;

use crate::protocol::api::ImageView;
use crate::protocol::event::Counters;
use crate::protocol::frames::Probe;
use crate::protocol::problem::Problem;
use crate::protocol::receipt::{ImageFact, Receipt};
use crate::sandbox::spec::{SandboxRequest, SandboxSpec, UserMapping};

/// Takes a line for each step of something long.
pub type Progress<'a> = &'a (dyn Fn(String) + Sync);

/// One way to hold sandboxes; one value of it for the whole daemon.
pub trait SandboxBackend: Send + Sync {
    /// How user ids of guests are mapped to those of the host.
    fn user_mapping(&self) -> BoxFuture<'_, Result<UserMapping, Problem>>;

    /// Whether a sandbox could be started now, with this image if one is named. Nothing is downloaded for it.
    fn check<'a>(&'a self, image: Option<&'a str>) -> BoxFuture<'a, Result<(), Problem>>;

    /// What a sandbox is to be made from; gets it where the settings allow that.
    fn resolve_image<'a>(
        &'a self,
        wanted: &'a SandboxRequest,
        progress: Progress<'a>,
    ) -> BoxFuture<'a, Result<ImageFact, Problem>>;

    /// The images that sessions may name, with what is there of each.
    fn images(&self) -> BoxFuture<'_, Result<Vec<ImageView>, Problem>>;

    /// Compiles the kernel in the spec's kernel folder with the image's own Python into `output`. `folder` is the
    /// daemon's, for this sandbox.
    fn compile_kernel<'a>(
        &'a self,
        spec: &'a SandboxSpec,
        folder: &'a Path,
        output: &'a Path,
    ) -> BoxFuture<'a, Result<(), Problem>>;

    /// Starts a sandbox whose kernel connects to the socket in the spec's bridge folder. Of one that fails to start
    /// nothing is left, or the reaper finds it.
    fn start<'a>(
        &'a self,
        spec: &'a SandboxSpec,
        folder: &'a Path,
    ) -> BoxFuture<'a, Result<Box<dyn RunningSandbox>, Problem>>;

    /// Takes over a sandbox that an earlier daemon left running; none if it is gone. One that was frozen is thawed,
    /// because it has to answer.
    fn adopt<'a>(
        &'a self,
        receipt: &'a Receipt,
        folder: &'a Path,
    ) -> BoxFuture<'a, Result<Option<Box<dyn RunningSandbox>>, Problem>>;

    /// Removes every sandbox of this daemon's home that is not live; gives how many.
    fn reap<'a>(&'a self, is_live: &'a (dyn Fn(&str) -> bool + Sync)) -> BoxFuture<'a, usize>;
}

/// A sandbox that a backend holds. Dropping it leaves the sandbox running.
pub trait RunningSandbox: Send + Sync {
    /// The host's pid of the guardian.
    fn pid(&self) -> Option<i32>;

    /// Reads back what the sandbox is; an error names every difference from the spec.
    fn attest(&self, spec: &SandboxSpec, python: String, probe: Probe) -> Result<Receipt, Problem>;

    /// The sandbox as it is now, unjudged; none if that cannot be read.
    fn receipt(&self, spec: &SandboxSpec, python: String, probe: Probe) -> Option<Receipt>;

    fn freeze(&self) -> BoxFuture<'_, Result<(), Problem>>;

    /// One that is not frozen is a success.
    fn thaw(&self) -> BoxFuture<'_, Result<(), Problem>>;

    /// Whether its processes are stopped, by whomever. Where it cannot be told they are not.
    fn is_frozen(&self) -> bool;

    /// Bounds the CPU time that its processes take together, or lifts the bound; false if that cannot be done here.
    fn limit_cpus(&self, cpus: Option<f64>) -> bool;

    /// CPU time that its processes have taken together; none if that is not counted here.
    fn cpu_time(&self) -> Option<Duration>;

    fn counters(&self) -> Counters;

    /// What became of it; none if that cannot be learnt.
    fn end(&self) -> BoxFuture<'_, Option<SandboxEnd>>;

    /// Waits for its end, where that can be seen; else for ever.
    fn gone(&self) -> BoxFuture<'_, ()>;

    /// What it wrote itself about its end, if anything.
    fn last_words(&self) -> String;

    /// Kills it with all that it has started, removes it, and tells when it is gone.
    fn remove(&self) -> BoxFuture<'_, Result<(), Problem>>;
}

/// How a sandbox ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxEnd {
    pub running: bool,
    pub exit_code: Option<i64>,
    pub out_of_memory: bool,
}
