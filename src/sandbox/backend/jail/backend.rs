//! The backend that builds jails, and the one that starts plain processes.

use async_trait::async_trait;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::process::{self, Jail};
use super::start::{self, Tools};
use super::{Isolation, errand, root};
use crate::config::{Paths, Settings};
use crate::protocol::api::ImageView;
use crate::protocol::environment::Environment;
use crate::protocol::ids::SandboxId;
use crate::protocol::problem::Problem;
use crate::protocol::receipt::{Backend, ImageFact, Receipt};
use crate::sandbox::backend::{
    ErrandEnd, IsLive, Progress, Reaped, RunningSandbox, SandboxBackend, StartError,
};
use crate::sandbox::claims::Claims;
use crate::sandbox::etc;
use crate::sandbox::folder::{Folder, storage_problem};
use crate::sandbox::images::{self, WantedImage};
use crate::sandbox::spec::{Errand, GuestUser, Limits, SandboxRequest, SandboxSpec, UserMapping, hardware};
use crate::sandbox::workspace::{Service, remove_tree};

pub struct Jails {
    walls: Isolation,
    service: Service,
    settings: Arc<Settings>,
    paths: Paths,
    instance: String,
    claims: Arc<Claims>,
    /// Everything that jails are built with; looked up when a jail is first wanted, and again until one could be built.
    tools: tokio::sync::OnceCell<Tools>,
}

impl Jails {
    pub fn new(
        walls: Isolation,
        service: Service,
        settings: Arc<Settings>,
        paths: Paths,
        instance: String,
        claims: Arc<Claims>,
    ) -> Self {
        let tools = tokio::sync::OnceCell::new();
        Self { walls, service, settings, paths, instance, claims, tools }
    }

    /// Everything that jails are built with, once one could be built; `None` for plain processes.
    async fn tools(&self) -> Result<Option<&Tools>, Problem> {
        if self.walls == Isolation::None {
            return Ok(None);
        }
        let find = || async {
            let tools = Tools::find(self.paths.roots_dir(), self.service.system)?;
            self.try_out(&tools).await?;
            Ok(tools)
        };
        self.tools.get_or_try_init(find).await.map(Some)
    }

    /// The image of a jail; a plain process has only the host's.
    fn image(&self, image: &WantedImage) -> Result<ImageFact, Problem> {
        let allowed = &self.settings.sandbox.images;
        let image = match image {
            _ if self.walls == Isolation::None => None,
            WantedImage::Any => None,
            WantedImage::Named(name) => Some(name.as_str()),
            WantedImage::Built(image) => return Err(images::is_of_the_engine(image)),
        };
        if let Some(image) = image.filter(|image| *image != root::HOST) {
            images::candidates(Some(image), allowed)?;
        }
        root::resolve(&self.paths.roots_dir(), image, allowed)
    }

    /// Builds a jail that does nothing, to find out whether that works.
    async fn try_out(&self, tools: &Tools) -> Result<(), Problem> {
        let sandbox = SandboxId::fresh();
        let path = self.paths.sandboxes_dir().join(&sandbox.0);
        let _claim = self.claims.claim(&sandbox);
        std::fs::create_dir(&path).map_err(|error| storage_problem(&path, &error))?;
        let folder = Folder::of(path);
        let settings = &self.settings.sandbox;
        let uid = if self.service.system { settings.uid_first } else { self.service.uid };
        let gid = if self.service.system { settings.uid_first } else { self.service.gid };
        let spec = SandboxSpec {
            sandbox,
            backend: Backend::Bubblewrap,
            instance: self.instance.clone(),
            image: self.image(&WantedImage::Any)?,
            runtime: None,
            user: GuestUser { uid, gid, host_uid: uid, host_gid: gid },
            limits: Limits::new(settings, &SandboxRequest::of_errand(settings)),
            workspace: PathBuf::new(),
            workspace_identity: (0, 0),
            bridge_dir: PathBuf::new(),
            kernel_dir: folder.path.clone(),
            packages_dir: PathBuf::new(),
            etc_dir: etc::folder_in(&folder.path),
            hidden: hardware::hidden(),
            env: Environment::new(),
            mounts: Vec::new(),
        };
        errand::try_out(tools, &spec, &folder.path).await
    }
}

#[async_trait]
impl SandboxBackend for Jails {
    /// Jails use the ids of the host; only an engine may map them.
    async fn user_mapping(&self) -> Result<UserMapping, Problem> {
        Ok(UserMapping::Same)
    }

    /// A plain process has no mount of its own, so it knows its workspace by the path.
    async fn image_ahead(&self, image: &WantedImage) -> Option<ImageFact> {
        let has_mounts = self.walls == Isolation::Bubblewrap;
        has_mounts.then(|| self.image(image).ok()).flatten()
    }

    async fn check(&self, image: &WantedImage) -> Result<(), Problem> {
        self.image(image)?;
        self.tools().await.map(drop)
    }

