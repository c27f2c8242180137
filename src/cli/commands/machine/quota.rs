//! `belljar quota`: which resources are bounded, and how much of each is used.

use clap::Args;

use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::render::human::{Table, or_dash, size};
use crate::protocol::api::QuotaView;
use crate::protocol::quota::{QuotaUsage, Unit};

/// Show your quotas, and what uses them.
#[derive(Debug, Args)]
pub(in crate::cli) struct Quota {
    /// Show the quotas of another user, by name or number; for administrators.
    #[arg(long, value_name = "USER")]
    user: Option<String>,
}

impl Quota {
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let path = match &self.user {
            None => "/v1/quota".to_owned(),
            Some(user) if user.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) => {
                format!("/v1/quota?user={user}")
            }
            Some(_) => return Err(Failure::usage("this is no name of a user")),
        };
        let answer = context.client().get(&path).await?;
        context.show(&answer, |screen, view: QuotaView| screen.table(&table(&view.quotas)))
    }
}

fn table(quotas: &[QuotaUsage]) -> Table {
    let cells = |quota: &QuotaUsage| {
        let show = |amount: u64| amount_of(quota.unit, amount);
        let by: Vec<String> =
            quota.by.iter().map(|share| format!("{} {}", share.by, show(share.amount))).collect();
        [quota.kind.to_string(), show(quota.used), or_dash(quota.limit.map(show)), by.join(", ")]
    };
    Table::new(["QUOTA", "USED", "OF", "BY"], quotas.iter().map(cells))
}

fn amount_of(unit: Unit, amount: u64) -> String {
    match unit {
        Unit::Count => amount.to_string(),
        Unit::Bytes => size(amount),
        Unit::Millicpus => {
            let text = format!("{}.{:03}", amount / 1000, amount % 1000);
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::quota::{Kind, Share};

    #[test]
    fn quotas_are_shown_as_a_table() {
        let usage = |kind: Kind, used, limit, by: &[(&str, u64)]| QuotaUsage {
            kind,
            unit: kind.unit(),
            used,
            limit,
            by: by.iter().map(|(by, amount)| Share { by: (*by).to_owned(), amount: *amount }).collect(),
        };
        let table = table(&[
            usage(Kind::Sessions, 2, Some(32), &[("a", 1), ("b", 1)]),
            usage(Kind::Cpus, 1500, Some(64_000), &[("a", 1500)]),
            usage(Kind::Memory, 3 << 30, None, &[]),
        ]);
        insta::assert_snapshot!(table.lines().join("\n"), @r"
        QUOTA     USED   OF  BY
        sessions  2      32  a 1, b 1
        CPUs      1.5    64  a 1.5
        memory    3 GiB  -
        ");
    }
}
