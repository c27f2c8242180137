//! Holds a value against a schema. The schema is interpreted as it is written, and every keyword that is visited is a
//! step of the budget. This file has the keywords that apply other schemas to the same value; `evaluate_parts` has
//! those that go into the value, and those that need only the value itself.
//!
//! The functions here call each other as deep as schemas lie within schemas. They are small, and hold little, so that
//! the stack suffices for the nesting that the budget allows.

use serde_json::{Map, Value};

use super::budget::{Budget, Stop};
use super::patterns::Patterns;
use super::problem::{Problem, excerpt, short_json};
use super::references::target;

/// The most problems reported for one value; a model does not need more to see its mistake.
pub(super) const PROBLEMS: usize = 8;

/// The outcome of a part of the check: whether the value fits.
pub(super) type CheckOutcome = Result<bool, Stop>;
pub(super) type Keywords = Map<String, Value>;

/// One check of a value.
pub(super) struct Check<'c> {
    root: &'c Value,
    pub patterns: &'c Patterns,
    pub budget: Budget,
    /// Whether problems are collected. Otherwise a check ends with the first of them.
    is_collecting: bool,
    problems: Vec<Problem>,
    /// The place in the value, as a JSON pointer; it is only kept while problems are collected.
    path: String,
}

impl<'c> Check<'c> {
    pub fn new(root: &'c Value, patterns: &'c Patterns) -> Self {
        Self {
            root,
            patterns,
            budget: Budget::new(),
            is_collecting: false,
            problems: Vec::new(),
            path: String::new(),
        }
    }

    pub fn fits(mut self, value: &Value) -> bool {
        self.schema(self.root, value) == Ok(true)
    }

    /// The problems of the value; none if it fits.
    pub fn problems(mut self, value: &Value) -> Vec<Problem> {
        self.is_collecting = true;
        let why = match self.schema(self.root, value) {
            Ok(true) => return Vec::new(),
            // What was found before the check had to end is wrong in any case.
            _ if !self.problems.is_empty() => return self.problems,
            Err(Stop::TooLarge) => {
                "it is too large to be held against this schema; send less, or make the schema smaller".into()
            }
            Ok(false) | Err(Stop::EnoughProblems) => "does not fit the schema".into(),
        };
        vec![Problem::of_all(why)]
    }

    /// Holds a value against a schema within the schema.
    pub fn schema(&mut self, schema: &Value, value: &Value) -> CheckOutcome {
        self.budget.charge(1)?;
        match schema {
            Value::Object(keywords) => {
                self.budget.enter()?;
                let fits = self.keywords(keywords, value)?;
                self.budget.leave();
                Ok(fits)
            }
            Value::Bool(false) => {
                self.problem(|| format!("False schema does not allow {}", short_json(value)))
            }
            _ => Ok(true),
        }
    }

    fn keywords(&mut self, keywords: &Keywords, value: &Value) -> CheckOutcome {
        let mut fits = true;
        for (keyword, rule) in keywords {
            self.budget.charge(1)?;
            fits &= self.keyword(keywords, keyword, rule, value)?;
            if !fits && !self.is_collecting {
                break;
            }
        }
        Ok(fits)
    }

    fn keyword(&mut self, keywords: &Keywords, keyword: &str, rule: &Value, value: &Value) -> CheckOutcome {
        match keyword {
            "$ref" => self.reference(rule, value),
            "allOf" => self.all_of(rule, value),
            "anyOf" => self.any_of(rule, value),
            "oneOf" => self.one_of(rule, value),
            "not" => self.not(rule, value),
            "if" => self.conditional(keywords, rule, value),
            _ => match value {
                Value::Object(fields) => self.keyword_of_object(keywords, keyword, rule, value, fields),
                Value::Array(items) => self.keyword_of_array(keywords, keyword, rule, value, items),
                _ => self.keyword_of_value(keyword, rule, value),
            },
        }
    }

