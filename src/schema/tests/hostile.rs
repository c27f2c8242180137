//! Schemas and values that are made to take long, to take memory or to exhaust the stack. Whatever they are, they are
//! refused or judged soon, on a small stack.

use serde_json::{Map, Value, json};
use std::time::Duration;

use super::problems;
use crate::schema::evaluate::PROBLEMS;
use crate::schema::{Checker, check};

const STACK_BYTES: usize = 1024 * 1024;
/// The processor time that a check may take. It takes much less in a release; tests run unoptimised.
const SOON: Duration = Duration::from_secs(20);
const TOO_LARGE: &str = "it is too large to be held against this schema";
const IN_A_CIRCLE: &str = "leads back to itself without going into a value";

/// What a check says on a thread whose stack is as small as any thread's of the daemon, or smaller.
fn on_a_small_stack<T: Send + 'static>(check: impl FnOnce() -> T + Send + 'static) -> T {
    let timed = move || (check(), processor_time());
    let (outcome, taken) =
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn(timed).unwrap().join().unwrap();
    assert!(taken < SOON, "{taken:?}");
    outcome
}

/// The time of a processor that this thread has used: a busy machine makes a check later, but not more costly.
fn processor_time() -> Duration {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(schedstat.split_whitespace().next().unwrap().parse().unwrap())
}

/// Both forms of a check; they have to agree. The value is dropped by the caller: to drop one that is deeper than any
/// that is parsed takes more stack than to check it.
fn judged(schema: Value, value: Value) -> String {
    let (found, _) = on_a_small_stack(move || {
        let found = problems(&schema, &value);
        assert_eq!(Checker::new(&schema).unwrap().fits(&value), found.is_empty());
        (found, value)
    });
    found
}

fn nots(count: usize, schema: Value) -> Value {
    (0..count).fold(schema, |schema, _| json!({"not": schema}))
}

fn nested(count: usize, value: Value) -> Value {
    (0..count).fold(value, |value, _| json!({"a": value}))
}

#[test]
fn long_chains_of_references_do_not_exhaust_the_stack() {
    let mut definitions = Map::new();
    definitions.insert("d0".into(), nots(90, json!({})));
    for number in 1..9 {
        let before = json!({"$ref": format!("#/$defs/d{}", number - 1)});
        definitions.insert(format!("d{number}"), nots(90, before));
    }
    let schema =
        |last: u32| json!({"properties": {"x": {"$ref": format!("#/$defs/d{last}")}}, "$defs": definitions});
    assert!(judged(schema(8), json!({"x": 1})).contains(TOO_LARGE));
    assert_eq!(judged(schema(4), json!({"x": 1})), "", "an even number of `not`s allows everything");
    assert_eq!(judged(schema(8), json!({"y": 1})), "");
}

#[test]
fn deep_values_against_high_schemas_do_not_exhaust_the_stack() {
    let mut node = json!({"additionalProperties": {"$ref": "#/$defs/M"}, "type": "object"});
    for _ in 0..43 {
        node = json!({"allOf": [node, true]});
    }
    let schema = json!({"properties": {"x": {"$ref": "#/$defs/M"}}, "$defs": {"M": node}});
    assert!(judged(schema, json!({"x": nested(100, json!(1))})).contains(TOO_LARGE));
}

/// Every keyword that leads from schema to schema, as deep as it goes, on a small stack.
#[test]
fn no_keyword_needs_more_stack_than_there_is() {
    let again = json!({"$ref": "#"});
    for schema in [
        json!({"properties": {"a": again}}),
        json!({"additionalProperties": again}),
        json!({"patternProperties": {"a": again}}),
        json!({"properties": {"a": {"allOf": [{"allOf": [{"allOf": [again]}]}]}}}),
        json!({"properties": {"a": {"anyOf": [false, {"anyOf": [false, {"anyOf": [false, again]}]}]}}}),
        json!({"properties": {"a": {"oneOf": [false, {"oneOf": [false, {"oneOf": [false, again]}]}]}}}),
        json!({"properties": {"a": nots(6, again.clone())}}),
        json!({"properties": {"a": {"if": {"if": {"if": again}}, "then": {"if": true, "then": {"type": "object"}}}}}),
        json!({"dependentSchemas": {"a": {"dependencies": {"a": {"properties": {"a": again}}}}}}),
    ] {
        let value = nested(600, json!({}));
        assert!(judged(schema.clone(), value).contains(TOO_LARGE), "{schema}");
    }
    let lists = (0..600).fold(json!([]), |list, _| json!([list]));
    for schema in [
        json!({"items": again}),
        json!({"prefixItems": [again]}),
        json!({"items": [again]}),
        json!({"items": [], "additionalItems": again}),
        json!({"contains": again, "minContains": 0}),
    ] {
        assert!(judged(schema.clone(), lists.clone()).contains(TOO_LARGE), "{schema}");
    }
}

