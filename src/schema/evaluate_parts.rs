//! The keywords that go into a value, and those that need only the value itself.

use serde_json::{Number, Value};
use std::cmp::Ordering;

use super::equality::{are_unique, compare, count, integral, is_multiple, same};
use super::evaluate::{Check, CheckOutcome, Keywords, Part, list};
use super::problem::{Problem, short_json};

impl Check<'_> {
    pub(super) fn keyword_of_object(
        &mut self,
        keywords: &Keywords,
        keyword: &str,
        rule: &Value,
        value: &Value,
        fields: &Keywords,
    ) -> CheckOutcome {
        let limit = || count(rule).unwrap_or_default();
        let length = fields.len() as u64;
        match keyword {
            // One of these keywords handles all three, because they share the fields.
            "additionalProperties" => self.fields(keywords, fields),
            "patternProperties" if !keywords.contains_key("additionalProperties") => {
                self.fields(keywords, fields)
            }
            "properties"
                if !keywords.contains_key("additionalProperties")
                    && !keywords.contains_key("patternProperties") =>
            {
                self.fields(keywords, fields)
            }
            "required" => self.required(rule, fields),
            "dependentRequired" | "dependentSchemas" | "dependencies" => self.dependent(rule, value, fields),
            "propertyNames" => self.names(rule, fields),
            "minProperties" if length < limit() => {
                self.problem(|| format!("{} has less than {} properties", short_json(value), limit()))
            }
            "maxProperties" if length > limit() => {
                self.problem(|| format!("{} has more than {} properties", short_json(value), limit()))
            }
            _ => self.keyword_of_value(keyword, rule, value),
        }
    }

    fn fields(&mut self, keywords: &Keywords, fields: &Keywords) -> CheckOutcome {
        let named = keywords.get("properties").and_then(Value::as_object);
        let further = keywords.get("additionalProperties");
        let (mut fits, mut unexpected) = (true, Vec::new());
        for (name, field) in fields {
            self.budget.charge_text(name)?;
            let schema = named.and_then(|all| all.get(name));
            let mut is_known = schema.is_some();
            if let Some(schema) = schema {
                fits &= self.part(Part::Field(name), schema, field)?;
            }
            if let Some(patterns) = keywords.get("patternProperties") {
                fits &= self.field_by_patterns(patterns, name, field, &mut is_known)?;
            }
            match further {
                Some(Value::Bool(false)) if !is_known => {
                    fits = false;
                    unexpected.push(name);
                }
                Some(schema) if !is_known => fits &= self.part(Part::Field(name), schema, field)?,
                _ => {}
            }
            if !fits && !self.is_collecting() {
                return Ok(false);
            }
        }
        for name in unexpected {
            self.problem_with(|path| Problem::unexpected(path, name))?;
        }
        Ok(fits)
    }

    fn field_by_patterns(
        &mut self,
        patterns: &Value,
        name: &str,
        field: &Value,
        is_known: &mut bool,
    ) -> CheckOutcome {
        let mut fits = true;
        for (pattern, schema) in patterns.as_object().into_iter().flatten() {
            if self.patterns.is_match(pattern, name, &mut self.budget)? {
                *is_known = true;
                fits &= self.part(Part::Field(name), schema, field)?;
            }
        }
        Ok(fits)
    }

    fn required(&mut self, names: &Value, fields: &Keywords) -> CheckOutcome {
        let mut fits = true;
        for name in list(names).iter().filter_map(Value::as_str) {
            self.budget.charge_text(name)?;
            if !fields.contains_key(name) {
                fits = self.problem_with(|path| Problem::missing_below(path, name))?;
            }
        }
        Ok(fits)
    }

    /// Holds the value against what depends on the fields that it has: names of further fields, or a schema.
    fn dependent(&mut self, rules: &Value, value: &Value, fields: &Keywords) -> CheckOutcome {
        let mut fits = true;
        for (name, rule) in rules.as_object().into_iter().flatten() {
            self.budget.charge_text(name)?;
            if fields.contains_key(name) {
                fits &=
                    if rule.is_array() { self.required(rule, fields)? } else { self.schema(rule, value)? };
            }
        }
        Ok(fits)
    }

    fn names(&mut self, schema: &Value, fields: &Keywords) -> CheckOutcome {
        let mut fits = true;
        for name in fields.keys() {
            self.budget.charge_text(name)?;
            if !self.quietly(schema, &Value::String(name.clone()))? {
                fits = self.problem(|| {
                    let name = Value::String(name.clone());
                    format!("{} is no name of a field that {} allows", short_json(&name), short_json(schema))
                })?;
            }
        }
        Ok(fits)
    }

    pub(super) fn keyword_of_array(
        &mut self,
        keywords: &Keywords,
        keyword: &str,
        rule: &Value,
        value: &Value,
        items: &[Value],
    ) -> CheckOutcome {
        let limit = || count(rule).unwrap_or_default();
        let length = items.len() as u64;
        match keyword {
            "items" if rule.is_array() => self.first_items(rule, items),
            "items" => self.items_after("prefixItems", keywords, rule, items),
            "prefixItems" => self.first_items(rule, items),
            "additionalItems" if keywords.get("items").is_some_and(Value::is_array) => {
                self.items_after("items", keywords, rule, items)
            }
            "contains" => self.contains(keywords, rule, value, items),
            "minItems" if length < limit() => {
                self.problem(|| format!("{} has less than {} items", short_json(value), limit()))
            }
            "maxItems" if length > limit() => {
                self.problem(|| format!("{} has more than {} items", short_json(value), limit()))
            }
            "uniqueItems" if rule == &Value::Bool(true) && !are_unique(items, &mut self.budget)? => {
                self.problem(|| format!("{} has non-unique elements", short_json(value)))
            }
            _ => self.keyword_of_value(keyword, rule, value),
        }
    }

    /// Holds each item against the schema at its place.
    fn first_items(&mut self, schemas: &Value, items: &[Value]) -> CheckOutcome {
        self.each_item(list(schemas).iter().zip(items).enumerate())
    }

    /// Holds the items that have no schema at their place against a schema.
    fn items_after(
        &mut self,
        first: &str,
        keywords: &Keywords,
        schema: &Value,
        items: &[Value],
    ) -> CheckOutcome {
        let first = keywords.get(first).map_or(0, |schemas| list(schemas).len());
        self.each_item(items.iter().map(|item| (schema, item)).enumerate().skip(first))
    }

    fn each_item<'v>(
        &mut self,
        items: impl Iterator<Item = (usize, (&'v Value, &'v Value))>,
    ) -> CheckOutcome {
        let mut fits = true;
        for (number, (schema, item)) in items {
            fits &= self.part(Part::Item(number), schema, item)?;
            if !fits && !self.is_collecting() {
                break;
            }
        }
        Ok(fits)
    }

    fn contains(
        &mut self,
        keywords: &Keywords,
        schema: &Value,
        value: &Value,
        items: &[Value],
    ) -> CheckOutcome {
        let least = keywords.get("minContains").and_then(count).unwrap_or(1);
        let most = keywords.get("maxContains").and_then(count);
        let mut found = 0_u64;
        for item in items {
            found += u64::from(self.quietly(schema, item)?);
        }
        if found >= least && most.is_none_or(|most| found <= most) {
            return Ok(true);
        }
        self.problem(|| match found {
            0 => format!("None of {} are valid under the given schema", short_json(value)),
            _ => format!(
                "{} has {found} items that fit `contains`, which is not as many as expected",
                short_json(value)
            ),
        })
    }

    /// Handles the keywords that need only the value itself.
    pub(super) fn keyword_of_value(&mut self, keyword: &str, rule: &Value, value: &Value) -> CheckOutcome {
        match (keyword, value) {
            ("type", _) => self.kind(rule, value),
            ("enum", _) => self.one_of_values(rule, value),
            ("const", _) => {
                if same(rule, value, &mut self.budget)? {
                    return Ok(true);
                }
                self.problem_with(|path| Problem::other_than(path, short_json(rule), value))
            }
            (_, Value::Number(number)) => self.keyword_of_number(keyword, rule, number),
            (_, Value::String(text)) => self.keyword_of_text(keyword, rule, value, text),
            _ => Ok(true),
        }
    }

    fn kind(&mut self, rule: &Value, value: &Value) -> CheckOutcome {
        let one = std::slice::from_ref(rule);
        let kinds = rule.as_array().map_or(one, Vec::as_slice);
        self.budget.charge(kinds.len() as u64)?;
        if kinds.iter().filter_map(Value::as_str).any(|kind| is_of_kind(kind, value)) {
            return Ok(true);
        }
        self.problem_with(|path| {
            let mut names: Vec<&str> = kinds.iter().filter_map(Value::as_str).collect();
            names.sort_unstable();
            names.dedup();
            Problem::other_than(path, names.join(" | "), value)
        })
    }

    fn one_of_values(&mut self, options: &Value, value: &Value) -> CheckOutcome {
        for option in list(options) {
            if same(option, value, &mut self.budget)? {
                return Ok(true);
            }
        }
        self.problem_with(|path| Problem::none_of(path, options, value))
    }

    fn keyword_of_number(&mut self, keyword: &str, rule: &Value, number: &Number) -> CheckOutcome {
        let Value::Number(limit) = rule else { return Ok(true) };
        let words = match (keyword, compare(number, limit)) {
            ("minimum", Ordering::Less) => "is less than the minimum of",
            ("maximum", Ordering::Greater) => "is greater than the maximum of",
            ("exclusiveMinimum", Ordering::Less | Ordering::Equal) => {
                "is less than or equal to the minimum of"
            }
            ("exclusiveMaximum", Ordering::Greater | Ordering::Equal) => {
                "is greater than or equal to the maximum of"
            }
            ("multipleOf", _) if !is_multiple(number, limit) => "is not a multiple of",
            _ => return Ok(true),
        };
        self.problem(|| format!("{number} {words} {limit}"))
    }

    fn keyword_of_text(&mut self, keyword: &str, rule: &Value, value: &Value, text: &str) -> CheckOutcome {
        match (keyword, rule) {
            ("minLength" | "maxLength", _) => {
                self.budget.charge_text(text)?;
                let (limit, length) = (count(rule).unwrap_or_default(), text.chars().count() as u64);
                match keyword {
                    "minLength" if length < limit => {
                        self.problem(|| format!("{} is shorter than {limit} characters", short_json(value)))
                    }
                    "maxLength" if length > limit => {
                        self.problem(|| format!("{} is longer than {limit} characters", short_json(value)))
                    }
                    _ => Ok(true),
                }
            }
            ("pattern", Value::String(pattern)) => {
                if self.patterns.is_match(pattern, text, &mut self.budget)? {
                    return Ok(true);
                }
                self.problem(|| {
                    format!("expected a text that matches {}, got {}", short_json(rule), short_json(value))
                })
            }
            _ => Ok(true),
        }
    }
}

fn is_of_kind(kind: &str, value: &Value) -> bool {
    match (kind, value) {
        ("integer", Value::Number(number)) => {
            // A float that is too large for the integers here has no fraction either.
            integral(number).is_some() || number.as_f64().is_some_and(|float| float.fract() == 0.0)
        }
        ("null", Value::Null)
        | ("boolean", Value::Bool(_))
        | ("number", Value::Number(_))
        | ("string", Value::String(_))
        | ("array", Value::Array(_))
        | ("object", Value::Object(_)) => true,
        _ => false,
    }
}
