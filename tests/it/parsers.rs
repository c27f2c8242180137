//! Whatever outsiders send, a parser answers or refuses, and soon. `tests/fuzz` has a folder of inputs for each
//! parser, which are read as they are and with random changes; `make fuzz` goes on changing them for longer, and puts
//! an input that breaks a parser there. The guardian's own parsers have loops of the same kind beside them
//! (`sandbox-bootstrap/guardian/src/noise.rs`), which keep no input: a loop that fails prints its seed, with which
//! `BELLJAR_FUZZ_SEED` repeats it. Those of the kernel's Python are in `tests/kernel/properties`.

mod archives;
mod dialects;
mod dice;

use belljar::packages::requirement::Requirement;
use belljar::packages::resolved::Report;
use belljar::protocol::api::{Eval, NewSession, NewVolume, PullImage, RunCell, Shutdown, Undo};
use belljar::protocol::ask::{Decision, NewAsk};
use belljar::protocol::batch::NewBatch;
use belljar::protocol::branch::NewBranches;
use belljar::protocol::command::{NewCommand, TerminalSize, Typed};
use belljar::protocol::frames::{HostFrame, KernelFrame, OutputFrame};
use belljar::protocol::image::BuildImage;
use belljar::protocol::job::NewJob;
use belljar::protocol::packages::NewPackages;
use belljar::protocol::saved_state::{NewSnapshot, is_snapshot_name};
use belljar::protocol::sse::SseDecoder;
use belljar::protocol::tool::{ClientAnswer, NewClientTools};
use belljar::protocol::{glob, values};
use belljar::sandbox::workspace::{archive, files};
use belljar::store::snapshots::records::{self, RecordHeader};
use dice::Dice;
use serde_json::{Map, Value};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Changed inputs of each parser in an ordinary run.
const CHANGES: usize = 500;
/// One input is never worked on for longer, also on a busy machine.
const SOON: Duration = Duration::from_secs(5);
/// Members of a tar stream that are let in.
const MEMBERS: usize = 100;

type Parser = (&'static str, fn(&[u8]));

const PARSERS: [Parser; 16] = [
    ("frames", |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(frame) = KernelFrame::of_guardian(&text) {
            let again = serde_json::to_string(&frame).expect("a frame that was read can be written");
            assert_eq!(KernelFrame::of_guardian(&again).expect("it is read again"), frame);
        }
        drop(serde_json::from_str::<HostFrame>(&text));
    }),
    ("said", what_a_runner_said),
    ("output", |input| {
        if let Some(frame) = OutputFrame::parse(input) {
            assert!(frame.data.len() < input.len());
        }
    }),
    ("requests", |input| {
        let text = String::from_utf8_lossy(input);
        drop(values::from_json::<Value>(&text));
        drop(values::from_json::<NewSession>(&text));
        drop(values::from_json::<RunCell>(&text));
        drop(values::from_json::<Eval>(&text));
        drop(values::from_json::<Undo>(&text));
        drop(values::from_json::<PullImage>(&text));
        drop(values::from_json::<Shutdown>(&text));
        drop(values::from_json::<NewAsk>(&text));
        drop(values::from_json::<Decision>(&text));
        drop(values::from_json::<NewJob>(&text));
        drop(values::from_json::<NewClientTools>(&text));
        drop(values::from_json::<ClientAnswer>(&text));
        drop(values::from_json::<TerminalSize>(&text));
        drop(values::from_json::<NewVolume>(&text));
        drop(values::from_json::<NewCommand>(&text).map(NewCommand::checked));
        drop(values::from_json::<Typed>(&text).map(Typed::checked));
        drop(values::from_json::<BuildImage>(&text));
        drop(values::from_json::<NewBranches>(&text));
        if let Ok(NewSnapshot { name: Some(name) }) = values::from_json(&text) {
            assert!(!is_snapshot_name(&name) || files::clean(&name).as_ref() == Ok(&name), "{name:?}");
        }
        if let Ok(batch) = values::from_json::<NewBatch>(&text) {
            // Jobs are made only of a batch that was found to be small enough.
            let count = batch.jobs.len();
            assert!(batch.checked_bytes().is_err() || batch.into_jobs().len() == count);
        }
        if let Ok(wanted) = values::from_json::<NewPackages>(&text) {
            wanted.packages.iter().for_each(|package| drop(Requirement::parse(package)));
        }
    }),
    ("config", |input| drop(belljar::config::load_text(Path::new("x"), &String::from_utf8_lossy(input)))),
    ("globs", |input| {
        let text = String::from_utf8_lossy(input);
        let (pattern, path) = text.split_once('\0').unwrap_or((&text, "out/file.txt"));
        let _ = glob::matches(pattern, path);
    }),
    ("arguments", |input| {
        let text = String::from_utf8_lossy(input);
        // A schema up to a zero, then arguments; or arguments alone, which may be a schema of a tool that code declares.
        let (schema, arguments) = text.split_once('\0').unwrap_or((&text, &text));
        let Ok(schema) = belljar::schema::parse(schema).map(Value::Object) else { return };
        let (Ok(checker), Ok(arguments)) =
            (belljar::schema::Checker::new(&schema), belljar::schema::parse(arguments))
        else {
            return;
        };
        let arguments = checker.normalised(arguments);
        assert_eq!(checker.fits(&arguments), checker.problems(&arguments).is_empty(), "{schema} {arguments}");
    }),
    ("dialects", dialects::read),
    ("paths", |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(path) = files::clean(&text) {
            let only_names = |part| matches!(part, std::path::Component::Normal(_));
            assert!(Path::new(&path).components().all(only_names) && !path.contains('\0'), "{path:?}");
            assert_eq!(files::clean(&path).expect("it is clean"), path);
        }
    }),
    ("events", |input| {
        let read = |chunks: &mut dyn Iterator<Item = &[u8]>| {
            let (mut decoder, mut events) = (SseDecoder::new(usize::MAX), Vec::new());
            for chunk in chunks {
                events.extend(decoder.feed(chunk)?);
            }
            events.extend(decoder.finish()?);
            Ok::<_, belljar::protocol::sse::SseError>(events)
        };
        let whole = read(&mut std::iter::once(input));
        assert_eq!(whole, read(&mut input.chunks(1)), "how a stream is cut makes no difference");
    }),
    ("requirements", |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(requirement) = Requirement::parse(&text) {
            let written = requirement.to_string();
            let plain = |c: char| c.is_ascii_alphanumeric() || " .,_-+!*#:()/[];\"<>=~".contains(c);
            assert!(written.chars().all(plain) && !written.starts_with('-'), "{written:?}");
            assert_eq!(Requirement::parse(&written), Ok(requirement), "{written:?}");
        }
    }),
    ("reports", |input| drop(Report::parse(&String::from_utf8_lossy(input)))),
    ("snapshots", |input| {
        // A header, and what follows it.
        let Some((header, payload)) = input.split_first_chunk() else { return };
        if let Ok(read) = RecordHeader::parse(*header) {
            assert_eq!(read.kind.header(read.length), Ok(*header));
        }
        if let Ok(manifest) = records::manifest(payload) {
            let again = serde_json::to_vec(&manifest).expect("a manifest that was read can be written");
            assert_eq!(records::manifest(&again), Ok(manifest));
        }
        drop(records::given_up(payload));
    }),
    ("archives", archives::read),
    ("manifests", archives::read_manifest),
    ("tar", |input| {
        let (mut members, mut bytes) = (0, 0);
        let outcome = archive::each_member(input, MEMBERS, |path, _, content| {
            assert!(path.is_relative() && !path.to_string_lossy().contains('\0'), "{path:?}");
            members += 1;
            bytes +=
                std::io::copy(&mut content.take(input.len() as u64 + 1), &mut std::io::sink()).unwrap_or(0);
            Ok(())
        });
        assert!(
            members <= MEMBERS && bytes <= input.len() as u64,
            "{members} members of {bytes} bytes: {outcome:?}"
        );
    }),
];

