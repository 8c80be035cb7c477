//! Where others can dial this member, and what it does while the steward does not reach it there (CHAN-24).
//!
//! A steward seals no address at which it has not found the member. A member that is not found says where it is met behind its
//! router, once it is (CHAN-27), or takes part without an address. Where it listens it says again later: whatever kept the steward
//! from it may have passed.

use muster_core::messages::enrol::Addresses;

/// Refused Returns after which a member goes on without an address.
const REFUSALS: u8 = 3;
/// How long it then goes on without, in milliseconds: at first, and at most. Each time twice as long.
const FIRST: u64 = 15_000;
const LONGEST: u64 = 3_600_000;

/// Where a member listens, and where it says that it does.
pub(super) struct Contact {
    listens: Addresses,
    /// Where it is met behind its router; empty if nowhere.
    behind: Addresses,
    says: Addresses,
    /// Returns that were refused one after the other.
    refused: u8,
    /// When it says again where it listens, while it says nothing.
    again: Option<u64>,
    /// How long it waits after the next refusal.
    pause: u64,
    /// Whether it has ever gone on without: that may be sealed later than where it listens.
    withdrew: bool,
}

impl Contact {
    /// Of a member that listens there.
    pub(super) fn new(listens: Addresses) -> Self {
        let (says, behind) = (listens.clone(), Addresses::default());
        Self { listens, behind, says, refused: 0, again: None, pause: FIRST, withdrew: false }
    }

    /// What it says now.
    pub(super) fn says(&self) -> &Addresses {
        &self.says
    }

    /// A Return with these addresses was sealed; whether it may have said them.
    pub(super) fn sealed(&mut self, addresses: &Addresses) -> bool {
        if *addresses == self.listens {
            // Also where the answer was lost, or this member has given up meanwhile.
            let behind = std::mem::take(&mut self.behind);
            *self = Self { withdrew: self.withdrew, behind, ..Self::new(self.listens.clone()) };
        }
        // Where it is met nowhere, saying nothing is not saying that.
        let behind = *addresses == self.behind && !addresses.is_empty();
        *addresses == self.says || behind || (self.withdrew && addresses.is_empty())
    }

    /// It is met there behind its router from now on.
    pub(super) fn met(&mut self, behind: Addresses) {
        if self.says.is_empty() || self.says == self.behind {
            self.says = behind.clone();
            self.refused = 0;
        }
        self.behind = behind;
    }

    /// Whether it says that it is where it listens.
    fn says_where_it_listens(&self) -> bool {
        !self.says.is_empty() && self.says == self.listens
    }

    /// The steward has taken what it says.
    pub(super) fn taken(&mut self) {
        self.refused = 0;
        if self.says_where_it_listens() {
            self.pause = FIRST;
        }
    }

    /// The steward has refused what it says, or did not answer.
    pub(super) fn refused(&mut self, now: u64) {
        self.refused = self.refused.saturating_add(1);
        // The refusal may have had another reason, which passes. Later, one is enough: the member is there without an address.
        if self.refused >= REFUSALS || self.pause > FIRST {
            if self.says_where_it_listens() && self.pause == FIRST {
                tracing::warn!(
                    "the steward cannot dial this member: it goes on behind its router, or only dials out, until the steward can"
                );
            }
            self.give_up(now);
        }
    }

    /// Goes on without an address for a while.
    pub(super) fn give_up(&mut self, now: u64) {
        if self.says.is_empty() {
            return;
        }
        // Refused where it listens, it is met behind its router; refused there as well, nowhere.
        let next = if self.says == self.behind { Addresses::default() } else { self.behind.clone() };
        (self.says, self.withdrew) = (next, true);
        self.again = Some(now.saturating_add(self.pause));
        self.pause = self.pause.saturating_mul(2).min(LONGEST);
    }

    /// Says again where it listens, once it is time; whether it is.
    pub(super) fn is_due(&mut self, now: u64) -> bool {
        let due = self.again.take_if(|again| *again <= now).is_some();
        if due {
            self.says = if self.listens.is_empty() { self.behind.clone() } else { self.listens.clone() };
        }
        due
    }

    /// Whether an address means that it is not where it listens.
    pub(super) fn is_elsewhere(&self, addresses: &Addresses) -> bool {
        addresses.is_empty() || *addresses == self.behind
    }

    /// When it is time.
    pub(super) fn timeout(&self) -> Option<u64> {
        self.again
    }
}

#[cfg(test)]
mod tests {
    use muster_core::codec::{List, Text};

    use super::*;

    fn at(address: &str) -> Addresses {
        List::new(vec![Text::new(address).unwrap()]).unwrap()
    }

    #[test]
    fn commit_8_a_return_that_names_no_address_is_another_machines_unless_this_one_withdrew() {
        let mut contact = Contact::new(at("10.0.0.1:1"));
        assert!(contact.sealed(&at("10.0.0.1:1")) && !contact.sealed(&Addresses::default()));
        contact.met(at("iroh:07"));
        assert!(contact.sealed(&at("iroh:07")), "it is met there");
        assert!(!contact.sealed(&at("iroh:08")) && !contact.sealed(&Addresses::default()));
        contact.give_up(0);
        assert!(contact.sealed(&Addresses::default()));
    }

    #[test]
    fn chan_27_whoever_is_refused_where_it_listens_says_where_it_is_met() {
        let (listens, behind) = (at("10.0.0.1:1"), at("iroh:07"));
        let mut contact = Contact::new(listens.clone());
        contact.met(behind.clone());
        assert_eq!(*contact.says(), listens, "the steward has not refused it");
        (0..REFUSALS).for_each(|_| contact.refused(0));
        assert_eq!(*contact.says(), behind);
        contact.taken();
        // From time to time it says again where it listens.
        assert!(contact.is_due(FIRST) && *contact.says() == listens);
        contact.refused(FIRST);
        assert_eq!(*contact.says(), behind);
        // Refused there as well, it is nowhere for a while.
        contact.refused(FIRST);
        assert!(contact.says().is_empty());
    }
}
