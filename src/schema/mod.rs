//! Everything about JSON Schemas: whether a schema may be used at all, whether a value fits it and what is wrong if
//! not, the normalised arguments of a call, and the strict form that some providers want. All of it is pure. What
//! may take long leaves the threads that all users share: users write the schemas, the values and the patterns.

mod arguments;
mod budget;
mod checker;
mod circular_references;
mod equality;
mod evaluate;
mod evaluate_parts;
mod generate;
mod keywords;
mod nulls;
mod pattern_syntax;
mod patterns;
mod problem;
mod references;
mod strict;
#[cfg(test)]
mod tests;
mod well_formed;

pub use arguments::{CODE_PARAMETERS, parse};
pub use checker::{Checker, check};
pub use generate::{parameters_of, schema_of};
pub use problem::{Problem, excerpt};
pub use strict::{strict, undo};
