//! Markers of requirements: `python_version < "3.11" and (os_name == "posix" or extra == "x")`. They are parsed and
//! written anew; the installer evaluates them.

use std::fmt;

/// Variables that a marker may compare.
const VARIABLES: [&str; 12] = [
    "python_version",
    "python_full_version",
    "os_name",
    "sys_platform",
    "platform_release",
    "platform_system",
    "platform_version",
    "platform_machine",
    "platform_python_implementation",
    "implementation_name",
    "implementation_version",
    "extra",
];
/// Longer ones first.
const COMPARISONS: [&str; 10] = ["===", "~=", "==", "!=", "<=", ">=", "<", ">", "not in", "in"];
/// Deepest nesting of parentheses.
const DEPTH: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Marker(Expression);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Expression {
    Any(Vec<Expression>),
    All(Vec<Expression>),
    Comparison(Side, &'static str, Side),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Variable(&'static str),
    Text(String),
}

impl Marker {
    pub fn parse(text: &str) -> Option<Self> {
        let mut parser = Parser { rest: text };
        let expression = parser.any(0)?;
        parser.skip_spaces();
        parser.rest.is_empty().then_some(Self(expression))
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn skip_spaces(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, token: &str) -> bool {
        self.skip_spaces();
        let Some(rest) = self.rest.strip_prefix(token) else { return false };
        // A word ends where it does: `order` does not begin with `or`.
        let is_word = token.ends_with(|c: char| c.is_ascii_alphabetic());
        if is_word && rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
            return false;
        }
        self.rest = rest;
        true
    }

    fn any(&mut self, depth: usize) -> Option<Expression> {
        let mut members = vec![self.all(depth)?];
        while self.take("or") {
            members.push(self.all(depth)?);
        }
        Some(one_or(members, Expression::Any))
    }

    fn all(&mut self, depth: usize) -> Option<Expression> {
        let mut members = vec![self.member(depth)?];
        while self.take("and") {
            members.push(self.member(depth)?);
        }
        Some(one_or(members, Expression::All))
    }

    fn member(&mut self, depth: usize) -> Option<Expression> {
        if self.take("(") {
            let inner = (depth < DEPTH).then(|| self.any(depth + 1)).flatten()?;
            return self.take(")").then_some(inner);
        }
        let left = self.side()?;
        let by = COMPARISONS.into_iter().find(|by| self.take(by))?;
        let right = self.side()?;
        let has_variable = [&left, &right].iter().any(|side| matches!(side, Side::Variable(_)));
        has_variable.then_some(Expression::Comparison(left, by, right))
    }

    fn side(&mut self) -> Option<Side> {
        self.skip_spaces();
        if let Some(variable) = VARIABLES.into_iter().find(|variable| self.take(variable)) {
            return Some(Side::Variable(variable));
        }
        let quote = self.rest.chars().next().filter(|c| matches!(c, '"' | '\''))?;
        let (text, rest) = self.rest[1..].split_once(quote)?;
        let allowed = |c: char| c.is_ascii_alphanumeric() || " .,_-+!*#:()/".contains(c);
        let text = text.chars().all(allowed).then(|| text.to_owned())?;
        self.rest = rest;
        Some(Side::Text(text))
    }
}

fn one_or(mut members: Vec<Expression>, many: fn(Vec<Expression>) -> Expression) -> Expression {
    if members.len() == 1 { members.remove(0) } else { many(members) }
}

impl fmt::Display for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any(members) => {
                let texts: Vec<String> = members.iter().map(ToString::to_string).collect();
                f.write_str(&texts.join(" or "))
            }
            Self::All(members) => {
                let text = |member: &Self| match member {
                    Self::Any(_) => format!("({member})"),
                    Self::All(_) | Self::Comparison(..) => member.to_string(),
                };
                let texts: Vec<String> = members.iter().map(text).collect();
                f.write_str(&texts.join(" and "))
            }
            Self::Comparison(left, by, right) => write!(f, "{left} {by} {right}"),
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => f.write_str(name),
            Self::Text(text) => write!(f, "\"{text}\""),
        }
    }
}
