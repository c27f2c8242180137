//! The records in which a snapshot goes from a kernel to the daemon and back: a byte that says what it is, the length of
//! what follows as four bytes, the most significant first, and so many bytes.

use serde::{Deserialize, Serialize};

use crate::protocol::snapshot::{RECORD_BYTES, SnapshotManifest};
use crate::protocol::text::truncate;

/// The kind and the length.
pub const HEADER_BYTES: usize = 5;
/// Characters that are kept of why a kernel gave a snapshot up.
const REASON_CHARS: usize = 300;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Bytes of the section.
    Piece,
    /// The section has ended.
    SectionEnd,
    /// All has come; what follows is the manifest.
    End,
    /// Nothing more comes; what follows says why.
    GivenUp,
}

/// The beginning of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    pub kind: RecordKind,
    /// Bytes that follow, [`RECORD_BYTES`] at most.
    pub length: usize,
}

/// What makes no sense as a record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("there is no record of the kind {0:#04x}")]
    Kind(u8),
    #[error("a record has {0} bytes")]
    TooLong(usize),
    #[error("a piece of a section has no bytes")]
    Empty,
    #[error("the end of a section has {0} bytes")]
    NotEmpty(usize),
    #[error("the last record is not understood: {0}")]
    NotUnderstood(String),
}

/// Why a kernel gave a snapshot up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUp {
    pub code: String,
    pub message: String,
}

impl RecordKind {
    const ALL: [Self; 4] = [Self::Piece, Self::SectionEnd, Self::End, Self::GivenUp];

    const fn byte(self) -> u8 {
        match self {
            Self::Piece => b'P',
            Self::SectionEnd => b'S',
            Self::End => b'E',
            Self::GivenUp => b'X',
        }
    }

    /// The beginning of a record of this kind.
    pub fn header(self, length: usize) -> Result<[u8; HEADER_BYTES], RecordError> {
        let header = RecordHeader { kind: self, length }.checked()?;
        let [a, b, c, d] =
            u32::try_from(header.length).map_err(|_| RecordError::TooLong(length))?.to_be_bytes();
        Ok([self.byte(), a, b, c, d])
    }
}

impl RecordHeader {
    pub fn parse(header: [u8; HEADER_BYTES]) -> Result<Self, RecordError> {
        let [byte, length @ ..] = header;
        let kind = RecordKind::ALL.into_iter().find(|kind| kind.byte() == byte);
        let kind = kind.ok_or(RecordError::Kind(byte))?;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        Self { kind, length }.checked()
    }

    fn checked(self) -> Result<Self, RecordError> {
        match self {
            Self { kind: RecordKind::Piece, length: 0 } => Err(RecordError::Empty),
            Self { kind: RecordKind::SectionEnd, length: 1.. } => Err(RecordError::NotEmpty(self.length)),
            Self { length, .. } if length > RECORD_BYTES => Err(RecordError::TooLong(length)),
            _ => Ok(self),
        }
    }
}

/// What follows the header of the last record, if all has come.
pub fn manifest(payload: &[u8]) -> Result<SnapshotManifest, RecordError> {
    let mut manifest: SnapshotManifest = serde_json::from_slice(payload).map_err(not_understood)?;
    manifest.bound();
    Ok(manifest)
}

/// What follows the header of the last record, if the kernel gave up.
pub fn given_up(payload: &[u8]) -> Result<GivenUp, RecordError> {
    let mut reason: GivenUp = serde_json::from_slice(payload).map_err(not_understood)?;
    truncate(&mut reason.code, REASON_CHARS);
    truncate(&mut reason.message, REASON_CHARS);
    Ok(reason)
}

fn not_understood(error: serde_json::Error) -> RecordError {
    let mut text = error.to_string();
    truncate(&mut text, REASON_CHARS);
    RecordError::NotUnderstood(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_are_what_kernels_send() {
        let piece = RecordHeader { kind: RecordKind::Piece, length: 0x0001_0203 };
        assert_eq!(RecordHeader::parse(*b"P\x00\x01\x02\x03").as_ref(), Ok(&piece));
        assert_eq!(RecordKind::Piece.header(0x0001_0203), Ok(*b"P\x00\x01\x02\x03"));
        assert_eq!(RecordKind::SectionEnd.header(0), Ok(*b"S\x00\x00\x00\x00"));
        let longest = u32::try_from(RECORD_BYTES).unwrap().to_be_bytes();
        let header = [b'E', longest[0], longest[1], longest[2], longest[3]];
        assert_eq!(RecordHeader::parse(header).unwrap().length, RECORD_BYTES);
    }

    #[test]
    fn records_that_are_too_long_empty_or_unknown_are_refused_by_their_header() {
        for (header, error) in [
            (*b"P\x00\x10\x00\x01", RecordError::TooLong(RECORD_BYTES + 1)),
            (*b"X\xff\xff\xff\xff", RecordError::TooLong(0xffff_ffff)),
            (*b"P\x00\x00\x00\x00", RecordError::Empty),
            (*b"S\x00\x00\x00\x01", RecordError::NotEmpty(1)),
            (*b"p\x00\x00\x00\x00", RecordError::Kind(b'p')),
            ([0; 5], RecordError::Kind(0)),
        ] {
            assert_eq!(RecordHeader::parse(header), Err(error));
        }
        assert_eq!(RecordKind::Piece.header(RECORD_BYTES + 1), Err(RecordError::TooLong(RECORD_BYTES + 1)));
        assert_eq!(RecordKind::SectionEnd.header(3), Err(RecordError::NotEmpty(3)));
    }

    #[test]
    fn what_a_kernel_says_at_the_end_is_bounded() {
        let long = "x".repeat(100_000);
        let said = serde_json::json!({"code": "memory", "message": long}).to_string();
        let reason = given_up(said.as_bytes()).unwrap();
        assert_eq!((reason.code.as_str(), reason.message.len()), ("memory", REASON_CHARS));
        let unknown = serde_json::json!({ long: 1 }).to_string();
        let Err(RecordError::NotUnderstood(why)) = manifest(unknown.as_bytes()) else { panic!("understood") };
        assert!(why.len() <= REASON_CHARS, "{}", why.len());
    }

    proptest! {
        #[test]
        fn a_header_that_is_read_is_written_the_same(header in any::<[u8; HEADER_BYTES]>()) {
            if let Ok(read) = RecordHeader::parse(header) {
                prop_assert_eq!(read.kind.header(read.length), Ok(header));
                prop_assert!(read.length <= RECORD_BYTES);
            }
        }
    }
}
