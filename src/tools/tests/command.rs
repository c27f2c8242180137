//! Command tools, with real programs.

use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::port::MemoryPort;
use super::{call, text_of};
use crate::config::CommandTool;
use crate::protocol::frames::ToolFailure;
use crate::protocol::principal::Principal;
use crate::protocol::problem::{Code, Problem};
use crate::tools::{Owner, Registry, ToolOutput};

const NOBODY: Owner = Owner { principal: Principal::new(65_534), gid: 65_534 };

fn tool(argv: &[&str]) -> CommandTool {
    CommandTool {
        read_only: false,
        description: "A program.".into(),
        parameters: json!({"properties": {"x": {}}}),
        output: None,
        argv: argv.iter().map(|part| (*part).to_owned()).collect(),
        timeout: Duration::from_secs(20),
        output_bytes: 10_000,
        env: Vec::new(),
        env_file: None,
        cwd: "/".into(),
    }
}

async fn run(tool: CommandTool, arguments: Value, port: MemoryPort) -> Result<ToolOutput, ToolFailure> {
    let registry = Registry::default().with_commands(&BTreeMap::from([("tool".to_owned(), tool)])).unwrap();
    call(&registry, &Arc::new(port), "tool", arguments).await
}

async fn run_here(tool: CommandTool) -> Result<ToolOutput, ToolFailure> {
    run(tool, json!({}), MemoryPort::default()).await
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[tokio::test]
async fn arguments_come_on_stdin_and_text_goes_out() {
    let output = run(tool(&["cat"]), json!({"x": "a'; rm -rf / #"}), MemoryPort::default()).await.unwrap();
    assert_eq!(output, ToolOutput::Text("{\"x\":\"a'; rm -rf / #\"}".into()));
}

#[test]
fn a_program_is_free_of_effects_if_the_configuration_says_so() {
    for read_only in [false, true] {
        let tools = BTreeMap::from([("look".to_owned(), CommandTool { read_only, ..tool(&["cat"]) })]);
        let registry = Registry::default().with_commands(&tools).unwrap();
        assert_eq!(registry.definition("look").unwrap().read_only, read_only);
    }
}

#[tokio::test]
async fn nothing_goes_through_a_shell() {
    assert_eq!(run_here(tool(&["echo", "$HOME; ls"])).await, Ok(ToolOutput::Text("$HOME; ls".into())));
}

#[tokio::test]
async fn with_an_output_schema_json_comes_out_as_a_value() {
    let output = Some(json!({"type": "object", "required": ["x"]}));
    let json_tool = CommandTool { output, ..tool(&["cat"]) };
    let value = run(json_tool.clone(), json!({"x": [1]}), MemoryPort::default()).await;
    assert_eq!(value, Ok(ToolOutput::Value(json!({"x": [1]}))));
    let wrong = run(json_tool.clone(), json!({}), MemoryPort::default()).await.unwrap_err();
    assert!(wrong.message.contains("not as promised:\n- `/x`: "), "{wrong:?}");
    let no_json = CommandTool { argv: vec!["echo".into(), "hello".into()], ..json_tool };
    assert!(run_here(no_json).await.unwrap_err().message.contains("did not print JSON"));
}

#[tokio::test]
async fn the_environment_is_bare() {
    let ToolOutput::Text(text) = run_here(tool(&["env"])).await.unwrap() else { panic!() };
    let mut names: Vec<&str> = text.lines().filter_map(|line| Some(line.split_once('=')?.0)).collect();
    names.sort_unstable();
    assert_eq!(names, ["HOME", "LANG", "PATH"]);
}

#[tokio::test]
async fn a_program_that_fails_is_told_with_the_end_of_its_stderr() {
    let failing = tool(&["sh", "-c", "head -c 100000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 3"]);
    let failure = run_here(failing).await.unwrap_err();
    assert_eq!(failure.code, "failed");
    assert!(
        failure.message.contains("exit status: 3") && failure.message.ends_with("the end"),
        "{failure:?}"
    );
    assert!(failure.message.len() < 5_000);
    let missing = run_here(tool(&["/no/such/program"])).await.unwrap_err();
    assert!(missing.message.contains("cannot be run"), "{missing:?}");
}

#[tokio::test]
async fn a_program_that_prints_without_end_is_stopped() {
    let failure = run_here(tool(&["yes"])).await.unwrap_err();
    assert_eq!(failure.code, "too_large");
}

#[tokio::test]
async fn a_program_that_ignores_its_arguments_is_no_trouble() {
    let arguments = json!({"x": "y".repeat(1_000_000)});
    let output = run(tool(&["true"]), arguments, MemoryPort::default()).await;
    assert_eq!(output, Ok(ToolOutput::Text(String::new())));
}

/// Waits until a process is gone, and fails if that takes too long.
async fn is_gone(pid: &str) {
    let path = Path::new("/proc").join(pid.trim());
    let deadline = Instant::now() + Duration::from_secs(10);
    while path.exists() {
        let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        if stat.contains(") Z ") {
            return;
        }
        assert!(Instant::now() < deadline, "process {pid} lives on");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn when_its_time_is_up_the_whole_group_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pids");
    let script = format!("trap '' TERM; sleep 1000 & echo $! $$ > {}; wait", file.display());
    let slow = CommandTool { timeout: Duration::from_millis(500), ..tool(&["sh", "-c", &script]) };
    let failure = run_here(slow).await.unwrap_err();
    assert_eq!(failure.code, "timed_out");
    for pid in std::fs::read_to_string(file).unwrap().split_whitespace() {
        is_gone(pid).await;
    }
}

#[tokio::test]
async fn helpers_that_a_program_leaves_behind_do_not_hold_up_its_answer() {
    let started = Instant::now();
    let output = run_here(tool(&["sh", "-c", "sleep 1000 & echo $!"])).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(10));
    is_gone(&text_of(output)).await;
}

/// A grandchild in a session of its own, which writes its pid to the file.
fn runaway(file: &Path) -> String {
    let pid = file.display();
    format!(
        "(setsid sh -c 'echo $$ > {pid}; exec sleep 1000' &) & while [ ! -s {pid} ]; do sleep 0.01; done;"
    )
}

#[tokio::test]
async fn what_left_the_group_of_a_program_ends_with_it() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let output = run_here(tool(&["sh", "-c", &format!("{} echo done", runaway(&file))])).await;
    assert_eq!(output, Ok(ToolOutput::Text("done".into())));
    // No process is left when the answer arrives.
    let pid = std::fs::read_to_string(&file).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "process {pid} lives on");
}

