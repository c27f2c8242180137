//! The client of language models: requests, streams, retries, record and replay.
