//! Text with tags: `<pip-dependencies-to-install>` names packages, which the cell installs if the model may;
//! `<execution-code>` holds Python. A reply without code is the final answer. Other tools are called as functions in Python.
//!
//! Several blocks of code form one program, in their order. Results return as tool messages that answer a
//! call which stands for the tag.

use serde_json::Value;
use std::collections::HashSet;

use super::{Call, CallInput, DialectContext, Format, Intent, ParsedReply, Speech, nothing_said, only_text};
use crate::agent::history::NO_ARGUMENTS;
use crate::agent::words::{Field, Words};
use crate::protocol::chat::{ChatReply, Finish, ToolCall};
use crate::protocol::tool_names::{CELL_TOOL, INSTALL_TOOL};

const DEPENDENCIES: &str = "pip-dependencies-to-install";
const CODE: &str = "execution-code";
const CALL_NAME: &str = "execution_code";
/// The most packages of one reply that are looked at.
const DEPENDENCIES_LISTED: usize = 100;

/// The modules of the standard library, which models often list as packages to install.
const STANDARD: &str = "\
    abc aifc argparse array ast asynchat asyncio asyncore atexit audioop base64 bdb binascii bisect builtins \
    bz2 cProfile calendar cgi cgitb chunk cmath cmd code codecs codeop collections colorsys compileall \
    concurrent configparser contextlib contextvars copy copyreg crypt csv ctypes curses dataclasses datetime \
    dbm decimal difflib dis distutils doctest email encodings ensurepip enum errno faulthandler fcntl filecmp \
    fileinput fnmatch fractions ftplib functools gc getopt getpass gettext glob graphlib grp gzip hashlib \
    heapq hmac html http imaplib imghdr imp importlib inspect io ipaddress itertools json keyword linecache \
    locale logging lzma mailbox mailcap marshal math mimetypes mmap modulefinder msilib multiprocessing netrc \
    nis nntplib numbers operator optparse os ossaudiodev pathlib pdb pickle pickletools pipes pkgutil platform \
    plistlib poplib posix posixpath pprint profile pstats pty pwd py_compile pyclbr pydoc pyexpat queue quopri \
    random re readline reprlib resource rlcompleter runpy sched secrets select selectors shelve shlex shutil \
    signal site smtpd smtplib sndhdr socket socketserver spwd sqlite3 ssl stat statistics string stringprep \
    struct subprocess sunau symtable sys sysconfig syslog tabnanny tarfile telnetlib tempfile termios textwrap \
    threading time timeit tkinter token tokenize tomllib trace traceback tracemalloc tty turtle types typing \
    unicodedata unittest urllib uu uuid venv warnings wave weakref webbrowser wsgiref xdrlib xml xmlrpc zipapp \
    zipfile zipimport zlib zoneinfo";

pub(super) struct XmlTags;

impl Speech for XmlTags {
    fn format(&self, _scene: DialectContext) -> Format {
        Format::default()
    }

    fn parse(&self, reply: &ChatReply, step: u32, scene: DialectContext) -> ParsedReply {
        let words = scene.words;
        let malformed = |why| ParsedReply::new(only_text(reply), Intent::Malformed(why));
        if let Some(why) = nothing_said(reply, words) {
            return malformed(why);
        }
        let text = &reply.message.content;
        // In a truncated reply the tag may be unclosed, and only half of a program would run.
        if reply.finish == Finish::Length {
            return malformed(words.cut_reply());
        }
        if is_unclosed(text, CODE) {
            return malformed(words.unclosed_tag(CODE));
        }
        let wanted = dependencies(text);
        let blocks = contents(text, CODE).into_iter().map(unfenced);
        let code: Vec<&str> = blocks.filter(|block| !block.trim().is_empty()).collect();
        if code.is_empty() {
            return match wrong_tag(text, &wanted, words) {
                Some(why) => malformed(why),
                None => {
                    ParsedReply::new(only_text(reply), Intent::Answer { text: text.clone(), value: None })
                }
            };
        }
        let missing: Vec<&str> = wanted.iter().filter(|name| !has(scene, name)).map(String::as_str).collect();
        let code = code.join("\n");
        let input = if missing.is_empty() {
            CallInput::Cell(code)
        } else if scene.installs() {
            // In the cell itself, so that the rules for calls of its code hold, and a person who looks at it sees it. A
            // list of JSON is one of Python, too.
            CallInput::Cell(format!("{INSTALL_TOOL}({})\n{code}", Value::from(missing)))
        } else {
            CallInput::Impossible(
                words.missing_dependencies(&missing.join(", "), &scene.setup.dependencies.main),
            )
        };
        let call = Call::of_step(step, CELL_TOOL, input);
        let mut message = only_text(reply);
        message.tool_calls.push(ToolCall {
            id: call.id.clone(),
            name: CALL_NAME.to_owned(),
            arguments: NO_ARGUMENTS.to_owned(),
        });
        ParsedReply::new(message, Intent::Calls(vec![call]))
    }
}