/// The versions of JSON Schema have schemas of their own, against which no foreign schema is held.
#[test]
fn a_schema_of_many_keywords_within_each_other_takes_no_memory_for_ever() {
    const KEYWORDS: [&str; 9] = [
        "not",
        "if",
        "then",
        "else",
        "items",
        "contains",
        "propertyNames",
        "additionalProperties",
        "additionalItems",
    ];
    fn tree(depth: u32) -> Value {
        let below = |keyword: &&str| ((*keyword).to_owned(), tree(depth - 1));
        if depth == 0 { json!({}) } else { Value::Object(KEYWORDS.iter().map(below).collect()) }
    }
    let schema = json!({"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"x": tree(3)}});
    assert!(!judged(schema, json!({"x": 1})).is_empty());
}

#[test]
fn references_take_no_memory_however_often_they_are_followed() {
    let names = || (0..20).map(|number| format!("p{number}"));
    let fields: Map<String, Value> = names().map(|name| (name, json!({"$ref": "#/$defs/N"}))).collect();
    let node = json!({"type": "object", "properties": fields, "examples": vec![json!({"": 0}); 190]});
    let schema = json!({"properties": {"x": {"$ref": "#/$defs/N"}}, "$defs": {"N": node}});
    let leaf: Map<String, Value> = names().map(|name| (name, json!({}))).collect();
    let value: Map<String, Value> = names().map(|name| (name, json!(leaf))).collect();
    assert_eq!(judged(schema, json!({"x": value})), "");
}

#[test]
fn large_constants_below_many_keywords_are_not_copied() {
    let constant = json!({"const": vec![json!({"": 0}); 4_900]});
    let schema = json!({"properties": {"x": nots(90, constant)}});
    assert!(judged(schema, json!({"x": 1})).contains("is not allowed for 1"));
}

#[test]
fn patterns_are_few_and_share_their_size() {
    let same = json!({"allOf": vec![json!({"pattern": "\\w{50}"}); 2_900]});
    assert!(!judged(same, json!("x")).is_empty());
    let different: Vec<Value> =
        (0..2_000).map(|number| json!({"pattern": format!("\\w{{{number}}}")})).collect();
    assert!(check(&json!({"allOf": different})).unwrap_err().contains("pattern"));
    let names: Map<String, Value> = (0..100).map(|number| (format!("[ab]{{{number}}}"), json!({}))).collect();
    assert!(check(&json!({"patternProperties": names})).unwrap_err().contains("different patterns"));
}

#[test]
fn names_are_matched_within_the_budget() {
    let schema = json!({"patternProperties": {"a[ab]{1000}[^ab]": {}, "(a|aa)+$": {"type": "null"}}});
    let names: Map<String, Value> =
        (0..2_000).map(|number| (format!("{}{number}", "ab".repeat(1_000)), json!(1))).collect();
    assert!(judged(schema.clone(), json!(names)).contains(TOO_LARGE));
    assert!(
        judged(json!({"propertyNames": {"pattern": "(a+)+$"}}), json!({"a".repeat(5_000): 1})).is_empty()
    );
    assert!(judged(schema, json!({"ab".repeat(2_000_000): 1})).contains(TOO_LARGE));
}

#[test]
fn versions_below_the_top_are_refused() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2019-09/schema",
        "$defs": {"T": {"prefixItems": 5}},
        "properties": {
            "a": {"$ref": "#/$defs/T"},
            "b": {"$schema": "https://json-schema.org/draft/2020-12/schema", "allOf": [{"$ref": "#/$defs/T"}]},
        },
    });
    assert!(on_a_small_stack(move || check(&schema)).is_err());
}

