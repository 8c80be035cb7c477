//! Members that have let a round wait for their Checked in vain: later rounds wait for them ever more rarely, and never less
//! often than once in so many rounds (ROUND-21).

use crate::ids::Round;
use crate::limits;

/// A member that has let a round wait for its word in vain (ROUND-21).
pub(super) struct Mark {
    /// The last such round.
    pub(super) round: Round,
    /// How often, less one for each [`limits::FORGIVING`] rounds without.
    times: u8,
    /// Whether it has said Checked since.
    pub(super) has_spoken: bool,
}

impl Mark {
    /// A mark of this round, after these earlier ones.
    pub(super) fn new(round: Round, before: Option<&Self>) -> Self {
        let before = before.map_or(0, |mark| mark.left(round));
        Self { round, times: before.saturating_add(1).min(limits::FAILURES - 1), has_spoken: false }
    }

    fn age(&self, round: Round) -> u32 {
        round.0.saturating_sub(self.round.0)
    }

    /// How many marks are left in this round.
    pub(super) fn left(&self, round: Round) -> u8 {
        let forgiven = u8::try_from(self.age(round) / limits::FORGIVING).unwrap_or(u8::MAX);
        self.times.saturating_sub(forgiven)
    }

    /// Whether this round need not wait for the member.
    pub(super) fn holds(&self, round: Round) -> bool {
        // Doubling: whoever speaks every second time would else hold up every second round. Whoever is silent all the time
        // has the longest pause, and no more than that: a mark may be the fault of a line that works again.
        let pause = if self.has_spoken { 1 << self.times } else { limits::FORGIVING };
        self.age(round) <= pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds in which a member makes the others wait, of so many; `speaks` says in which it says Checked.
    fn waits(rounds: u32, speaks: impl Fn(u32) -> bool) -> Vec<u32> {
        let (mut mark, mut waits): (Option<Mark>, Vec<u32>) = (None, Vec::new());
        for round in 0..rounds {
            let held = mark.as_ref().is_some_and(|mark| mark.holds(Round(round)));
            match mark.as_mut().filter(|_| speaks(round)) {
                Some(mark) => mark.has_spoken = true,
                None if !held && !speaks(round) => {
                    waits.push(round);
                    mark = Some(Mark::new(Round(round), mark.as_ref()));
                }
                None => {}
            }
        }
        waits
    }

    #[test]
    fn round_21_marks_expire_by_round() {
        assert_eq!(waits(200, |_| false), [0, 65, 130, 195], "who is silent all the time");
        assert_eq!(
            waits(100, |round| round % 2 == 1),
            [0, 4, 10, 20, 38, 72],
            "who speaks every second time"
        );
        // A line that failed once: waited for again as soon as it speaks, and after 64 rounds nothing is left.
        let once = Mark { has_spoken: true, ..Mark::new(Round(3), None) };
        assert_eq!([4, 5, 6].map(|round| once.holds(Round(round))), [true, true, false]);
        assert_eq!((once.left(Round(66)), once.left(Round(67))), (1, 0));
    }
}
