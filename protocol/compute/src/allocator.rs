//! How long the programs' allocator keeps what it was given back.

use std::ffi::c_long;

use libmimalloc_sys::{mi_option_set, mi_option_t};

/// `mi_option_purge_delay` of `mimalloc.h`, in milliseconds.
const PURGE_DELAY: mi_option_t = 15;
/// The variable of the environment that sets it.
const VARIABLE: &str = "MIMALLOC_PURGE_DELAY";
/// With the allocator's own second a node of 50 M parameters takes 17 bytes a parameter, and 15 with this, for 2 % more processor
/// time of a short round (`tests/bench/memory.py`).
const DELAY: c_long = 50;

/// Has memory go back to the system soon after it was given back to the allocator, unless the environment says how soon. Without effect
/// in a program with another allocator.
#[allow(unsafe_code)]
pub fn give_back_soon() {
    if std::env::var_os(VARIABLE).is_none() {
        // SAFETY: sets a number that the allocator reads, and nothing where it knows no option of this number.
        unsafe { mi_option_set(PURGE_DELAY, DELAY) };
    }
}

#[cfg(test)]
mod tests {
    use libmimalloc_sys::mi_option_get;

    use super::*;

    #[allow(unsafe_code)]
    fn kept_for() -> c_long {
        // SAFETY: reads a number.
        unsafe { mi_option_get(PURGE_DELAY) }
    }

    /// The number of the option is the allocator's own matter: its default tells which one it is.
    #[test]
    fn the_option_that_is_set_is_that_of_the_delay() {
        if std::env::var_os(VARIABLE).is_none() {
            assert_eq!(kept_for(), 1000);
            give_back_soon();
            assert_eq!(kept_for(), DELAY);
        }
    }
}