#[tokio::test]
async fn what_left_the_group_of_a_program_ends_when_its_time_is_up() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let script = format!("{} sleep 1000", runaway(&file));
    let slow = CommandTool { timeout: Duration::from_secs(3), ..tool(&["sh", "-c", &script]) };
    assert_eq!(run_here(slow).await.unwrap_err().code, "timed_out");
    let pid = std::fs::read_to_string(&file).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "process {pid} lives on");
}

/// Each process of a chain starts the next one, records itself, and ends, as fast as it can.
#[tokio::test]
async fn what_forks_on_and_on_ends_with_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("links");
    let script = format!(
        "import os, time\nif os.fork():\n    time.sleep(0.5)\n    print('done')\nelse:\n    os.setsid()\n    \
         links = os.open({file:?}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n    end = time.time() + 30\n    \
         while time.time() < end:\n        os.write(links, b'x')\n        if os.fork(): os._exit(0)"
    );
    assert_eq!(run_here(tool(&["python3", "-c", &script])).await, Ok(ToolOutput::Text("done".into())));
    let links = || std::fs::metadata(&file).unwrap().len();
    let when_it_was_over = links();
    assert!(when_it_was_over > 1, "{when_it_was_over} links");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(links(), when_it_was_over, "the chain goes on");
}

