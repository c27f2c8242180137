//! SHA-1 and base64, as far as a websocket's upgrade needs them: not for anything that has to stay secret.

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

pub fn sha1(data: &[u8]) -> [u8; 20] {
    let mut state: [u32; 5] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476, 0xC3D2_E1F0];
    let mut padded = data.to_vec();
    padded.push(0x80);
    padded.resize(padded.len().next_multiple_of(64), 0);
    if padded.len() - data.len() < 9 {
        padded.resize(padded.len() + 64, 0);
    }
    let end = padded.len() - 8;
    padded[end..].copy_from_slice(&(data.len() as u64 * 8).to_be_bytes());
    for block in padded.chunks_exact(64) {
        compress(&mut state, block);
    }
    let mut digest = [0; 20];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

fn compress(state: &mut [u32; 5], block: &[u8]) {
    let mut words = [0_u32; 80];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    for at in 16..80 {
        words[at] = (words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16]).rotate_left(1);
    }
    let mut mixed = *state;
    for (at, word) in words.iter().enumerate() {
        let [first, left, middle, right, last] = mixed;
        let (chosen, constant) = match at {
            0..20 => ((left & middle) | (!left & right), 0x5A82_7999),
            20..40 => (left ^ middle ^ right, 0x6ED9_EBA1),
            40..60 => ((left & middle) | (left & right) | (middle & right), 0x8F1B_BCDC),
            _ => (left ^ middle ^ right, 0xCA62_C1D6_u32),
        };
        let parts = [first.rotate_left(5), chosen, last, constant, *word];
        let next = parts.into_iter().fold(0, u32::wrapping_add);
        mixed = [next, first, left.rotate_left(30), middle, right];
    }
    for (whole, part) in state.iter_mut().zip(mixed) {
        *whole = whole.wrapping_add(part);
    }
}

pub fn base64(data: &[u8]) -> String {
    let mut text = String::with_capacity(data.len().div_ceil(3) * 4);
    for group in data.chunks(3) {
        let bits =
            group.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let letter = BASE64[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= group.len() { letter.into() } else { '=' });
        }
    }
    text
}

/// The bytes that this text stands for; `None` if it is not what base64 makes of any.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    let padding = text.iter().rev().take(2).take_while(|letter| **letter == b'=').count();
    let size = (text.len() / 4 * 3).checked_sub(padding)?;
    if text.is_empty() {
        return Some(Vec::new());
    }
    if !is_base64_of(text, size) {
        return None;
    }
    let mut data = Vec::with_capacity(size + padding);
    for group in text.chunks(4) {
        let value = |letter: &u8| BASE64.iter().position(|known| known == letter).unwrap_or(0);
        let bits = group.iter().fold(0_usize, |bits, letter| bits << 6 | value(letter));
        data.extend([16, 8, 0].map(|shift| u8::try_from(bits >> shift & 255).unwrap_or(0)));
    }
    data.truncate(size);
    Some(data)
}

/// Whether this is what base64 makes of so many bytes.
pub fn is_base64_of(text: &[u8], size: usize) -> bool {
    let padding = (3 - size % 3) % 3;
    let Some(letters) = text.len().checked_sub(padding).filter(|_| text.len() == size.div_ceil(3) * 4) else {
        return false;
    };
    let value = |letter: u8| BASE64.iter().position(|known| *known == letter);
    let unused_bits = [0, 2, 4][padding];
    text[letters..].iter().all(|letter| *letter == b'=')
        && text[..letters].iter().all(|letter| value(*letter).is_some())
        && value(text[letters - 1]).is_some_and(|last| last & ((1 << unused_bits) - 1) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_digests() {
        let hex = |data: &[u8]| sha1(data).map(|byte| format!("{byte:02x}")).concat();
        assert_eq!(hex(b""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(hex(b"abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(hex(&[b'a'; 56]), "c2db330f6083854c99d4b5bfb6e8f29f201be699");
        assert_eq!(hex(&[b'a'; 119]), "ee971065aaa017e0632a8ca6c77bb3bf8b1dfc56");
    }

    #[test]
    fn known_base64() {
        for (data, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")] {
            assert_eq!(base64(data.as_bytes()), text);
            assert_eq!(from_base64(text).as_deref(), Some(data.as_bytes()));
            assert!(data.is_empty() || is_base64_of(text.as_bytes(), data.len()));
        }
        for bad in ["Zh==", "Z===", "Zg=", "Z!==", "Zg==Zg=="] {
            assert!(!is_base64_of(bad.as_bytes(), 1), "{bad}");
            assert_eq!(from_base64(bad), None, "{bad}");
        }
    }
}
