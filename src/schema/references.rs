//! References within a schema; references that lead outside are not resolved.

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// The most references in a row before they count as a circle.
const STEPS: usize = 32;

/// The target of a reference; `None` if it is not in this schema. Percent signs are
/// decoded, because a reference is a URI.
pub(super) fn target<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    match reference.strip_prefix('#')? {
        "" => Some(root),
        pointer => {
            let pointer = percent_decode_str(pointer.strip_prefix('/')?).decode_utf8().ok()?;
            root.pointer(&format!("/{pointer}"))
        }
    }
}

/// Follows references until there is a schema without one; `None` for a circle or a broken reference.
pub(super) fn resolve<'s>(root: &'s Value, mut schema: &'s Value) -> Option<&'s Value> {
    for _ in 0..STEPS {
        let Some(reference) = schema.get("$ref") else { return Some(schema) };
        schema = target(root, reference.as_str()?)?;
    }
    None
}
