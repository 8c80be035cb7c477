//! A member's half of a round: what it owes, given the ledger and what it has taken on.

use crate::ids::{Digest, MemberId, Part, Round, Slot};
use crate::ledger::{Ledger, RoundView, Stage};
use crate::messages::round::Bitmap;

/// Something that a member owes now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obligation {
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
    /// Bring these parts of the contribution to their keepers, then say which receipts came back.
    Deliver {
        /// The round.
        round: Round,
        /// 0, or 1 after a reassignment.
        attempt: u8,
        /// Parts and who takes them in: their aggregators, the steward in place of the member itself.
        parts: Vec<(Part, MemberId)>,
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
        inputs: Bitmap,
    },
}

/// What a member has taken on in the current round, so that nothing is started twice.
pub struct Duties {
    me: MemberId,
    round: Option<Round>,
    taken: Vec<Obligation>,
}

impl Duties {
    /// Of this member.
    pub fn new(me: MemberId) -> Self {
        Self { me, round: None, taken: Vec::new() }
    }

    /// What is owed now and was not taken before; each is given out once.
    pub fn due(&mut self, ledger: &Ledger) -> Vec<Obligation> {
        let Some(view) = ledger.current() else { return Vec::new() };
        if self.round != Some(view.round()) {
            *self = Self { round: Some(view.round()), ..Self::new(self.me) };
        }
        let Some(slot) = view.slot_of(&self.me) else { return Vec::new() };
        let mut owed = match ledger.stage() {
            Stage::Computing => compute(view, slot),
            Stage::Exchanging => exchange(view, slot),
            Stage::Reducing => reduce(view, slot),
            _ => Vec::new(),
        };
        owed.retain(|duty| !self.taken.contains(duty));
        self.taken.extend(owed.iter().cloned());
        owed
    }
}

fn compute(view: &RoundView, slot: Slot) -> Vec<Obligation> {
    let quota = view.seats().get(slot.index()).map_or(0, |seat| seat.quota);
    // LEDGER-24: a supporter combines parts alone.
    (quota > 0).then_some(Obligation::Compute { round: view.round(), slot, quota }).into_iter().collect()
}

// ROUND-2: of the freeze that this member's own ledger has; what is taken on once is not given out again.
fn echo(view: &RoundView) -> Option<Obligation> {
    view.freeze_digest().map(|freeze| Obligation::Echo { round: view.round(), freeze })
}

fn exchange(view: &RoundView, slot: Slot) -> Vec<Obligation> {
    let mut owed: Vec<Obligation> = echo(view).into_iter().collect();
    // What is not frozen cannot count: there is nothing to deliver, but the echo is owed all the same.
    if view.commitment(slot).is_none() {
        return owed;
    }
    let second: Vec<Part> = view.reassigned().collect();
    let attempt = u8::from(!second.is_empty());
    let mut parts = if attempt == 1 { second } else { (0..view.parts().len() as u16).map(Part).collect() };
    // Of other rows it has nothing to bring.
    parts.retain(|part| view.computes_on(slot, *part));
    let Some(me) = view.member_at(slot) else { return owed };
    let keepers = |part| view.keepers(part, &me).into_iter().flat_map(|(keepers, _)| keepers);
    let parts = parts.into_iter().flat_map(|part| keepers(part).map(move |keeper| (part, keeper)));
    owed.push(Obligation::Deliver { round: view.round(), attempt, parts: parts.collect() });
    owed
}

fn reduce(view: &RoundView, slot: Slot) -> Vec<Obligation> {
    let mine = view.inputs().iter().enumerate().filter_map(|(part, inputs)| {
        let part = Part(part as u16);
        let attempt = view.attempt(part)?;
        // A part that counts nobody has no result to sign.
        let due = view.aggregators_in(part, attempt).any(|own| own == slot) && !inputs.is_empty();
        due.then_some(Obligation::Reduce { round: view.round(), part, attempt, inputs: *inputs })
    });
    // A member that comes back only now has not echoed yet, and nothing of it counts before that.
    mine.chain(echo(view)).collect()
}
