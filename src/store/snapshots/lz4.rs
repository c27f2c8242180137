//! Compression in the block format of LZ4: fast in both directions, and so simple that no dependency is needed for it.
//!
//! A block is a row of sequences: a byte with two lengths, literal bytes, and a distance back at which the bytes that
//! follow were before. The last sequence has literals only.

/// The shortest repetition that is worth a sequence.
const SHORTEST: usize = 4;
/// The format wants that the last bytes of a block are literals, and that no repetition begins shortly before them.
const LAST_LITERALS: usize = 5;
const LAST_BEGINNING: usize = 12;
/// The farthest that a repetition reaches back.
const FARTHEST: usize = u16::MAX as usize;
/// A length that fills its half of the byte goes on in bytes of its own.
const LONG: u8 = 15;
/// Places that are remembered, each under a hash of the four bytes there.
const PLACE_BITS: u32 = 14;
/// After so many places without a repetition, every other place is skipped, then two of three, and so on.
const PATIENCE_BITS: u32 = 6;

/// The memory of a compressor, which is used for one block after the other.
#[derive(Debug)]
pub(super) struct Compressor {
    places: Vec<u32>,
}

impl Default for Compressor {
    fn default() -> Self {
        Self { places: vec![0; 1 << PLACE_BITS] }
    }
}

impl Compressor {
    /// Appends the block of `input`, which is shorter than 4 GiB, to `output`.
    pub fn compress(&mut self, input: &[u8], output: &mut Vec<u8>) {
        self.places.fill(0);
        let (mut done, mut at, mut misses) = (0, 0, 0_usize);
        let last_beginning = input.len().saturating_sub(LAST_BEGINNING);
        while at < last_beginning {
            let word = word_at(input, at);
            let place = &mut self.places[slot(word)];
            let before = *place as usize;
            *place = u32::try_from(at).unwrap_or(0);
            if before < at && at - before <= FARTHEST && word_at(input, before) == word {
                let rest = &input[at + SHORTEST..input.len() - LAST_LITERALS];
                let length = SHORTEST + common(rest, &input[before + SHORTEST..]);
                put_sequence(output, &input[done..at], at - before, length);
                at += length;
                (done, misses) = (at, 0);
            } else {
                misses += 1;
                at += 1 + (misses >> PATIENCE_BITS);
            }
        }
        put_lengths(output, input.len() - done, 0);
        output.extend_from_slice(&input[done..]);
    }
}

/// Reads a block whose content has exactly this length; `None` if it has another one, or makes no sense. However the
/// block was made, no more than `length` bytes are taken.
pub(super) fn decompress(mut block: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut content = Vec::with_capacity(length);
    loop {
        let (&lengths, rest) = block.split_first()?;
        block = rest;
        let literals = read_length(&mut block, lengths >> 4)?;
        if literals > length - content.len() {
            return None;
        }
        let (bytes, rest) = block.split_at_checked(literals)?;
        content.extend_from_slice(bytes);
        block = rest;
        if block.is_empty() {
            return (content.len() == length).then_some(content);
        }
        let (distance, rest) = block.split_first_chunk::<2>()?;
        let distance = usize::from(u16::from_le_bytes(*distance));
        block = rest;
        let mut left = read_length(&mut block, lengths & LONG)?.checked_add(SHORTEST)?;
        let from = content.len().checked_sub(distance)?;
        if distance == 0 || left > length - content.len() {
            return None;
        }
        // A repetition may overlap itself: what was copied is then part of what is copied next.
        while left > 0 {
            let step = left.min(content.len() - from);
            content.extend_from_within(from..from + step);
            left -= step;
        }
    }
}

