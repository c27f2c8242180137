//! The pictures that cells showed, for models that see.
//!
//! A picture goes to the model as it is, or not at all: nothing here can make it smaller, and the sandbox is told in
//! words what would fit.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::protocol::chat::Picture;
use crate::protocol::result::ExecutionResult;

/// The most pictures of a conversation that a model is shown; of more, the newest.
pub(super) const PICTURES: usize = 4;
/// The most bytes of a picture, as base64.
pub(super) const PICTURE_BYTES: usize = 512 * 1024;
/// The most pixels of a side.
pub(super) const PICTURE_SIDE: u32 = 2_048;
/// The least tokens that a picture is estimated at; providers that scale pictures down count at most about this.
const LEAST_TOKENS: u64 = 1_600;
/// The pixels of a token, where a provider counts by the size: patches of 28 by 28.
const TOKEN_PIXELS: u64 = 28 * 28;

/// The forms that all models that see understand.
const FORMS: [&str; 2] = ["image/png", "image/jpeg"];
/// The bytes of a JPEG in which its size has to be found; what comes before is only about the picture.
const JPEG_HEAD: usize = 64 * 1024;

/// The pictures of the cells of one turn.
#[derive(Debug, Default)]
pub(super) struct ShownPictures {
    pub pictures: Vec<Picture>,
    /// How many were too large, or beyond the number that is shown.
    pub left_out: usize,
    /// How many are no pictures, whatever the code in the sandbox says of them.
    pub broken: usize,
    /// Whether there were some before a restart of the daemon, which does not keep them.
    pub gone: bool,
}

/// Why a model is not shown a picture.
#[derive(Debug, PartialEq, Eq)]
enum Unfit {
    TooLarge,
    Broken,
}

impl ShownPictures {
    pub fn take(&mut self, result: &ExecutionResult) {
        let value = result.result.iter().map(|value| &value.mime);
        for forms in result.displays.iter().map(|display| &display.mime).chain(value) {
            let form = FORMS.into_iter().find_map(|mime| Some((mime, forms.get(mime)?.as_str()?)));
            let Some((mime, base64)) = form else {
                self.gone |= FORMS.iter().any(|mime| forms.get(*mime).is_some_and(Value::is_null));
                continue;
            };
            // Encoders break lines, which a URL cannot have.
            let base64: String = base64.split_ascii_whitespace().collect();
            match checked(mime, base64) {
                Ok(picture) if self.pictures.len() < PICTURES => self.pictures.push(picture),
                Ok(_) | Err(Unfit::TooLarge) => self.left_out += 1,
                Err(Unfit::Broken) => self.broken += 1,
            }
        }
    }
}

/// The estimated tokens of a picture.
pub(super) fn tokens(picture: &Picture) -> u64 {
    picture.tokens.max(LEAST_TOKENS)
}

/// The picture, if a provider takes it as far as its head says. The rest is for the provider to decode.
fn checked(mime: &str, base64: String) -> Result<Picture, Unfit> {
    if base64.len() > PICTURE_BYTES {
        return Err(Unfit::TooLarge);
    }
    let bytes = STANDARD.decode(&base64).map_err(|_| Unfit::Broken)?;
    let size = if mime == "image/png" { png_size(&bytes) } else { jpeg_size(&bytes) };
    let sides = size.filter(|sides| !sides.contains(&0)).ok_or(Unfit::Broken)?;
    if sides.iter().any(|side| *side > PICTURE_SIDE) {
        return Err(Unfit::TooLarge);
    }
    let pixels: u64 = sides.into_iter().map(u64::from).product();
    Ok(Picture { mime: mime.to_owned(), base64, tokens: pixels.div_ceil(TOKEN_PIXELS) })
}

fn png_size(bytes: &[u8]) -> Option<[u32; 2]> {
    let sides = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")?;
    let side = |at: usize| Some(u32::from_be_bytes(sides.get(at..at + 4)?.try_into().ok()?));
    Some([side(0)?, side(4)?])
}

fn jpeg_size(bytes: &[u8]) -> Option<[u32; 2]> {
    let number = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let mut at = 2;
    if !bytes.starts_with(b"\xff\xd8") {
        return None;
    }
    while at < JPEG_HEAD {
        let marker = number(at)?;
        match marker {
            // The start of a frame, in any of its forms.
            0xffc0..=0xffc3 | 0xffc5..=0xffc7 | 0xffc9..=0xffcb | 0xffcd..=0xffcf => {
                return Some([u32::from(number(at + 7)?), u32::from(number(at + 5)?)]);
            }
            0xff01..=0xfffe => at += 2 + usize::from(number(at + 2)?),
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(width: u32, height: u32) -> String {
        let sides = [width.to_be_bytes(), height.to_be_bytes()].concat();
        STANDARD.encode([&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], &sides, b"rest"].concat())
    }

    #[test]
    fn only_pictures_within_bounds_fit() {
        let fits = |mime: &str, base64: &str| checked(mime, base64.to_owned()).is_ok();
        assert!(fits("image/png", &png(640, 480)));
        for broken in [png(0, 5), "!".into(), STANDARD.encode("GIF89a"), png(1, 1) + "A"] {
            assert_eq!(checked("image/png", broken), Err(Unfit::Broken));
        }
        for large in [png(PICTURE_SIDE + 1, 5), "A".repeat(PICTURE_BYTES + 4)] {
            assert_eq!(checked("image/png", large), Err(Unfit::TooLarge));
        }
        let jpeg = |height: u8| {
            let frame = [0xff, 0xc0, 0, 17, 8, height, 0, 1, 0];
            STANDARD.encode([&b"\xff\xd8\xff\xe0\0\x04ab"[..], &frame].concat())
        };
        assert!(fits("image/jpeg", &jpeg(1)) && !fits("image/jpeg", &jpeg(0xff)));
        assert!(!fits("image/png", &jpeg(1)) && !fits("image/jpeg", &png(5, 5)));
    }

    #[test]
    fn large_pictures_count_by_their_pixels() {
        let count = |width, height| tokens(&checked("image/png", png(width, height)).unwrap());
        assert_eq!(count(640, 480), LEAST_TOKENS);
        assert_eq!(count(PICTURE_SIDE, PICTURE_SIDE), 5_350);
        let old: Picture = serde_json::from_str(r#"{"mime": "image/png", "base64": ""}"#).unwrap();
        assert_eq!(tokens(&old), LEAST_TOKENS);
    }
}
