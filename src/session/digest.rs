//! Digests and sizes of values that are only compared later, so that the values need not be stored.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// Stands for a value that is only ever compared.
pub type Digest = [u8; 32];

/// The digest of a value: equal values have equal digests.
#[must_use]
pub fn digest<T: Serialize + ?Sized>(value: &T) -> Digest {
    let mut hash = Sha256::new();
    // Serializing these values cannot fail, and neither can writing to a hash.
    let _ = serde_json::to_writer(&mut hash, value);
    hash.finalize().into()
}

/// The bytes of a call's arguments, as JSON.
#[must_use]
pub fn json_bytes(arguments: &serde_json::Map<String, serde_json::Value>) -> u64 {
    serde_json::to_string(arguments).map_or(u64::MAX, |json| json.len() as u64)
}
