//! What cells write: all of it, in order, while they run; and bounded, whatever they write.

use serde_json::{Value, json};

use super::helpers::{
    S, Stream, assert_ended, go, list, number, outcome, printed, queue, session, session_with, text,
    wait_for_line, with_go, written,
};
use crate::support::{Daemon, eventually};

const MIB: u64 = 1 << 20;
/// Head and tail of each stream in a result, by default.
const END: usize = 64 << 10;

/// `VmRSS` or `VmHWM` (its peak) of the daemon, in bytes.
fn memory(daemon: &Daemon, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("a field");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// What a stream of a result shows before and after the notice of the cut.
#[track_caller]
fn ends<'a>(result: &'a Value, stream: &str) -> (&'a str, &'a str) {
    let cut = number(result, &format!("/truncated/{stream}_bytes"));
    let notice = format!("\n[… {cut} bytes cut …]\n");
    text(result, stream).split_once(&notice).unwrap_or_else(|| panic!("no notice of {cut} bytes"))
}

/// Types of events; a line may come in one event or in several.
fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| text(event, "type")).collect();
    kinds.dedup_by(|later, earlier| later == earlier && *later == "output");
    kinds
}

#[test]
pub fn writes_below_python_are_in_the_output_in_order() {
    let Some(daemon) = session() else { return };
    let code = "import os, subprocess, sys, ctypes\nprint('1 print')\nos.write(1, b'2 os.write\\n')\n\
                subprocess.run(['echo', '3 subprocess'])\nprint('4 print', end='\\n')\nos.system('echo 5 system')\n\
                libc = ctypes.CDLL(None)\nlibc.puts(b'6 puts')\nlibc.fflush(None)\n\
                sys.stdout.buffer.write(b'7 buffer\\n')\nsys.__stdout__.write('8 dunder\\n')\n\
                subprocess.run(['sh', '-c', 'echo 9 child of a child'])\nos.write(1, b'10 end')";
    let result = daemon.run(S, code);
    assert_ended(&result, "success", "ok", 0);
    let expected = "1 print\n2 os.write\n3 subprocess\n4 print\n5 system\n6 puts\n7 buffer\n8 dunder\n\
                    9 child of a child\n10 end";
    assert_eq!(text(&result, "stdout"), expected);
    assert_eq!(result["output"], json!([{"stream": "stdout", "text": expected}]));
    assert_eq!(text(&result, "stderr"), "");
}

#[test]
pub fn both_streams_are_kept_apart_and_in_order() {
    let Some(daemon) = session() else { return };
    let code = "import sys, warnings, logging\nfor i in range(100):\n    print('out', i)\n    \
                print('err', i, file=sys.stderr)";
    let result = daemon.run(S, code);
    let expected: Vec<Value> = (0..100)
        .flat_map(|i| {
            let segment =
                |stream: &str, word: &str| json!({"stream": stream, "text": format!("{word} {i}\n")});
            [segment("stdout", "out"), segment("stderr", "err")]
        })
        .collect();
    assert_eq!(list(&result, "output"), expected);
    let of = |word: &str| (0..100).map(|i| format!("{word} {i}\n")).collect::<String>();
    assert_eq!((text(&result, "stdout"), text(&result, "stderr")), (&*of("out"), &*of("err")));

    let result = daemon.run(S, "warnings.warn('a warning')\nlogging.error('a log line')\nprint('end')");
    assert!(text(&result, "stderr").contains("UserWarning: a warning\n"), "{result:#}");
    assert!(text(&result, "stderr").ends_with("ERROR:root:a log line\n"), "{result:#}");
    assert_eq!(list(&result, "output").last(), Some(&json!({"stream": "stdout", "text": "end\n"})));
}

#[test]
pub fn a_stream_that_a_cell_takes_away_is_back_for_the_next() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "import os, sys\nsys.stdout = open('/dev/null', 'w')\nprint('lost')");
    assert_eq!(printed(&daemon, "print('back')"), "back\n");
    printed(&daemon, "os.close(1); os.close(2)");
    assert_eq!(
        printed(&daemon, "print('back again')\nos.system('echo below too')"),
        "back again\nbelow too\n"
    );
    printed(&daemon, "sys.stdout.close()");
    assert_eq!(printed(&daemon, "print('and again')"), "and again\n");
}

