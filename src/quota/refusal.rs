//! The refusal that a user gets: which quota is used up, how much of it is used, and by what.

use crate::config::show_size;
use crate::protocol::problem::{Code, Problem};
use crate::protocol::quota::{Kind, Share, Unit};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitOwner {
    User,
    /// The limit for all users together. The refusal does not name the holders, because they may belong to other users.
    Machine,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub kind: Kind,
    pub whose: LimitOwner,
    pub wanted: u64,
    pub used: u64,
    pub limit: u64,
    /// The holders, the largest first.
    pub by: Vec<Share>,
}

impl Refusal {
    /// The message as a full sentence, with a capital letter and a full stop.
    #[must_use]
    pub fn sentence(&self) -> String {
        let message = self.message();
        let mut letters = message.chars();
        let first: String = letters.next().into_iter().flat_map(char::to_uppercase).collect();
        format!("{first}{}.", letters.as_str())
    }

    fn message(&self) -> String {
        let Self { kind, wanted, used, limit, .. } = self;
        let show = |amount| show_amount(*kind, amount);
        let whose = match self.whose {
            LimitOwner::User => "your quota of",
            LimitOwner::Machine => "all that this machine has of",
        };
        let asked = match wanted {
            0 => String::new(),
            wanted => format!(", and {} more would be needed", show(*wanted)),
        };
        let by: Vec<String> =
            self.by.iter().map(|share| format!("`{}` {}", share.by, show(share.amount))).collect();
        let by = if by.is_empty() { String::new() } else { format!(" (by {})", by.join(", ")) };
        // How much all users have is the concern of administrators alone.
        let used = match self.whose {
            LimitOwner::User => format!("{} of {} are used{by}", show(*used), show(*limit)),
            LimitOwner::Machine => format!("it has {}", show(*limit)),
        };
        format!("{whose} {kind} is used up: {used}{asked}")
    }

    fn hint(&self) -> String {
        let setting = match self.whose {
            LimitOwner::User => format!("quota.{}", self.kind.name()),
            LimitOwner::Machine => format!("machine.{}", self.kind.name()),
        };
        let remedy = match (self.whose, self.kind) {
            _ if self.wanted > self.limit => "ask for less",
            (LimitOwner::Machine, _) | (_, Kind::Cells | Kind::DaemonMemory) => "try again later",
            (_, Kind::Tokens) => "wait until tomorrow (UTC)",
            (_, Kind::Jobs) => "wait for a job to end",
            (_, Kind::Workspace) => "remove files, or a session with `belljar rm`",
            (_, Kind::Journal) => "remove a session with `belljar rm`, or a job with `belljar job rm`",
            (_, Kind::Sessions | Kind::Memory | Kind::Cpus | Kind::Processes) => {
                "remove a session with `belljar rm`"
            }
        };
        format!("{remedy}, or have `{setting}` raised; `belljar quota` shows all of it")
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        Self::new(Code::QuotaExceeded, refusal.message()).hint(refusal.hint())
    }
}

#[must_use]
pub fn show_amount(kind: Kind, amount: u64) -> String {
    match kind.unit() {
        Unit::Count => amount.to_string(),
        Unit::Bytes => show_size(amount),
        Unit::Millicpus => {
            let (whole, rest) = (amount / 1000, amount % 1000);
            let text = format!("{whole}.{rest:03}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_which_quota_how_much_is_used_and_by_what() {
        let share = |by: &str, amount| Share { by: by.into(), amount };
        let refusal = Refusal {
            kind: Kind::Memory,
            whose: LimitOwner::User,
            wanted: 2 << 30,
            used: 7 << 30,
            limit: 8 << 30,
            by: vec![share("train", 4 << 30), share("data", 3 << 30)],
        };
        let problem = Problem::from(refusal.clone());
        assert_eq!(problem.code, Code::QuotaExceeded);
        assert_eq!(
            problem.message,
            "your quota of memory with checkpoints is used up: 7 GiB of 8 GiB are used (by `train` 4 GiB, `data` 3 GiB), \
             and 2 GiB more would be needed"
        );
        assert_eq!(
            problem.hint.unwrap(),
            "remove a session with `belljar rm`, or have `quota.memory` raised; `belljar quota` shows all of it"
        );
        let machine = Refusal {
            kind: Kind::Cpus,
            whose: LimitOwner::Machine,
            wanted: 1500,
            used: 2000,
            limit: 3250,
            by: vec![],
        };
        assert_eq!(
            Problem::from(machine).message,
            "all that this machine has of CPUs is used up: it has 3.25, and 1.5 more would be needed"
        );
    }
}