    fn reference(&mut self, rule: &Value, value: &Value) -> CheckOutcome {
        let Some(reference) = rule.as_str() else { return Ok(true) };
        // Finding the target takes a look at every name in the reference.
        self.budget.charge(reference.len() as u64)?;
        let Some(target) = target(self.root, reference) else { return Ok(true) };
        self.schema(target, value)
    }

    fn all_of(&mut self, schemas: &Value, value: &Value) -> CheckOutcome {
        let mut fits = true;
        for schema in list(schemas) {
            fits &= self.schema(schema, value)?;
            if !fits && !self.is_collecting {
                break;
            }
        }
        Ok(fits)
    }

    fn any_of(&mut self, schemas: &Value, value: &Value) -> CheckOutcome {
        for schema in list(schemas) {
            if self.quietly(schema, value)? {
                return Ok(true);
            }
        }
        self.problem(|| {
            format!(
                "{} is not valid under any of the schemas listed in the 'anyOf' keyword",
                short_json(value)
            )
        })
    }

    fn one_of(&mut self, schemas: &Value, value: &Value) -> CheckOutcome {
        let mut fitting = 0;
        for schema in list(schemas) {
            fitting += u8::from(self.quietly(schema, value)?);
            if fitting > 1 {
                break;
            }
        }
        let how_many = match fitting {
            0 => "not valid under any",
            1 => return Ok(true),
            _ => "valid under more than one",
        };
        self.problem(|| {
            format!("{} is {how_many} of the schemas listed in the 'oneOf' keyword", short_json(value))
        })
    }

    fn not(&mut self, schema: &Value, value: &Value) -> CheckOutcome {
        if !self.quietly(schema, value)? {
            return Ok(true);
        }
        self.problem(|| format!("{} is not allowed for {}", short_json(schema), short_json(value)))
    }

    fn conditional(&mut self, keywords: &Keywords, condition: &Value, value: &Value) -> CheckOutcome {
        let branch = if self.quietly(condition, value)? { "then" } else { "else" };
        match keywords.get(branch) {
            Some(schema) => self.schema(schema, value),
            None => Ok(true),
        }
    }

    /// Holds a value against a schema without collecting problems.
    pub fn quietly(&mut self, schema: &Value, value: &Value) -> CheckOutcome {
        let was_collecting = std::mem::replace(&mut self.is_collecting, false);
        let fits = self.schema(schema, value)?;
        self.is_collecting = was_collecting;
        Ok(fits)
    }

    /// Holds a field or an item of the value against a schema.
    pub fn part(&mut self, name: Part, schema: &Value, value: &Value) -> CheckOutcome {
        if !self.is_collecting {
            return self.schema(schema, value);
        }
        let length = self.path.len();
        name.append_to(&mut self.path);
        let fits = self.schema(schema, value)?;
        self.path.truncate(length);
        Ok(fits)
    }

    pub fn is_collecting(&self) -> bool {
        self.is_collecting
    }

    /// The value does not fit, for the reason that the words say.
    #[inline(never)]
    pub fn problem(&mut self, words: impl FnOnce() -> String) -> CheckOutcome {
        self.problem_with(|path| Problem::other(path, words()))
    }

    /// The value does not fit; the problem is made from the place in the value.
    #[inline(never)]
    pub fn problem_with(&mut self, problem: impl FnOnce(&str) -> Problem) -> CheckOutcome {
        if !self.is_collecting {
            return Ok(false);
        }
        self.problems.push(problem(&self.path));
        if self.problems.len() == PROBLEMS { Err(Stop::EnoughProblems) } else { Ok(false) }
    }
}

/// A field or an item of a value.
#[derive(Clone, Copy)]
pub(super) enum Part<'n> {
    Field(&'n str),
    Item(usize),
}

impl Part<'_> {
    fn append_to(self, path: &mut String) {
        path.push('/');
        match self {
            Self::Field(name) => path.push_str(&excerpt(name).replace('~', "~0").replace('/', "~1")),
            Self::Item(number) => path.push_str(&number.to_string()),
        }
    }
}

pub(super) fn list(rule: &Value) -> &[Value] {
    rule.as_array().map(Vec::as_slice).unwrap_or_default()
}
