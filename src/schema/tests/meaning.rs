//! What the keywords of JSON Schema mean: schemas with values that fit and values that do not.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::schema::Checker;

/// A schema, values that fit it, and values that do not.
type Row = (Value, Value, Value);

/// Floats cannot tell this integer from its neighbours.
const BIG: u64 = 9_007_199_254_740_993;

fn rows() -> Vec<Row> {
    [types(), values(), numbers(), texts(), objects(), arrays(), several_schemas(), references()].concat()
}

fn types() -> Vec<Row> {
    vec![
        (json!({}), json!([null, 1, "a", [], {}]), json!([])),
        (json!({"type": "integer"}), json!([1, 1.0, -3, 1e300]), json!([1.5, "1", null, true])),
        (json!({"type": "number"}), json!([1, 1.5]), json!(["1", null])),
        (json!({"type": "null"}), json!([null]), json!([0, false, ""])),
        (json!({"type": "boolean"}), json!([true, false]), json!([0, "true"])),
        (json!({"type": ["string", "null"]}), json!(["", null]), json!([1, []])),
        (json!({"type": "object"}), json!([{}]), json!([[], "{}"])),
        (json!({"type": "array"}), json!([[]]), json!([{}, "[]"])),
    ]
}

fn values() -> Vec<Row> {
    vec![
        (
            json!({"enum": [1, "a", null, [1]]}),
            json!([1, 1.0, "a", null, [1.0]]),
            json!([2, "b", false, [1, 1]]),
        ),
        (json!({"enum": []}), json!([]), json!([1, null])),
        (
            json!({"const": {"a": [1]}}),
            json!([{"a": [1]}, {"a": [1.0]}]),
            json!([{"a": [1], "b": 1}, {"a": 1}, {}]),
        ),
        (json!({"const": false}), json!([false]), json!([0, null, [], ""])),
        (json!({"const": 0}), json!([0, 0.0, -0.0]), json!([false, "0"])),
        (json!({"const": BIG}), json!([BIG]), json!([BIG - 1, BIG + 1])),
    ]
}

fn numbers() -> Vec<Row> {
    vec![
        (json!({"minimum": 1}), json!([1, 1.0, 2, "0"]), json!([0, 0.999, -1])),
        (json!({"maximum": 1.5}), json!([1.5, 1, -1e300]), json!([1.6, 2, 1e300])),
        (json!({"exclusiveMinimum": 0}), json!([0.001, 1]), json!([0, -1])),
        (json!({"exclusiveMaximum": 0}), json!([-0.001, "x"]), json!([0, 0.0, 1])),
        (json!({"minimum": BIG}), json!([BIG, BIG + 1]), json!([BIG - 1, 9_007_199_254_740_992.0])),
        (json!({"maximum": u64::MAX - 1}), json!([u64::MAX - 1, i64::MIN]), json!([u64::MAX, 1e20])),
        (json!({"minimum": i64::MIN + 1}), json!([i64::MIN + 1]), json!([i64::MIN, -1e20])),
        (json!({"minimum": -1.5}), json!([-1, -1.5]), json!([-2, -1.6])),
        (json!({"multipleOf": 3}), json!([0, 3, -6, 9.0, "x"]), json!([1, 4.5])),
        (json!({"multipleOf": 0.01}), json!([0.07, 1.13, 4.35, 2]), json!([0.075, 0.001])),
        (json!({"multipleOf": 0.5}), json!([1, 1.5, 1e308]), json!([1.25])),
        (json!({"multipleOf": 2}), json!([BIG - 1]), json!([BIG])),
    ]
}

fn texts() -> Vec<Row> {
    vec![
        (json!({"minLength": 2}), json!(["ab", "éé", "💡💡", 1]), json!(["", "a", "💡"])),
        (json!({"maxLength": 2}), json!(["", "éé", "💡💡"]), json!(["abc"])),
        (json!({"maxLength": 2.0}), json!(["ab"]), json!(["abc"])),
        (json!({"pattern": "b+"}), json!(["abc", "bb", 5, null]), json!(["", "ac"])),
        (json!({"pattern": "^\\d{3}$"}), json!(["123"]), json!(["1234", "12a"])),
    ]
}

