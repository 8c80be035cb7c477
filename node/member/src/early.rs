//! Blocks that an aggregator reduces as soon as all of their inputs are here, while others still come: most rounds seal as inputs
//! what every contributor of the freeze has brought. Where they seal less, what was reduced early is dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use muster_core::contribution::block_integers;
use muster_core::ids::{Block, MemberId, Part, Round, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, RoundView};
use muster_core::lock::lock;
use muster_core::messages::round::Bitmap;
use muster_core::reduction::{ReducedBlock, Reducer, SealedInputs};
use muster_keeper::intake::Intake;
use muster_replica::{Phase, Stopwatch};

use super::own::Own;

/// Reduces early what this member has to reduce.
pub(super) struct Early {
    me: MemberId,
    pub(super) intake: Arc<Intake>,
    pub(super) own: Arc<Own>,
    stopwatch: Arc<Stopwatch>,
    held: Mutex<Held>,
}

/// The blocks of one round, the newest.
#[derive(Default)]
struct Held {
    round: Round,
    /// None while it is reduced.
    blocks: BTreeMap<Block, Option<ReducedBlock>>,
}

impl Early {
    /// Of what this member takes in, and contributes itself.
    pub(super) fn new(me: MemberId, intake: Arc<Intake>, own: Arc<Own>, stopwatch: Arc<Stopwatch>) -> Self {
        Self { me, intake, own, stopwatch, held: Mutex::default() }
    }

    /// Reduces those of these blocks of one part of which all inputs are here, if this member has to reduce the part.
    pub(super) fn reduce(&self, ledger: &Ledger, round: Round, blocks: &[Block]) {
        let (manifest, layout) = (ledger.manifest(), ledger.layout());
        if let Some(view) = ledger.round(round)
            && let Some(part) = blocks.first().and_then(|block| view.part_of(*block))
            && view.aggregating(part).any(|member| member == self.me)
            && let Some(freeze) = view.freeze_digest()
            && let slots = expected(view, part)
            && let Some(reducer) =
                Reducer::new(manifest, layout, &SealedInputs { freeze, slots: &slots }, |slot| {
                    view.commitment(slot)
                })
        {
            self.reduce_by(&reducer, layout, view, blocks);
        }
    }

    fn reduce_by(&self, reducer: &Reducer<'_>, layout: &Layout, view: &RoundView, blocks: &[Block]) {
        let (round, own) = (view.round(), self.own.round(view.round()));
        let author = |slot: &Slot| Some((*slot, view.commitment(*slot)?.author));
        let others = reducer.slots().iter().filter_map(author);
        let others: Vec<_> = others.filter(|(_, author)| own.is_none() || *author != self.me).collect();
        for block in blocks.iter().copied() {
            let held =
                |(slot, author): &(Slot, MemberId)| Some((*slot, self.intake.held(round, author, block)?));
            // An input that is not here yet comes with somebody's next blocks.
            if let Some(others) = others.iter().map(held).collect::<Option<BTreeMap<_, _>>>()
                && lock(&self.held).begin(round, block)
            {
                let input = |slot| match others.get(&slot) {
                    Some(data) => block_integers(layout, data).ok(),
                    None => own.as_ref()?.sum.integers(layout, block),
                };
                let reduced = self.stopwatch.time(Phase::Aggregation, || reducer.block(block, input));
                reduced.into_iter().for_each(|reduced| lock(&self.held).put(round, block, reduced));
            }
        }
    }

    /// What was reduced early of a block over these inputs of its part, once.
    pub(super) fn take(&self, view: &RoundView, block: Block, inputs: &Bitmap) -> Option<ReducedBlock> {
        let part = view.part_of(block)?;
        let same = expected(view, part) == *inputs;
        if same { lock(&self.held).take(view.round(), block) } else { None }
    }

    /// A round is over.
    pub(super) fn over(&self, round: Round) {
        lock(&self.held).over(round);
    }
}

impl Held {
    /// Whether nobody has reduced a block yet, or begun to: whoever asks first does. However often it is brought, a block is
    /// reduced early once.
    fn begin(&mut self, round: Round, block: Block) -> bool {
        if self.round < round {
            *self = Self { round, ..Self::default() };
        }
        let first = self.round == round && !self.blocks.contains_key(&block);
        if first {
            self.blocks.insert(block, None);
        }
        first
    }

    fn put(&mut self, round: Round, block: Block, reduced: ReducedBlock) {
        // Not where the round is over meanwhile.
        if self.round == round
            && let Some(place) = self.blocks.get_mut(&block)
        {
            *place = Some(reduced);
        }
    }

    /// Its place stays: whoever brings the block again has nothing reduced.
    fn take(&mut self, round: Round, block: Block) -> Option<ReducedBlock> {
        if self.round == round { self.blocks.get_mut(&block)?.take() } else { None }
    }

    fn over(&mut self, round: Round) {
        if self.round <= round {
            *self = Self { round: round.next(), ..Self::default() };
        }
    }
}

/// Everybody whose frozen contribution covers a part.
fn expected(view: &RoundView, part: Part) -> Bitmap {
    let mut slots = Bitmap::default();
    let covering = view.commitments().map(|(slot, _)| slot).filter(|slot| view.computes_on(*slot, part));
    covering.for_each(|slot| slots.insert(slot));
    slots
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reduced() -> ReducedBlock {
        ReducedBlock::default()
    }

    #[test]
    fn a_block_is_reduced_early_once_however_often_it_is_brought() {
        let mut held = Held::default();
        assert!(held.begin(Round(3), Block(7)) && !held.begin(Round(3), Block(7)));
        assert!(held.take(Round(3), Block(7)).is_none(), "it is still being reduced");
        held.put(Round(3), Block(7), reduced());
        assert!(!held.begin(Round(3), Block(7)) && held.take(Round(3), Block(7)).is_some());
        assert!(!held.begin(Round(3), Block(7)), "also once it was used");
        assert!(held.begin(Round(3), Block(8)));
    }

    #[test]
    fn what_was_reduced_early_is_of_one_round() {
        let mut held = Held::default();
        assert!(held.begin(Round(3), Block(7)) && held.begin(Round(4), Block(7)));
        held.put(Round(3), Block(7), reduced());
        assert!(held.take(Round(4), Block(7)).is_none() && !held.begin(Round(3), Block(8)));
        held.put(Round(4), Block(7), reduced());
        held.over(Round(4));
        assert!(held.take(Round(4), Block(7)).is_none());
        assert!(!held.begin(Round(4), Block(7)), "what comes late is not reduced");
        assert!(held.begin(Round(5), Block(7)));
    }
}
