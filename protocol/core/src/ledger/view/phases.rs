//! What each sealed record of a round adds to it.

use std::collections::BTreeSet;

use super::{Frozen, Moved, Over, RoundView, SealedResults, SettledInputs, WeightedCommit};
use crate::coins::inspector;
use crate::ids::{Digest, MemberId, Part, Slot};
use crate::messages::record::{Reassign, Record};
use crate::messages::round::Bitmap;
use crate::sign::Signed;

impl RoundView {
    /// Its Freeze is sealed, with this head after it.
    pub(in crate::ledger) fn freeze_with(
        &mut self,
        record: &Signed<Record>,
        digest: Digest,
        commits: Vec<Option<WeightedCommit>>,
        inspectors: Vec<MemberId>,
    ) {
        self.frozen = Some(Frozen {
            record: record.clone(),
            digest,
            commits,
            verifiers: inspectors.len(),
            inspectors,
            exchange: None,
            over: None,
        });
    }

    /// The inputs of these parts are sealed: of all of them, or of those that were reassigned.
    pub(in crate::ledger) fn add_inputs<'a>(
        &mut self,
        record: &Signed<Record>,
        inputs: impl Iterator<Item = (Part, &'a Bitmap)>,
    ) {
        let parts = self.opening.parts.len();
        let Some(frozen) = &mut self.frozen else { return };
        let fresh =
            || SettledInputs { inputs: vec![Bitmap::default(); parts], records: Vec::new(), moved: None };
        let exchange = frozen.exchange.get_or_insert_with(fresh);
        exchange.records.push(record.clone());
        for (part, bitmap) in inputs {
            if let Some(sealed) = exchange.inputs.get_mut(part.index()) {
                *sealed = *bitmap;
            }
        }
    }

    /// Parts go to other aggregators.
    pub(in crate::ledger) fn reassign(&mut self, reassign: &Reassign) {
        let had_inputs =
            |part: &Part| self.inputs().get(part.index()).is_some_and(|inputs| !inputs.is_empty());
        let lost = reassign.parts.iter().map(|moved| moved.part).filter(had_inputs);
        let missed: Vec<MemberId> = lost.flat_map(|part| self.reducers(part, 0)).collect();
        let mut to = vec![None; self.opening.parts.len()];
        for moved in &reassign.parts {
            if let Some(aggregator) = to.get_mut(moved.part.index()) {
                *aggregator = Some(moved.aggregator);
            }
        }
        if let Some(exchange) = self.frozen.as_mut().and_then(|frozen| frozen.exchange.as_mut()) {
            exchange.moved = Some(Moved { to, missed });
        }
    }

    /// The round is over, and with the head after its Outcome it is drawn who inspects what.
    pub(in crate::ledger) fn end(&mut self, results: SealedResults, echoed: bool, outcome: Digest) {
        let Some(frozen) = &mut self.frozen else { return };
        let block_inspectors = frozen.inspectors.clone();
        let (inspected, drawn, credited) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        frozen.over = Some(Over { results, echoed, outcome, block_inspectors, inspected, drawn, credited });
        self.share();
    }

    /// A verifier inspects nothing in this round any more: what it had goes to the others.
    pub(in crate::ledger) fn retire(&mut self, verifier: &MemberId) {
        let Some(frozen) = &mut self.frozen else { return };
        frozen.inspectors.retain(|inspector| inspector != verifier);
        if frozen.over.as_ref().is_some_and(|over| over.inspected.contains(&Some(*verifier))) {
            self.share();
        }
    }

    fn share(&mut self) {
        let slots = (0..self.opening.seats.len() as u16).map(Slot);
        let Some(Frozen { inspectors, over: Some(over), .. }) = &mut self.frozen else { return };
        over.inspected = slots.map(|slot| inspector(&over.outcome, slot, inspectors)).collect();
        let drawn = over.inspected.iter().enumerate();
        over.drawn.extend(drawn.filter_map(|(slot, verifier)| Some((Slot(slot as u16), (*verifier)?))));
    }

    /// A member is silent, or leaves.
    pub(in crate::ledger) fn unanswered(&mut self, member: &MemberId) {
        self.unanswered.extend(self.slot_of(member));
    }

    pub(in crate::ledger) fn credit(&mut self, verifier: MemberId, member: MemberId) {
        if let Some(over) = self.frozen.as_mut().and_then(|frozen| frozen.over.as_mut()) {
            over.credited.insert((verifier, member));
        }
    }
}
