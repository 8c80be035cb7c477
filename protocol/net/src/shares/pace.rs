//! How much a source, and all together, may have in a time.
//!
//! Token buckets, which are paid after the fact where only then it is known what something costs, and which give back what
//! turned out to be owed to nobody. No rate limiter that we know offers both, or bounds how many sources it remembers.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use muster_core::lock::lock;

use crate::source::Source;

/// Sources that are remembered at most: of a source whose bucket is full there is nothing to remember.
const SOURCES: usize = 4096;
/// Parts of a token, so that nothing is lost between two looks.
const MICRO: i64 = 1_000_000;

/// So many tokens a second, and so many at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) per_second: u32,
    pub(crate) burst: u32,
}

/// Buckets of one kind: one for each source, and one for all together.
pub(crate) struct Pace {
    per_source: Rate,
    in_all: Rate,
    buckets: Mutex<Buckets>,
}

struct Buckets {
    all: Bucket,
    by_source: BTreeMap<Source, Bucket>,
}

/// Tokens, in millionths, and when they were counted; below zero is a debt.
#[derive(Clone, Copy)]
struct Bucket {
    level: i64,
    at: Instant,
}

impl Bucket {
    fn full(rate: Rate, now: Instant) -> Self {
        Self { level: i64::from(rate.burst) * MICRO, at: now }
    }

    fn refill(&mut self, rate: Rate, now: Instant) {
        let gone = now.saturating_duration_since(self.at).as_micros();
        let gained = i64::try_from(gone).unwrap_or(i64::MAX).saturating_mul(rate.per_second.into());
        self.level = self.level.saturating_add(gained).min(i64::from(rate.burst) * MICRO);
        self.at = now;
    }

    fn is_full(&self, rate: Rate) -> bool {
        self.level >= i64::from(rate.burst) * MICRO
    }

    fn spend(&mut self, tokens: u32) {
        self.level = self.level.saturating_sub(i64::from(tokens) * MICRO);
    }

    /// How long until there is a token.
    fn wait(&self, rate: Rate) -> Duration {
        let lacking = u64::try_from(MICRO.saturating_sub(self.level)).unwrap_or(0);
        Duration::from_micros(lacking.div_ceil(u64::from(rate.per_second.max(1))))
    }
}

impl Pace {
    pub(crate) fn new(per_source: Rate, in_all: Rate, now: Instant) -> Self {
        let buckets = Buckets { all: Bucket::full(in_all, now), by_source: BTreeMap::new() };
        Self { per_source, in_all, buckets: Mutex::new(buckets) }
    }

    /// How long a source waits for its next token; with `alone`, whatever others have spent.
    pub(crate) fn wait(&self, source: Source, alone: bool, now: Instant) -> Duration {
        let mut buckets = lock(&self.buckets);
        let own = self.of(&mut buckets, source, now).map_or(Duration::ZERO, |own| own.wait(self.per_source));
        if alone { own } else { own.max(buckets.all.wait(self.in_all)) }
    }

    /// Pays for something, also where that makes a debt.
    pub(crate) fn spend(&self, source: Source, tokens: u32, alone: bool, now: Instant) {
        let mut buckets = lock(&self.buckets);
        if let Some(own) = self.of(&mut buckets, source, now) {
            own.spend(tokens);
        }
        if !alone {
            buckets.all.spend(tokens);
        }
    }

    /// Takes a token, if there is one now.
    pub(crate) fn take(&self, source: Source, alone: bool, now: Instant) -> bool {
        let free = self.wait(source, alone, now).is_zero();
        if free {
            self.spend(source, 1, alone, now);
        }
        free
    }

    /// Gives a token back.
    pub(crate) fn give_back(&self, source: Source, alone: bool) {
        let mut buckets = lock(&self.buckets);
        if let Some(own) = buckets.by_source.get_mut(&source) {
            own.level = own.level.saturating_add(MICRO);
        }
        if !alone {
            buckets.all.level = buckets.all.level.saturating_add(MICRO);
        }
    }

    /// A source's bucket as it is now; none where too many sources are in use: what all have together still bounds these.
    fn of<'a>(&self, buckets: &'a mut Buckets, source: Source, now: Instant) -> Option<&'a mut Bucket> {
        buckets.all.refill(self.in_all, now);
        let by_source = &mut buckets.by_source;
        if by_source.len() >= SOURCES && !by_source.contains_key(&source) {
            by_source.retain(|_, bucket| {
                bucket.refill(self.per_source, now);
                !bucket.is_full(self.per_source)
            });
            if by_source.len() >= SOURCES {
                return None;
            }
        }
        let own = by_source.entry(source).or_insert_with(|| Bucket::full(self.per_source, now));
        own.refill(self.per_source, now);
        Some(own)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn source(number: u32) -> Source {
        Source::of(IpAddr::from(number.to_be_bytes()))
    }

    fn pace(now: Instant) -> Pace {
        Pace::new(Rate { per_second: 2, burst: 4 }, Rate { per_second: 3, burst: 6 }, now)
    }

    fn taken(pace: &Pace, source: Source, now: Instant) -> usize {
        (0..100).filter(|_| pace.take(source, false, now)).count()
    }

    #[test]
    fn a_source_has_its_burst_and_then_its_rate() {
        let now = Instant::now();
        let pace = pace(now);
        assert_eq!(taken(&pace, source(1), now), 4);
        // What is left in all.
        assert_eq!(taken(&pace, source(2), now), 2);
        assert_eq!(taken(&pace, source(1), now + Duration::from_millis(1000)), 2);
        assert_eq!(taken(&pace, source(2), now + Duration::from_millis(1000)), 1);
        // Looking often loses nothing.
        let often = (1..=100).map(|step| now + Duration::from_millis(1000 + 10 * step));
        assert_eq!(often.map(|now| taken(&pace, source(2), now)).sum::<usize>(), 3);
    }

    #[test]
    fn what_something_costs_is_paid_afterwards_and_what_was_owed_to_nobody_comes_back() {
        let now = Instant::now();
        let pace = pace(now);
        pace.spend(source(1), 10, true, now);
        assert_eq!(pace.wait(source(1), true, now), Duration::from_millis(3500));
        assert_eq!(taken(&pace, source(2), now), 4, "a debt is its own");
        pace.give_back(source(2), false);
        assert_eq!(taken(&pace, source(2), now), 1);
        assert_eq!(pace.wait(source(1), true, now + Duration::from_millis(3500)), Duration::ZERO);
    }

    #[test]
    fn sources_without_number_leave_no_trace_and_are_bounded_together() {
        let now = Instant::now();
        let pace = Pace::new(Rate { per_second: 1, burst: 1 }, Rate { per_second: 100, burst: 5000 }, now);
        let let_in = (0..20_000).filter(|number| pace.take(source(*number), false, now)).count();
        assert_eq!(let_in, 5000);
        assert!(lock(&pace.buckets).by_source.len() <= SOURCES);
        let later = now + Duration::from_secs(10);
        assert!(pace.take(source(1 << 30), false, later));
        assert_eq!(lock(&pace.buckets).by_source.len(), 1);
    }
}
