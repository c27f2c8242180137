//! Numbers, times and tables for people.

use serde::Serialize;
use unicode_width::UnicodeWidthStr as _;

pub(in crate::cli) use crate::config::show_size as size;
use crate::protocol::text::one_line;

/// Width of a progress bar.
const BAR_CHARS: u64 = 20;

/// `42s`, `5m`, `3h`, `2d`: the largest unit that is precise enough.
pub(in crate::cli) fn age(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds}s"),
        120..=7_199 => format!("{}m", seconds / 60),
        7_200..=172_799 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The word that an enum has in the API.
pub(in crate::cli) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

/// The text of a table's cell for a value that may be absent.
pub(in crate::cli) fn or_dash(value: Option<String>) -> String {
    value.unwrap_or_else(|| "-".to_owned())
}

/// Columns, as wide as their widest cell. The last one is not padded.
pub(in crate::cli) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Cells may hold any text; it is put on one line.
    pub fn new<const N: usize>(heads: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> Self {
        let cells = |row: [String; N]| row.iter().map(|cell| one_line(cell)).collect();
        Self { rows: [heads.map(ToOwned::to_owned)].into_iter().chain(rows).map(cells).collect() }
    }

    /// The table without its first columns.
    pub fn without_first(mut self, columns: usize) -> Self {
        self.rows.iter_mut().for_each(|row| drop(row.drain(..columns.min(row.len()))));
        self
    }

    /// The lines of the table, the header first.
    pub fn lines(&self) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max().unwrap_or(0)
            })
            .collect();
        let line = |row: &Vec<String>| {
            let mut line = String::new();
            for (cell, column) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.push_str(&" ".repeat(column - cell.width() + 2));
            }
            line.trim_end().to_owned()
        };
        self.rows.iter().map(line).collect()
    }
}

/// `[######--------------]`
pub(in crate::cli) fn bar(done: u64, total: u64) -> String {
    let filled =
        usize::try_from(done.min(total).saturating_mul(BAR_CHARS) / total.max(1)).unwrap_or_default();
    let left = usize::try_from(BAR_CHARS).unwrap_or_default().saturating_sub(filled);
    format!("[{}{}]", "#".repeat(filled), "-".repeat(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let sizes = [0, 1023, 1024, 1536, 12_288, 64 << 20, (64 << 20) - 1, 3 << 29, 16 << 30, u64::MAX];
        assert_eq!(
            sizes.map(size).join(", "),
            "0 B, 1023 B, 1 KiB, 1.5 KiB, 12 KiB, 64 MiB, 64 MiB, 1.5 GiB, 16 GiB, 16384 PiB"
        );
    }

    #[test]
    fn ages_are_short() {
        assert_eq!([0, 119, 120, 7_199, 7_200, 200_000].map(age).join(", "), "0s, 119s, 2m, 119m, 2h, 2d");
    }

    #[test]
    fn columns_are_aligned_whatever_the_cells_hold() {
        let rows = [["a", "one\ntwo\x1b[31m"], ["变量名", ""], ["longer-name", "x"]];
        let table = Table::new(["NAME", "VALUE"], rows.map(|row| row.map(ToOwned::to_owned)));
        insta::assert_snapshot!(table.lines().join("\n"), @r"
        NAME         VALUE
        a            one two
        变量名
        longer-name  x
        ");
    }

    proptest::proptest! {
        #[test]
        fn any_size_has_a_name(bytes in proptest::prelude::any::<u64>()) {
            assert!(size(bytes).ends_with('B'));
        }
    }
}
