//! Changed inputs: a few bytes, or a part of what the input means. Most changes of bytes are refused at the first
//! look; those of values get past it.

use serde_json::{Map, Value, json};

use super::archives::mend_digest;

const INPUT_BYTES: usize = 16 * 1024;
/// Values are nested deeper than any reader allows.
const DEPTH: usize = 300;
pub const TAR_BLOCK: usize = 512;

/// Small numbers that look random; the same for the same seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn roll(&mut self, sides: usize) -> usize {
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

    /// One of the inputs, changed in bytes or in what it means, as far as that is known.
    pub fn change(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let input = &inputs[self.roll(inputs.len())];
        let changed = match self.roll(3) {
            0 => None,
            _ => self.change_meaning(input, inputs),
        };
        let mut changed = changed.unwrap_or_else(|| self.change_bytes(input.clone(), inputs));
        changed.truncate(INPUT_BYTES);
        changed
    }

    fn change_bytes(&mut self, mut input: Vec<u8>, inputs: &[Vec<u8>]) -> Vec<u8> {
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
        input
    }

    /// None for an input that is neither JSON, nor TOML, nor pieces of one of them, nor a tar stream.
    fn change_meaning(&mut self, input: &[u8], inputs: &[Vec<u8>]) -> Option<Vec<u8>> {
        if input.len() >= TAR_BLOCK && input.get(257..262) == Some(b"ustar") {
            return Some(self.change_tar(input.to_vec()));
        }
        let text = std::str::from_utf8(input).ok()?;
        // What a runner said, below the guardian's word, and what a model streams: a value in a longer text.
        let (before, rest) = text.rfind(['\0', '\n']).map_or(("", text), |at| text.split_at(at + 1));
        let other = values(&inputs[self.roll(inputs.len())]);
        if let Ok(mut value) = serde_json::from_str::<Value>(rest.trim_start_matches("data:")) {
            for _ in 0..=self.roll(3) {
                self.change_value(&mut value, &other);
            }
            let lead = if rest.starts_with("data:") { "data:" } else { "" };
            return Some(format!("{before}{lead}{value}").into_bytes());
        }
        let mut value = serde_json::to_value(text.parse::<toml::Table>().ok()?).ok()?;
        for _ in 0..=self.roll(3) {
            self.change_value(&mut value, &other);
        }
        toml::to_string(&value).ok().map(String::into_bytes)
    }

    /// Goes down to some node and puts something else there.
    fn change_value(&mut self, value: &mut Value, others: &[Value]) {
        let stop = self.roll(3) == 0;
        match value {
            Value::Object(members) if !members.is_empty() && !stop => {
                let key = members.keys().nth(self.roll(members.len())).cloned().unwrap();
                match self.roll(6) {
                    0 => drop(members.remove(&key)),
                    1 => {
                        let moved = members.remove(&key).unwrap();
                        members.insert(self.string(), moved);
                    }
                    _ => self.change_value(members.get_mut(&key).unwrap(), others),
                }
            }
            Value::Array(items) if !items.is_empty() && !stop => {
                let at = self.roll(items.len());
                match self.roll(6) {
                    0 => drop(items.remove(at)),
                    1 => items.extend(vec![items[at].clone(); self.roll(200)]),
                    _ => self.change_value(&mut items[at], others),
                }
            }
            Value::Object(members) if self.roll(2) == 0 => {
                let added = self.value(others);
                members.insert(self.string(), added);
            }
            _ => *value = self.value(others),
        }
    }

    fn value(&mut self, others: &[Value]) -> Value {
        match self.roll(10) {
            0 => Value::Null,
            1 => json!(self.roll(2) == 0),
            2 => {
                let edges = [0, 1, 2, 0xff, 0xffff, 1 << 31, 1 << 32, 1 << 53, i64::MAX as u64, u64::MAX];
                json!(edges[self.roll(edges.len())])
            }
            3 => json!([-1, i64::from(i32::MIN), i64::MIN][self.roll(3)]),
            4 => json!([0.5, -0.0, 1e-300, 1e308, -1e308][self.roll(5)]),
            5 => (0..self.roll(DEPTH)).fold(json!(1), |inner, _| Value::Array(vec![inner])),
            6 => (0..self.roll(DEPTH))
                .fold(json!(1), |inner, _| Value::Object(Map::from_iter([("a".to_owned(), inner)]))),
            7 => Value::Object(Map::new()),
            8 if !others.is_empty() => others[self.roll(others.len())].clone(),
            _ => json!(self.string()),
        }
    }

    fn string(&mut self) -> String {
        let telling = [
            "",
            ".",
            "..",
            "/",
            "../x",
            "$ref",
            "#",
            "type",
            "cell",
            "*",
            "\0",
            "\u{1b}[2J",
            "\u{202e}a",
            "é中",
        ];
        telling[self.roll(telling.len())].repeat([1, 1, 1, 500][self.roll(4)])
    }

    /// A field of a header, whose checksum is made right, or blocks in another order.
    fn change_tar(&mut self, mut stream: Vec<u8>) -> Vec<u8> {
        let blocks = stream.len() / TAR_BLOCK;
        for _ in 0..=self.roll(3) {
            let header = self.roll(blocks) * TAR_BLOCK;
            match self.roll(6) {
                0 => stream[header + 156] = *b"0123457LKxgSVN\0".get(self.roll(15)).unwrap_or(&b'?'),
                1 => {
                    let sizes = [
                        "00000000000",
                        "00000000001",
                        "00000001000",
                        "77777777777",
                        "-0000000001",
                        "00000010001",
                    ];
                    stream[header + 124..header + 135]
                        .copy_from_slice(sizes[self.roll(sizes.len())].as_bytes());
                }
                // A size in base 256.
                2 => stream[header + 124..header + 136].fill([0x80, 0xff][self.roll(2)]),
                3 => {
                    let name = self.string();
                    let most = name.len().min(100);
                    stream[header..header + most].copy_from_slice(&name.as_bytes()[..most]);
                }
                4 => stream.truncate(self.roll(stream.len()) + 1),
                _ => {
                    let piece = stream[header..(header + TAR_BLOCK * 2).min(stream.len())].to_vec();
                    stream.splice(header..header, piece);
                }
            }
            if stream.len() < TAR_BLOCK {
                return stream;
            }
            stream.resize(stream.len().div_ceil(TAR_BLOCK).max(blocks) * TAR_BLOCK, 0);
        }
        for header in stream.chunks_exact_mut(TAR_BLOCK) {
            mend_checksum(header);
        }
        mend_digest(&mut stream);
        stream
    }
}

/// Only of what looks like a header: content stays as it is.
fn mend_checksum(block: &mut [u8]) {
    if block.get(257..262) == Some(b"ustar") {
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    }
}

/// The values that an input has, to be put elsewhere.
fn values(input: &[u8]) -> Vec<Value> {
    let whole = serde_json::from_slice::<Value>(input).ok();
    let inner = whole.iter().flat_map(|value| value.as_object().into_iter().flat_map(Map::values)).cloned();
    inner.chain(whole.clone()).collect()
}
