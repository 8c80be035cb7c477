//! Whether other programs use the processor. Linux alone tells, in `/proc`.

use std::fs;
use std::time::{Duration, Instant};

/// For people.
pub(super) const WORDS: &str = "other programs use a quarter of the processor; it goes on once they have used less than 15 % of it for \
    two minutes";

/// The share of the whole processor from which others use it, and below which they do not.
const BUSY: f64 = 0.25;
const QUIET: f64 = 0.15;
/// For how long others use the processor before that counts, and for how long they do not.
const BUSY_FOR: Duration = Duration::from_secs(30);
const QUIET_FOR: Duration = Duration::from_secs(120);
/// The shortest time over which a share is measured.
const SPAN: Duration = Duration::from_secs(3);

/// Ticks of all processors since the system began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    all: u64,
    /// Those of other programs.
    others: u64,
}

/// Whether other programs use the processor.
pub(super) struct Others {
    before: (Ticks, Instant),
    judged: Judged,
}

/// What is held to be the case, and since when the opposite was measured.
#[derive(Default)]
struct Judged {
    busy: bool,
    other: Option<Instant>,
}

impl Others {
    /// From now on; none where the system does not tell.
    pub(super) fn new() -> Option<Self> {
        Some(Self { before: (ticks()?, Instant::now()), judged: Judged::default() })
    }

    /// Whether others use the processor.
    pub(super) fn are_busy(&mut self, now: Instant) -> bool {
        let (before, since) = self.before;
        if now.duration_since(since) >= SPAN
            && let Some(ticks) = ticks()
        {
            let all = ticks.all.saturating_sub(before.all).max(1);
            let share = ticks.others.saturating_sub(before.others) as f64 / all as f64;
            self.judged.measured(share, now);
            self.before = (ticks, now);
        }
        self.judged.busy
    }
}

impl Judged {
    /// A moment of either kind changes nothing.
    fn measured(&mut self, share: f64, now: Instant) {
        let (opposite, lasts) =
            if self.busy { (share < QUIET, QUIET_FOR) } else { (share >= BUSY, BUSY_FOR) };
        let since = opposite.then(|| *self.other.get_or_insert(now));
        self.other = since;
        if since.is_some_and(|since| now.duration_since(since) >= lasts) {
            *self = Self { busy: !self.busy, other: None };
        }
    }
}

fn ticks() -> Option<Ticks> {
    let (system, own) = (fs::read_to_string("/proc/stat").ok()?, fs::read_to_string("/proc/self/stat").ok()?);
    of(&system, &own)
}

/// From the words of both files.
fn of(system: &str, own: &str) -> Option<Ticks> {
    let line = system.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let times: Vec<u64> = line.split_whitespace().map(|time| time.parse().ok()).collect::<Option<_>>()?;
    // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user and nice already.
    let [user, nice, kernel, idle, waiting, irq, softirq, ..] = times[..] else { return None };
    // Whoever gives way to everything (nice) uses nothing that anybody else wants.
    let used = user + kernel + irq + softirq;
    // A name may hold spaces and brackets.
    let own: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
    let [time, kernel_time] = [11, 12].map(|field| own.get(field).and_then(|time| time.parse::<u64>().ok()));
    let niceness: i64 = own.get(16)?.parse().ok()?;
    let own = if niceness > 0 { kernel_time? } else { time? + kernel_time? };
    let steal = times.get(7).copied().unwrap_or(0);
    Some(Ticks { all: used + nice + idle + waiting + steal, others: used.saturating_sub(own) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_program_and_those_that_give_way_use_is_not_others() {
        let system = "cpu  1000 500 200 8000 100 10 20 30 0 0\ncpu0 1 2 3\n";
        let own = |nice: i64| format!("7 (a b) c) S 1 1 1 0 -1 0 0 0 0 0 300 40 0 0 20 {nice} 4 0 99");
        assert_eq!(of(system, &own(0)), Some(Ticks { all: 9860, others: 890 }));
        // Its leaves are among those that give way.
        assert_eq!(of(system, &own(10)), Some(Ticks { all: 9860, others: 1190 }));
        assert_eq!((of("cpu  1 2", &own(0)), of(system, "7 (a")), (None, None));
    }

    #[test]
    fn a_moment_changes_nothing() {
        let (mut judged, began) = (Judged::default(), Instant::now());
        let mut at = |seconds, share| {
            judged.measured(share, began + Duration::from_secs(seconds));
            judged.busy
        };
        assert!(!at(0, 0.9) && !at(29, 0.9) && !at(30, 0.2) && !at(31, 0.9) && !at(60, 0.9));
        assert!(at(61, 0.9), "for half a minute");
        assert!(at(62, 0.1) && at(180, 0.1) && at(181, 0.2) && at(182, 0.1) && at(301, 0.1));
        assert!(!at(302, 0.1), "for two minutes");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_system_tells() {
        let before = Others::new().expect("Linux").before.0;
        assert!(before.all > before.others);
    }
}