/// The guardian's word up to a zero, then what the runner said. Whatever that is, the guardian's word holds.
fn what_a_runner_said(input: &[u8]) {
    drop(KernelFrame::of_runner(input));
    let Some(end) = input.iter().position(|byte| *byte == 0) else { return };
    let (own, said) = (&input[..end], &input[end + 1..]);
    let length = u32::try_from(own.len()).unwrap().to_be_bytes();
    let frame = [&[3], &length[..], own, said].concat();
    if let Ok(Some(frame)) = KernelFrame::of_runner(&frame) {
        let told = serde_json::to_value(&frame).expect("a frame that was read can be written");
        let own: Map<String, Value> = serde_json::from_slice(own).expect("it was read");
        for (key, value) in own {
            assert_eq!(told.get(&key).unwrap_or(&Value::Null), &value, "`{key}` of {told}");
        }
    }
}

fn folder(parser: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(parser)
}

fn try_out((name, parse): Parser, input: &[u8]) {
    let begun = Instant::now();
    let outcome = std::panic::catch_unwind(|| parse(input));
    let late = begun.elapsed() > SOON;
    if outcome.is_err() || late {
        let file = folder(name).join(format!("found-{}", std::process::id()));
        std::fs::write(&file, input).expect("written");
        panic!("`{name}` {} {}", if late { "takes long for" } else { "breaks at" }, file.display());
    }
}

#[test]
fn every_parser_answers_or_refuses_whatever_is_sent() {
    let seconds = std::env::var("BELLJAR_FUZZ_SECONDS").ok().and_then(|text| text.parse::<u64>().ok());
    for parser in PARSERS {
        let entries = std::fs::read_dir(folder(parser.0)).expect("a folder of inputs");
        let inputs: Vec<Vec<u8>> =
            entries.map(|entry| std::fs::read(entry.unwrap().path()).expect("an input")).collect();
        assert!(!inputs.is_empty(), "{} has no inputs", parser.0);
        inputs.iter().for_each(|input| try_out(parser, input));
        let seed = seconds.map_or(1, |_| std::process::id().into());
        let (mut dice, begun, mut tried) = (Dice(0x9e37_79b9_7f4a_7c15 ^ seed), Instant::now(), 0_usize);
        while seconds.map_or(tried < CHANGES, |seconds| begun.elapsed() < Duration::from_secs(seconds)) {
            let input = dice.change(&inputs);
            try_out(parser, &input);
            tried += 1;
        }
        println!("{}: {tried} inputs", parser.0);
    }
}
