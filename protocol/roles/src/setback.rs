//! What came to nothing, and is not tried again for a while: each time twice as many rounds, and what is long ago is forgotten.

use muster_core::ids::Round;
use muster_core::limits;

/// How often something came to nothing, and when last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setback {
    last: Round,
    times: u8,
}

impl Setback {
    /// One more in this round. Of a round that is no later than the last one nothing is counted twice.
    pub(crate) fn after(before: Option<Self>, round: Round) -> Self {
        match before {
            Some(before) if round <= before.last => before,
            before => {
                let left = before.map_or(0, |before| before.left(round));
                Self { last: round, times: left.saturating_add(1).min(limits::FAILURES) }
            }
        }
    }

    /// Whether it is too early in this round: for the rounds up to 2^(n − 1) after the last of n times.
    pub(crate) fn holds(self, round: Round) -> bool {
        let pause = 1u32 << (u32::from(self.times.max(1)) - 1);
        self.left(round) > 0 && round.0 < self.last.0.saturating_add(pause)
    }

    /// Whether it is forgotten by this round.
    pub(crate) fn is_over(self, round: Round) -> bool {
        self.left(round) == 0
    }

    /// How many times are left: one is forgiven for each [`limits::FORGIVING`] rounds.
    fn left(self, round: Round) -> u8 {
        let forgiven = round.0.saturating_sub(self.last.0) / limits::FORGIVING;
        self.times.saturating_sub(u8::try_from(forgiven).unwrap_or(u8::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_expire() {
        let (mut setback, mut tries) = (None::<Setback>, Vec::new());
        for round in (0..260).map(Round) {
            if !setback.is_some_and(|setback| setback.holds(round)) {
                tries.push(round.0);
                setback = Some(Setback::after(setback, round));
            }
        }
        assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]);
        let once = Setback::after(None, Round(5));
        assert!(once.holds(Round(5)) && !once.holds(Round(6)));
        assert_eq!(Setback::after(Some(once), Round(5)), once, "once a round");
        assert!(!once.is_over(Round(68)) && once.is_over(Round(69)));
    }
}