fn objects() -> Vec<Row> {
    vec![
        (
            json!({"properties": {"a": {"type": "string"}}}),
            json!([{}, {"a": "x"}, {"b": 1}, 5]),
            json!([{"a": 1}]),
        ),
        (json!({"properties": {"a": false}}), json!([{}, {"b": 1}]), json!([{"a": null}])),
        (json!({"required": ["a", "b"]}), json!([{"a": null, "b": 1}, "a"]), json!([{}, {"a": 1}])),
        (json!({"additionalProperties": false}), json!([{}, []]), json!([{"a": 1}])),
        (
            json!({"properties": {"a": {}}, "additionalProperties": false}),
            json!([{"a": 1}]),
            json!([{"a": 1, "b": 1}]),
        ),
        (
            json!({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}),
            json!([{"a": 1, "b": null}]),
            json!([{"b": 1}]),
        ),
        (
            json!({"patternProperties": {"^n": {"type": "integer"}, "s$": {"minimum": 5}}}),
            json!([{"n": 1}, {"x": "x"}, {"ns": 5}, {"s": "x"}]),
            json!([{"n": "x"}, {"ns": 4}, {"as": 1}]),
        ),
        (
            json!({"patternProperties": {"^n": {}}, "properties": {"a": {}}, "additionalProperties": false}),
            json!([{"n1": 1, "a": 1}]),
            json!([{"b": 1}]),
        ),
        (
            json!({"patternProperties": {"^a": {"minimum": 2}}, "properties": {"a": {"maximum": 3}}}),
            json!([{"a": 2}, {"ab": 9}]),
            json!([{"a": 1}, {"a": 4}, {"ab": 1}]),
        ),
        (
            json!({"propertyNames": {"pattern": "^[a-z]+$"}}),
            json!([{}, {"ab": 1}, 5]),
            json!([{"A": 1}, {"a": 1, "1": 1}]),
        ),
        (json!({"propertyNames": false}), json!([{}]), json!([{"a": 1}])),
        (
            json!({"minProperties": 1, "maxProperties": 2}),
            json!([{"a": 1}, {"a": 1, "b": 1}, []]),
            json!([{}, {"a": 1, "b": 1, "c": 1}]),
        ),
        (
            json!({"dependentRequired": {"a": ["b"]}}),
            json!([{}, {"b": 1}, {"a": 1, "b": 1}]),
            json!([{"a": 1}]),
        ),
        (
            json!({"dependentSchemas": {"a": {"maxProperties": 1}}}),
            json!([{"a": 1}, {"b": 1, "c": 1}]),
            json!([{"a": 1, "b": 1}]),
        ),
        (
            json!({"dependencies": {"a": ["b"], "c": {"required": ["d"]}, "e": false}}),
            json!([{}, {"a": 1, "b": 1}, {"c": 1, "d": 1}]),
            json!([{"a": 1}, {"c": 1}, {"e": 1}]),
        ),
    ]
}

