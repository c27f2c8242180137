//! Chooses the backend: the one that was named, or the first that works. It never isolates less than the configuration
//! demands, and it is never `process` unless that was named.

use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::{Backend, Isolation};
use crate::sandbox::backend::SandboxBackend as _;
use crate::sandbox::images::WantedImage;
use crate::sandbox::launch::Launcher;
use crate::sandbox::spec::Choice;
use crate::security_controls;

impl Launcher {
    /// Chooses the backend for a session. Not every backend has a requested image.
    pub async fn choose(&self, requested: Backend, image: &WantedImage) -> Result<Choice, Problem> {
        let minimum = self.settings.sandbox.minimum_isolation;
        if requested != Backend::Auto {
            self.permits(requested)?;
        }
        let named = |backend| Choice { backend, why: String::new() };
        let choice = match requested {
            Backend::Docker => named(Backend::Docker),
            Backend::Bubblewrap => {
                self.backend(Backend::Bubblewrap).check(image).await?;
                named(Backend::Bubblewrap)
            }
            Backend::Process => named(Backend::Process),
            Backend::Auto => {
                let docker = self.docker.check(image).await;
                let jail = match &docker {
                    Ok(()) => None,
                    Err(_) if minimum > Isolation::Jail => None,
                    Err(_) => Some(self.backend(Backend::Bubblewrap).check(image).await),
                };
                first_that_works(docker, jail, *image != WantedImage::Any)?
            }
        };
        tracing::info!(
            backend = choice.backend.name(),
            why = choice.why,
            asked = requested.name(),
            "backend chosen"
        );
        Ok(choice)
    }

    /// Whether sandboxes of this backend may be started now. It is asked at every start, because the configuration may
    /// demand more than when the session began.
    pub(super) fn permits(&self, backend: Backend) -> Result<(), Problem> {
        if let Some(problem) = too_little(backend, self.settings.sandbox.minimum_isolation) {
            return Err(problem);
        }
        let bare = backend == Backend::Process && self.service.system;
        if bare && security_controls::holds("root_runs_no_plain_processes") {
            return Err(Problem::new(Code::Forbidden, "a daemon of root runs no code without isolation")
                .hint("start a daemon as an ordinary user for the backend `process`"));
        }
        Ok(())
    }

    /// The reasons why no sandbox can be made at all, one sentence for each backend that could serve.
    pub async fn troubles(&self) -> Vec<String> {
        self.health_checks.troubles(self.find_troubles()).await
    }

    async fn find_troubles(&self) -> Vec<String> {
        let Err(engine) = self.docker.ping().await else { return Vec::new() };
        let jail = if self.settings.sandbox.needs_engine() {
            None
        } else {
            Some(self.backend(Backend::Bubblewrap).check(&WantedImage::Any).await)
        };
        match jail {
            Some(Ok(())) => Vec::new(),
            Some(Err(jail)) => vec![engine.to_string(), jail.message],
            None => vec![engine.to_string()],
        }
    }
}

fn too_little(backend: Backend, minimum: Isolation) -> Option<Problem> {
    (backend.isolation() < minimum && security_controls::holds("minimum_isolation")).then(|| {
        let (name, minimum) = (backend.name(), minimum.name());
        Problem::new(
            Code::Forbidden,
            format!("the backend `{name}` isolates less than the `{minimum}` that is asked for"),
        )
        .hint("use another backend, or lower `sandbox.minimum_isolation` in the configuration")
    })
}

/// The choice for `auto`. `jail` is `None` if Docker works or the configuration forbids jails.
fn first_that_works(
    docker: Result<(), Problem>,
    jail: Option<Result<(), Problem>>,
    image_is_named: bool,
) -> Result<Choice, Problem> {
    let docker = match docker {
        Ok(()) => return Ok(Choice { backend: Backend::Docker, why: String::new() }),
        // The requested image is forbidden, and no other backend may allow it.
        Err(problem) if problem.code == Code::ImageForbidden => return Err(problem),
        Err(problem) => problem,
    };
    match jail {
        Some(Ok(())) => Ok(Choice {
            backend: Backend::Bubblewrap,
            why: format!("no container, because {}", docker.message),
        }),
        None => {
            let hint = docker.hint.unwrap_or_default();
            Err(Problem::new(docker.code, docker.message)
                .hint(format!("{hint}; a jail is not enough for `sandbox.minimum_isolation`")))
        }
        // The engine works and lacks only the named image, or has it for another machine, so that is the problem to report.
        Some(Err(_))
            if image_is_named && matches!(docker.code, Code::ImageMissing | Code::ImageArchitecture) =>
        {
            Err(docker)
        }
        Some(Err(jail)) => {
            let message = format!("no backend works: {}; and {}", docker.message, jail.message);
            let remedies: Vec<String> = [("docker", docker.hint), ("bubblewrap", jail.hint)]
                .into_iter()
                .filter_map(|(name, hint)| Some(format!("for {name}: {}", hint?)))
                .collect();
            Err(Problem::new(docker.code, message).hint(remedies.join("; ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away() -> Problem {
        Problem::new(Code::EngineUnavailable, "the engine is away").hint("start docker")
    }

    fn no_jail() -> Problem {
        Problem::new(Code::SandboxFailed, "bubblewrap is not there").hint("install bubblewrap")
    }

    #[test]
    fn auto_takes_the_first_that_works_and_says_why() {
        let docker = first_that_works(Ok(()), None, false).unwrap();
        assert_eq!((docker.backend, docker.why.as_str()), (Backend::Docker, ""));
        let jail = first_that_works(Err(away()), Some(Ok(())), false).unwrap();
        assert_eq!(jail.backend, Backend::Bubblewrap);
        assert!(jail.why.contains("the engine is away"));
        let neither = first_that_works(Err(away()), Some(Err(no_jail())), false).unwrap_err();
        assert_eq!(neither.code, Code::EngineUnavailable);
        assert!(neither.message.contains("away") && neither.message.contains("bubblewrap"));
        let hint = neither.hint.unwrap();
        assert!(hint.contains("start docker") && hint.contains("install bubblewrap"), "{hint}");
    }

    #[test]
    fn isolation_is_never_lowered_below_the_minimum() {
        let forbidden = first_that_works(Err(away()), None, false).unwrap_err();
        assert!(forbidden.hint.unwrap().contains("minimum_isolation"));
        assert!(too_little(Backend::Process, Isolation::Jail).is_some());
        assert!(too_little(Backend::Bubblewrap, Isolation::Container).is_some());
        assert!(too_little(Backend::Bubblewrap, Isolation::Jail).is_none());
        assert!(too_little(Backend::Process, Isolation::None).is_none());
    }

    #[test]
    fn a_forbidden_image_is_not_to_be_had_elsewhere() {
        let forbidden = Problem::new(Code::ImageForbidden, "no");
        assert_eq!(
            first_that_works(Err(forbidden), Some(Ok(())), true).unwrap_err().code,
            Code::ImageForbidden
        );
        let missing = Problem::new(Code::ImageMissing, "not there").hint("pull it");
        let problem = first_that_works(Err(missing), Some(Err(no_jail())), true).unwrap_err();
        assert_eq!((problem.code, problem.hint.as_deref()), (Code::ImageMissing, Some("pull it")));
    }
}
