//! What models and people are told about a value that does not fit, and about a schema that cannot be used.

use serde_json::{Value, json};

use super::{problems, problems_in};
use crate::protocol::ask::Language;
use crate::protocol::limits::{SCHEMA_BYTES, SCHEMA_PARTS};
use crate::schema::evaluate::PROBLEMS;
use crate::schema::{Checker, check};

#[test]
fn each_problem_names_path_expected_and_actual() {
    let schema = json!({
        "type": "object",
        "properties": {
            "n": {"type": "integer"},
            "colour": {"enum": ["red", "blue"]},
            "points": {"type": "array", "items": {"type": ["number", "null"], "minimum": 1}},
        },
        "required": ["n"],
        "additionalProperties": false,
    });
    assert_eq!(problems(&schema, &json!({"n": 1})), "");
    let wrong = json!({"colour": "green", "points": [2, "x", 0], "more": 1, "than": 2});
    insta::assert_snapshot!(problems(&schema, &wrong), @r#"
    `/colour`: expected one of ["red","blue"], got "green"
    `/points/1`: expected null | number, got "x"
    `/points/2`: 0 is less than the minimum of 1
    `/more`: there is no such field
    `/than`: there is no such field
    `/n`: is required, but missing
    "#);
    insta::assert_snapshot!(problems_in(&schema, &json!({"n": "x"}), Language::Chinese), @r#"`/n`：期望 integer，实际 "x""#);
    let wrong = json!({"n": 1, "colour": "green"});
    insta::assert_snapshot!(problems_in(&schema, &wrong, Language::Chinese), @r#"`/colour`：期望 ["red","blue"] 之一，实际 "green""#);
}

#[test]
fn rare_rules_are_told_in_words() {
    for (schema, value, words) in [
        (
            json!({"anyOf": [{"type": "null"}]}),
            json!(1),
            "1 is not valid under any of the schemas listed in the 'anyOf' keyword",
        ),
        (
            json!({"oneOf": [{}, {}]}),
            json!(1),
            "1 is valid under more than one of the schemas listed in the 'oneOf' keyword",
        ),
        (json!({"not": {"type": "integer"}}), json!(1), r#"{"type":"integer"} is not allowed for 1"#),
        (json!({"maxLength": 1}), json!("ab"), r#""ab" is longer than 1 characters"#),
        (json!({"exclusiveMaximum": 2}), json!(2), "2 is greater than or equal to the maximum of 2"),
        (json!({"multipleOf": 2}), json!(3), "3 is not a multiple of 2"),
        (json!({"uniqueItems": true}), json!([1, 1]), "[1,1] has non-unique elements"),
        (json!({"contains": {"const": 1}}), json!([2]), "None of [2] are valid under the given schema"),
        (
            json!({"propertyNames": {"maxLength": 1}}),
            json!({"ab": 1}),
            r#""ab" is no name of a field that {"maxLength":1} allows"#,
        ),
        (json!({"pattern": "^a"}), json!("b"), r#"expected a text that matches "^a", got "b""#),
        (json!({"const": {"a": 1}}), json!(2), r#"expected {"a":1}, got 2"#),
    ] {
        assert_eq!(problems(&schema, &value), format!("the whole: {words}"));
    }
    let schema = json!({"properties": {"a/b~": {"items": {"$ref": "#/$defs/x"}}}, "$defs": {"x": false}});
    assert_eq!(problems(&schema, &json!({"a/b~": [7]})), "`/a~1b~0/0`: False schema does not allow 7");
}

#[test]
fn what_is_told_is_bounded() {
    let schema = json!({"additionalProperties": {"type": "string"}});
    let many: Value =
        (0..100).map(|n| (format!("{n}"), json!(vec![n; 1_000]))).collect::<serde_json::Map<_, _>>().into();
    let text = problems(&schema, &many);
    assert!(text.lines().count() == PROBLEMS && text.len() < 2_000, "{text}");
    let long = "é".repeat(100_000);
    for (schema, value) in [
        (json!({"additionalProperties": false}), json!({long.clone(): 1})),
        (json!({"additionalProperties": {"type": "null"}}), json!({long.clone(): long})),
        (json!({"propertyNames": false}), json!({long.clone(): 1})),
        (json!({"required": ["é".repeat(10_000)], "not": {}}), json!({})),
        (json!({"maxLength": 1, "pattern": "^a", "enum": ["b".repeat(10_000)]}), json!(long)),
    ] {
        let text = problems(&schema, &value);
        assert!(!text.is_empty() && text.len() < 3_000, "{text}");
    }
}

#[test]
fn what_leads_outside_or_is_too_large_is_refused() {
    let refusal = |schema: Value| check(&schema).unwrap_err();
    assert!(refusal(json!(true)).contains("to be an object"));
    assert!(refusal(json!({"$ref": "http://127.0.0.1/schema"})).contains("nowhere"));
    assert!(refusal(json!({"$ref": "#/$defs/none"})).contains("nowhere"));
    assert!(refusal(json!({"$ref": "other"})).contains("nowhere"));
    assert!(refusal(json!({"x": "y".repeat(SCHEMA_BYTES)})).contains("bytes"));
    assert!(refusal(json!({"enum": vec![0; SCHEMA_PARTS]})).contains("parts"));
    let mut deep = json!({});
    for _ in 0..200 {
        deep = json!({"items": deep});
    }
    assert!(refusal(deep).contains("deeply"));
    let lines = json!({"allOf": [{"pattern": "a"}, {"not": {"pattern": "(?!b)"}}]});
    assert!(refusal(lines).contains("look-around is not supported in patterns"));
}

#[test]
fn keywords_that_values_cannot_be_held_against_are_refused_by_name() {
    for keyword in [
        "$id",
        "$anchor",
        "$dynamicRef",
        "$dynamicAnchor",
        "$recursiveRef",
        "unevaluatedProperties",
        "unevaluatedItems",
    ] {
        let schema = json!({"type": "object", "properties": {"a": {"items": {keyword: "x"}}}});
        assert!(check(&schema).unwrap_err().contains(&format!("`{keyword}` is not supported")), "{keyword}");
        // A field may have any name.
        assert_eq!(check(&json!({"properties": {keyword: {"type": "string"}}})), Ok(()));
    }
    for keyword in ["unevaluatedProperties", "unevaluatedItems"] {
        assert!(check(&json!({keyword: false})).is_err());
        assert_eq!(check(&json!({"items": {keyword: true}})), Ok(()), "it restricts nothing");
    }
    let version = |name: &str| json!({"$schema": format!("http://json-schema.org/{name}/schema#")});
    assert!(check(&version("draft-04")).unwrap_err().contains("draft 6"));
    assert_eq!(check(&version("draft-07")), Ok(()));
    assert!(check(&json!({"items": version("draft-07")})).unwrap_err().contains("below the top"));
    let nested = |inner: &str| {
        let mut schema = version("draft-07");
        schema["items"] = version(inner);
        check(&schema)
    };
    assert_eq!(nested("draft-07"), Ok(()));
    assert!(nested("draft-06").unwrap_err().contains("another one"));
}

#[test]
fn what_is_no_schema_is_refused_with_the_keyword() {
    for (keyword, rule) in [
        ("type", json!(5)),
        ("type", json!("thing")),
        ("type", json!([])),
        ("type", json!(["string", 1])),
        ("properties", json!([])),
        ("properties", json!(5)),
        ("required", json!("a")),
        ("required", json!([1])),
        ("items", json!("a")),
        ("additionalProperties", json!("no")),
        ("minLength", json!(-1)),
        ("maxItems", json!(1.5)),
        ("minProperties", json!("1")),
        ("minimum", json!("1")),
        ("exclusiveMinimum", json!(true)),
        ("multipleOf", json!(0)),
        ("uniqueItems", json!(1)),
        ("pattern", json!(1)),
        ("enum", json!("a")),
        ("allOf", json!([])),
        ("anyOf", json!({})),
        ("not", json!(1)),
        ("$ref", json!(1)),
        ("$defs", json!([])),
        ("dependentRequired", json!({"a": "b"})),
        ("dependencies", json!({"a": [1]})),
        ("patternProperties", json!([])),
        ("$schema", json!(1)),
    ] {
        let refusal = check(&json!({"$defs": {"x": {}}, keyword: rule})).unwrap_err();
        assert!(refusal.contains("no JSON Schema") && refusal.contains(&format!("`{keyword}`")), "{refusal}");
    }
    for schema in [
        json!({"properties": {"a": 5}}),
        json!({"allOf": [{"anyOf": [1]}]}),
        json!({"$defs": {"a": "x"}}),
        json!({"dependencies": {"a": 5}}),
        json!({"pattern": "("}),
        // A reference may lead to what is only a value, which then has to be a schema.
        json!({"$ref": "#/examples/0", "examples": [{"type": 5}]}),
        json!({"items": [{}], "prefixItems": [{}]}),
    ] {
        assert!(check(&schema).unwrap_err().contains("no JSON Schema"), "{schema}");
    }
}

#[test]
fn annotations_and_unknown_keywords_mean_nothing() {
    let schema = json!({
        "title": "t", "description": "d", "default": {"$id": 1}, "examples": [{"$ref": "nowhere"}], "format": "email",
        "$comment": "c", "contentEncoding": "base64", "x-own": {"type": 5}, "deprecated": true, "type": "string",
    });
    assert!(Checker::new(&schema).unwrap().fits(&json!("no address")));
}
