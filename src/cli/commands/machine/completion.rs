//! Completions for shells. What clap writes knows the commands and their flags; names of sessions and jobs come from the
//! daemon, which the shell asks with `belljar complete-names` at each press of Tab.

use std::any::TypeId;
use std::time::Duration;

use clap::{Arg, ArgAction, Args, Command, CommandFactory as _, ValueEnum};
use tokio::time::timeout;

use crate::cli::client::session_key::SessionKey;
use crate::cli::commands::job::key::JobKey;
use crate::cli::context::Context;
use crate::cli::entry::Cli;
use crate::cli::failure::Failure;
use crate::protocol::api::SessionList;
use crate::protocol::exit_codes as exit;
use crate::protocol::job::JobList;

/// Longest wait for names: the prompt of the shell stands still meanwhile.
const NAMES: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Print the completions for a shell.
///
/// For bash, for example: `belljar completions bash > ~/.local/share/bash-completion/completions/belljar`
#[derive(Debug, Args)]
pub(in crate::cli) struct Completions {
    shell: Shell,
}

/// What clap calls the function that completes, and what it is called here: its own name has one that asks for names first.
const FUNCTION: &str = "\n_belljar() {\n";
const WORDS_FUNCTION: &str = "\n_belljar_words() {\n";

const BASH: &str = r#"
_belljar() {
    local names IFS=$'\n'
    names="$("$1" complete-names -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)"
    if [[ -n "$names" ]]; then
        COMPREPLY=($(compgen -W "$names" -- "${COMP_WORDS[COMP_CWORD]}"))
    else
        IFS=$' \t\n'
        _belljar_words "$@"
    fi
}
"#;

const ZSH: &str = r#"
_belljar() {
    local -a names
    names=(${(f)"$("$words[1]" complete-names -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#names )); then
        compadd -a names
    else
        _belljar_words "$@"
    fi
}
"#;

const FISH: &str = r"
function __belljar_names
    set -l words (commandline -opc)
    command $words[1] complete-names -- $words[2..] (commandline -ct) 2>/dev/null
end
complete -c belljar -a '(__belljar_names)'
complete -c belljar -s s -l session -x -a '(__belljar_names)'
";

impl Completions {
    #[expect(clippy::unused_async, reason = "all commands are run in the same way")]
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        context.screen.raw(self.text().as_bytes()).map(|()| exit::SUCCESS)
    }

    fn text(&self) -> String {
        let (shell, names) = match self.shell {
            Shell::Bash => (clap_complete::Shell::Bash, BASH),
            Shell::Zsh => (clap_complete::Shell::Zsh, ZSH),
            Shell::Fish => (clap_complete::Shell::Fish, FISH),
        };
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut Cli::command(), "belljar", &mut text);
        let text = format!("\n{}", String::from_utf8_lossy(&text));
        let text = match text.split_once(FUNCTION) {
            // The function stands before the lines that give it to the shell.
            Some((head, function)) => format!("{head}{names}{WORDS_FUNCTION}{function}"),
            None => format!("{text}{names}"),
        };
        text.trim_start().to_owned()
    }
}

/// Print the names that the last of some words can be, one a line.
#[derive(Debug, Args)]
pub(in crate::cli) struct CompleteNames {
    /// The words after `belljar`.
    #[arg(last = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

/// What a word of a command line names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Session,
    Job,
}

impl CompleteNames {
    /// Says nothing where there is no daemon: who presses the Tab key wants none to be started.
    pub async fn run(self, context: &mut Context) -> Result<u8, Failure> {
        let mut root = Cli::command();
        root.build();
        if let Some(named) = named(&root, &self.words)
            && let Ok(Ok(names)) = timeout(NAMES, names(context, named)).await
        {
            names.iter().filter(|name| is_plain(name)).try_for_each(|name| context.screen.line(name))?;
        }
        Ok(exit::SUCCESS)
    }
}

