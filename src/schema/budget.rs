//! What one check of a value may cost. A schema is a program that runs over a value, and clients, configurations and
//! models write both; so every step of a check is counted, and a check that needs too many steps, or goes too deep, is
//! given up as a whole.

use serde_json::Value;

use crate::protocol::limits::{CHECK_NESTING, CHECK_STEPS};
use crate::security_controls;

/// Bytes of text that one step looks at.
const BYTES_A_STEP: usize = 32;

/// Why a check ended before it was decided whether the value fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The steps or the nesting of the check are used up.
    TooLarge,
    /// The maximum number of reported problems is reached.
    EnoughProblems,
}

#[derive(Debug)]
pub(super) struct Budget {
    steps: u64,
    nesting: usize,
}

impl Budget {
    pub fn new() -> Self {
        Self { steps: CHECK_STEPS, nesting: CHECK_NESTING }
    }

    pub fn charge(&mut self, steps: u64) -> Result<(), Stop> {
        if security_controls::holds("schema_check_budget") {
            self.steps = self.steps.checked_sub(steps).ok_or(Stop::TooLarge)?;
        }
        Ok(())
    }

    /// Charges for one look at a text.
    pub fn charge_text(&mut self, text: &str) -> Result<(), Stop> {
        self.charge(1 + (text.len() / BYTES_A_STEP) as u64)
    }

    /// Charges for one part of a value, without the parts below it.
    pub fn charge_part(&mut self, value: &Value) -> Result<(), Stop> {
        match value {
            Value::String(text) => self.charge_text(text),
            _ => self.charge(1),
        }
    }

    pub fn enter(&mut self) -> Result<(), Stop> {
        self.nesting = self.nesting.checked_sub(1).ok_or(Stop::TooLarge)?;
        Ok(())
    }

    pub fn leave(&mut self) {
        self.nesting += 1;
    }
}
