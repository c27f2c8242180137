//! Values that are compared later and not kept until then.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// Stands for a value that is only ever compared.
pub type Digest = [u8; 32];

/// Equal for values that are equal.
#[must_use]
pub fn digest<T: Serialize + ?Sized>(value: &T) -> Digest {
    let mut hash = Sha256::new();
    // Nothing that is hashed here can fail to be written, and a hash takes all that it is given.
    let _ = serde_json::to_writer(&mut hash, value);
    hash.finalize().into()
}