#[test]
fn two_gigabytes_leave_the_daemon_flat_and_are_accounted_for() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "print('warm')");
    let before = memory(&daemon, "VmRSS");
    let line = "x".repeat(1023);
    let code = format!(
        "import sys\nblock = '{line}\\n' * 1024\nsys.stdout.write('HEAD\\n')\n\
         for _ in range(2048):\n    sys.stdout.write(block)\nsys.stdout.write('TAIL\\n')"
    );
    let result = daemon.run_with(S, json!({"code": code, "timeout_s": 200}));
    assert_ended(&result, "success", "ok", 0);
    let peak = memory(&daemon, "VmHWM");
    assert!(peak < before + 64 * MIB, "{} MiB before, {} MiB at the peak", before / MIB, peak / MIB);

    let total = 2048 * MIB + 10;
    let (head, tail) = ends(&result, "stdout");
    assert_eq!(number(&result, "/truncated/stdout_bytes") + (head.len() + tail.len()) as u64, total);
    assert_eq!((head.len(), tail.len()), (END, END));
    assert!(head.starts_with(&format!("HEAD\n{line}\n{line}\n")), "{}", &head[..40]);
    assert!(tail.ends_with(&format!("{line}\n{line}\nTAIL\n")), "{}", &tail[tail.len() - 40..]);
    assert_eq!(number(&result, "/truncated/stderr_bytes"), 0);
    // What is not in the result is on disk up to a bound, and beyond that it is only counted.
    let dropped = number(&result, "/truncated/dropped_bytes");
    assert!((total - 257 * MIB..total - 255 * MIB).contains(&dropped), "{dropped}");
    let newest =
        daemon.events(S, number(&daemon.http("GET", "/v1/sessions/s", b"").json(), "/last_event") - 5);
    assert!(newest.iter().any(|event| event["type"] == "cell_finished"), "{newest:?}");
    assert_eq!(printed(&daemon, "print('still here')"), "still here\n");
}

#[test]
pub fn a_cut_of_both_streams_counts_each() {
    let config = "[cells]\noutput_head = 100\noutput_tail = 100\nspill = \"8KiB\"\n";
    let Some(daemon) = session_with(config, json!({})) else { return };
    let code = "import sys\nfor i in range(1000):\n    print(f'out {i:05}')\n    print(f'errors {i:05}', file=sys.stderr)";
    let result = daemon.run(S, code);
    for (stream, word, total) in [("stdout", "out", 10_000), ("stderr", "errors", 13_000)] {
        let (head, tail) = ends(&result, stream);
        let cut = number(&result, &format!("/truncated/{stream}_bytes"));
        assert_eq!(cut + (head.len() + tail.len()) as u64, total, "{stream}");
        assert!(head.starts_with(&format!("{word} 00000\n{word} 00001\n")), "{head}");
        assert!(tail.ends_with(&format!("{word} 00998\n{word} 00999\n")), "{tail}");
        assert!(head.len() <= 100 && tail.len() <= 100);
    }
    assert_eq!(number(&result, "/truncated/dropped_bytes"), 23_000 - 8 * 1024);
    let kept = list(&result, "output").iter().map(|segment| text(segment, "text").len()).sum::<usize>();
    assert!(kept < 300, "{kept}");
    let cuts = daemon.events(S, 0).iter().filter(|event| event["type"] == "output_cut").count();
    assert_eq!(cuts, 1);
    // The next cell starts from nothing.
    let result = daemon.run(S, "print('short')");
    assert_eq!(text(&result, "stdout"), "short\n");
    assert_eq!(number(&result, "/truncated/stdout_bytes") + number(&result, "/truncated/dropped_bytes"), 0);
}

#[test]
pub fn bytes_that_are_no_text_do_no_harm() {
    let Some(daemon) = session() else { return };
    let code = "import os\nos.write(1, b'nul \\x00 bad \\xff\\xfe half \\xe4\\xb8|\\n')\nprint('esc \\x1b[31m \\r end')";
    let result = daemon.run(S, code);
    let expected = "nul \0 bad \u{fffd}\u{fffd} half \u{fffd}|\nesc \u{1b}[31m \r end\n";
    assert_eq!(text(&result, "stdout"), expected);
    assert_eq!(written(&daemon, Some(1)), expected);
    // A lone surrogate is written in a way that shows it.
    assert_eq!(printed(&daemon, "print('\\ud800')"), "\\ud800\n");
    // All bytes there are, and then text again.
    let result = daemon.run(S, "os.write(1, bytes(range(256)) * 300)\nprint('end')");
    assert_ended(&result, "success", "ok", 0);
    assert!(text(&result, "stdout").ends_with("end\n"));
}

#[test]
pub fn characters_in_pieces_become_whole() {
    let Some(daemon) = session() else { return };
    let code = "import os\nfor byte in '中文 € 😀\\n'.encode():\n    os.write(1, bytes([byte]))";
    assert_eq!(printed(&daemon, code), "中文 € 😀\n");
    assert_eq!(written(&daemon, Some(1)), "中文 € 😀\n");
    // Long enough to lie across pipes, frames, events, and the border of head and tail.
    let expected = format!("{}\n", "中".repeat(40_000));
    assert_eq!(printed(&daemon, "print('中' * 40_000)"), expected);
    assert_eq!(written(&daemon, Some(2)), expected);
    // Where a cut is, it is between characters, and what it takes is counted.
    let result = daemon.run(S, "print('a' + '😀' * 100_000)");
    let (head, tail) = ends(&result, "stdout");
    let shown = format!("{head}{tail}");
    assert_eq!(shown.trim_start_matches('a').trim_end_matches('\n').replace('😀', ""), "");
    assert_eq!(number(&result, "/truncated/stdout_bytes") + shown.len() as u64, 400_002);
    assert_eq!(written(&daemon, Some(3)), format!("a{}\n", "😀".repeat(100_000)));
}

