//! Schemas that refer to themselves. A schema for a tree of nodes may do so, because the validator visits every part of
//! a value once. Two kinds of circles are refused: those that lead back without going into a value, which never end,
//! and those that reach the same part of a value in two ways, because each level doubles the work, so that a small deep
//! value would keep the validator busy for ever.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

use super::references::target;
use crate::controls;

/// The most different references in a schema, and the most references to circles that one definition makes.
const DEFINITIONS: usize = 1_000;
const POSITIONS: usize = 256;

/// A step from a value into a part of it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step<'a> {
    Property(&'a str),
    /// A step into any property or any item.
    Any,
}

/// A reference, and the path to the part of the value that it applies to; an empty path means the value itself.
struct Position<'a> {
    path: Vec<Step<'a>>,
    reference: &'a str,
}

impl Position<'_> {
    /// Whether both may apply to the same part, or one of them to a part below the other's.
    fn meets(&self, other: &Position) -> bool {
        self.path.iter().zip(&other.path).all(|(a, b)| a == b || *a == Step::Any || *b == Step::Any)
    }
}

pub(super) fn check(root: &Value) -> Result<(), String> {
    if !controls::holds("schemas_end_soon") {
        return Ok(());
    }
    let definitions = definitions(root)?;
    if let Some(endless) = circles(&definitions, |position| position.path.is_empty()).first() {
        return Err(format!("`$ref` {endless:?} leads back to itself without going into a value"));
    }
    let circles = circles(&definitions, |_| true);
    if circles.is_empty() {
        return Ok(());
    }
    // To know which properties were evaluated, a validator checks them a second time.
    if root.to_string().contains("\"unevaluated") {
        return Err("`unevaluated…` is not supported in a schema that refers to itself".to_owned());
    }
    for positions in circles.iter().filter_map(|circle| definitions.get(circle)) {
        let within: Vec<&Position> =
            positions.iter().filter(|position| circles.contains(position.reference)).collect();
        if within.len() > POSITIONS {
            return Err(format!("the schema refers to itself more than {POSITIONS} times in one place"));
        }
        for (number, one) in within.iter().enumerate() {
            if let Some(other) = within.iter().skip(number + 1).find(|other| one.meets(other)) {
                return Err(format!(
                    "`$ref` {:?} and {:?} lead back to themselves from the same part of a value, which takes too \
                     long with deep values; write out as many levels as are needed",
                    one.reference, other.reference
                ));
            }
        }
    }
    Ok(())
}

/// Every definition that applies to a value or a part of it, by its reference, with the references that it makes.
fn definitions(root: &Value) -> Result<BTreeMap<&str, Vec<Position<'_>>>, String> {
    let mut found = BTreeMap::new();
    let mut open = vec!["#"];
    while let Some(reference) = open.pop() {
        if found.contains_key(reference) {
            continue;
        }
        let mut positions = Vec::new();
        if let Some(schema) = target(root, reference) {
            collect(schema, &mut Vec::new(), &mut positions);
        }
        open.extend(positions.iter().map(|position| position.reference));
        found.insert(reference, positions);
        if found.len() > DEFINITIONS {
            return Err(format!("the schema has more than {DEFINITIONS} different references"));
        }
    }
    Ok(found)
}

fn collect<'a>(schema: &'a Value, path: &mut Vec<Step<'a>>, found: &mut Vec<Position<'a>>) {
    let Some(keywords) = schema.as_object() else { return };
    for (keyword, value) in keywords {
        match (keyword.as_str(), value) {
            ("$ref", Value::String(reference)) => found.push(Position { path: path.clone(), reference }),
            ("allOf" | "anyOf" | "oneOf", Value::Array(schemas)) => {
                for schema in schemas {
                    collect(schema, path, found);
                }
            }
            ("not" | "if" | "then" | "else", schema) => collect(schema, path, found),
            ("dependentSchemas" | "dependencies", Value::Object(schemas)) => {
                for schema in schemas.values() {
                    collect(schema, path, found);
                }
            }
            ("properties", Value::Object(schemas)) => {
                for (name, schema) in schemas {
                    collect_below(Step::Property(name), [schema], path, found);
                }
            }
            ("patternProperties", Value::Object(schemas)) => {
                collect_below(Step::Any, schemas.values(), path, found);
            }
            (
                "items"
                | "prefixItems"
                | "additionalItems"
                | "contains"
                | "additionalProperties"
                | "propertyNames"
                | "unevaluatedItems"
                | "unevaluatedProperties",
                schema,
            ) => match schema {
                Value::Array(schemas) => collect_below(Step::Any, schemas, path, found),
                schema => collect_below(Step::Any, [schema], path, found),
            },
            // Definitions are followed where a reference uses them; all other keywords apply no schema.
            _ => {}
        }
    }
}

