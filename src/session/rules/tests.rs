//! Adding rules to a sandbox only restricts it, and only a reset lifts rules.

use proptest::prelude::*;

use super::*;
use crate::config::load_text;
use crate::protocol::ask::{AskLimits, Dialect, Language};

const TOOLS: [&str; 4] = ["ask", "danger", "note", "read"];

fn names() -> impl Strategy<Value = BTreeSet<String>> {
    prop::collection::btree_set(prop::sample::select(TOOLS.as_slice()).prop_map(str::to_owned), 0..4)
}

fn rules() -> impl Strategy<Value = CellRules> {
    (prop::option::of(names()), names(), any::<bool>(), any::<bool>()).prop_map(
        |(allowed, approve, approve_outside, restricted)| CellRules {
            allowed,
            approve,
            approve_outside,
            restricted,
        },
    )
}

fn source() -> impl Strategy<Value = Source> {
    prop::option::of(1u64..6)
}

fn calls() -> impl Strategy<Value = (&'static str, bool)> {
    (prop::sample::select(TOOLS.as_slice()), any::<bool>())
}

fn runs() -> impl Strategy<Value = CallOrigin> {
    let of_source = |(source, is_program)| {
        if is_program { CallOrigin::Program(source) } else { CallOrigin::Cell(source) }
    };
    prop::option::of((source(), any::<bool>()))
        .prop_map(move |running| running.map_or(CallOrigin::Leftover, of_source))
}

/// The lower, the more is allowed.
fn strictness(verdict: &CallDecision) -> u8 {
    match verdict {
        CallDecision::Free => 0,
        CallDecision::Person { .. } => 1,
        CallDecision::Never(_) => 2,
    }
}

proptest! {
    /// The combination is never wider than either: it forbids, or has a person allow, every call for which
    /// one of the two does.
    #[test]
    fn tightened_is_never_wider_than_either(one in rules(), other in rules(), (name, outside) in calls()) {
        let (both, call) = (one.tightened(&other), Call { name, outside, nests: name == "ask" });
        prop_assert_eq!(both.allows(call), one.allows(call) && other.allows(call));
        prop_assert_eq!(both.wants_person(call), one.wants_person(call) || other.wants_person(call));
        prop_assert_eq!(both.restricted, one.restricted || other.restricted);
        prop_assert_eq!(&both, &other.tightened(&one));
        prop_assert_eq!(&both.tightened(&one), &both);
    }

    /// More code in a sandbox never allows more.
    #[test]
    fn what_is_bound_only_takes_away(
        before in prop::collection::vec((source(), rules()), 0..6),
        more in (source(), rules()),
        (name, outside) in calls(),
        runs in runs(),
    ) {
        let mut sandbox = SandboxRules::default();
        for (cell, (source, rules)) in (1u64..).zip(&before) {
            sandbox.bind(*source, rules, cell);
        }
        let call = Call { name, outside, nests: name == "ask" };
        let (verdict, combined) = (sandbox.judge(call, runs), sandbox.combined(CallOrigin::Cell(None)));
        sandbox.bind(more.0, &more.1, 100);
        prop_assert!(strictness(&sandbox.judge(call, runs)) >= strictness(&verdict));
        let after = sandbox.combined(CallOrigin::Cell(None));
        prop_assert_eq!(after.tightened(&combined), after);
        // A call that any of the rules forbid, or have a person allow, is never free.
        for (_, rules) in before.iter().chain([&more]) {
            if !rules.allows(call) || rules.wants_person(call) {
                prop_assert_ne!(sandbox.judge(call, runs), CallDecision::Free);
            }
        }
    }

    /// A reset frees the rules of the cells before it, and none of the later ones.
    #[test]
    fn a_reset_frees_what_was_before_it(
        before in prop::collection::vec((source(), rules()), 0..6),
        after in prop::collection::vec((source(), rules()), 0..6),
    ) {
        let (mut sandbox, mut fresh) = (SandboxRules::default(), SandboxRules::default());
        for (cell, (source, rules)) in (1u64..).zip(&before) {
            sandbox.bind(*source, rules, cell);
        }
        let reset = sandbox.newest();
        for (cell, (source, rules)) in (reset + 1..).zip(&after) {
            sandbox.bind(*source, rules, cell);
            fresh.bind(*source, rules, cell);
        }
        sandbox.release_up_to(reset);
        // An ask with cells before and after the reset keeps its earlier rules: never wider.
        for (source, bound) in &fresh.by_source {
            let rules = &sandbox.by_source[source].rules;
            prop_assert_eq!(&rules.tightened(&bound.rules), rules);
        }
        prop_assert_eq!(sandbox.by_source.keys().collect::<Vec<_>>(), fresh.by_source.keys().collect::<Vec<_>>());
    }

    /// No matter how many asks there were, none of their rules is forgotten.
    #[test]
    fn many_asks_are_held_together(asks in 1u64..(3 * ASKS_APART as u64), odd in 0u64..600) {
        let mut sandbox = SandboxRules::default();
        for ask in 1..=asks {
            let approve = if ask == odd { ["danger".to_owned()].into() } else { BTreeSet::new() };
            sandbox.bind(Some(ask), &CellRules { approve, ..CellRules::default() }, ask);
        }
        prop_assert!(sandbox.asks().count() <= ASKS_APART);
        let verdict = sandbox.judge(Call { name: "danger", outside: true, nests: false }, CallOrigin::Cell(None));
        prop_assert_eq!(verdict == CallDecision::Free, !(1..=asks).contains(&odd));
        prop_assert_eq!(sandbox.merged().count() > 0, asks > ASKS_APART as u64);
    }
}