fn arrays() -> Vec<Row> {
    vec![
        (json!({"items": {"type": "integer"}}), json!([[], [1, 2], "x", {}]), json!([[1, "x"]])),
        (json!({"items": false}), json!([[]]), json!([[1]])),
        (
            json!({"items": [{"type": "integer"}, {"type": "string"}]}),
            json!([[], [1], [1, "a", null]]),
            json!([["a"], [1, 1]]),
        ),
        (json!({"items": [{}], "additionalItems": false}), json!([[], [1]]), json!([[1, 2]])),
        (
            json!({"items": [{}], "additionalItems": {"type": "null"}}),
            json!([[1, null]]),
            json!([[1, null, 1]]),
        ),
        (json!({"items": {}, "additionalItems": false}), json!([[1, 2, 3]]), json!([])),
        (json!({"additionalItems": false}), json!([[1, 2]]), json!([])),
        (
            json!({"prefixItems": [{"type": "integer"}], "items": {"type": "string"}}),
            json!([[], [1], [1, "a", "b"]]),
            json!([["a"], [1, 1]]),
        ),
        (json!({"prefixItems": [{}, {}], "items": false}), json!([[1], [1, 2]]), json!([[1, 2, 3]])),
        (json!({"contains": {"type": "integer"}}), json!([["a", 1], 5]), json!([[], ["a"]])),
        (
            json!({"contains": {"const": 1}, "minContains": 2, "maxContains": 3}),
            json!([[1, 1], [1, 2, 1, 1]]),
            json!([[1], [1, 1, 1, 1], []]),
        ),
        (json!({"contains": {"const": 1}, "minContains": 0}), json!([[], [2]]), json!([])),
        (
            json!({"contains": {"const": 1}, "minContains": 0, "maxContains": 1}),
            json!([[], [1]]),
            json!([[1, 1]]),
        ),
        (json!({"minContains": 5}), json!([[]]), json!([])),
        (json!({"minItems": 1, "maxItems": 2}), json!([[1], [1, 2], {}]), json!([[], [1, 2, 3]])),
        (
            json!({"uniqueItems": true}),
            json!([[], [1, 2, "1", true, null, [1], {"a": 1}], [[1], [[1]]], ["a,b", "a", "b"], [{"a": 1}, {"a": 2}], [0, false]]),
            json!([[1, 1], [1, 1.0], [{"a": 1, "b": 2}, {"b": 2.0, "a": 1}], [[1], [1.0]], ["a", "b", "a"], [1.5, 1.5], [0, -0.0]]),
        ),
        (json!({"uniqueItems": false}), json!([[1, 1]]), json!([])),
        (json!({"uniqueItems": true}), json!([[BIG, BIG - 1]]), json!([[BIG, BIG]])),
    ]
}

fn several_schemas() -> Vec<Row> {
    vec![
        (json!({"allOf": [{"minimum": 1}, {"maximum": 2}]}), json!([1, 2]), json!([0, 3])),
        (json!({"anyOf": [{"type": "string"}, {"minimum": 2}]}), json!(["a", 2]), json!([1])),
        (json!({"oneOf": [{"minimum": 1}, {"maximum": 2}]}), json!([0, 3]), json!([1, 2])),
        (json!({"oneOf": [true, false, false]}), json!([1]), json!([])),
        (json!({"oneOf": [true, true, true]}), json!([]), json!([1])),
        (json!({"not": {"type": "string"}}), json!([1, null]), json!(["a"])),
        (json!({"not": {"not": {"const": 1}}}), json!([1]), json!([2])),
        (json!({"not": true}), json!([]), json!([1, null])),
        (
            json!({"if": {"minimum": 10}, "then": {"multipleOf": 10}, "else": {"multipleOf": 3}}),
            json!([20, 3]),
            json!([11, 4]),
        ),
        (json!({"if": {"minimum": 10}, "then": {"multipleOf": 10}}), json!([20, 4]), json!([11])),
        (json!({"then": false, "else": false}), json!([1]), json!([])),
        (json!({"if": true, "then": false}), json!([]), json!([1])),
    ]
}