/// Each level of the value doubles the work, in all the ways that a circle can reach the same part twice.
#[test]
fn circles_that_double_the_work_use_up_the_budget() {
    let again = json!({"$ref": "#"});
    let lists = (0..90).fold(json!([]), |list, _| json!([list]));
    for schema in [
        json!({"items": {"allOf": [again, again]}}),
        json!({"allOf": [{"items": again}, {"items": again, "maxItems": 1}]}),
        json!({"items": {"allOf": [again, {"$ref": "#/$defs/b"}]}, "$defs": {"b": {"items": again}}}),
    ] {
        assert!(judged(schema.clone(), lists.clone()).contains(TOO_LARGE), "{schema}");
    }
    let fields = nested(90, json!({}));
    for schema in [
        json!({"properties": {"a": again}, "patternProperties": {"^a": again}}),
        json!({"properties": {"a": {"allOf": [again], "properties": {"a": again}}}}),
    ] {
        assert!(judged(schema.clone(), fields.clone()).contains(TOO_LARGE), "{schema}");
    }
    // Each of the thirty definitions doubles the number of steps.
    let mut definitions = Map::new();
    for step in 0..30 {
        let next = json!({"$ref": format!("#/$defs/s{}", step + 1)});
        definitions.insert(format!("s{step}"), json!({"allOf": [next, next]}));
    }
    definitions.insert("s30".into(), json!({}));
    let schema = json!({"$defs": definitions, "$ref": "#/$defs/s0"});
    assert!(judged(schema, json!(1)).contains(TOO_LARGE));
}

#[test]
fn circles_that_do_not_go_into_a_value_are_refused() {
    for schema in [
        json!({"$ref": "#"}),
        json!({"allOf": [{"$ref": "#"}]}),
        json!({"not": {"$ref": "#"}}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"if": {"$ref": "#/$defs/a"}}}}),
        // `%62` is `b`, so this reference leads back to where it stands.
        json!({"$defs": {"a%62": {}, "ab": {"anyOf": [{"$ref": "#/$defs/a%62"}]}}, "$ref": "#/$defs/ab"}),
        json!({"dependentSchemas": {"a": {"$ref": "#"}}}),
    ] {
        assert!(check(&schema).unwrap_err().contains(IN_A_CIRCLE), "{schema}");
    }
    // The same definition may be used for a value several times, and for parts of it.
    let schema = json!({"anyOf": [{"$ref": "#/$defs/x"}, {"items": {"$ref": "#/$defs/x"}}], "$ref": "#/$defs/x",
                        "items": {"$ref": "#"}, "$defs": {"x": {}}});
    assert_eq!(judged(schema, json!([[[]]])), "");
}

#[test]
fn deep_values_of_a_tree_are_judged_soon() {
    let child = json!({"anyOf": [{"$ref": "#"}, {"type": "null"}]});
    let schema = json!({"type": "object", "required": ["left"], "properties": {
        "left": child, "right": {"oneOf": [{"$ref": "#"}, {"type": "null"}]}}});
    let tree = |leaf: Value| {
        (0..90).fold(json!({"left": leaf, "right": null}), |below, level| match level % 2 {
            0 => json!({"left": below}),
            _ => json!({"left": null, "right": below}),
        })
    };
    assert!(judged(schema.clone(), tree(json!(5))).contains("'oneOf' keyword"));
    assert_eq!(judged(schema, tree(Value::Null)), "");
}

/// A schema and a value that are each small enough would take minutes together.
#[test]
fn no_check_takes_long_whatever_the_schema_and_the_value_are() {
    let text = "ab".repeat(1 << 20);
    let slow = json!({"properties": {"a": {"pattern": "a[ab]{300}[^ab]"}}});
    assert!(judged(slow.clone(), json!({"a": text})).contains(TOO_LARGE));
    assert!(judged(slow, json!({"a": &text[..4_000]})).contains("that matches"));
    let many = json!({"items": {"not": {"pattern": "a[ab]{300}[^ab]"}}});
    assert!(judged(many, json!(vec!["abab".repeat(100); 10_000])).contains(TOO_LARGE));
    let lengths = json!({"allOf": vec![json!({"maxLength": 1 << 30}); 2_000]});
    assert!(judged(lengths, json!(text)).contains(TOO_LARGE));
    let names = json!({"allOf": vec![json!({"propertyNames": {"maxLength": 1 << 30}}); 1_000]});
    assert!(judged(names, json!({text.clone(): 1})).contains(TOO_LARGE));
    let equal = json!({"items": {"enum": vec!["b".repeat(60); 900]}});
    assert!(judged(equal, json!(vec!["c".repeat(60); 10_000])).contains("expected one of"));
    let unique = json!({"allOf": vec![json!({"uniqueItems": true}); 2_000]});
    assert!(judged(unique, json!((0..100_000).collect::<Vec<_>>())).contains(TOO_LARGE));
    let failing = json!({"items": {"allOf": vec![json!({"type": "string"}); 2_000]}});
    assert_eq!(judged(failing, json!(vec![0; 10_000])).lines().count(), PROBLEMS);
    let wide = json!({"items": {"anyOf": vec![json!({"const": 1}); 3_000]}});
    assert!(
        judged(wide.clone(), json!((0..10_000).map(|_| 1).chain([2]).collect::<Vec<_>>())).contains("anyOf")
    );
    assert_eq!(judged(wide, json!(vec![1; 100])), "");
}

