//! How far a replay is, how fast it goes and how long it will take.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use muster_core::ids::Round;
use muster_core::lock::lock;

/// Between two lines where standard error is no terminal.
const LINE: Duration = Duration::from_secs(10);

/// A bar on a terminal, a line now and then elsewhere.
pub struct Meter {
    bar: ProgressBar,
    total: u64,
    rounds: u32,
    begun: Instant,
    first: u64,
    done: AtomicU64,
    round: AtomicU32,
    told: Mutex<Instant>,
}

impl Meter {
    /// Counts up to `total` leaves in `rounds` rounds, of which an earlier process did the `first` ones.
    pub fn new(total: u64, first: u64, rounds: u32) -> Self {
        let bar = ProgressBar::new(total).with_position(first);
        let style = "replaying: {bar:30} {msg}, {pos} of {len} leaves, {per_sec}, {eta} to go";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        bar.reset_eta();
        let now = Instant::now();
        Self {
            bar,
            total,
            rounds,
            begun: now,
            first,
            done: AtomicU64::new(first),
            round: AtomicU32::new(0),
            told: Mutex::new(now),
        }
    }

    /// A leaf was recomputed.
    pub fn leaf(&self) {
        self.done.fetch_add(1, Ordering::Relaxed);
        self.bar.inc(1);
        self.line();
    }

    /// A round is over.
    pub fn round(&self, round: Round) {
        self.round.store(round.0.saturating_add(1), Ordering::Relaxed);
        self.bar.set_message(format!("round {} of {}", round.next(), self.rounds));
        self.line();
    }

    /// Nothing more is drawn.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    fn line(&self) {
        if !self.bar.is_hidden() {
            return;
        }
        let mut told = lock(&self.told);
        if told.elapsed() < LINE {
            return;
        }
        *told = Instant::now();
        let (done, round) = (self.done.load(Ordering::Relaxed), self.round.load(Ordering::Relaxed));
        let text = progress(done, self.first, self.total, self.begun.elapsed());
        tracing::info!("round {round} of {}, {text}", self.rounds);
    }
}

fn progress(done: u64, first: u64, total: u64, elapsed: Duration) -> String {
    let rate = (done - first.min(done)) as f64 / elapsed.as_secs_f64().max(1e-3);
    let left = Duration::from_secs_f64((total.saturating_sub(done) as f64 / rate.max(1e-6)).min(1e9));
    format!("{done} of {total} leaves, {rate:.1} a second, {} to go", indicatif::HumanDuration(left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_remains_follows_from_the_rate() {
        let text = progress(150, 50, 350, Duration::from_secs(10));
        assert_eq!(text, "150 of 350 leaves, 10.0 a second, 20 seconds to go");
        assert!(progress(0, 0, 5, Duration::ZERO).contains("0 of 5 leaves"));
    }
}
