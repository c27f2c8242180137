//! Assembles fixed and elastic text within a number of characters.

/// The longest run of backticks that is shown as it is. A fence is one longer than any run in its text, so
/// this also bounds the length of a fence.
const BACKTICKS: usize = 32;

/// Lines of the report in order.
#[derive(Default)]
pub(super) struct Draft {
    parts: Vec<Part>,
    /// Whether the text of the guest stands without fences and lines without the signs of headings.
    is_bare: bool,
}

enum Part {
    Fixed(String),
    Fenced { fence: String, text: String, chars: usize },
}

impl Draft {
    pub fn bare() -> Self {
        Self { is_bare: true, ..Self::default() }
    }

    /// A line that is never shortened.
    pub fn line(&mut self, line: &str) {
        let line = if self.is_bare { line.trim_start_matches(['#', ' ']) } else { line };
        self.parts.push(Part::Fixed(line.to_owned()));
    }

    /// Adds text of the guest, in a fence unless the report is bare.
    pub fn fenced(&mut self, text: &str) {
        let text = tamed(text);
        let backticks = if self.is_bare { 0 } else { longest_run(&text).saturating_add(1).max(3) };
        let fence = "`".repeat(backticks);
        let chars = text.chars().count();
        self.parts.push(Part::Fenced { fence, text, chars });
    }

    /// Renders the report; `notice` gives the text for the number of omitted characters.
    pub fn render(self, limit: usize, notice: impl Fn(usize) -> String) -> String {
        let fixed: usize = self.parts.iter().map(Part::fixed_chars).sum();
        let wanted = self.parts.iter().map(Part::elastic_chars).collect::<Vec<_>>();
        let share = fair_share(&wanted, limit.saturating_sub(fixed));
        let mut report = String::new();
        for part in self.parts {
            match part {
                Part::Fixed(line) => report.push_str(&line),
                Part::Fenced { fence, text, chars } if fence.is_empty() => {
                    report.push_str(&shortened(&text, chars, share, &notice));
                }
                Part::Fenced { fence, text, chars } => {
                    report.push_str(&fence);
                    report.push('\n');
                    report.push_str(&shortened(&text, chars, share, &notice));
                    report.push('\n');
                    report.push_str(&fence);
                }
            }
            report.push('\n');
        }
        // Needed only if even the fixed lines do not fit.
        match report.char_indices().nth(limit) {
            Some((end, _)) => report[..end].to_owned(),
            None => report,
        }
    }
}

impl Part {
    fn fixed_chars(&self) -> usize {
        match self {
            Self::Fixed(line) => line.chars().count() + 1,
            Self::Fenced { fence, .. } => 2 * fence.len() + 3,
        }
    }

    fn elastic_chars(&self) -> usize {
        match self {
            Self::Fixed(_) => 0,
            Self::Fenced { chars, .. } => *chars,
        }
    }
}

/// The most characters for each text, so that all together stay within `budget`: short texts stay whole, and
/// the space that they leave goes to the long ones.
fn fair_share(wanted: &[usize], budget: usize) -> usize {
    let mut sorted = wanted.to_vec();
    sorted.sort_unstable();
    let mut left = budget;
    for (index, want) in sorted.iter().enumerate() {
        let share = left / (sorted.len() - index);
        if *want > share {
            return share;
        }
        left -= want;
    }
    usize::MAX
}

/// The text in at most `limit` characters: the head, a notice on its own line, the tail.
pub(in crate::agent) fn shortened(
    text: &str,
    chars: usize,
    limit: usize,
    notice: &impl Fn(usize) -> String,
) -> String {
    if chars <= limit {
        return text.to_owned();
    }
    // The number of omitted characters has at most as many digits as the number of all characters.
    let reserved = notice(chars).chars().count() + 2;
    let Some(chars_left) = limit.checked_sub(reserved) else {
        return String::new();
    };
    let tail = chars_left / 2;
    let head = chars_left - tail;
    let start = byte_of(text, head);
    let end = byte_of(text, chars - tail);
    format!("{}\n{}\n{}", &text[..start], notice(chars - chars_left), &text[end..])
}

fn byte_of(text: &str, char_index: usize) -> usize {
    text.char_indices().nth(char_index).map_or(text.len(), |(byte, _)| byte)
}

fn longest_run(text: &str) -> usize {
    let (mut longest, mut run) = (0, 0);
    for c in text.chars() {
        run = if c == '`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    longest
}

/// The text without a final line break, and without runs of backticks that would need a huge fence.
fn tamed(text: &str) -> String {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let mut run = 0;
    text.chars()
        .filter(|c| {
            run = if *c == '`' { run + 1 } else { 0 };
            run <= BACKTICKS
        })
        .collect()
}

pub(super) fn number_lines(source: &str) -> String {
    let count = source.lines().count();
    let width = count.to_string().len();
    let lines: Vec<String> =
        source.lines().enumerate().map(|(index, line)| format!("{:>width$} | {line}", index + 1)).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_texts_stay_whole_and_long_ones_share_the_rest() {
        assert_eq!(fair_share(&[], 10), usize::MAX);
        assert_eq!(fair_share(&[3, 4], 7), usize::MAX);
        assert_eq!(fair_share(&[2, 100, 100], 22), 10);
        assert_eq!(fair_share(&[5, 5], 0), 0);
    }

    #[test]
    fn a_text_is_cut_in_its_middle() {
        let notice = |n: usize| format!("[{n}]");
        assert_eq!(shortened("0123456789", 10, 10, &notice), "0123456789");
        assert_eq!(shortened("0123456789", 10, 9, &notice), "01\n[7]\n9");
        assert_eq!(shortened("äöüäöüäöüä", 10, 8, &notice), "ä\n[8]\nä");
        assert_eq!(shortened("0123456789", 10, 3, &notice), "");
    }

    #[test]
    fn lines_are_numbered_in_a_column() {
        let source = "a = 1\n".repeat(10);
        let numbered = number_lines(&source);
        assert!(numbered.starts_with(" 1 | a = 1\n") && numbered.ends_with("10 | a = 1"), "{numbered}");
    }
}
