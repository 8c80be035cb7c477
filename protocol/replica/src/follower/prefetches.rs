//! Which values are being fetched before their round is over.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use muster_core::ids::{MemberId, Part, Round};
use muster_core::lock::lock;
use muster_core::messages::round::PartResult;

/// Round, part, attempt and aggregator of a result.
type Name = (Round, Part, u8, MemberId);

/// The fetches under way. CHAN-26: one for each part and aggregator, however often the board shows a result of it, and
/// whatever digests its aggregator signs.
#[derive(Clone, Default)]
pub(super) struct Prefetches(Arc<Mutex<BTreeSet<Name>>>);

/// One of them, until it is dropped.
pub(super) struct Prefetch {
    all: Prefetches,
    name: Name,
}

impl Prefetches {
    /// Begins to fetch the values of a result; `None` where those of its part and aggregator are being fetched.
    pub(super) fn begin(&self, result: &PartResult, aggregator: MemberId) -> Option<Prefetch> {
        let name = (result.round, result.part, result.attempt, aggregator);
        lock(&self.0).insert(name).then(|| Prefetch { all: self.clone(), name })
    }
}

impl Drop for Prefetch {
    fn drop(&mut self) {
        lock(&self.all.0).remove(&self.name);
    }
}

#[cfg(test)]
mod tests {
    use muster_core::ids::Digest;

    use super::*;

    #[test]
    fn chan_26_a_result_that_is_shown_again_and_again_is_fetched_once() {
        let all = Prefetches::default();
        let result = |part, digest| PartResult {
            round: Round(3),
            part: Part(part),
            attempt: 0,
            freeze: Digest::default(),
            inputs: Default::default(),
            digest: Digest([digest; 32]),
        };
        let [one, other] = [1, 2].map(|number| MemberId([number; 32]));
        let first = all.begin(&result(0, 7), one);
        assert!(first.is_some());
        assert!((0..=255).all(|digest| all.begin(&result(0, digest), one).is_none()));
        assert!(all.begin(&result(1, 7), one).is_some() && all.begin(&result(0, 7), other).is_some());
        drop(first);
        assert!(all.begin(&result(0, 8), one).is_some(), "it is over, and another one stands");
    }
}