/// What is wrong with the tags of a reply without code; none if it has no tag, and so is an answer.
fn wrong_tag(text: &str, wanted: &[String], words: Words) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let is_open = |tag: &str| lower.contains(&format!("<{tag}>"));
    let tag =
        [CODE, DEPENDENCIES].into_iter().find(|tag| is_open(tag) || lower.contains(&format!("</{tag}>")))?;
    Some(if !is_open(tag) {
        words.unopened_tag(tag)
    } else if is_unclosed(text, tag) {
        words.unclosed_tag(tag)
    } else {
        words.field(if wanted.is_empty() { tag } else { CODE }, Field::Empty)
    })
}

/// Whether the last tag of this name is not closed, so that it is not known where its content ends.
fn is_unclosed(text: &str, tag: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let last = lower.rfind(&format!("<{tag}>"));
    last.is_some_and(|open| !lower[open..].contains(&format!("</{tag}>")))
}

/// The contents of all tags of this name. A block extends to the last closing tag before the next opening
/// one, so that code may contain the closing tag; an unclosed tag extends to the end.
fn contents<'a>(text: &'a str, tag: &str) -> Vec<&'a str> {
    let lower = text.to_ascii_lowercase();
    let (open, close) = (format!("<{tag}>"), format!("</{tag}>"));
    let mut found = Vec::new();
    let mut position = 0;
    while let Some(start) = lower[position..].find(&open).map(|start| position + start + open.len()) {
        let next = lower[start..].find(&open).map_or(text.len(), |next| start + next);
        let end = lower[start..next].rfind(&close).map_or(next, |end| start + end);
        found.push(&text[start..end]);
        position = next;
    }
    found
}

/// The packages that a reply lists, each once, and no more than are looked at.
fn dependencies(text: &str) -> Vec<String> {
    let (mut names, mut seen) = (Vec::new(), HashSet::new());
    for name in contents(text, DEPENDENCIES).iter().flat_map(|list| before_tag(list).split([',', '\n'])) {
        let name = name.trim();
        if name.starts_with(['<', '>', '=', '!', '~']) {
            // A further range of the version of the package before it.
            if let Some(before) = names.last_mut() {
                *before = format!("{before},{name}");
            }
        } else if names.len() < DEPENDENCIES_LISTED && !name.is_empty() && seen.insert(name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The text up to the next tag: an unclosed list must not include the code after it. `<3` is no tag.
fn before_tag(list: &str) -> &str {
    let is_tag = |place: &usize| list[place + 1..].starts_with(|c: char| c == '/' || c.is_ascii_alphabetic());
    let end = list.match_indices('<').map(|(place, _)| place).find(is_tag);
    &list[..end.unwrap_or(list.len())]
}

/// The name as `pip` compares it, without versions and extras.
fn normal(name: &str) -> String {
    let bare = name.split(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '-' | '.')).next();
    bare.unwrap_or_default().to_ascii_lowercase().replace(['_', '.'], "-")
}

fn has(scene: DialectContext, name: &str) -> bool {
    let name = normal(name);
    STANDARD.split(' ').any(|module| module == name.replace('-', "_"))
        || scene.setup.dependencies.installed.iter().any(|known| normal(known) == name)
}

/// Removes a code fence, which models sometimes put into the tag.
fn unfenced(block: &str) -> &str {
    let trimmed = block.trim();
    let inside = trimmed.strip_prefix("```").and_then(|rest| rest.strip_suffix("```"));
    match inside.and_then(|inside| inside.split_once('\n')) {
        Some((_language, code)) => code,
        None => block.trim_matches('\n'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_in_every_form() {
        for (text, wanted) in [
            ("no code", vec![]),
            ("<execution-code>a < b > c</execution-code> done", vec!["a < b > c"]),
            ("<EXECUTION-CODE>a</Execution-Code> x <execution-code>b</execution-code>", vec!["a", "b"]),
            (
                "<execution-code>print('</execution-code>')</execution-code>",
                vec!["print('</execution-code>')"],
            ),
            ("ä <execution-code>ä = 1", vec!["ä = 1"]),
            ("<execution-code>a<execution-code>b</execution-code>", vec!["a", "b"]),
        ] {
            assert_eq!(contents(text, CODE), wanted, "{text}");
        }
        assert!(is_unclosed("x <execution-code>a</execution-code><Execution-Code>b", CODE));
        assert!(!is_unclosed("<execution-code>a</execution-code>", CODE) && !is_unclosed("no code", CODE));
        assert_eq!(unfenced("\n```python\nx = 1\n```\n"), "x = 1\n");
        assert_eq!(unfenced("\n  x = 1\n"), "  x = 1");
    }

    #[test]
    fn dependencies_are_trimmed_and_named_once() {
        let list = |text: &str| dependencies(&format!("<{DEPENDENCIES}>{text}</{DEPENDENCIES}>"));
        assert_eq!(list(" pandas, ,numpy>=2,\npandas"), ["pandas", "numpy>=2"]);
        assert_eq!(list("torch>=2, <3, x~=1.0,\n!=1.5"), ["torch>=2,<3", "x~=1.0,!=1.5"]);
        assert_eq!(list(""), Vec::<String>::new());
        let many: Vec<String> = (0..200_000).map(|number| format!("p{number}")).collect();
        assert_eq!(list(&many.join(",")), many[..DEPENDENCIES_LISTED]);
        assert_eq!(dependencies("<pip-dependencies-to-install>a, b<execution-code>c"), ["a", "b"]);
        assert_eq!(normal("Scikit_Learn[all]>=1.0"), "scikit-learn");
    }
}
