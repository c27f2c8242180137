//! References that lead back to themselves without going into a value. A check of such a schema never ends, so it is
//! refused when it is handed in. A schema for a tree of nodes leads back only for parts of a value, and ends with it.

use serde_json::Value;
use std::collections::HashMap;

/// A step from a schema to another that is held against the same value.
pub(super) struct Step<'a> {
    pub from: *const Value,
    pub to: *const Value,
    /// The reference, if the step follows one.
    pub reference: Option<&'a str>,
}

/// Whether the schemas below a keyword are held against the same value as the keyword itself.
pub(super) fn stays_at_the_value(keyword: &str) -> bool {
    matches!(
        keyword,
        "$ref"
            | "allOf"
            | "anyOf"
            | "oneOf"
            | "not"
            | "if"
            | "then"
            | "else"
            | "dependentSchemas"
            | "dependencies"
    )
}

/// A reference of a circle; none if every way through the steps ends.
pub(super) fn find<'a>(steps: &[Step<'a>]) -> Option<&'a str> {
    let (mut ways_on, mut ways_to) = (HashMap::<_, usize>::new(), HashMap::<_, Vec<_>>::new());
    for step in steps {
        *ways_on.entry(step.from).or_default() += 1;
        ways_on.entry(step.to).or_default();
        ways_to.entry(step.to).or_default().push(step.from);
    }
    // Schemas from which every way ends are taken away, one after the other; the rest leads into a circle.
    let mut ended: Vec<_> =
        ways_on.iter().filter(|(_, count)| **count == 0).map(|(schema, _)| *schema).collect();
    while let Some(schema) = ended.pop() {
        ways_on.remove(&schema);
        for from in ways_to.remove(&schema).unwrap_or_default() {
            if let Some(count) = ways_on.get_mut(&from) {
                *count -= 1;
                if *count == 0 {
                    ended.push(from);
                }
            }
        }
    }
    let mut onward = HashMap::new();
    for step in steps.iter().filter(|step| ways_on.contains_key(&step.to)) {
        onward.entry(step.from).or_insert(step);
    }
    // After as many steps as there are, the way is in a circle, and a circle has a reference.
    let mut step = steps.iter().find(|step| ways_on.contains_key(&step.to))?;
    for _ in steps {
        step = onward.get(&step.to)?;
    }
    for _ in steps {
        if step.reference.is_some() {
            break;
        }
        step = onward.get(&step.to)?;
    }
    step.reference
}
