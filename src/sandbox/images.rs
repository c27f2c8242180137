//! The images that sessions may name, with any backend.

use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::ImageFact;
use crate::protocol::text::quotable;
use crate::security_controls;

/// The images that may be tried for a request, in order.
pub(in crate::sandbox) fn candidates<'a>(
    requested: Option<&'a str>,
    allowed: &'a [String],
) -> Result<Vec<&'a str>, Problem> {
    let Some(requested) = requested else {
        return Ok(allowed.iter().map(String::as_str).collect());
    };
    let is_allowed = allowed.iter().any(|image| tagged(image) == tagged(requested));
    if is_allowed || !security_controls::holds("images_are_on_a_list") {
        return Ok(vec![requested]);
    }
    Err(Problem::new(Code::ImageForbidden, format!("the image `{}` is not allowed", quotable(requested)))
        .hint(format!(
            "use one of `{}`, or add it to `sandbox.images` in the configuration",
            allowed.join("`, `")
        )))
}

/// The problem of a session whose first image is no longer there.
pub(in crate::sandbox) fn is_gone(first: &ImageFact) -> Problem {
    let (name, id) = (quotable(&first.reference), quotable(&first.id));
    let what =
        format!("the image `{name}` ({id}) that this session began with is gone, and it takes no other");
    Problem::new(Code::ImageMissing, what)
        .hint("make a new session with `belljar new`, and copy files with `belljar cp`")
}

/// The engine reads a name without a tag as `:latest`.
pub(in crate::sandbox) fn tagged(reference: &str) -> String {
    let name_part = reference.rsplit('/').next().unwrap_or(reference);
    if name_part.contains(':') { reference.to_owned() } else { format!("{reference}:latest") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Vec<String> {
        ["python:3.12", "belljar/science", "belljar/base"].map(str::to_owned).to_vec()
    }

    #[test]
    fn only_allowed_images_are_tried_and_the_default_has_an_order() {
        let allowed = allowed();
        assert_eq!(candidates(None, &allowed).unwrap(), ["python:3.12", "belljar/science", "belljar/base"]);
        assert_eq!(candidates(Some("belljar/base:latest"), &allowed).unwrap(), ["belljar/base:latest"]);
        let refused = candidates(Some("evil/image"), &allowed).unwrap_err();
        assert_eq!(refused.code, Code::ImageForbidden);
        assert!(refused.hint.unwrap().contains("sandbox.images"));
    }
}
