//! References inside of a schema. None lead outside.

use serde_json::Value;

/// References that lead to a reference, before they are taken for a circle.
const STEPS: usize = 32;

/// Where a reference leads to; none if that is not in this schema.
pub(super) fn target<'s>(root: &'s Value, reference: &str) -> Option<&'s Value> {
    root.pointer(reference.strip_prefix('#')?)
}

/// The schema behind references that stand alone; none in a circle.
pub(super) fn resolve<'s>(root: &'s Value, mut schema: &'s Value) -> Option<&'s Value> {
    for _ in 0..STEPS {
        let Some(reference) = schema.get("$ref") else { return Some(schema) };
        schema = target(root, reference.as_str()?)?;
    }
    None
}
