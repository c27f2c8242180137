//! Where a stream of bytes is cut into chunks. A cut depends on the bytes before it alone, so that a change in one place
//! changes the chunks around it, and all others are the same as in the snapshot before.

use std::mem;

/// The sizes of chunks, but for the last one of a snapshot, which may be shorter.
pub(super) const SHORTEST: usize = 64 * 1024;
pub(super) const LONGEST: usize = 1024 * 1024;
/// A cut is made where this many bits of the hash are zero: after 256 KiB on average, beyond the shortest length.
const CUT_BITS: u32 = 18;
const CUT_MASK: u64 = !0 << (u64::BITS - CUT_BITS);
/// The hash forgets each byte after as many others as it has bits.
const WINDOW: usize = u64::BITS as usize;
/// A random number for each value of a byte.
static GEAR: [u64; 256] = gear();

/// Numbers of a `SplitMix64` generator. They never change: with others nothing would be found again.
const fn gear() -> [u64; 256] {
    let mut table = [0; 256];
    let (mut state, mut at) = (0_u64, 0);
    while at < table.len() {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        table[at] = mixed ^ (mixed >> 31);
        at += 1;
    }
    table
}

/// The hash after one more byte.
fn rolled(hash: u64, byte: u8) -> u64 {
    (hash << 1).wrapping_add(GEAR[usize::from(byte)])
}

/// The chunk that is being filled.
#[derive(Debug, Default)]
pub(super) struct Chunker {
    content: Vec<u8>,
    hash: u64,
}

impl Chunker {
    /// Takes bytes up to the end of the chunk; returns how many, and whether the chunk is complete.
    pub fn fill(&mut self, bytes: &[u8]) -> (usize, bool) {
        let before = self.content.len();
        let room = bytes.len().min(LONGEST - before);
        // Bytes that the hash forgets before the first possible cut need not be looked at, and the others before it only
        // fill the hash.
        let unseen = (SHORTEST - WINDOW).saturating_sub(before).min(room);
        let uncut = (SHORTEST - 1).saturating_sub(before).clamp(unseen, room);
        let mut hash = bytes[unseen..uncut].iter().fold(self.hash, |hash, byte| rolled(hash, *byte));
        let cut = bytes[uncut..room].iter().position(|byte| {
            hash = rolled(hash, *byte);
            hash & CUT_MASK == 0
        });
        self.hash = hash;
        let taken = cut.map_or(room, |at| uncut + at + 1);
        self.content.extend_from_slice(&bytes[..taken]);
        (taken, cut.is_some() || self.content.len() == LONGEST)
    }

    /// Whether the chunk may end here: at the end of a section, so that a section that is the same again begins with
    /// the same chunk.
    pub fn may_end(&self) -> bool {
        self.content.len() >= SHORTEST
    }

    /// The chunk, empty if no byte came since the last one.
    pub fn take(&mut self) -> Vec<u8> {
        self.hash = 0;
        mem::take(&mut self.content)
    }

    /// Uses the memory of a chunk for the next one.
    pub fn reuse(&mut self, mut memory: Vec<u8>) {
        if self.content.is_empty() {
            memory.clear();
            self.content = memory;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    /// Bytes that look random, and are the same for the same seed.
    fn noise(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            state.to_be_bytes()[0]
        };
        (0..length).map(|_| next()).collect()
    }

    fn chunks_of<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
        let (mut chunker, mut found) = (Chunker::default(), Vec::new());
        for mut piece in pieces {
            while !piece.is_empty() {
                let (taken, is_complete) = chunker.fill(piece);
                piece = &piece[taken..];
                if is_complete {
                    found.push(chunker.take());
                }
            }
        }
        let last = chunker.take();
        found.extend((!last.is_empty()).then_some(last));
        found
    }

    #[test]
    fn chunks_have_the_sizes_that_were_promised() {
        let content = noise(7, 24 << 20);
        let chunks = chunks_of([content.as_slice()]);
        assert_eq!(chunks.concat(), content);
        let all_but_the_last = &chunks[..chunks.len() - 1];
        assert!(all_but_the_last.iter().all(|chunk| (SHORTEST..=LONGEST).contains(&chunk.len())));
        let mean = content.len() / chunks.len();
        assert!((160 << 10..448 << 10).contains(&mean), "{mean}");
    }

    #[test]
    fn a_change_in_the_middle_leaves_the_other_chunks_as_they_were() {
        let before = noise(1, 12 << 20);
        for (removed, added) in [(0, 1), (1, 0), (100, 100), (0, 5000)] {
            let middle = before.len() / 2;
            let new = noise(2, added);
            let after = [&before[..middle], &new, &before[middle + removed..]].concat();
            let old: HashSet<Vec<u8>> = chunks_of([before.as_slice()]).into_iter().collect();
            let now = chunks_of([after.as_slice()]);
            let others = now.iter().filter(|chunk| !old.contains(*chunk)).count();
            assert!(others <= 3, "{others} of {} are new", now.len());
        }
    }

    #[test]
    fn bytes_that_are_all_the_same_are_cut_at_the_longest_length() {
        let chunks = chunks_of([vec![0; 3 * LONGEST].as_slice()]);
        assert_eq!(chunks.iter().map(Vec::len).collect::<Vec<_>>(), [LONGEST; 3]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn the_same_content_has_the_same_chunks_however_it_comes(
            seed in any::<u64>(),
            length in 0_usize..2_000_000,
            pieces in prop::collection::vec(1_usize..300_000, 1..20)
        ) {
            let content = noise(seed, length);
            let (mut rest, mut cut) = (content.as_slice(), Vec::new());
            for size in pieces.iter().cycle() {
                let (piece, after) = rest.split_at((*size).min(rest.len()));
                cut.push(piece);
                rest = after;
                if rest.is_empty() {
                    break;
                }
            }
            prop_assert_eq!(chunks_of(cut), chunks_of([content.as_slice()]));
        }
    }
}