#[test]
fn a_check_that_takes_too_many_steps_is_given_up() {
    let schema = json!({"items": {"allOf": vec![json!({"minimum": 0}); 200]}});
    assert_eq!(judged(schema.clone(), json!(vec![1; 1_000])), "");
    assert!(judged(schema, json!(vec![1; 100_000])).contains(TOO_LARGE));
}

#[test]
fn what_a_schema_forbids_does_not_pass_because_the_budget_is_used_up() {
    let schema = json!({
        "properties": {"a": {"pattern": "^x{0,2000}$"}, "path": {"not": {"pattern": "\\.\\."}}},
    });
    let checker = Checker::new(&schema).unwrap();
    assert!(!checker.fits(&json!({"a": "x", "path": "../etc"})));
    assert!(!checker.fits(&json!({"a": "x".repeat(1 << 20), "path": "../etc"})));
    assert!(!checker.problems(&json!({"path": format!("../{}", "x".repeat(1 << 21))})).is_empty());
    assert!(checker.fits(&json!({"a": "x", "path": "etc"})));
    // Under a `not`, a check that is given up must not turn into one that fits.
    let hidden = json!({"not": {"not": {"not": {"pattern": "^x{0,2000}y"}}}});
    assert!(!Checker::new(&hidden).unwrap().fits(&json!("x".repeat(1 << 20))));
}

#[test]
fn what_models_and_pydantic_send_is_checked() {
    let id = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$";
    let checker = Checker::new(&json!({"items": {"pattern": id}})).unwrap();
    assert!(checker.fits(&json!(vec!["01234567-89ab-cdef-0123-456789abcdef"; 5_000])));
    let long = json!({"properties": {"name": {"pattern": "^.{1,500}$"}, "code": {"type": "string"}}});
    let checker = Checker::new(&long).unwrap();
    assert!(checker.fits(&json!({"name": "a name", "code": "print(1)\n".repeat(500_000)})));
    let row = |n: u32| json!({"identifier": n, "description": "x", "quantity": 1});
    let rows: Vec<Value> = (0..500).map(row).collect();
    let table = json!({"properties": {"labels": {"patternProperties": {"^[a-z]+$": {"type": "string"}}}}});
    assert!(Checker::new(&table).unwrap().fits(&json!({"rows": rows, "labels": {"a": "b"}})));
}

/// On a runtime with one thread, another user's task gets its turn while schemas are compiled and values are checked.
#[test]
fn nobody_waits_while_a_long_check_is_made() {
    use std::time::{Duration, Instant};
    const PATIENCE: Duration = Duration::from_secs(10);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
    let patterns: Vec<Value> = (0..20).map(|n| json!({"pattern": format!("{n}a[ab]{{100}}[^ab]")})).collect();
    let schema = json!({"anyOf": patterns});
    let value = json!("ab".repeat(200));
    // Whether the task of another ran while this one worked on and never waited.
    let has_turn = |work: &dyn Fn()| {
        let (other, deadline) = (tokio::spawn(async {}), Instant::now() + PATIENCE);
        while !other.is_finished() && Instant::now() < deadline {
            work();
        }
        other.is_finished()
    };
    let long = runtime.spawn(async move {
        let while_compiling = has_turn(&|| drop(Checker::new(&schema).unwrap()));
        let checker = Checker::new(&schema).unwrap();
        (while_compiling, has_turn(&|| assert!(!checker.fits(&value))))
    });
    assert_eq!(runtime.block_on(long).unwrap(), (true, true), "whether others had their turn");
}