#[tokio::test]
async fn a_program_that_nobody_waits_for_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", file.display());
    let task = tokio::spawn(run_here(tool(&["sh", "-c", &script])));
    let deadline = Instant::now() + Duration::from_secs(10);
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')) {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    task.abort();
    is_gone(&std::fs::read_to_string(&file).unwrap()).await;
}

#[tokio::test]
async fn a_program_runs_as_the_owner_of_the_session_without_other_groups() {
    let port = MemoryPort { owner: Ok(NOBODY), ..MemoryPort::default() };
    let ids = run(tool(&["sh", "-c", "id -u; id -g; id -G"]), json!({}), port).await;
    if is_root() {
        assert_eq!(ids, Ok(ToolOutput::Text("65534\n65534\n65534".into())));
    } else {
        assert_eq!(ids.unwrap_err().code, "unavailable");
    }
}

#[test]
fn settings_that_cannot_work_are_refused_at_the_start() {
    let refused = |tool| Registry::default().with_commands(&BTreeMap::from([("t".to_owned(), tool)])).err();
    assert!(refused(tool(&[])).unwrap().to_string().contains("no program"));
    let schema = CommandTool { parameters: json!({"type": "string"}), ..tool(&["cat"]) };
    assert!(refused(schema).unwrap().to_string().contains("`type`"));
    let built_in = Registry::built_in().unwrap();
    let taken = built_in.with_commands(&BTreeMap::from([("file_reader".to_owned(), tool(&["cat"]))]));
    assert!(taken.err().unwrap().to_string().contains("two tools `file_reader`"));
}

#[tokio::test]
async fn no_program_runs_for_a_session_that_may_not_act_as_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let made = folder.path().join("made").display().to_string();
    let refused = Problem::new(Code::Forbidden, "this session was made by another account");
    let port = MemoryPort { owner: Err(refused), ..MemoryPort::default() };
    let failure = run(tool(&["touch", &made]), json!({}), port).await.unwrap_err();
    assert_eq!(failure.code, "unavailable");
    assert!(failure.message.contains("another account"), "{failure:?}");
    assert!(!Path::new(&made).exists());
}

#[tokio::test]
async fn a_program_gets_the_variables_and_the_folder_that_the_configuration_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tool.env");
    std::fs::write(&file, "# a comment\n\nTOOL_KEY=a=b \nBROKEN\n").unwrap();
    let words = ["sh", "-c", "echo \"$TOOL_KEY|$CARGO_MANIFEST_DIR|$CARGO|$(pwd)\""];
    let here = CommandTool {
        env: vec!["CARGO_MANIFEST_DIR".into()],
        env_file: Some(file.clone()),
        cwd: "/usr".into(),
        ..tool(&words)
    };
    let wrong = run_here(here.clone()).await.unwrap_err();
    assert!(wrong.message.contains("line 4") && wrong.message.contains("NAME=VALUE"), "{wrong:?}");
    std::fs::write(&file, "# a comment\n\nTOOL_KEY=a=b \n").unwrap();
    let manifest = std::env::var("CARGO_MANIFEST_DIR").unwrap();
    // Nothing else of the daemon's environment is there.
    assert_eq!(run_here(here.clone()).await, Ok(ToolOutput::Text(format!("a=b |{manifest}||/usr"))));
    let unset = CommandTool { env: vec!["BELLJAR_NO_SUCH_VARIABLE".into()], ..here.clone() };
    let unset = run_here(unset).await.unwrap_err();
    assert!(unset.code == "unavailable" && unset.message.contains("BELLJAR_NO_SUCH_VARIABLE"), "{unset:?}");
    let gone = CommandTool { env_file: Some(folder.path().join("gone")), ..here };
    assert!(run_here(gone).await.unwrap_err().message.contains("gone"));
}
