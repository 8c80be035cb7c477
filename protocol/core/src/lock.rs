//! Locks whose holder may have panicked.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, also where a holder panicked: what our locks guard is whole between any two statements, and one task's
/// panic must not take the others with it.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
