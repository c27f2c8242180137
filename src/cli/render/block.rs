//! Blocks of text that a person sees of an ask, independent of the output: tests compare lists of them, and a
//! screen shows them.

use crate::cli::failure::Failure;
use crate::cli::render::highlight::highlighted;
use crate::cli::render::screen::{Screen, Tint};
use crate::protocol::result::Stream;
use crate::protocol::text::{one_line, sanitized, visible};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) enum Block {
    /// Begins a section: its kind, and details about it.
    Head(Section, String),
    /// Text that may continue; where it is cut has no meaning.
    Flow(String),
    /// Whole lines that matter less than the text around them.
    Aside(String),
    /// Python.
    Code(String),
    /// The Markdown of a plan.
    Plan(String),
    Note(String),
    Warning(String),
    Trouble(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::cli) enum Section {
    Reasoning,
    Thought,
    Model,
    Refusal,
    Code,
    Output,
    Result,
    Exception,
    Tool,
    ToolAnswer,
    Plan,
    Approval,
    Answer,
}

impl Section {
    fn label(self) -> (Tint, &'static str) {
        match self {
            Self::Reasoning => (Tint::Dim, "reasoning"),
            Self::Thought => (Tint::Bold, "thought"),
            Self::Model => (Tint::Bold, "model"),
            Self::Refusal => (Tint::Red, "refusal"),
            Self::Code => (Tint::Bold, "code"),
            Self::Output => (Tint::Dim, "output"),
            Self::Result => (Tint::Dim, "result"),
            Self::Exception => (Tint::Red, "exception"),
            Self::Tool => (Tint::Cyan, "tool"),
            Self::ToolAnswer => (Tint::Dim, "tool answer"),
            Self::Plan => (Tint::Bold, "plan"),
            Self::Approval => (Tint::Yellow, "approval wanted"),
            Self::Answer => (Tint::Green, "answer"),
        }
    }
}

impl Screen {
    pub fn show_all(&mut self, blocks: &[Block]) -> Result<(), Failure> {
        blocks.iter().try_for_each(|block| self.show(block))
    }

    /// Shows a block on stderr, which a watching person reads.
    pub fn show(&mut self, block: &Block) -> Result<(), Failure> {
        match block {
            Block::Flow(text) => self.guest(Stream::Stderr, text),
            Block::Note(text) => self.note(text),
            Block::Warning(text) => self.warn(text),
            Block::Trouble(text) => self.error(text),
            Block::Head(..) | Block::Aside(_) | Block::Code(_) | Block::Plan(_) => {
                self.block(&render(block, self.colors_watched()))
            }
        }
    }
}

/// The text without its last line end. Everything that a terminal would obey is removed, except for
/// Belljar's own colours.
pub(in crate::cli) fn render(block: &Block, color: bool) -> String {
    let painted = |tint: Tint, text: &str| if color { tint.paint(text) } else { text.to_owned() };
    let text = match block {
        Block::Head(section, more) => {
            let (tint, label) = section.label();
            let (rule, label) = (painted(Tint::Dim, "──"), painted(tint, label));
            let more = one_line(more);
            if more.is_empty() { format!("{rule} {label}") } else { format!("{rule} {label} {more}") }
        }
        Block::Code(code) if color => highlighted(&visible(code)),
        Block::Code(code) => visible(code),
        Block::Plan(markdown) => lines(markdown, |line| {
            plan_tint(line).map_or_else(|| line.to_owned(), |tint| painted(tint, line))
        }),
        Block::Aside(text) => lines(text, |line| painted(Tint::Dim, line)),
        Block::Flow(text) | Block::Note(text) => sanitized(text),
        Block::Warning(text) => format!("warning: {}", sanitized(text)),
        Block::Trouble(text) => format!("error: {}", sanitized(text)),
    };
    text.trim_end_matches('\n').to_owned()
}

/// Paints each line separately, since a colour must not extend over a line end.
fn lines(text: &str, paint: impl Fn(&str) -> String) -> String {
    sanitized(text).lines().map(paint).collect::<Vec<_>>().join("\n")
}

/// The colour of a plan's line, by the sign of the task's status; notes below a task are quoted.
fn plan_tint(line: &str) -> Option<Tint> {
    if line.trim_start().starts_with('>') {
        return Some(Tint::Dim);
    }
    let signs =
        [('✅', Tint::Green), ('⚡', Tint::Cyan), ('♻', Tint::Yellow), ('❌', Tint::Red), ('⏭', Tint::Dim)];
    signs.into_iter().find(|(sign, _)| line.contains(&format!("[{sign}"))).map(|(_, tint)| tint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_cannot_reach_the_terminal_through_any_of_it() {
        let nasty = "a\x1b]0;t\x07b\u{202e}\x1b[2J".to_owned();
        for block in [
            Block::Head(Section::Tool, nasty.clone()),
            Block::Aside(nasty.clone()),
            Block::Code(nasty.clone()),
            Block::Plan(nasty.clone()),
            Block::Flow(nasty.clone()),
            Block::Note(nasty.clone()),
            Block::Warning(nasty.clone()),
            Block::Trouble(nasty),
        ] {
            let text = render(&block, false);
            assert!(!text.contains(|c: char| c.is_control() || c == '\u{202e}'), "{text:?}");
        }
    }

    #[test]
    fn only_our_own_colours_are_left() {
        let plan = Block::Plan("- [✅] **a**\x1b[31m\n  > done\n- [⏳] **b**\n".into());
        assert_eq!(render(&plan, true), "\x1b[32m- [✅] **a**\x1b[0m\n\x1b[2m  > done\x1b[0m\n- [⏳] **b**");
        assert_eq!(render(&Block::Code("1\n".into()), true), "\x1b[34m1\x1b[0m");
    }
}
