//! How many bytes a keeper may still put on its disk for others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that are left. Whoever listens among many keeps the blocks of all of them, and a steward says who they are: what
/// a member allows of its disk bounds what it takes in, whatever a run's settings let it expect.
pub struct Quota {
    left: AtomicU64,
    told: AtomicBool,
}

impl Quota {
    /// As much as the disk takes.
    pub(super) fn unlimited() -> Self {
        Self { left: AtomicU64::new(u64::MAX), told: AtomicBool::new(false) }
    }

    /// From now on so many bytes.
    pub fn allow(&self, bytes: u64) {
        self.left.store(bytes, Ordering::Relaxed);
    }

    /// Takes bytes, where so many are left.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let take = |left: u64| left.checked_sub(bytes);
        let taken = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        // Once until there is room again: every block of a round would say it.
        if !self.told.swap(!taken, Ordering::Relaxed) && !taken {
            tracing::warn!(
                "--max-disk: there is no room for others' blocks; they are refused, and their authors bring them to the \
                 steward. This member goes on. Allow more to keep them again"
            );
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_taken_than_is_left() {
        let quota = Quota::unlimited();
        assert!(quota.take(1 << 60));
        quota.allow(10);
        assert!(quota.take(7) && !quota.take(4) && quota.take(3) && !quota.take(1) && quota.take(0));
        quota.allow(4);
        assert!(quota.take(4));
    }
}
