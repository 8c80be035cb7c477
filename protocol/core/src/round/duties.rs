//! A member's half of a round: what it owes, given the ledger and what it has done.

use std::collections::BTreeSet;

use crate::ids::{Digest, MemberId, Part, Round, Slot};
use crate::ledger::{Ledger, RoundView, Stage};
use crate::messages::round::Bitmap;

/// Something that a member owes now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Duty {
    /// Sum the leaves of this slot and commit.
    Compute {
        /// The round.
        round: Round,
        /// The member's slot.
        slot: Slot,
        /// Most leaves.
        quota: u32,
    },
    /// Say that the freeze was seen.
    Echo {
        /// The round.
        round: Round,
        /// R_t.
        freeze: Digest,
    },
    /// Bring a part of the contribution to its aggregator.
    Deliver {
        /// The round.
        round: Round,
        /// The part.
        part: Part,
        /// 0, or 1 after a reassignment.
        attempt: u8,
        /// Who takes it; the member itself for its own part.
        aggregator: MemberId,
    },
    /// Say what was delivered.
    Report {
        /// The round.
        round: Round,
        /// 0, or 1 after a reassignment.
        attempt: u8,
    },
    /// Reduce a part over its sealed inputs.
    Reduce {
        /// The round.
        round: Round,
        /// The part.
        part: Part,
        /// 0, or 1 after a reassignment.
        attempt: u8,
        /// The sealed inputs.
        inputs: BitmapKey,
    },
}

/// A bitmap in an ordered duty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapKey(pub Bitmap);

impl PartialOrd for BitmapKey {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for BitmapKey {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.slots().cmp(other.0.slots())
    }
}

/// What a member has taken on in the current round, so that nothing is started twice.
pub struct Duties {
    me: MemberId,
    round: Option<Round>,
    taken: BTreeSet<Duty>,
    finished: BTreeSet<(Part, u8)>,
}

impl Duties {
    /// Of this member.
    pub fn new(me: MemberId) -> Self {
        Self { me, round: None, taken: BTreeSet::new(), finished: BTreeSet::new() }
    }

    /// A delivery has ended, with a receipt or without.
    pub fn delivered(&mut self, round: Round, part: Part, attempt: u8) {
        if self.round == Some(round) {
            self.finished.insert((part, attempt));
        }
    }

    /// What is owed now and was not taken before; each is given out once.
    pub fn due(&mut self, ledger: &Ledger) -> Vec<Duty> {
        let Some(view) = ledger.current() else { return Vec::new() };
        if self.round != Some(view.round()) {
            *self = Self { round: Some(view.round()), ..Self::new(self.me) };
        }
        let Some(slot) = view.slot_of(&self.me) else { return Vec::new() };
        let owed = match ledger.stage() {
            Stage::Computing => self.compute(view, slot),
            Stage::Exchanging => self.exchange(view, slot),
            Stage::Reducing => self.reduce(view, slot),
            _ => Vec::new(),
        };
        owed.into_iter().filter(|duty| self.taken.insert(duty.clone())).collect()
    }

    fn compute(&self, view: &RoundView, slot: Slot) -> Vec<Duty> {
        let quota = view.seats().get(slot.index()).map_or(0, |seat| seat.quota);
        vec![Duty::Compute { round: view.round(), slot, quota }]
    }

    fn exchange(&self, view: &RoundView, slot: Slot) -> Vec<Duty> {
        let round = view.round();
        let mut owed: Vec<Duty> = Self::echo(view).into_iter().collect();
        if view.commitment(slot).is_none() {
            return owed;
        }
        let second: Vec<Part> = view.reassigned().collect();
        let attempt = u8::from(!second.is_empty());
        let parts = if attempt == 1 { second } else { (0..view.parts().len() as u16).map(Part).collect() };
        for part in &parts {
            let aggregator = view.aggregator(*part).and_then(|(slot, _)| view.member_at(slot));
            owed.extend(aggregator.map(|aggregator| Duty::Deliver { round, part: *part, attempt, aggregator }));
        }
        if parts.iter().all(|part| self.finished.contains(&(*part, attempt))) {
            owed.push(Duty::Report { round, attempt });
        }
        owed
    }

    fn reduce(&self, view: &RoundView, slot: Slot) -> Vec<Duty> {
        let mine = view.inputs().iter().enumerate().filter_map(|(part, inputs)| {
            let part = Part(part as u16);
            let (aggregator, attempt) = view.aggregator(part)?;
            let due = aggregator == slot && !inputs.is_empty();
            due.then_some(Duty::Reduce { round: view.round(), part, attempt, inputs: BitmapKey(*inputs) })
        });
        mine.chain(Self::echo(view)).collect()
    }

    fn echo(view: &RoundView) -> Option<Duty> {
        view.freeze_digest().map(|freeze| Duty::Echo { round: view.round(), freeze })
    }
}