    async fn resolve_image(
        &self,
        wanted: &SandboxRequest,
        _progress: Progress<'_>,
    ) -> Result<ImageFact, Problem> {
        match wanted.pinned_image() {
            Some(first) => root::again(&self.paths.roots_dir(), first),
            None => self.image(&wanted.image),
        }
    }

    async fn images(&self) -> Result<Vec<ImageView>, Problem> {
        let roots = match self.walls {
            Isolation::Bubblewrap => root::list(&self.paths.roots_dir(), &self.settings.sandbox.images),
            Isolation::None => Vec::new(),
        };
        let views = roots.into_iter().map(|found| ImageView {
            reference: found.reference,
            backend: Backend::Bubblewrap,
            id: Some(found.id),
            bytes: None,
            default: false,
            packages: None,
            origin: None,
        });
        Ok(views.collect())
    }

    async fn run_errand(&self, spec: &SandboxSpec, folder: &Path, errand: &Errand) -> ErrandEnd {
        match self.tools().await {
            Ok(tools) => errand::run(tools, spec, folder, errand).await,
            Err(problem) => Err(problem).into(),
        }
    }

    /// A jail whose start fails is killed before its program began, so nothing of it can write any more.
    async fn start(&self, spec: &SandboxSpec, folder: &Path) -> Result<Box<dyn RunningSandbox>, StartError> {
        let jail = start::start(self.tools().await?, spec, folder).await?;
        Ok(Box::new(jail) as Box<dyn RunningSandbox>)
    }

    async fn adopt(
        &self,
        receipt: &Receipt,
        folder: &Path,
    ) -> Result<Option<Box<dyn RunningSandbox>>, Problem> {
        let jail = Jail::adopt(receipt, folder, self.service.system);
        match &jail {
            Some(jail) => jail.resume()?,
            // The control group of a jail that is gone still has to be removed.
            None => drop(process::reap(self.walls, &receipt.sandbox, folder).await?),
        }
        Ok(jail.map(|jail| Box::new(jail) as Box<dyn RunningSandbox>))
    }

    /// Ends the jails whose folders belong to no live sandbox, and removes those folders.
    async fn reap(&self, is_live: IsLive<'_>) -> Reaped {
        let listed = std::fs::read_dir(self.paths.sandboxes_dir()).and_then(Iterator::collect);
        let entries: Vec<std::fs::DirEntry> = match listed {
            Ok(entries) => entries,
            Err(error) => {
                tracing::warn!(%error, "the reaper cannot list jails");
                return Reaped::default();
            }
        };
        let (mut count, mut left) = (0, BTreeSet::new());
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_live(&name) {
                left.insert(SandboxId(name));
                continue;
            }
            match process::reap(self.walls, &SandboxId(name.clone()), &entry.path()).await {
                Ok(true) => {
                    count += 1;
                    tracing::info!(sandbox = name, "reaped");
                    if let Err(error) = remove_tree(&entry.path()) {
                        tracing::warn!(%error, sandbox = name, "its folder cannot be removed");
                    }
                }
                Ok(false) => {}
                Err(problem) => {
                    tracing::warn!(problem = problem.message, sandbox = name, "cannot be reaped");
                    left.insert(SandboxId(name));
                }
            }
        }
        Reaped { count, left: Some(left) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load_text;
    use crate::protocol::problem::Code;

    #[tokio::test]
    async fn a_session_keeps_the_root_that_it_began_with_or_is_told_that_it_is_gone() {
        let home = tempfile::tempdir().unwrap();
        let paths = Paths::discover(false, &|name| (name == "BELLJAR_HOME").then(|| home.path().into()));
        let paths = paths.unwrap();
        let settings = "[sandbox]\nimages = [\"belljar/science\", \"belljar/base\"]\n";
        let settings = Arc::new(load_text(&home.path().join("config.toml"), settings).unwrap().settings);
        let python = |name: &str, content: &str| {
            let folder = paths.roots_dir().join(name).join("usr/bin");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("python3"), content).unwrap();
        };
        let service = Service { system: false, ..Service::of_this_process() };
        let jails = Jails::new(
            Isolation::Bubblewrap,
            service,
            Arc::clone(&settings),
            paths.clone(),
            "test".into(),
            Arc::default(),
        );
        let mut wanted = SandboxRequest::of_errand(&settings.sandbox);
        python("base", "old");
        let first = jails.resolve_image(&wanted, &|_| {}).await.unwrap();
        assert_eq!(first.reference, "belljar/base");
        wanted.first_image = Some(first.clone());
        // The default is another image by now.
        python("science", "other");
        assert_eq!(jails.resolve_image(&wanted, &|_| {}).await.unwrap(), first);
        python("base", "a newer one");
        let gone = jails.resolve_image(&wanted, &|_| {}).await.unwrap_err();
        assert_eq!(gone.code, Code::ImageMissing, "{gone:?}");
        wanted.first_image = None;
        assert_eq!(jails.resolve_image(&wanted, &|_| {}).await.unwrap().reference, "belljar/science");
    }
}
