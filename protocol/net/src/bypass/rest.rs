//! What has failed is left alone for a while.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muster_core::limits;

/// At most; each further time is twice as long as the one before.
const LONGEST: Duration = Duration::from_secs(3600);
/// How many are remembered: only what the ledger names is tried.
const REMEMBERED: usize = limits::MEMBERS;

/// What rests.
#[derive(Debug)]
pub(super) struct Rests<K>(BTreeMap<K, Rest>);

#[derive(Debug)]
struct Rest {
    until: Instant,
    pause: Duration,
}

impl Rest {
    /// Whether the next failure is a new one: for as long again as it rested there was none.
    fn is_over(&self, now: Instant) -> bool {
        self.until + self.pause <= now
    }
}

impl<K> Default for Rests<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Rests<K> {
    /// It has failed, and rests for so long, if it is the first time.
    pub(super) fn note(&mut self, what: K, first: Duration, now: Instant) {
        let pause = match self.0.get(&what) {
            // Failures at one time are one.
            Some(rest) if now < rest.until => return,
            Some(rest) if !rest.is_over(now) => (2 * rest.pause).clamp(first, LONGEST),
            _ => first,
        };
        if self.0.len() >= REMEMBERED {
            self.0.retain(|_, rest| !rest.is_over(now));
        }
        // Of so many failures at once others are forgotten rather than this one.
        if self.0.len() >= REMEMBERED {
            self.0.pop_first();
        }
        self.0.insert(what, Rest { until: now + pause, pause });
    }

    /// Whether it is left alone now.
    pub(super) fn rests(&self, what: &K, now: Instant) -> bool {
        self.0.get(what).is_some_and(|rest| now < rest.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_secs(120);

    #[test]
    fn chan_29_what_fails_again_rests_twice_as_long_up_to_an_hour() {
        let (began, mut rests) = (Instant::now(), Rests::default());
        let (mut now, mut pauses) = (began, Vec::new());
        for _ in 0..7 {
            rests.note(1, FIRST, now);
            // Others that fail meanwhile make it no longer.
            rests.note(1, FIRST, now + FIRST / 2);
            assert!(rests.rests(&1, now) && !rests.rests(&2, now));
            let until = rests.0[&1].until;
            assert!(rests.rests(&1, until - Duration::from_millis(1)) && !rests.rests(&1, until));
            pauses.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [120, 240, 480, 960, 1920, 3600, 3600]);
        // A good time ends it.
        let later = now + 2 * LONGEST;
        rests.note(1, FIRST, later);
        assert!(!rests.rests(&1, later + FIRST));
        // What fails for less is no better for it.
        rests.note(1, FIRST / 8, later + FIRST);
        assert!(rests.rests(&1, later + FIRST + FIRST));
    }

    #[test]
    fn chan_29_what_rests_is_bounded_in_number() {
        let (now, mut rests) = (Instant::now(), Rests::default());
        (0..=REMEMBERED).for_each(|name| rests.note(name, FIRST, now));
        assert_eq!(rests.0.len(), REMEMBERED);
        assert!(rests.rests(&REMEMBERED, now));
    }
}
