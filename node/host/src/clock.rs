//! The driver's clock: it stands still while this process does, and what has come is never late because it was not looked at.

use std::time::Duration;
#[cfg(not(target_os = "linux"))]
use std::time::Instant;

/// Milliseconds between two turns from which on the process is said not to have run: turns come twice a second.
const GAP: u64 = 5_000;

/// Time as the machine is told it.
pub(super) struct Clock {
    began: Start,
    /// Milliseconds in which the process did not run.
    lost: u64,
    /// When the last turn began.
    turn: u64,
    /// When the present one did.
    next: u64,
    /// When the process last showed that it runs.
    seen: u64,
}

impl Clock {
    /// Begins at 0.
    pub(super) fn start() -> Self {
        Self { began: Start::now(), lost: 0, turn: 0, next: 0, seen: 0 }
    }

    /// A turn begins. Until [`Clock::catch_up`] the time stays that of the turn before where a timer has run out since: what
    /// came before it ran out is still to be taken in. Whether this process has not run in between (ROUND-38).
    pub(super) fn turn(&mut self, due: Option<u64>) -> bool {
        self.turn_at(self.real(), due)
    }

    fn turn_at(&mut self, mut real: u64, due: Option<u64>) -> bool {
        // A process that was stopped, or a machine that slept: nobody could be heard meanwhile.
        let gap = real.saturating_sub(self.seen);
        let stood = gap >= GAP;
        if stood {
            self.lost = self.lost.saturating_add(gap);
            real = self.seen;
        }
        (self.next, self.seen) = (real, real);
        if due.is_none_or(|due| due > real) {
            self.turn = real;
        }
        stood
    }

    /// The process runs: one thing of this turn is done. Many of them in one turn are no gap, or whoever asks for much could have
    /// the clock stand still.
    pub(super) fn see(&mut self) {
        self.see_at(self.real());
    }

    fn see_at(&mut self, real: u64) {
        // One that took too long is for the next turn to notice.
        if real.saturating_sub(self.seen) < GAP {
            self.seen = self.seen.max(real);
        }
    }

    /// Everything that had come is taken in.
    pub(super) fn catch_up(&mut self) {
        self.turn = self.next;
    }

    /// The time of this turn.
    pub(super) fn now(&self) -> u64 {
        self.turn
    }

    /// Milliseconds in which it ran, up to now.
    pub(super) fn real(&self) -> u64 {
        let ran = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        ran.saturating_sub(self.lost)
    }
}

/// When the process began, by a clock that goes on while the machine sleeps. On Linux [`std::time::Instant`] does not: a machine that
/// slept for an hour would seem never to have stood still, and nobody could have been heard.
#[cfg(target_os = "linux")]
struct Start(Duration);

#[cfg(target_os = "linux")]
impl Start {
    fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
        Self(Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default()))
    }

    fn elapsed(&self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }
}

/// The same, as far as the system tells.
#[cfg(not(target_os = "linux"))]
struct Start(Instant);

#[cfg(not(target_os = "linux"))]
impl Start {
    fn now() -> Self {
        Self(Instant::now())
    }

    fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's uptime includes the time that the machine slept.
    #[test]
    #[cfg(target_os = "linux")]
    fn round_38_the_clock_goes_on_while_the_machine_sleeps() {
        let Ok(uptime) = std::fs::read_to_string("/proc/uptime") else { return };
        let uptime: f64 = uptime.split(' ').next().and_then(|seconds| seconds.parse().ok()).unwrap();
        let clock = Start::now().0.as_secs_f64();
        assert!((clock - uptime).abs() < 5.0, "{clock} {uptime}");
    }

    #[test]
    fn round_38_the_clock_stands_still_while_the_process_does() {
        let mut clock = Clock::start();
        assert!(!clock.turn_at(500, None));
        assert!(!clock.turn_at(5_400, None), "a slow turn");
        assert_eq!(clock.now(), 5_400);
        assert!(clock.turn_at(65_400, Some(30_000)), "stopped for a minute");
        assert_eq!((clock.now(), clock.lost), (5_400, 60_000), "no timer has run out");
        assert!(!clock.turn_at(5_900, None));
        // Ten seconds of work, a little at a time, are none.
        (6_000..=16_000).step_by(500).for_each(|now| clock.see_at(now));
        assert!(!clock.turn_at(16_500, None));
        // A disk that hangs for as long is one.
        clock.see_at(26_500);
        assert!(clock.turn_at(26_600, None));
        assert_eq!(clock.now(), 16_500);
    }

    #[test]
    fn round_37_what_came_before_a_timer_ran_out_is_taken_in_before() {
        let mut clock = Clock::start();
        assert!(!clock.turn_at(500, Some(900)));
        assert!(!clock.turn_at(1_000, Some(900)));
        assert_eq!(clock.now(), 500);
        clock.catch_up();
        assert_eq!(clock.now(), 1_000);
    }
}
