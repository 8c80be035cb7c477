//! How long keepers are waited for: one that took nothing before has no claim to the whole time.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_core::ids::{MemberId, Round};
use muster_core::limits;
use muster_core::lock::lock;

/// What became of the parts that were brought last.
#[derive(Clone, Default)]
pub(super) struct Keepers(Arc<Mutex<Brought>>);

#[derive(Default)]
struct Brought {
    /// Who did not take the last part.
    lapsed: BTreeSet<MemberId>,
    /// The newest round in which somebody took one, and how long the slowest of them took: the line of this machine.
    slowest: Option<(Round, Duration)>,
}

impl Keepers {
    /// How long a keeper may take, of `within` at most. ROUND-24: one that did not take the part before has a while, and twice as
    /// long as the slowest of those that took theirs.
    pub(super) fn within(&self, keeper: MemberId, within: Duration) -> Duration {
        let brought = lock(&self.0);
        match brought.slowest.filter(|_| brought.lapsed.contains(&keeper)) {
            Some((_, slowest)) => within.min(Duration::from_millis(limits::SOON) + 2 * slowest),
            None => within,
        }
    }

    /// A keeper took a part of a round in so long, or did not take it.
    pub(super) fn brought(&self, round: Round, keeper: MemberId, took: Option<Duration>) {
        let mut brought = lock(&self.0);
        let Some(took) = took else {
            brought.lapsed.insert(keeper);
            return;
        };
        brought.lapsed.remove(&keeper);
        match &mut brought.slowest {
            // What was still under way from a round before.
            Some((newest, _)) if *newest > round => {}
            Some((newest, longest)) if *newest == round => *longest = took.max(*longest),
            slowest => *slowest = Some((round, took)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A keeper that never gives its receipt would cost every sender half of T_part, in each round.
    #[test]
    fn round_24_who_did_not_take_a_part_is_waited_for_as_long_as_others_need() {
        let (keepers, [good, mute]) = (Keepers::default(), [1, 2].map(|number| MemberId([number; 32])));
        let seconds = Duration::from_secs;
        keepers.brought(Round(1), mute, None);
        assert_eq!(keepers.within(mute, seconds(100)), seconds(100), "nobody knows how long a part takes");
        keepers.brought(Round(1), good, Some(seconds(20)));
        keepers.brought(Round(1), good, Some(seconds(10)));
        assert_eq!(keepers.within(mute, seconds(100)), seconds(43));
        assert_eq!(keepers.within(good, seconds(100)), seconds(100));
        assert_eq!(keepers.within(mute, seconds(5)), seconds(5));
        keepers.brought(Round(2), good, Some(seconds(1)));
        assert_eq!(keepers.within(mute, seconds(100)), seconds(5), "of the newest round");
        keepers.brought(Round(1), good, Some(seconds(50)));
        assert_eq!(keepers.within(mute, seconds(100)), seconds(5), "that was under way from before");
        keepers.brought(Round(2), mute, Some(seconds(30)));
        assert_eq!(keepers.within(mute, seconds(100)), seconds(100), "it takes parts again");
    }
}
