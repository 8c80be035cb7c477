//! Deliveries of the open round: bounded before their receipts are checked, checked beside the round, then
//! promised.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId};
use muster_core::messages::round::Delivered;
use muster_core::sign::Signed;

use super::interface::Question;

/// Deliveries of one member that are checked in one round at most: a restarted node may have more receipts
/// than before.
const DELIVERIES: usize = 8;

/// What members have said of their deliveries in the open round.
#[derive(Default)]
pub(super) struct Deliveries {
    /// Those that have a receipt.
    taken: BTreeMap<MemberId, BTreeSet<Digest>>,
    /// How many of each member were checked, good or not.
    tries: BTreeMap<MemberId, usize>,
    /// Those whose receipts are being checked.
    checking: BTreeMap<Question, Signed<Delivered>>,
}

impl Deliveries {
    /// Whether a delivery has a receipt.
    pub(super) fn is_taken(&self, author: &MemberId, delivery: &Digest) -> bool {
        self.taken.get(author).is_some_and(|taken| taken.contains(delivery))
    }

    /// Counts one more check for a member.
    ///
    /// # Errors
    /// [`Reject`] once the member has had all that it may have in a round.
    pub(super) fn try_once(&mut self, author: MemberId) -> Result<(), Reject> {
        let tries = self.tries.entry(author).or_default();
        if *tries >= DELIVERIES {
            return Err(Reject::Rule("a delivery is told a few times in a round at most"));
        }
        *tries += 1;
        Ok(())
    }

    /// Keeps a delivery while its receipts are checked.
    pub(super) fn check(&mut self, question: Question, signed: Signed<Delivered>) {
        self.checking.insert(question, signed);
    }

    /// The delivery whose receipts were checked.
    pub(super) fn checked(&mut self, question: Question) -> Option<Signed<Delivered>> {
        self.checking.remove(&question)
    }

    /// A delivery gets a receipt.
    pub(super) fn take(&mut self, author: MemberId, delivery: Digest) {
        self.taken.entry(author).or_default().insert(delivery);
    }

    /// The round is over.
    pub(super) fn forget(&mut self) {
        (self.taken, self.tries) = Default::default();
    }
}
