//! Whatever outsiders send, a parser answers or refuses, and soon. `tests/fuzz` has a folder of inputs for each
//! parser, which are read as they are and with random changes; `make fuzz` goes on changing them for longer, and puts
//! an input that breaks a parser there. Parsers that nobody else sees have property tests beside their code.

use belljar::protocol::api::{NewSession, RunCell};
use belljar::protocol::ask::NewAsk;
use belljar::protocol::frames::{HostFrame, KernelFrame, OutputFrame};
use belljar::protocol::{glob, values};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Changed inputs of each parser in an ordinary run.
const CHANGES: usize = 2_000;
/// One input is never worked on for longer, also on a busy machine.
const SOON: Duration = Duration::from_secs(5);
const INPUT_BYTES: usize = 16 * 1024;

type Parser = (&'static str, fn(&[u8]));

const PARSERS: [Parser; 6] = [
    ("frames", |input| {
        let text = String::from_utf8_lossy(input);
        if let Ok(frame) = serde_json::from_str::<KernelFrame>(&text) {
            let again = serde_json::to_string(&frame).expect("a frame that was read can be written");
            assert_eq!(serde_json::from_str::<KernelFrame>(&again).expect("it is read again"), frame);
        }
        drop(serde_json::from_str::<HostFrame>(&text));
    }),
    ("output", |input| {
        if let Some(frame) = OutputFrame::parse(input) {
            assert!(frame.data.len() < input.len());
        }
    }),
    ("requests", |input| {
        let text = String::from_utf8_lossy(input);
        drop(values::from_json::<serde_json::Value>(&text));
        drop(serde_json::from_str::<NewSession>(&text));
        drop(serde_json::from_str::<RunCell>(&text));
        drop(serde_json::from_str::<NewAsk>(&text));
    }),
    ("config", |input| drop(belljar::config::load_text(Path::new("x"), &String::from_utf8_lossy(input)))),
    ("globs", |input| {
        let text = String::from_utf8_lossy(input);
        let (pattern, path) = text.split_once('\0').unwrap_or((&text, "out/file.txt"));
        let _ = glob::matches(pattern, path);
    }),
    ("arguments", |input| drop(belljar::tools::parse_arguments(&String::from_utf8_lossy(input)))),
];

/// Small numbers that look random; the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides.max(1) as u64).unwrap()
    }

    fn byte(&mut self) -> u8 {
        let telling = b"\0\x01\x7f\x80\xff\"\\{}[],:-+.0123456789eE*?!/ \n";
        if self.roll(3) == 0 {
            u8::try_from(self.roll(256)).unwrap()
        } else {
            telling[self.roll(telling.len())]
        }
    }

    /// An input with a few bytes, pieces or repetitions changed.
    fn change(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let mut input = inputs[self.roll(inputs.len())].clone();
        for _ in 0..=self.roll(6) {
            let at = self.roll(input.len() + 1);
            match self.roll(5) {
                0 => input.insert(at, self.byte()),
                1 if at < input.len() => input[at] = self.byte(),
                2 if at < input.len() => drop(input.drain(at..(at + 1 + self.roll(8)).min(input.len()))),
                3 => {
                    let piece: Vec<u8> = input[at..(at + self.roll(32)).min(input.len())].to_vec();
                    let many = piece.repeat(1 + self.roll(64));
                    input.splice(at..at, many);
                }
                _ => {
                    let other = &inputs[self.roll(inputs.len())];
                    input.truncate(at);
                    input.extend_from_slice(&other[self.roll(other.len() + 1)..]);
                }
            }
        }
        input.truncate(INPUT_BYTES);
        input
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
