//! Randomness for names, ports and cookies: what must differ between runs.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// A number that differs with every call and every process.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
