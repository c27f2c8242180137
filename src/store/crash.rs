//! Aborts the process on demand, for the test that kills the daemon at every commit in turn.
//!
//! `BELLJAR_CRASH_AT=n:before` aborts the process just before the n-th commit since the journal was opened; `n:after`
//! aborts just after the commit and before any waiting task learns of it. Release builds ignore the variable.

const VARIABLE: &str = "BELLJAR_CRASH_AT";

#[derive(Debug, Default)]
pub(super) struct CrashAt {
    at: Option<(u64, CrashSide)>,
    commits: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrashSide {
    Before,
    After,
}

impl CrashAt {
    pub fn of_this_process() -> Self {
        if !cfg!(debug_assertions) {
            return Self::default();
        }
        let at = std::env::var(VARIABLE).ok().and_then(|text| parse(&text));
        Self { at, commits: 0 }
    }

    pub fn before_commit(&mut self) {
        self.commits += 1;
        self.die_if(CrashSide::Before);
    }

    pub fn after_commit(&self) {
        self.die_if(CrashSide::After);
    }

    fn die_if(&self, now: CrashSide) {
        if self.at == Some((self.commits, now)) {
            std::process::abort();
        }
    }
}

fn parse(text: &str) -> Option<(u64, CrashSide)> {
    let (number, when) = text.split_once(':')?;
    let when = match when {
        "before" => CrashSide::Before,
        "after" => CrashSide::After,
        _ => return None,
    };
    Some((number.parse().ok()?, when))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_a_number_and_a_side() {
        assert_eq!(parse("3:before"), Some((3, CrashSide::Before)));
        assert_eq!(parse("12:after"), Some((12, CrashSide::After)));
        for wrong in ["", "3", "3:", ":after", "x:after", "3:between"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
