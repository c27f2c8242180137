//! Turns the schemas that the configuration and clients give for their tools into the parameters of a tool.

use serde_json::{Value, json};

use crate::protocol::tool_names::PURPOSE;

/// A foreign schema as parameters: a closed object that accepts only its named properties. Whether values can be held
/// against it is found out when it is compiled, once.
pub fn parameters(schema: &Value) -> Result<Value, String> {
    let Some(object) = schema.as_object() else { return Err("it has to be an object".into()) };
    if object.get("type").is_some_and(|kind| kind != "object") {
        return Err("the schema's `type` has to be `object`".into());
    }
    let mut object = object.clone();
    object.insert("type".into(), "object".into());
    let properties = object.entry("properties").or_insert_with(|| json!({}));
    let Some(properties) = properties.as_object() else {
        return Err("`properties` has to be an object".into());
    };
    if properties.contains_key(PURPOSE) {
        return Err(format!("the parameter `{PURPOSE}` is there for every tool and cannot be its own"));
    }
    object.insert("additionalProperties".into(), Value::Bool(false));
    Ok(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_schema_becomes_a_closed_object() {
        let given = json!({"properties": {"city": {"type": "string"}}, "required": ["city"]});
        assert_eq!(
            parameters(&given).unwrap(),
            json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                   "additionalProperties": false})
        );
        for (given, why) in [
            (json!([]), "an object"),
            (json!({"type": "string"}), "`type`"),
            (json!({"properties": 5}), "`properties`"),
            (json!({"properties": {"tool_call_purpose": {}}}), "for every tool"),
        ] {
            assert!(parameters(&given).unwrap_err().contains(why), "{given}");
        }
    }
}