async fn names(context: &Context, named: Named) -> Result<Vec<String>, Failure> {
    let client = context.client_of_running_daemon();
    match named {
        Named::Session => {
            let list: SessionList = client.get("/v1/sessions").await?.parse()?;
            Ok(list.sessions.into_iter().map(|session| session.name.to_string()).collect())
        }
        Named::Job => {
            let list: JobList = client.get("/v1/jobs").await?.parse()?;
            Ok(list.jobs.into_iter().flat_map(|job| [job.name, job.id.to_string()]).collect())
        }
    }
}

/// Whether a shell takes a name as it is. Shells expand some of what they complete, and scripts can have any name.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./=,@+".contains(&b)) && !name.starts_with('-')
}

/// What the last word is, by the grammar of the command line; none if it is neither a session nor a job.
fn named(root: &Command, words: &[String]) -> Option<Named> {
    let (last, before) = words.split_last()?;
    let mut command = root;
    let mut option = None;
    let (mut places, mut has_session) = (0, false);
    for word in before {
        if let Some(option) = option.take() {
            has_session |= kind(option) == Some(Named::Session);
            continue;
        }
        if word == "--" {
            // Arguments of something else follow.
            return None;
        } else if word.starts_with('-') {
            option = option_with_value(command, word);
        } else if let (0, Some(within)) = (places, command.find_subcommand(word)) {
            command = within;
        } else {
            places += 1;
        }
    }
    if let Some(option) = option {
        return kind(option);
    }
    if last.starts_with('-') {
        return None;
    }
    let takes_all = |arg: &&Arg| matches!(arg.get_action(), ArgAction::Append);
    let positional =
        command.get_positionals().nth(places).or_else(|| command.get_positionals().last().filter(takes_all));
    positional.and_then(|arg| match arg.get_value_names() {
        // A session may stand before a piece of code or a number, unless a flag names it.
        Some([name, ..]) if name.starts_with("[SESSION]") => {
            (places == 0 && !has_session).then_some(Named::Session)
        }
        _ => kind(arg),
    })
}

/// The option that a word is, if its value is the next word.
fn option_with_value<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let is_meant = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| word.chars().skip(1).eq([short])),
    };
    command.get_arguments().filter(|arg| arg.get_action().takes_values()).find(is_meant)
}

fn kind(arg: &Arg) -> Option<Named> {
    let parsed = arg.get_value_parser().type_id();
    if parsed == TypeId::of::<SessionKey>() {
        Some(Named::Session)
    } else if parsed == TypeId::of::<JobKey>() {
        Some(Named::Job)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_has_completions_with_the_commands_and_asks_for_names() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = format!("\n{}", Completions { shell }.text());
            assert!(text.contains("doctor") && text.contains("receipt"), "{shell:?}");
            assert_eq!(text.matches("complete-names -- ").count(), 1, "{shell:?}");
            let functions = usize::from(!matches!(shell, Shell::Fish));
            for function in [FUNCTION, WORDS_FUNCTION] {
                assert_eq!(text.matches(function).count(), functions, "{shell:?}: {function}");
            }
        }
    }

    #[test]
    fn words_that_name_sessions_and_jobs_are_known() {
        let mut root = Cli::command();
        root.build();
        let named = |line: &str| {
            let words: Vec<String> = line.split(' ').map(ToOwned::to_owned).collect();
            named(&root, &words)
        };
        for line in [
            "show ",
            "show la",
            "rm a ",
            "--json rm a b ",
            "exec -s ",
            "exec --session l",
            "exec ",
            "eval ",
            "ask --model m -s ",
            "undo -n 2 ",
            "wait ",
            "kill -s ",
        ] {
            assert_eq!(named(line), Some(Named::Session), "{line}");
        }
        for line in ["job show ", "job logs -f ", "job cancel a ", "job rm ", "job artifacts "] {
            assert_eq!(named(line), Some(Named::Job), "{line}");
        }
        for line in [
            "",
            "s",
            "show a ",
            "show -",
            "new ",
            "exec -s a ",
            "exec --timeout ",
            "job ",
            "job run ",
            "run -- ",
        ] {
            assert_eq!(named(line), None, "{line}");
        }
        assert!(is_plain("a.py") && !is_plain("a.py [n=1]") && !is_plain("$(true)") && !is_plain("-x"));
    }
}