fn word_at(input: &[u8], at: usize) -> u32 {
    input[at..].first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn slot(word: u32) -> usize {
    (word.wrapping_mul(0x9E37_79B1) >> (u32::BITS - PLACE_BITS)) as usize
}

/// How many bytes at the beginning of both are the same.
fn common(one: &[u8], other: &[u8]) -> usize {
    const STEP: usize = 16;
    let steps = one.chunks_exact(STEP).zip(other.chunks_exact(STEP));
    let same = STEP * steps.take_while(|(a, b)| a == b).count();
    same + one[same..].iter().zip(&other[same..]).take_while(|(a, b)| a == b).count()
}

fn put_sequence(output: &mut Vec<u8>, literals: &[u8], distance: usize, length: usize) {
    let more = length - SHORTEST;
    put_lengths(output, literals.len(), more);
    output.extend_from_slice(literals);
    output.extend_from_slice(&u16::try_from(distance).unwrap_or(u16::MAX).to_le_bytes());
    put_rest(output, more);
}

/// The byte with both lengths, and the rest of the first.
fn put_lengths(output: &mut Vec<u8>, literals: usize, more: usize) {
    let half = |length: usize| u8::try_from(length).unwrap_or(LONG).min(LONG);
    output.push((half(literals) << 4) | half(more));
    put_rest(output, literals);
}

fn put_rest(output: &mut Vec<u8>, length: usize) {
    let Some(mut rest) = length.checked_sub(usize::from(LONG)) else { return };
    while rest >= usize::from(u8::MAX) {
        output.push(u8::MAX);
        rest -= usize::from(u8::MAX);
    }
    output.push(u8::try_from(rest).unwrap_or(u8::MAX));
}

fn read_length(block: &mut &[u8], half: u8) -> Option<usize> {
    let mut length = usize::from(half);
    if half == LONG {
        loop {
            let (&more, rest) = block.split_first()?;
            *block = rest;
            length = length.checked_add(usize::from(more))?;
            if more < u8::MAX {
                break;
            }
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn block(input: &[u8]) -> Vec<u8> {
        let mut output = Vec::new();
        Compressor::default().compress(input, &mut output);
        output
    }

    #[test]
    fn what_repeats_becomes_small_and_comes_back() {
        let text = b"the same line again and again\n".repeat(1000);
        let small = block(&text);
        assert!(small.len() * 50 < text.len(), "{}", small.len());
        assert_eq!(decompress(&small, text.len()), Some(text));
        for length in [0, 1, 4, 5, 11, 12, 13, 14, 15, 16, 17, 270, 271, 70_000] {
            let zeros = vec![0; length];
            assert_eq!(decompress(&block(&zeros), length), Some(zeros), "{length}");
        }
    }

    /// Blocks that were made by hand from the description of the format.
    #[test]
    fn blocks_are_those_of_the_format() {
        assert_eq!(decompress(b"\x50hello", 5).as_deref(), Some(&b"hello"[..]));
        assert_eq!(decompress(b"\x12a\x01\x00\x50bcdef", 12).as_deref(), Some(&b"aaaaaaabcdef"[..]));
        let long = [&b"\xf0\x01"[..], b"0123456789abcdef"].concat();
        assert_eq!(decompress(&long, 16).as_deref(), Some(&b"0123456789abcdef"[..]));
        assert_eq!(block(b"hello"), b"\x50hello");
    }

    #[test]
    fn blocks_that_make_no_sense_are_refused_and_take_no_more_than_was_said() {
        let cases: [(&[u8], usize); 9] = [
            (b"", 0),
            (b"\x50hell", 5),
            (b"\x50hello", 4),
            (b"\x50hello", 6),
            (b"\x12a\x00\x00\x50bcdef", 12),
            (b"\x12a\x02\x00\x50bcdef", 12),
            (b"\x1fa\x01\x00\xff\xff\xff\xff\xff\x00", 100),
            (b"\xf0\xff\xff\xff", 5),
            (b"\x12a\x01", 7),
        ];
        for (nonsense, length) in cases {
            assert_eq!(decompress(nonsense, length), None, "{nonsense:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_compressed_comes_back(
            parts in prop::collection::vec((prop::collection::vec(any::<u8>(), 0..40), 1_usize..30), 0..30)
        ) {
            let input: Vec<u8> = parts.iter().flat_map(|(part, times)| part.repeat(*times)).collect();
            prop_assert_eq!(decompress(&block(&input), input.len()), Some(input));
        }

        #[test]
        fn any_bytes_are_read_without_harm(nonsense in prop::collection::vec(any::<u8>(), 0..200), length in 0_usize..500) {
            if let Some(content) = decompress(&nonsense, length) {
                prop_assert_eq!(content.len(), length);
            }
        }
    }
}
