//! References within a schema; references that lead outside are not resolved.

use serde_json::Value;

/// The most references in a row before they count as a circle.
const STEPS: usize = 32;

/// The target of a reference; `None` if it is not in this schema.
pub(super) fn target<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    root.pointer(reference.strip_prefix('#')?)
}

/// Follows references until there is a schema without one; `None` for a circle or a broken reference.
pub(super) fn resolve<'s>(root: &'s Value, mut schema: &'s Value) -> Option<&'s Value> {
    for _ in 0..STEPS {
        let Some(reference) = schema.get("$ref") else { return Some(schema) };
        schema = target(root, reference.as_str()?)?;
    }
    None
}
