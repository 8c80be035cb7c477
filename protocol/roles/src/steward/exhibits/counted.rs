//! Which parts count a contribution.

use std::collections::BTreeSet;

use muster_core::ids::{Block, MemberId, Part, Round, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::record::Body;

/// A part of a round.
pub type PartName = (Round, Part);

/// A part whose values are to be kept, and its blocks.
pub type OwedPart = (Round, Part, Vec<Block>);

/// Which parts of a contribution were sealed as inputs.
pub struct Counted {
    /// Parts that have a result: replay reduces them again.
    pub parts: BTreeSet<Part>,
    /// Parts of aggregators that were struck: the evidence of their bans needs them.
    pub others: BTreeSet<Part>,
}

impl Counted {
    /// The parts that counted a member in a round that is over.
    pub fn of(ledger: &Ledger, view: &RoundView, member: &MemberId) -> Self {
        let (mut parts, mut others) = (BTreeSet::new(), BTreeSet::new());
        let Some(slot) = view.slot_of(member) else { return Self { parts, others } };
        for part in (0..view.parts().len()).map(|part| Part(part as u16)) {
            let sealed = view.inputs().get(part.index()).is_some_and(|inputs| inputs.contains(slot));
            let result = view.results().and_then(|results| results.get(part.index())?.as_ref());
            if sealed && result.is_some() {
                parts.insert(part);
            } else if sealed || was_sealed(ledger, view, part, slot) {
                others.insert(part);
            }
        }
        Self { parts, others }
    }
}

/// Whether a slot was sealed as an input of a part before that was reassigned.
fn was_sealed(ledger: &Ledger, view: &RoundView, part: Part, slot: Slot) -> bool {
    let sealed = view.inputs_record(part, 0).and_then(|(record, index)| {
        let record = record.verify(ledger.run()).ok()?;
        let Body::Inputs(inputs) = &record.body else { return None };
        inputs.parts.get(index).copied()
    });
    sealed.is_some_and(|inputs| inputs.contains(slot))
}
