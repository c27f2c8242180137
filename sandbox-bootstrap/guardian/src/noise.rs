//! Inputs without a pattern, for tests of what reads bytes from outside the guardian.

use std::time::{Duration, Instant};

/// Numbers without a pattern, the same for the same seed.
pub struct Noise(u64);

impl Noise {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound.max(1) as u64).unwrap()
    }

    pub fn bytes(&mut self, size: usize) -> Vec<u8> {
        (0..size).map(|_| u8::try_from(self.below(256)).unwrap()).collect()
    }

    pub fn one_of<'a, T: ?Sized>(&mut self, values: &[&'a T]) -> &'a T {
        values[self.below(values.len())]
    }

    /// Puts something else in a few places: some bytes, one of the parts that mean something there, or nothing.
    pub fn damage(&mut self, bytes: &mut Vec<u8>, places: usize, telling: &[&[u8]]) {
        for _ in 0..places {
            let at = self.below(bytes.len() + 1);
            let end = bytes.len().min(at + self.below(4));
            let size = self.below(4);
            let put = if self.below(2) == 0 { self.one_of(telling).to_vec() } else { self.bytes(size) };
            bytes.splice(at..end, put);
        }
    }

    /// The bytes in pieces, some of them empty.
    pub fn cut<'a>(&mut self, mut bytes: &'a [u8]) -> Vec<&'a [u8]> {
        let mut pieces = Vec::new();
        for _ in 0..self.below(6) {
            let (piece, rest) = bytes.split_at(self.below(bytes.len() + 1));
            pieces.push(piece);
            bytes = rest;
        }
        pieces.push(bytes);
        pieces
    }
}

/// Checks so many inputs, the same in every run. `BELLJAR_FUZZ_SECONDS` has it check others for about so long;
/// `BELLJAR_FUZZ_SEED` has it begin with those of the run that printed it.
pub fn try_out(inputs: usize, mut check: impl FnMut(&mut Noise)) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("BELLJAR_FUZZ_SECONDS");
    let fresh: u64 = seconds.map_or(1, |_| std::process::id().into());
    let seed = number("BELLJAR_FUZZ_SEED").unwrap_or(fresh);
    println!("BELLJAR_FUZZ_SEED={seed}");
    let (mut noise, begun, mut tried) = (Noise(0x9e37_79b9_7f4a_7c15 ^ seed), Instant::now(), 0);
    while seconds.map_or(tried < inputs, |seconds| begun.elapsed() < Duration::from_secs(seconds)) {
        check(&mut noise);
        tried += 1;
    }
}