fn named(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_person_may_allow_what_earlier_code_may_not_and_nobody_may_between_cells() {
    let mut sandbox = SandboxRules::default();
    let only_read = CellRules { allowed: Some(named(&["read"])), ..CellRules::default() };
    sandbox.bind(Some(3), &only_read, 1);
    let (note, read) = (
        Call { name: "note", outside: true, nests: false },
        Call { name: "read", outside: false, nests: false },
    );
    assert_eq!(sandbox.judge(note, CallOrigin::Cell(None)), CallDecision::Person { bound_by: Some(3) });
    assert_eq!(sandbox.judge(note, CallOrigin::Cell(Some(4))), CallDecision::Person { bound_by: Some(3) });
    let CallDecision::Never(own) = sandbox.judge(note, CallOrigin::Cell(Some(3))) else { panic!() };
    assert!(own.contains("allowed are: read"), "{own}");
    let CallDecision::Never(left) = sandbox.judge(note, CallOrigin::Leftover) else { panic!() };
    assert!(left.contains("ask 3") && left.contains("belljar reset"), "{left}");
    for runs in [CallOrigin::Leftover, CallOrigin::Cell(None), CallOrigin::Cell(Some(3))] {
        assert_eq!(sandbox.judge(read, runs), CallDecision::Free);
    }
}

#[test]
fn a_tool_that_a_person_has_to_allow_waits_for_one() {
    let mut sandbox = SandboxRules::default();
    sandbox.bind(Some(1), &CellRules { approve: named(&["note"]), ..CellRules::default() }, 1);
    let (note, read) = (
        Call { name: "note", outside: false, nests: false },
        Call { name: "read", outside: false, nests: false },
    );
    assert!(matches!(sandbox.judge(note, CallOrigin::Cell(Some(1))), CallDecision::Person { .. }));
    assert_eq!(sandbox.judge(read, CallOrigin::Cell(Some(1))), CallDecision::Free);
}

#[test]
fn a_program_has_the_strictest_rules_of_all_code() {
    let (mut sandbox, note) = (SandboxRules::default(), Call { name: "note", outside: true, nests: false });
    let programs = [None, Some(3), Some(4)].map(CallOrigin::Program);
    for program in programs {
        assert_eq!(sandbox.judge(note, program), CallDecision::Free);
    }
    // A person can still be asked for it, by whatever cell or command it seems to belong to.
    sandbox.bind(Some(4), &CellRules { approve: named(&["note"]), ..CellRules::default() }, 1);
    for program in programs {
        assert!(matches!(sandbox.judge(note, program), CallDecision::Person { .. }), "{program:?}");
    }
    sandbox.bind(Some(3), &CellRules { allowed: Some(named(&["read"])), ..CellRules::default() }, 2);
    for program in programs {
        assert!(matches!(sandbox.judge(note, program), CallDecision::Never(_)), "{program:?}");
    }
    sandbox.release_up_to(2);
    assert_eq!(sandbox.judge(note, programs[0]), CallDecision::Free);
}

#[test]
fn what_a_program_begins_has_the_rules_of_code_that_no_cell_brought() {
    let base = CellRules { approve: named(&["note"]), ..CellRules::default() };
    let sandbox = SandboxRules::new(Arc::new(base.clone()));
    for origin in [CallOrigin::Program(Some(3)), CallOrigin::Cell(None), CallOrigin::Leftover] {
        assert_eq!(sandbox.combined(origin), base, "{origin:?}");
    }
    assert_eq!(sandbox.combined(CallOrigin::Cell(Some(3))), CellRules::default());
}

#[test]
fn a_call_that_waited_for_a_person_never_becomes_free() {
    let base = CellRules { approve: named(&["note"]), ..CellRules::default() };
    let (sandbox, note) =
        (SandboxRules::new(Arc::new(base)), Call { name: "note", outside: true, nests: false });
    assert_eq!(sandbox.judge(note, CallOrigin::Program(Some(3))), CallDecision::Person { bound_by: None });
    // The next daemon does not know that a program made the call.
    let again = sandbox.judge(note, CallOrigin::Cell(Some(3))).after_waiting();
    assert_eq!(again, CallDecision::Person { bound_by: None });
    let never = CallDecision::Never("why".into());
    assert_eq!(never.clone().after_waiting(), never);
}

#[test]
fn asks_within_are_begun_by_cells_of_their_own_ask_or_by_the_owner() {
    let (mut sandbox, nested) = (SandboxRules::default(), Call { name: "ask", outside: true, nests: true });
    for runs in [CallOrigin::Leftover, CallOrigin::Cell(None)] {
        assert_eq!(sandbox.judge(nested, runs), CallDecision::Free);
    }
    sandbox.bind(Some(1), &CellRules::default(), 1);
    assert!(matches!(sandbox.judge(nested, CallOrigin::Leftover), CallDecision::Never(_)));
    assert_eq!(sandbox.judge(nested, CallOrigin::Cell(None)), CallDecision::Person { bound_by: Some(1) });
    assert_eq!(sandbox.judge(nested, CallOrigin::Cell(Some(1))), CallDecision::Free);
    assert_eq!(sandbox.judge(nested, CallOrigin::Cell(Some(2))), CallDecision::Free);
    sandbox.release_up_to(1);
    assert_eq!(sandbox.judge(nested, CallOrigin::Leftover), CallDecision::Free);
}

#[test]
fn the_policy_of_an_ask_within_covers_all_that_is_around_it() {
    let careful = CellRules::of_policy(&ApprovalPolicy::Ask);
    let some = CellRules::of_policy(&ApprovalPolicy::Tools(vec!["read".into()]));
    assert_eq!(some.policy(), (ApprovalPolicy::Tools(vec!["read".into()]), Vec::new()));
    assert_eq!(careful.tightened(&some).policy(), (ApprovalPolicy::Ask, vec!["read".to_owned()]));
    assert_eq!(CellRules::default().policy(), (ApprovalPolicy::Auto, Vec::new()));
}

fn spec(approval: ApprovalPolicy, also: &[&str]) -> AskSpec {
    AskSpec {
        text: "t".into(),
        model: "m".into(),
        dialect: Dialect::ToolCalls,
        language: Language::English,
        approval,
        also_approve: also.iter().map(|name| (*name).to_owned()).collect(),
        tools: Vec::new(),
        lean: false,
        schema: None,
        context: Map::new(),
        system: None,
        restricted: false,
        limits: AskLimits { steps: 1, failures: 1, tokens: 1, seconds: 1.0 },
        fresh: false,
        depth: 0,
    }
}

#[test]
fn a_person_allows_of_a_models_calls_what_the_policy_says() {
    let named = |names: &[&str]| ApprovalPolicy::Tools(names.iter().map(|name| (*name).to_owned()).collect());
    let cases = [
        (ApprovalPolicy::Auto, vec![], false, vec![]),
        (ApprovalPolicy::Auto, vec!["pay"], false, vec!["pay"]),
        (ApprovalPolicy::Ask, vec!["read"], true, vec!["compute_with_python", "mail", "read", "run_command"]),
        (named(&["pay"]), vec!["read"], false, vec!["pay", "read"]),
        (named(&["exec_code"]), vec![], true, vec!["exec_code"]),
        (ApprovalPolicy::Auto, vec!["execute_python_code"], true, vec!["execute_python_code"]),
    ];
    for (policy, also, cells, tools) in cases {
        let wanted = of_model(&spec(policy.clone(), &also), ["mail".to_owned()].into());
        assert_eq!(wanted.cells, cells, "{policy:?}");
        assert_eq!(wanted.tools.iter().map(String::as_str).collect::<Vec<_>>(), tools, "{policy:?}");
    }
}

/// What the owner's code has left behind may call in the name of a model's cell.
#[test]
fn a_person_decides_for_a_models_cell_what_code_of_the_owner_may_not_install() {
    let tools = Registry::built_in().unwrap();
    let install = tools.definition(INSTALL_TOOL).unwrap();
    let of_ask = CellRules { allowed: Some(named(&[INSTALL_TOOL])), ..CellRules::default() };
    let person = CallDecision::Person { bound_by: None };
    for (policy, decided) in [("auto", CallDecision::Free), ("ask", person.clone()), ("never", person)] {
        let text = format!("[packages]\nby_owner = \"{policy}\"\n");
        let settings = load_text(std::path::Path::new("x"), &text).unwrap().settings;
        let of_client = CellRules::of_client(&settings.agent, settings.packages.by_owner, &tools);
        let mut sandbox = SandboxRules::new(Arc::new(of_client.clone()));
        sandbox.bind(Some(3), &of_ask, 1);
        let decide = |sandbox: &SandboxRules| sandbox.decide(install, &Map::new(), CallOrigin::Cell(Some(3)));
        assert_eq!(decide(&sandbox), CallDecision::Free, "{policy}: no cell of the owner ran");
        sandbox.bind(None, &of_client, 2);
        assert_eq!(decide(&sandbox), decided, "{policy}");
        sandbox.reset(2, None);
        sandbox.bind(Some(4), &of_ask, 3);
        assert_eq!(decide(&sandbox), CallDecision::Free, "{policy}: a reset ended the owner's code");
    }
}

#[test]
fn nobody_is_asked_about_what_cannot_be_looked_through() {
    let mut sandbox = SandboxRules::default();
    sandbox.bind(None, &CellRules { approve: ["pay".to_owned()].into(), ..CellRules::default() }, 1);
    let tool = Definition::new("pay", "", Value::Null);
    let size = usize::try_from(APPROVAL_BYTES).unwrap();
    let decided = |bytes| {
        let arguments = Map::from_iter([("a".to_owned(), Value::String("x".repeat(bytes)))]);
        sandbox.decide(&tool, &arguments, CallOrigin::Cell(None))
    };
    assert_eq!(decided(1), CallDecision::Person { bound_by: None });
    assert!(matches!(decided(size), CallDecision::Never(_)));
    let local = Definition { local: true, ..tool.clone() };
    assert!(matches!(sandbox.decide(&local, &Map::new(), CallOrigin::Cell(None)), CallDecision::Never(_)));
}
