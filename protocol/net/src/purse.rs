//! What somebody may use of something over time, and the wait where more was used.

use std::time::{Duration, Instant};

/// So much at once, and one more each `each`.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// At once.
    pub burst: u32,
    /// The time for which one unit is paid.
    pub each: Duration,
}

impl Allowance {
    /// `burst` at once, and `rate` a second.
    pub const fn a_second(rate: u32, burst: u32) -> Self {
        Self { burst, each: Duration::from_nanos(1_000_000_000 / rate as u64) }
    }
}

/// What is left of an allowance: the instant up to which everything that was used is paid for. What is used is charged
/// afterwards, so that a purse may be overdrawn by one use.
#[derive(Clone, Copy, Debug)]
pub struct Purse {
    allowance: Allowance,
    paid: Instant,
}

impl Purse {
    /// A full one.
    pub fn new(allowance: Allowance, now: Instant) -> Self {
        Self { allowance, paid: now }
    }

    /// How long until something is left; `None` where something is.
    pub fn wait(&self, now: Instant) -> Option<Duration> {
        let burst = self.allowance.each.saturating_mul(self.allowance.burst);
        // A unit must be left, not the end of one.
        let due = now + burst.saturating_sub(self.allowance.each);
        self.paid.checked_duration_since(due).filter(|wait| !wait.is_zero())
    }

    /// Charges a use.
    pub fn pay(&mut self, units: u32, now: Instant) {
        self.paid = self.paid.max(now) + self.allowance.each.saturating_mul(units);
    }

    /// Uses one unit if one is left.
    pub fn take(&mut self, now: Instant) -> bool {
        let left = self.wait(now).is_none();
        if left {
            self.pay(1, now);
        }
        left
    }

    /// Gives one unit back.
    pub fn give_back(&mut self) {
        self.paid = self.paid.checked_sub(self.allowance.each).unwrap_or(self.paid);
    }

    /// Whether nothing was used lately: a new purse would say the same.
    pub fn is_full(&self, now: Instant) -> bool {
        self.paid <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purse_fills_with_time_and_never_beyond_its_burst() {
        let began = Instant::now();
        let after = |ms| began + Duration::from_millis(ms);
        let mut purse = Purse::new(Allowance::a_second(10, 3), began);
        assert!((0..3).all(|_| purse.take(began)) && !purse.take(began));
        assert_eq!(purse.wait(began), Some(Duration::from_millis(100)));
        assert!(purse.take(after(100)) && !purse.take(after(100)));
        // However long it was left alone.
        assert!((0..3).all(|_| purse.take(after(60_000))) && !purse.take(after(60_000)));
        // A large use is paid for in full before the next one.
        purse.pay(100, after(60_000));
        assert!(!purse.take(after(69_000)) && purse.take(after(70_200)));
        assert!(!purse.is_full(after(70_200)) && purse.is_full(after(80_000)));
    }
}