#[test]
pub fn a_flood_while_no_cell_runs_belongs_to_none() {
    let Some(daemon) = session() else { return };
    let code = "import os, threading\ndef flood():\n    wait_for_go()\n    for _ in range(400):\n        \
                os.write(1, b'y' * (1 << 20))\n    open('done', 'w').close()\n\
                threading.Thread(target=flood).start()\nprint('started')";
    assert_eq!(printed(&daemon, &with_go(code)), "started\n");
    let before = memory(&daemon, "VmRSS");
    go(&daemon);
    eventually("the flood ends", || {
        (daemon.http("GET", "/v1/sessions/s/files/done", b"").status == 200).then_some(())
    });
    let result = daemon.run(S, "print('my own')");
    assert_ended(&result, "success", "ok", 0);
    assert_eq!(text(&result, "stdout"), "my own\n");
    let peak = memory(&daemon, "VmHWM");
    assert!(peak < before + 64 * MIB, "{} MiB before, {} MiB at the peak", before / MIB, peak / MIB);
    let last = number(&daemon.http("GET", "/v1/sessions/s", b"").expect_status(200), "/last_event");
    let first = last.saturating_sub(20);
    let stray = daemon
        .events(S, first)
        .into_iter()
        .find(|event| event["type"] == "output" && event["cell"].is_null());
    assert!(stray.is_some_and(|event| text(&event, "text").starts_with('y')));
}

#[test]
pub fn output_while_no_cell_runs_is_an_event_without_a_cell() {
    let Some(daemon) = session() else { return };
    let code = "import threading\nthreading.Thread(target=lambda: (wait_for_go(), print('stray'))).start()";
    assert_eq!(printed(&daemon, &with_go(code)), "");
    go(&daemon);
    eventually("the stray line comes", || (written(&daemon, None) == "stray\n").then_some(()));
    assert_eq!(printed(&daemon, "1"), "");
}

#[test]
pub fn output_streams_while_the_cell_runs() {
    let Some(daemon) = session() else { return };
    let mut stream =
        Stream::of_cell(&daemon, &with_go("print('first')\nwait_for_go()\nprint('second')\n6 * 7"));
    let mut seen = Vec::new();
    // The cell cannot end before it is told to, which happens after its first output has come.
    let mut line = String::new();
    while line != "first\n" {
        let event = stream.next().expect("more events");
        if event["type"] == "output" {
            line += text(&event, "text");
        }
        seen.push(event);
    }
    assert_eq!(kinds(&seen), ["cell_queued", "cell_started", "output"]);
    let view = daemon.http("GET", "/v1/sessions/s/cells/1", b"").expect_status(200);
    assert_eq!(view["state"], "running");
    go(&daemon);
    seen.extend(stream);
    assert_eq!(kinds(&seen), ["cell_queued", "cell_started", "output", "cell_finished"]);
    assert_eq!(written(&daemon, Some(1)), "first\nsecond\n");
    let end = seen.last().expect("an end");
    assert_eq!((text(end, "/result/result/repr"), text(end, "/result/stdout")), ("42", "first\nsecond\n"));
}

#[test]
pub fn events_are_numbered_without_gaps() {
    let Some(daemon) = session() else { return };
    printed(&daemon, "print('a')\nimport sys\nprint('b', file=sys.stderr)\ndisplay(1)\nsession_info()");
    daemon.run(S, "1 / 0");
    daemon.run(S, "import os; os._exit(1)");
    daemon.run_with(S, json!({"code": "x = 1", "mode": "fork"}));
    let cell = queue(&daemon, &json!({"code": "print('stop me')\nwhile True: pass"}));
    wait_for_line(&daemon, cell, "stop me");
    daemon.http("POST", "/v1/sessions/s/interrupt", b"").expect_status(200);
    outcome(&daemon, cell);
    let events = daemon.events(S, 0);
    let numbers: Vec<u64> = events.iter().map(|event| number(event, "/seq")).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    // Readers that begin anywhere get the same events from there on.
    for after in [0, 5, numbers.len() as u64 - 1, numbers.len() as u64] {
        assert_eq!(daemon.events(S, after), events[usize::try_from(after).expect("small")..]);
    }
    let of_first: Vec<Value> =
        events.iter().filter(|event| event["cell"] == 1 || event["call"].is_u64()).cloned().collect();
    let expected = ["cell_queued", "cell_started", "output", "display", "tool_called", "tool_answered"];
    assert_eq!(kinds(&of_first), expected);
    assert_eq!(events.iter().filter(|event| event["type"] == "cell_finished").count(), 5);
    assert_eq!(events.iter().filter(|event| event["type"] == "interrupting").count(), 1);
}