fn collect_below<'a>(
    step: Step<'a>,
    schemas: impl IntoIterator<Item = &'a Value>,
    path: &mut Vec<Step<'a>>,
    found: &mut Vec<Position<'a>>,
) {
    path.push(step);
    for schema in schemas {
        collect(schema, path, found);
    }
    path.pop();
}

/// The definitions that are part of a circle of followed references, or lie between two circles.
fn circles<'a>(
    definitions: &BTreeMap<&'a str, Vec<Position<'a>>>,
    follow: impl Fn(&Position) -> bool,
) -> BTreeSet<&'a str> {
    let mut left: BTreeSet<&str> = definitions.keys().copied().collect();
    loop {
        let followed =
            |from: &&'a str| definitions.get(from).into_iter().flatten().filter(|position| follow(position));
        let led_to: BTreeSet<&str> =
            left.iter().flat_map(followed).map(|position| position.reference).collect();
        let leads_on = |from: &&'a str| followed(from).any(|position| left.contains(position.reference));
        let stay: BTreeSet<&str> =
            left.iter().filter(|from| led_to.contains(**from) && leads_on(from)).copied().collect();
        if stay.len() == left.len() {
            return stay;
        }
        left = stay;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Checker;
    use serde_json::json;
    use std::time::{Duration, Instant};

    #[test]
    fn trees_may_refer_to_themselves() {
        let node = |children: Value| {
            json!({"$ref": "#/$defs/Node", "$defs": {"Node": {
            "type": "object", "properties": {"name": {"type": "string"}, "children": children}}}})
        };
        let reference = json!({"$ref": "#/$defs/Node"});
        for schema in [
            node(json!({"type": "array", "items": reference})),
            node(json!({"anyOf": [{"type": "array", "items": reference}, {"type": "null"}]})),
            node(json!({"type": "object", "properties": {"left": reference, "right": reference}})),
            node(json!({"type": "object", "additionalProperties": reference})),
            json!({"properties": {"self": {"$ref": "#"}}}),
            // Two definitions refer to each other, and one refers to both in different places.
            json!({"properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#/$defs/b"}}, "$defs": {
                "a": {"properties": {"b": {"$ref": "#/$defs/b"}}}, "b": {"items": {"$ref": "#/$defs/a"}}}}),
            // There is no circle, however often the definition is used.
            json!({"anyOf": [{"$ref": "#/$defs/x"}, {"items": {"$ref": "#/$defs/x"}}], "$defs": {"x": {}}}),
        ] {
            assert_eq!(check(&schema), Ok(()), "{schema}");
        }
    }

    #[test]
    fn circles_that_would_not_end_soon_are_refused() {
        let reference = json!({"$ref": "#"});
        for schema in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"if": {"$ref": "#/$defs/a"}}}}),
            json!({"items": {"anyOf": [reference, reference]}}),
            json!({"anyOf": [{"items": reference}, {"items": reference, "maxItems": 1}]}),
            json!({"properties": {"a": reference}, "patternProperties": {"^a": reference}}),
            // The references are one and two levels down, so everything below is reached both ways.
            json!({"properties": {"a": {"allOf": [reference], "properties": {"a": reference}}}}),
            json!({"properties": {"a": reference}, "unevaluatedProperties": false}),
            // Each circle is harmless by itself, but every level of the first begins the second anew.
            json!({"items": {"allOf": [reference, {"$ref": "#/$defs/b"}]}, "$defs": {"b": {"items": {"$ref": "#/$defs/b"}}}}),
        ] {
            assert!(check(&schema).is_err(), "{schema}");
        }
    }

    #[test]
    fn deep_values_of_a_circle_are_judged_soon() {
        let child = json!({"anyOf": [{"$ref": "#"}, {"type": "null"}]});
        let schema = json!({"type": "object", "required": ["left"], "properties": {
            "left": child, "right": {"oneOf": [{"$ref": "#"}, {"type": "null"}]}}});
        let checker = Checker::new(&schema).unwrap();
        let mut value = json!({"left": 5, "right": null});
        for level in 0..90 {
            value =
                if level % 2 == 0 { json!({"left": value}) } else { json!({"left": null, "right": value}) };
        }
        let begun = Instant::now();
        assert!(!checker.fits(&value) && !checker.problems(&value).is_empty());
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    }
}
