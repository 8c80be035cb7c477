//! Relays: parts that the steward takes in place of their aggregators, and blocks that it gives to
//! aggregators that lack them.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::ids::{MemberId, Part};

use super::interface::Question;

/// How often an aggregator may ask for the same blocks of the open round before others.
const ASKED_AGAIN: usize = 4;

/// A part that a sender brings here in an attempt because its aggregator did not take it.
#[derive(Clone, Copy)]
pub(super) struct Relay {
    pub(super) sender: MemberId,
    pub(super) attempt: u8,
    pub(super) part: Part,
}

/// What goes through the steward in the open round.
#[derive(Default)]
pub(super) struct Relays {
    /// Parts that are here, by sender and attempt.
    stored: BTreeMap<(MemberId, u8), BTreeSet<Part>>,
    /// Parts that are on their way to the disk.
    storing: BTreeMap<Question, Relay>,
    /// Blocks that aggregators have asked for, by aggregator and author.
    asked: BTreeMap<(MemberId, MemberId), usize>,
}

impl Relays {
    /// Whether a sender that may relay `most` parts in an attempt may relay this one.
    pub(super) fn has_room(&self, relay: &Relay, most: usize) -> bool {
        let Relay { sender, attempt, part } = *relay;
        let mut held = self.stored.get(&(sender, attempt)).cloned().unwrap_or_default();
        // Those that are on their way to the disk take room as well.
        let storing =
            self.storing.values().filter(|other| (other.sender, other.attempt) == (sender, attempt));
        held.extend(storing.map(|other| other.part));
        // A part that is here already takes no more room: its receipt may have been lost on the way.
        held.contains(&part) || held.len() < most
    }

    /// A part is on its way to the disk.
    pub(super) fn store(&mut self, question: Question, relay: Relay) {
        self.storing.insert(question, relay);
    }

    /// Blocks were stored, or not. A part counts once it is stored: a delivery that is refused uses up no
    /// room.
    pub(super) fn stored(&mut self, question: Question, is_here: bool) {
        // The steward's own parts are no relays.
        let relay = self.storing.remove(&question).filter(|_| is_here);
        if let Some(Relay { sender, attempt, part }) = relay {
            self.stored.entry((sender, attempt)).or_default().insert(part);
        }
    }

    /// An aggregator, which lacks `most` blocks of an author, asks for some of them. Returns whether the
    /// round waits for the answer: an aggregator that asks without end is served like everybody.
    pub(super) fn ask(&mut self, aggregator: MemberId, author: MemberId, blocks: usize, most: usize) -> bool {
        let asked = self.asked.entry((aggregator, author)).or_default();
        *asked = asked.saturating_add(blocks);
        *asked <= most.saturating_mul(ASKED_AGAIN)
    }

    /// Inputs are sealed: in the next attempt other aggregators lack other blocks.
    pub(super) fn inputs_sealed(&mut self) {
        self.asked.clear();
    }

    /// The round is over. What is on its way to the disk was of this round, and takes no room of the next one.
    pub(super) fn forget(&mut self) {
        self.stored.clear();
        self.storing.clear();
        self.asked.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_after_its_round_takes_no_room_of_the_next_one() {
        let (mut relays, sender) = (Relays::default(), MemberId([1; 32]));
        let relay = |part| Relay { sender, attempt: 0, part: Part(part) };
        relays.store(Question(1), relay(1));
        assert!(!relays.has_room(&relay(2), 1) && relays.has_room(&relay(1), 1));
        relays.forget();
        relays.stored(Question(1), true);
        assert!(relays.has_room(&relay(2), 1));
        relays.store(Question(2), relay(2));
        relays.stored(Question(2), true);
        assert!(!relays.has_room(&relay(3), 1));
    }
}
