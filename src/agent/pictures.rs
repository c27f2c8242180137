//! The pictures that cells showed, for models that see.
//!
//! No picture is decoded here, because what a sandbox made is not trusted. Where a picture is too large, the sandbox adds a
//! small copy if it can (`belljar_kernel/pictures.py`), and a model whose sandbox cannot is told in words what would fit.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use crate::protocol::chat::Picture;
use crate::protocol::result::{ExecutionResult, SMALL_PICTURE};

/// The most pictures of a conversation that a model is shown; of more, the newest.
pub(super) const PICTURES: usize = 4;
/// The most bytes of a picture, as base64. This and the next are in the kernel's `limits.py`, too.
pub(super) const PICTURE_BYTES: usize = 512 * 1024;
/// The most pixels of a side.
pub(super) const PICTURE_SIDE: u32 = 2_048;
/// The least tokens that a picture is estimated at; providers that scale pictures down count at most about this.
const LEAST_TOKENS: u64 = 1_600;
/// The pixels of a token, where a provider counts by the size: patches of 28 by 28.
const TOKEN_PIXELS: u64 = 28 * 28;

const PNG: &str = "image/png";
const JPEG: &str = "image/jpeg";
/// The forms of a picture that models are shown, as people are; of a value that has several, the first that fits.
const FORMS: [&str; 2] = [PNG, JPEG];
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
            match judged(forms) {
                None => self.gone |= FORMS.iter().any(|form| forms.get(*form).is_some_and(Value::is_null)),
                Some(Ok(picture)) if self.pictures.len() < PICTURES => self.pictures.push(picture),
                Some(Ok(_) | Err(Unfit::TooLarge)) => self.left_out += 1,
                Some(Err(Unfit::Broken)) => self.broken += 1,
            }
        }
    }
}

/// The estimated tokens of a picture.
pub(super) fn tokens(picture: &Picture) -> u64 {
    picture.tokens.max(LEAST_TOKENS)
}

/// The picture of a value, or why a model is not shown it; none if the value has none. The small copy is looked at only where
/// the picture itself is too large: people do not see it, so it must not take the place of what they see.
fn judged(forms: &Map<String, Value>) -> Option<Result<Picture, Unfit>> {
    let check = |form: &str| Some(checked(form, forms.get(form)?.as_str()?));
    let mut found = None;
    for form in FORMS {
        match check(form) {
            Some(Ok(picture)) => return Some(Ok(picture)),
            Some(Err(unfit)) if found != Some(Unfit::TooLarge) => found = Some(unfit),
            Some(Err(_)) | None => {}
        }
    }
    let unfit = found?;
    if unfit == Unfit::TooLarge
        && let Some(Ok(small)) = check(SMALL_PICTURE)
    {
        return Some(Ok(small));
    }
    Some(Err(unfit))
}

/// The picture, if a provider takes it as far as its head says. The rest is for the provider to decode.
fn checked(form: &str, base64: &str) -> Result<Picture, Unfit> {
    // Encoders break lines, which a URL cannot have.
    let base64: String = base64.split_ascii_whitespace().collect();
    if base64.len() > PICTURE_BYTES {
        return Err(Unfit::TooLarge);
    }
    let bytes = STANDARD.decode(&base64).map_err(|_| Unfit::Broken)?;
    // A small copy is the one or the other.
    let is_png = form == PNG || (form == SMALL_PICTURE && png_size(&bytes).is_some());
    let (mime, size) = if is_png { (PNG, png_size(&bytes)) } else { (JPEG, jpeg_size(&bytes)) };
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
    use crate::protocol::exit_codes;
    use crate::protocol::result::{Display, Reason, Status};

    fn png(width: u32, height: u32) -> String {
        let sides = [width.to_be_bytes(), height.to_be_bytes()].concat();
        STANDARD.encode([&b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"[..], &sides, b"rest"].concat())
    }

    #[test]
    fn only_pictures_within_bounds_fit() {
        let fits = |form: &str, base64: &str| checked(form, base64).is_ok();
        assert!(fits(PNG, &png(640, 480)));
        for broken in [png(0, 5), "!".into(), STANDARD.encode("GIF89a"), png(1, 1) + "A"] {
            assert_eq!(checked(PNG, &broken), Err(Unfit::Broken));
        }
        for large in [png(PICTURE_SIDE + 1, 5), "A".repeat(PICTURE_BYTES + 4)] {
            assert_eq!(checked(PNG, &large), Err(Unfit::TooLarge));
        }
        let jpeg = |height: u8| {
            let frame = [0xff, 0xc0, 0, 17, 8, height, 0, 1, 0];
            STANDARD.encode([&b"\xff\xd8\xff\xe0\0\x04ab"[..], &frame].concat())
        };
        assert!(fits(JPEG, &jpeg(1)) && !fits(JPEG, &jpeg(0xff)));
        assert!(!fits(PNG, &jpeg(1)) && !fits(JPEG, &png(5, 5)));
        // A small copy is told by what it is.
        let mime = |base64: &str| checked(SMALL_PICTURE, base64).map(|picture| picture.mime);
        assert_eq!(mime(&png(5, 5)), Ok(PNG.to_owned()));
        assert_eq!(mime(&jpeg(1)), Ok(JPEG.to_owned()));
        assert_eq!(mime(&STANDARD.encode("GIF89a")), Err(Unfit::Broken));
    }

    #[test]
    fn a_small_copy_stands_for_a_picture_that_does_not_fit() {
        let large = png(PICTURE_SIDE + 1, 5);
        let taken = |copy: Value| {
            let mime = serde_json::json!({"image/png": large, SMALL_PICTURE: copy});
            let mime = mime.as_object().cloned().unwrap_or_default();
            let mut result = exit_codes::tests::result(Status::Success, Reason::Ok, Some(0));
            result.displays = vec![Display { mime }];
            let mut shown = ShownPictures::default();
            shown.take(&result);
            (shown.pictures.len(), shown.left_out, shown.broken)
        };
        assert_eq!(taken(png(5, 5).into()), (1, 0, 0));
        assert_eq!(taken("!".into()), (0, 1, 0));
        assert_eq!(taken(Value::Null), (0, 1, 0));
    }

    /// Code in the sandbox could show people one picture and a model another.
    #[test]
    fn a_small_copy_never_takes_the_place_of_what_people_see() {
        let seen = |mime: Value| judged(mime.as_object().expect("an object")).map(Result::ok);
        let (shown, copy) = (png(5, 5), png(7, 7));
        let picture = seen(serde_json::json!({"image/png": shown, SMALL_PICTURE: copy}));
        assert_eq!(picture.flatten().expect("a picture").base64, shown);
        assert!(seen(serde_json::json!({SMALL_PICTURE: copy})).is_none());
        assert!(
            seen(serde_json::json!({"image/png": "!", SMALL_PICTURE: copy})).expect("it is broken").is_none()
        );
    }

    #[test]
    fn large_pictures_count_by_their_pixels() {
        let count = |width, height| tokens(&checked(PNG, &png(width, height)).unwrap());
        assert_eq!(count(640, 480), LEAST_TOKENS);
        assert_eq!(count(PICTURE_SIDE, PICTURE_SIDE), 5_350);
        let old: Picture = serde_json::from_str(r#"{"mime": "image/png", "base64": ""}"#).unwrap();
        assert_eq!(tokens(&old), LEAST_TOKENS);
    }
}
