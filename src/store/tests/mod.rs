//! What the journal promises.
