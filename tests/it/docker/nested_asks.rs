//! Asks that the code of an ask makes: what they share with it, and how they end with it.

use serde_json::{Value, json};

use super::asking::{ask, conversation, events_of, runs, says, scripted};
use super::helpers::{number, text};
use crate::support::Daemon;

fn tokens(usage: &Value) -> u64 {
    number(usage, "/prompt_tokens") + number(usage, "/completion_tokens")
}

fn spent_within(daemon: &Daemon) -> Vec<u64> {
    events_of(daemon, "ask_spent_within").iter().map(|event| tokens(&event["usage"])).collect()
}

/// Asks at once, and prints which were answered.
const AT_ONCE: &str = "\
from concurrent.futures import ThreadPoolExecutor
def inner(place):
    try:
        return ask('the inner one')
    except ToolError as error:
        return error.message
with ThreadPoolExecutor(4) as pool:
    answers = list(pool.map(inner, range(4)))
print(sum(answer == 'inner done' for answer in answers), 'of 4 were answered')
print(*answers, sep='\\n')";

#[test]
fn asks_within_an_ask_share_its_tokens() {
    let slowly = format!("{}delay_ms = 1500\n", says("inner done"));
    let script = [
        conversation("the inner one", &[slowly]),
        conversation("one", &[runs("print(ask('the inner one'))"), says("outer done")]),
        conversation("many", &[runs(AT_ONCE), says("outer done")]),
    ]
    .concat();
    let Some(daemon) = scripted("", &script) else { return };

    let end = ask(&daemon, json!({"text": "one"}));
    assert_eq!(text(&end, "answer"), "outer done", "{end:#}");
    let (all, inner) = (tokens(&end["usage"]), spent_within(&daemon)[0]);
    assert!(inner > 100 && all > inner, "{all} with {inner} within");

    // Without the inner ask this would be enough by far.
    let end = ask(&daemon, json!({"text": "one", "fresh": true, "limits": {"tokens": all - 50}}));
    assert_eq!(text(&end, "outcome"), "token_limit", "{end:#}");

    // Each of the four alone would fit.
    let most = all + inner;
    let before = spent_within(&daemon).len();
    let end = ask(&daemon, json!({"text": "many", "fresh": true, "limits": {"tokens": most}}));
    let finished = events_of(&daemon, "cell_finished").pop().expect("a result");
    let said = text(&finished, "/result/stdout");
    let answered = spent_within(&daemon).len() - before;
    assert!((1..4).contains(&answered), "{said}");
    assert!(said.starts_with(&format!("{answered} of 4")) && said.contains("TokenLimit"), "{said}");
    // How long a reply will be is not known before.
    assert!(number(&end, "/usage/prompt_tokens") <= most, "{end:#}");
    daemon.assert_sound();
}
