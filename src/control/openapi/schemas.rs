//! Puts the schemas of the types into a form that generators of clients understand. They make little of `true` as a schema,
//! of words that are spread over several alternatives, and of alternatives that have no name.

use serde_json::{Map, Value, json};

const PREFIX: &str = "#/components/schemas/";

/// The schema that a reference leads to.
pub fn name(path: &str) -> &str {
    path.strip_prefix(PREFIX).unwrap_or(path)
}

pub fn reference(name: &str) -> Value {
    json!({"$ref": format!("{PREFIX}{name}")})
}

pub fn prepare(schemas: &mut Map<String, Value>) {
    schemas.values_mut().for_each(replace_true);
    for name in schemas.keys().cloned().collect::<Vec<_>>() {
        name_alternatives(&name, schemas);
    }
}

/// Writes `{}` for the property that can be anything.
fn replace_true(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::Object(properties)) = map.get_mut("properties") {
                for property in properties.values_mut().filter(|property| **property == Value::Bool(true)) {
                    *property = json!({});
                }
            }
            map.values_mut().for_each(replace_true);
        }
        Value::Array(list) => list.iter_mut().for_each(replace_true),
        _ => {}
    }
}

/// Makes one list of the words among the alternatives of a schema, and a schema of its own of each of its objects.
fn name_alternatives(name: &str, schemas: &mut Map<String, Value>) {
    let Some(schema) = schemas.get_mut(name).and_then(Value::as_object_mut) else { return };
    let Some(Value::Array(alternatives)) = schema.remove("oneOf") else { return };
    let (words, objects): (Vec<_>, Vec<_>) =
        alternatives.into_iter().partition(|alternative| alternative["type"] == "string");
    let words = (!words.is_empty()).then(|| list_of_words(&words));
    if objects.is_empty() {
        schema.extend(words.unwrap_or_default());
        return;
    }
    // What all alternatives have beside their own properties.
    let common = Value::Object(
        ["properties", "required"]
            .into_iter()
            .filter_map(|key| Some((key.into(), schema.remove(key)?)))
            .collect(),
    );
    schema.remove("type");
    let (mut added, mut mapping, mut tag) = (Vec::new(), Map::new(), None);
    if let Some(words) = words {
        added.push((format!("{name}Word"), Value::Object(words)));
    }
    for object in objects {
        let (tag_of_object, word) = tag_and_word(&object);
        let own_name = format!("{name}{}", in_capitals(&word));
        if let Some(key) = tag_of_object {
            mapping.insert(word, json!(format!("{PREFIX}{own_name}")));
            tag = Some(key);
        }
        added.push((own_name, with(object, &common)));
    }
    let references: Vec<Value> = added.iter().map(|(own_name, _)| reference(own_name)).collect();
    schema.insert("oneOf".into(), json!(references));
    if let Some(tag) = tag {
        schema.insert("discriminator".into(), json!({"propertyName": tag, "mapping": mapping}));
    }
    for (own_name, schema) in added {
        let before = schemas.insert(own_name.clone(), schema);
        assert!(before.is_none(), "two schemas have the name `{own_name}`");
    }
}

/// One schema for several words; what each means is beside them, in the same order.
fn list_of_words(alternatives: &[Value]) -> Map<String, Value> {
    let (mut words, mut meanings) = (Vec::new(), Vec::new());
    for alternative in alternatives {
        let meaning = alternative["description"].as_str().unwrap_or_default();
        let several = alternative["enum"].as_array().cloned().unwrap_or_default();
        for word in several.into_iter().chain(alternative.get("const").cloned()) {
            words.push(word);
            meanings.push(meaning);
        }
    }
    let list = json!({"type": "string", "enum": words, "x-enum-descriptions": meanings});
    list.as_object().cloned().unwrap_or_default()
}

/// The word that tells an alternative from the others and, if it is the value of a property, that property.
fn tag_and_word(object: &Value) -> (Option<String>, String) {
    let properties = object["properties"].as_object();
    let tagged = properties.into_iter().flatten().find_map(|(key, property)| {
        let word = property.get("const")?.as_str()?;
        Some((Some(key.clone()), word.to_owned()))
    });
    let only = || properties.and_then(|properties| properties.keys().next()).cloned().unwrap_or_default();
    tagged.unwrap_or_else(|| (None, only()))
}

/// An alternative with what all of them have.
fn with(mut object: Value, common: &Value) -> Value {
    for (key, property) in common["properties"].as_object().into_iter().flatten() {
        object["properties"][key] = property.clone();
    }
    let required: Vec<Value> =
        [common, &object].into_iter().filter_map(|of| of["required"].as_array()).flatten().cloned().collect();
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    object
}

/// `cell_queued` as `CellQueued`.
fn in_capitals(word: &str) -> String {
    let capital = |part: &str| {
        let mut letters = part.chars();
        letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect::<String>()
    };
    word.split('_').map(capital).collect()
}
