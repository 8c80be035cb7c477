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
        *addresses == self.says || *addresses == self.behind || (self.withdrew && addresses.is_empty())
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
