//! A failed import: which allowed image has the package.

use crate::cli::client::http::Client;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::protocol::api::{ImageList, ImageView};
use crate::protocol::result::ExecutionResult;

/// What stands before and behind the name in the kernel's hint below the traceback.
const HINT: (&str, &str) = ("the package `", "` is not installed");
/// What stands there around the name for sessions that stay.
const FOR_SESSIONS: (&str, &str) = ("`belljar install -s SESSION ", "` outside of the session");

/// Names an image that has the package for want of which the cell failed.
pub(in crate::cli) async fn name_image(
    context: &mut Context,
    client: &Client,
    result: &ExecutionResult,
) -> Result<(), Failure> {
    let Some(package) = missing_package(result).filter(|_| !context.json) else { return Ok(()) };
    // Without an answer there is nothing to add to what was shown.
    let Ok(answer) = client.get("/v1/images").await else { return Ok(()) };
    let list: ImageList = answer.parse()?;
    match list.images.iter().find(|image| has(image, &package)) {
        Some(image) => context.screen.note(&format!(
            "the image `{}` has `{package}`: `--image {}` starts a session with it",
            image.reference, image.reference
        )),
        None => Ok(()),
    }
}

/// The traceback with a hint for a session that goes with the script: a later run of it has to bring the package.
pub(in crate::cli) fn for_run(traceback: &str) -> Option<String> {
    let (before, rest) = traceback.rsplit_once(FOR_SESSIONS.0)?;
    let (package, after) = rest.split_once(FOR_SESSIONS.1)?;
    Some(format!("{before}`belljar run --with {package}` before the script begins{after}"))
}

/// The package that the module belongs to, as the hint says; else the module itself.
fn missing_package(result: &ExecutionResult) -> Option<String> {
    let exception =
        result.exception.as_ref().filter(|exception| exception.type_name == "ModuleNotFoundError")?;
    let hinted = exception.traceback.rsplit_once(HINT.0).and_then(|(_, rest)| rest.split_once(HINT.1));
    let module = || exception.value.strip_prefix("No module named '")?.split(['.', '\'']).next();
    let name = hinted.map(|(package, _)| package).or_else(module)?;
    // It is the guest's word, and is shown.
    let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    is_name.then(|| normal(name))
}

fn has(image: &ImageView, package: &str) -> bool {
    let is_there = image.id.is_some();
    let packages = image.packages.iter().flat_map(|packages| &packages.installed);
    is_there && packages.into_iter().any(|installed| normal(installed) == package)
}

/// A name as indexes compare it.
fn normal(name: &str) -> String {
    name.to_lowercase().replace(['_', '.'], "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::exit_codes::tests::result;
    use crate::protocol::result::{ExceptionView, Reason, Status};

    fn failed(kind: &str, value: &str, hint: &str) -> ExecutionResult {
        let mut failed = result(Status::Failure, Reason::Exception, Some(0));
        failed.exception = Some(ExceptionView {
            type_name: kind.into(),
            value: value.into(),
            repr: String::new(),
            traceback: format!("Traceback …\n{kind}: {value}\n{hint}"),
        });
        failed
    }

    #[test]
    fn a_script_is_told_to_bring_the_package() {
        let said = "hint: the package `a` is not installed: `%pip install a` in a cell installs it, and so does `belljar \
                    install -s SESSION a` outside of the session\n";
        let expected = "hint: the package `a` is not installed: `%pip install a` in a cell installs it, and so does \
                        `belljar run --with a` before the script begins\n";
        assert_eq!(for_run(said).as_deref(), Some(expected));
        assert_eq!(for_run("hint: something else\n"), None);
    }

    #[test]
    fn the_package_of_a_failed_import_is_known_by_the_hint_or_by_the_module() {
        let kind = "ModuleNotFoundError";
        let hint = "the package `scikit_learn` is not installed: `%pip install scikit-learn` installs it";
        let package = |value, hint| missing_package(&failed(kind, value, hint));
        assert_eq!(package("No module named 'sklearn'", hint).as_deref(), Some("scikit-learn"));
        assert_eq!(package("No module named 'polars.io'", "").as_deref(), Some("polars"));
        assert_eq!(package("No module named 'a\u{1b}[31m'", ""), None);
        assert_eq!(package("something else", ""), None);
        assert_eq!(missing_package(&failed("ImportError", "No module named 'x'", "")), None);
    }
}
