//! The images that sessions may name, with any backend, and the parts of a name.

use crate::protocol::limits::IMAGE_NAME_CHARS;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::receipt::ImageFact;
use crate::protocol::text::quotable;
use crate::security_controls;

/// The image name that stands, for jails, for the host's own system.
pub const HOST: &str = "host";
/// The hexadecimal digits of an image's id.
const ID_CHARS: usize = 64;

/// The image that a request asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WantedImage {
    /// The default, or the first allowed one that is there.
    #[default]
    Any,
    /// One of the list of allowed ones.
    Named(String),
    /// One that the user who asks has built.
    Built(ImageFact),
}

impl WantedImage {
    /// The name that was asked for.
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Any => None,
            Self::Named(name) => Some(name),
            Self::Built(image) => Some(&image.reference),
        }
    }
}

/// The images that may be tried for a request, in order.
pub fn candidates<'a>(requested: Option<&'a str>, allowed: &'a [String]) -> Result<Vec<&'a str>, Problem> {
    let Some(requested) = requested else {
        return Ok(allowed.iter().map(String::as_str).collect());
    };
    let is_allowed = allowed.iter().any(|image| tagged(image) == tagged(requested));
    if is_allowed || !security_controls::holds("images_are_on_a_list") {
        return Ok(vec![requested]);
    }
    Err(Problem::new(Code::ImageForbidden, format!("the image `{}` is not allowed", quotable(requested)))
        .hint(format!(
            "use one of `{}`, one that you built with `belljar image build`, or add it to `sandbox.images` in the configuration",
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

/// The problem of a jail that is asked for an image that a user built.
pub(in crate::sandbox) fn is_of_the_engine(image: &ImageFact) -> Problem {
    let what = format!(
        "the image `{}` was built in the container engine, and jails do not use that",
        image.reference
    );
    Problem::new(Code::ImageMissing, what)
        .hint("use `--backend docker`, or install the packages into the session: `--with PACKAGE`")
}

/// The engine reads a name without a tag as `:latest`.
pub(in crate::sandbox) fn tagged(reference: &str) -> String {
    let name_part = reference.rsplit('/').next().unwrap_or(reference);
    if name_part.contains(':') { reference.to_owned() } else { format!("{reference}:latest") }
}

/// A reference in the parts that tell images apart, as the engine reads it: two names are of the same image if these are
/// equal.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::sandbox) struct Reference<'a> {
    /// The host of a registry; none for the engine's default one, which need not be written.
    pub registry: Option<&'a str>,
    /// The path on the registry.
    pub repository: &'a str,
    pub tag: &'a str,
    pub digest: Option<&'a str>,
}

impl<'a> Reference<'a> {
    pub fn parse(reference: &'a str) -> Self {
        let (name, digest) = match reference.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (reference, None),
        };
        let is_host = |part: &&str| part.contains(['.', ':']) || *part == "localhost";
        let (registry, path) = match name.split_once('/').filter(|(first, _)| is_host(first)) {
            Some((host, path)) => (Some(host), path),
            None => (None, name),
        };
        let registry = registry.filter(|host| !["docker.io", "index.docker.io"].contains(host));
        let last_part = path.rfind('/').map_or(0, |slash| slash + 1);
        let tag_at = path[last_part..].find(':').map(|colon| last_part + colon);
        let (repository, tag) = tag_at.map_or((path, "latest"), |colon| (&path[..colon], &path[colon + 1..]));
        // The default registry's own images have no user, and may be written with this one.
        let plain = repository.strip_prefix("library/").filter(|rest| !rest.contains('/'));
        let repository = plain.filter(|_| registry.is_none()).unwrap_or(repository);
        Self { registry, repository, tag, digest }
    }

    /// Whether the name is one of Belljar's own images, on whichever registry.
    pub fn is_belljars(&self) -> bool {
        self.repository.split_once('/').is_some_and(|(first, _)| first == "belljar")
    }
}

/// Whether both names are of the same image.
pub fn is_same_name(one: &str, other: &str) -> bool {
    Reference::parse(one) == Reference::parse(other)
}

/// Checks the name of an image that a user wants to build, and completes it by its tag.
pub(in crate::sandbox) fn own_name(name: &str, allowed: &[String]) -> Result<String, Problem> {
    let wrong = |why: &str| {
        Err(Problem::new(
            Code::BadRequest,
            format!("an image of your own cannot be named `{}`: {why}", quotable(name)),
        )
        .hint("use small letters, digits, `.`, `_` and `-`, as in `plots` or `team/plots:2`"))
    };
    if name.chars().count() > IMAGE_NAME_CHARS {
        return wrong(&format!("it has more than {IMAGE_NAME_CHARS} characters"));
    }
    if name.contains('@') {
        return wrong("a digest is not chosen");
    }
    let wanted = Reference::parse(name);
    if wanted.registry.is_some() || name.split_once('/').is_some_and(|(first, _)| first.contains('.')) {
        return wrong("it names a registry, and own images are on this machine only");
    }
    if wanted.is_belljars() || ["base", "science"].contains(&wanted.repository) {
        return wrong("such names are those of Belljar's own images");
    }
    if is_digest(wanted.repository) {
        return wrong("the engine reads it as the id of an image");
    }
    if !wanted.repository.split('/').all(is_path_part) || !is_tag(wanted.tag) {
        return wrong("the engine takes no such name");
    }
    if allowed.iter().any(|image| Reference::parse(image) == wanted) {
        return wrong("it is on the list of images that all users may use");
    }
    Ok(format!("{}:{}", wanted.repository, wanted.tag))
}

/// Small letters and digits, with single separators between them.
fn is_path_part(part: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    let is_outer = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let (first, last) = (part.chars().next(), part.chars().next_back());
    let doubled = [".", "_", "-"]
        .iter()
        .any(|left| [".", "_", "-"].iter().any(|right| part.contains(&format!("{left}{right}"))));
    part.chars().all(is_inner) && is_outer(first) && is_outer(last) && !doubled
}

/// The word before an id, or one without it: the engine gives no image such a name.
fn is_digest(repository: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    repository == "sha256" || (repository.len() == ID_CHARS && repository.bytes().all(is_hex))
}

fn is_tag(tag: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    tag.chars().all(is_inner) && tag.chars().next().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
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

    #[test]
    fn a_reference_has_parts() {
        for (reference, registry, repository, tag) in [
            ("python", None, "python", "latest"),
            ("library/python:3.12", None, "python", "3.12"),
            ("docker.io/library/python:3.12", None, "python", "3.12"),
            ("index.docker.io/python", None, "python", "latest"),
            ("a/b", None, "a/b", "latest"),
            ("library/a/b", None, "library/a/b", "latest"),
            ("a.host/b:1", Some("a.host"), "b", "1"),
            ("a:5000/library/b", Some("a:5000"), "library/b", "latest"),
            ("localhost/b", Some("localhost"), "b", "latest"),
            ("a.b", None, "a.b", "latest"),
        ] {
            let parsed = Reference::parse(reference);
            assert_eq!((parsed.registry, parsed.repository, parsed.tag), (registry, repository, tag));
        }
        let digest = Reference::parse("python:3.12@sha256:aa");
        assert_eq!((digest.tag, digest.digest), ("3.12", Some("sha256:aa")));
        assert_ne!(digest, Reference::parse("python:3.12"));
    }

    #[test]
    fn own_images_have_names_that_nothing_else_has() {
        let named = |name: &str| own_name(name, &allowed());
        for (name, full) in
            [("plots", "plots:latest"), ("team/plots:2", "team/plots:2"), ("a.b_c-d", "a.b_c-d:latest")]
        {
            assert_eq!(named(name).unwrap(), full);
        }
        let long = "a".repeat(IMAGE_NAME_CHARS + 1);
        let id = "0a".repeat(ID_CHARS / 2);
        assert_eq!(named(&format!("team/{id}")).unwrap(), format!("team/{id}:latest"));
        assert_eq!(named(&id[1..]).unwrap(), format!("{}:latest", &id[1..]));
        for (name, why) in [
            ("belljar/mine", "Belljar's own"),
            ("belljar/team/mine", "Belljar's own"),
            ("docker.io/belljar/base", "registry"),
            ("base", "Belljar's own"),
            ("science:2", "Belljar's own"),
            ("plots@sha256:aa", "digest"),
            ("host.example/plots", "registry"),
            ("host:5000/plots", "registry"),
            ("localhost/plots", "registry"),
            ("python:3.12", "the list"),
            ("library/python:3.12", "the list"),
            ("docker.io/python:3.12", "registry"),
            ("Plots", "no such name"),
            ("a//b", "no such name"),
            ("-a", "no such name"),
            ("a..b", "no such name"),
            ("a:", "no such name"),
            ("a:-1", "no such name"),
            ("a b", "no such name"),
            ("../a", "registry"),
            ("", "no such name"),
            ("sha256", "id of an image"),
            ("sha256:2", "id of an image"),
            (&id, "id of an image"),
            (&format!("{id}:2"), "id of an image"),
            (long.as_str(), "characters"),
        ] {
            let refused = named(name).expect_err(name);
            assert_eq!(refused.code, Code::BadRequest);
            assert!(refused.message.contains(why), "{name}: {}", refused.message);
        }
    }
}
