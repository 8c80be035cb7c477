//! What a contributor checks before a round is sealed: the results that it has seen, and when it has to say Checked.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use crate::codec::List;
use crate::error::Reject;
use crate::ids::{Block, Digest, MemberId, Part, Round, Slot};
use crate::ledger::{Ledger, RoundView, Stage, WeightedCommit};
use crate::limits;
use crate::messages::round::{Checked, Commit, PartResult};
use crate::reduction::{OwnBlock, scale};
use crate::rounding::ResultGrid;
use crate::sign::Signed;

/// Results to fetch and to compare with one's own contribution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The round.
    pub round: Round,
    /// 0, or 1 after a reassignment.
    pub attempt: u8,
    /// Parts, ascending, with the digests that their aggregators signed.
    pub parts: Vec<(Part, Digest)>,
}

impl Check {
    /// The blocks that a contributor objects to, by part (AGG-20): those where the values that an aggregator shows
    /// are far from its own integers, which it committed to and which `q` gives. Blocks whose values `shown` does not have
    /// are not looked at.
    ///
    /// # Panics
    /// As [`OwnBlock::objects`].
    pub fn objections<V: Deref<Target = Vec<f32>>>(
        &self,
        ledger: &Ledger,
        own: &Commit,
        q: impl Fn(Block) -> Option<Vec<i32>>,
        shown: impl Fn(Part, Block, &Digest) -> Option<V>,
    ) -> BTreeMap<Part, Vec<Block>> {
        let mut objections: BTreeMap<Part, Vec<Block>> = BTreeMap::new();
        let (layout, Some(view)) = (ledger.layout(), ledger.round(self.round)) else { return objections };
        for (part, digest) in &self.parts {
            let inputs = view.inputs().get(part.index()).copied().unwrap_or_default();
            let counted: Vec<&WeightedCommit> =
                inputs.slots().filter_map(|slot| view.commitment(slot)).collect();
            let scale = scale(ledger.manifest(), &counted);
            let far = |block: &&Block| {
                let values = shown(*part, **block, digest);
                values.and_then(|values| Some((q(**block)?, values))).is_some_and(|(q, values)| {
                    let step = ResultGrid::of(layout, **block).step();
                    // LOCAL-7: no number of segments divides second moments.
                    let (m, scale) =
                        if layout.is_of_moments(**block) { (1, 1.0) } else { (own.leaves, scale) };
                    OwnBlock { q: &q, m, scale, step }.objects(&values)
                })
            };
            let planned = view.parts().get(part.index()).map(|plan| plan.blocks.iter());
            let far: Vec<Block> = planned.into_iter().flatten().filter(far).copied().collect();
            if !far.is_empty() {
                objections.insert(*part, far);
            }
        }
        objections
    }

    /// What to say: the parts checked, and the blocks objected to, part by part.
    ///
    /// One part has room for an equal share of [`limits::OBJECTIONS`]; the first ones are named. One is enough to have
    /// the whole part reduced again.
    pub fn word(&self, objections: &BTreeMap<Part, Vec<Block>>) -> Checked {
        // Shared, so that one part with many wrong blocks leaves room for the others.
        let room = limits::OBJECTIONS / self.parts.len().max(1);
        let named = self.parts.iter().filter_map(|(part, _)| objections.get(part));
        let mut blocks: Vec<Block> =
            named.flat_map(|blocks| blocks.iter().take(room).copied()).take(limits::OBJECTIONS).collect();
        // Blocks of parts interleave, and the steward refuses what is not ascending.
        blocks.sort_unstable();
        Checked {
            round: self.round,
            attempt: self.attempt,
            parts: List::new(self.parts.iter().map(|(part, _)| *part).collect()).unwrap_or_default(),
            objections: List::new(blocks).unwrap_or_default(),
        }
    }
}

/// The results that a member has seen on the board in the current round.
pub struct Checks {
    me: MemberId,
    round: Option<Round>,
    seen: BTreeMap<Part, PartResult>,
    /// The checks that were given out, so that none is given out twice.
    told: BTreeSet<(Part, u8, Digest, u8)>,
}

impl Checks {
    /// Of this member.
    pub fn new(me: MemberId) -> Self {
        Self { me, round: None, seen: BTreeMap::new(), told: BTreeSet::new() }
    }

    /// A result on the board; the ledger has taken what was sealed before it. The newest of a part and attempt stands.
    ///
    /// # Errors
    /// [`Reject`] as by [`Ledger::check_result`].
    pub fn saw(&mut self, ledger: &Ledger, signed: &Signed<PartResult>) -> Result<(), Reject> {
        let result = ledger.check_result(signed)?;
        self.enter(result.round);
        let (part, digest) = (result.part, result.digest);
        let before = self.seen.insert(part, result.into_inner());
        if before.is_some_and(|before| before.digest != digest) {
            // Where aggregators differ, a result may come back after the other one was struck, and is asked about
            // again.
            self.told.retain(|(told, ..)| *told != part);
        }
        Ok(())
    }

    /// ROUND-20: what is to be checked now, each state of the board once: when every part that counts somebody has
    /// its result, and after a reassignment with every result that comes. Nothing for a member that no part counts.
    pub fn due(&mut self, ledger: &Ledger) -> Option<Check> {
        let view = ledger.current().filter(|_| ledger.stage() == Stage::Reducing)?;
        self.enter(view.round());
        let slot = view.slot_of(&self.me)?;
        view.inputs().iter().find(|inputs| inputs.contains(slot))?;
        let attempt = u8::from(view.reassigned().next().is_some());
        let current = |part: Part, result: &PartResult| {
            view.aggregator(part).is_some_and(|(_, attempt)| attempt == result.attempt)
        };
        // A result of the first attempt says nothing once its part has moved. With those of other rows there is nothing to
        // compare.
        self.seen.retain(|part, result| current(*part, result) && view.computes_on(slot, *part));
        let whole = expected(view, slot).all(|part| self.seen.contains_key(&part));
        if self.seen.is_empty() || !(whole || attempt > 0) {
            return None;
        }
        let names = self.seen.iter().map(|(part, result)| (*part, result.attempt, result.digest, attempt));
        let names: Vec<_> = names.collect();
        if names.iter().all(|name| self.told.contains(name)) {
            return None;
        }
        let parts = names.iter().map(|(part, _, digest, _)| (*part, *digest)).collect();
        self.told.extend(names);
        Some(Check { round: view.round(), attempt, parts })
    }

    fn enter(&mut self, round: Round) {
        if self.round != Some(round) {
            *self = Self { round: Some(round), ..Self::new(self.me) };
        }
    }
}

/// Parts that count somebody, of those that a slot computes on.
fn expected(view: &RoundView, slot: Slot) -> impl Iterator<Item = Part> + '_ {
    let parts = view.inputs().iter().enumerate().filter(|(_, inputs)| !inputs.is_empty());
    parts.map(|(part, _)| Part(part as u16)).filter(move |part| view.computes_on(slot, *part))
}
