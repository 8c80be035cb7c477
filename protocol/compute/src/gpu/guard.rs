//! What becomes of a panic in what calls drivers.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Does what calls drivers; a panic becomes an error. What bindings to a driver do where it lacks a function is to panic.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // What the work has half done is dropped with it.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words =
            panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(words.unwrap_or("its driver panicked").lines().next().unwrap_or_default().to_owned())
    })
}
