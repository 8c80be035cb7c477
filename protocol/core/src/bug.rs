//! Broken invariants: what must hold and does not is said aloud, and ends no process of a member.
//!
//! A *bug* is a state that no message, no order of events and no crash can bring about. What a stranger can cause is a
//! [`Reject`](crate::error::Reject), what comes too late is left with a reason. A bug is logged as an error, with what was
//! expected. Then it panics, so that tests, simulations and fuzzers stop at it; a program that members run says
//! [`outlive`] first, and goes on.

use core::fmt;
use core::panic::Location;
use core::sync::atomic::{AtomicBool, Ordering};

/// Whether bugs are logged only.
static OUTLIVED: AtomicBool = AtomicBool::new(false);

/// From now on this process goes on after a bug: whoever takes part in a run loses less by one duty that is left undone than
/// by a process that ends.
pub fn outlive() {
    OUTLIVED.store(true, Ordering::Relaxed);
}

/// Something did not hold that was expected here. [`bug!`](crate::bug!) and [`OrBug`] say it.
///
/// # Panics
/// Unless bugs are [outlived](outlive).
#[track_caller]
pub fn found(expected: fmt::Arguments<'_>) {
    let place = Location::caller();
    tracing::error!("a bug at {place}, please report it; expected: {expected}");
    assert!(OUTLIVED.load(Ordering::Relaxed), "a bug; expected: {expected}");
}

/// Says that something does not hold which must, by what was expected in the words of `format!`. The caller goes on from there
/// in a way that does the least harm: `let … else { bug!("…"); return }`.
#[macro_export]
macro_rules! bug {
    ($($expected:tt)+) => { $crate::bug::found(::core::format_args!($($expected)+)) };
}

/// What cannot be missing, or fail, says so if it does.
pub trait OrBug {
    /// What is there.
    type Item;

    /// The same as an `Option`; `None` is a bug, as [`bug!`](crate::bug!) has it, and `expected` says what was expected.
    #[track_caller]
    fn or_bug(self, expected: &str) -> Option<Self::Item>;
}

impl<T> OrBug for Option<T> {
    type Item = T;

    fn or_bug(self, expected: &str) -> Self {
        if self.is_none() {
            found(format_args!("{expected}"));
        }
        self
    }
}

impl<T, E: fmt::Display> OrBug for Result<T, E> {
    type Item = T;

    fn or_bug(self, expected: &str) -> Option<T> {
        match self {
            Ok(item) => Some(item),
            Err(error) => {
                found(format_args!("{expected}; found: {error}"));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Reject;

    #[test]
    #[should_panic(expected = "a bug; expected: 7 parts")]
    fn a_bug_panics_where_nobody_outlives_it() {
        bug!("{} parts", 7);
    }

    #[test]
    #[should_panic(expected = "a bug; expected: a sealed word; found: the signature does not verify")]
    fn a_failure_that_cannot_be_says_what_was_found() {
        let _ = Err::<(), _>(Reject::BadSignature).or_bug("a sealed word");
    }

    #[test]
    fn what_is_there_is_no_bug() {
        assert_eq!(Some(7).or_bug("a number"), Some(7));
        assert_eq!(Ok::<_, Reject>(7).or_bug("a number"), Some(7));
    }
}
