//! Schemas generated from types.

use schemars::JsonSchema;
use serde_json::{Value, json};

/// The whole schema of a type.
#[must_use]
pub fn schema_of<T: JsonSchema>() -> Value {
    schemars::generate::SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>().to_value()
}

/// The schema of a parameter struct, in the form that models get.
#[must_use]
pub fn parameters_of<T: JsonSchema>() -> Value {
    let mut schema = schema_of::<T>();
    if let Some(root) = schema.as_object_mut() {
        root.remove("$schema");
        // The struct's doc comment is for readers of the code.
        root.remove("description");
        root.entry("properties").or_insert_with(|| json!({}));
    }
    tidy(&mut schema, false);
    schema
}

/// Removes what is useless to a model: names of Rust types and widths of integers.
fn tidy(schema: &mut Value, is_map_of_names: bool) {
    match schema {
        Value::Object(map) => {
            if !is_map_of_names {
                map.remove("title");
                map.remove("format");
            }
            for (key, value) in map.iter_mut() {
                let names = !is_map_of_names && (key == "properties" || key == "$defs");
                if is_map_of_names || !["default", "examples", "enum", "const"].contains(&key.as_str()) {
                    tidy(value, names);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| tidy(item, false)),
        _ => {}
    }
}