fn references() -> Vec<Row> {
    let tree = json!({"$ref": "#/$defs/Node", "$defs": {"Node": {"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}}});
    vec![
        (
            json!({"$ref": "#/$defs/a", "maximum": 5, "$defs": {"a": {"minimum": 1}}}),
            json!([1, 5]),
            json!([0, 6]),
        ),
        (
            json!({"properties": {"a": {"$ref": "#"}}, "additionalProperties": false}),
            json!([{"a": {"a": {}}}]),
            json!([{"a": {"b": 1}}]),
        ),
        (
            json!({"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "null"}}}),
            json!([null]),
            json!([1]),
        ),
        (json!({"$ref": "#/$defs/a%25b%62", "$defs": {"a%bb": {"type": "null"}}}), json!([null]), json!([1])),
        (json!({"$ref": "#/allOf/1", "allOf": [{}, {"type": "null"}]}), json!([null]), json!([1])),
        (json!({"properties": {"$ref": {"type": "string"}}}), json!([{"$ref": "a"}]), json!([{"$ref": 1}])),
        (
            tree,
            json!([{"name": "a", "children": [{"name": "b"}, {"name": "c", "children": []}]}]),
            json!([{}, {"name": "a", "children": [{"name": "b", "children": [{}]}]}]),
        ),
        (
            json!({"properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#/$defs/b"}}, "$defs": {
            "a": {"properties": {"b": {"$ref": "#/$defs/b"}}}, "b": {"items": {"$ref": "#/$defs/a"}, "type": "array"}}}),
            json!([{"a": {"b": [{"b": []}]}}]),
            json!([{"a": {"b": [{"b": 1}]}}]),
        ),
    ]
}

#[test]
fn values_fit_as_json_schema_has_it() {
    for (schema, fitting, others) in rows() {
        let checker = Checker::new(&schema).unwrap();
        for (values, fits) in [(&fitting, true), (&others, false)] {
            for value in values.as_array().unwrap() {
                assert_eq!(checker.fits(value), fits, "{value} against {schema}");
                assert_eq!(checker.problems(value).is_empty(), fits, "{value} against {schema}");
            }
        }
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3_i64..4).prop_map(Value::from),
        (-3_i32..4).prop_map(|number| json!(f64::from(number) / 2.0)),
        "[ab]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[ab]", inner, 0..3).prop_map(|map| json!(map)),
        ]
    })
}

fn any_schema() -> impl Strategy<Value = Value> {
    let schemas: Vec<Value> = rows()
        .into_iter()
        .map(|(schema, _, _)| schema)
        .filter(|schema| !schema.to_string().contains("$ref"))
        .collect();
    prop::sample::select(schemas)
}

proptest! {
    /// The laws of logic hold between keywords that apply schemas to the same value.
    #[test]
    fn schemas_are_combined_as_logic_has_it(a in any_schema(), b in any_schema(), value in any_value()) {
        let fits = |schema: Value| Checker::new(&schema).unwrap().fits(&value);
        let (one, other) = (fits(a.clone()), fits(b.clone()));
        prop_assert_eq!(fits(json!({"allOf": [a, b]})), one && other);
        prop_assert_eq!(fits(json!({"anyOf": [a, b]})), one || other);
        prop_assert_eq!(fits(json!({"oneOf": [a, b]})), one != other);
        prop_assert_eq!(fits(json!({"not": a})), !one);
        prop_assert_eq!(fits(json!({"if": a, "then": b})), !one || other);
        prop_assert_eq!(fits(json!({"$ref": "#/$defs/a", "$defs": {"a": a}})), one);
        let checker = Checker::new(&json!({"items": a})).unwrap();
        prop_assert_eq!(checker.fits(&json!([value])), one);
        prop_assert_eq!(checker.problems(&json!([value])).is_empty(), one);
    }

    #[test]
    fn a_value_is_equal_to_itself_and_to_no_other(a in any_value(), b in any_value()) {
        let is_equal = Checker::new(&json!({"const": a})).unwrap().fits(&b);
        let are_unique = Checker::new(&json!({"uniqueItems": true})).unwrap().fits(&json!([a, b]));
        prop_assert_eq!(is_equal, !are_unique);
        let is_listed = Checker::new(&json!({"enum": [0, a]})).unwrap().fits(&a);
        prop_assert!(is_listed);
    }
}
