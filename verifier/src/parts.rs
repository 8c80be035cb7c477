//! Aggregators under a verifier's eye: drawn blocks of sealed parts are reduced again and compared, bit for bit, with
//! the values that were applied. One that differs has the whole part reduced anew before anybody is accused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_core::audit::{Judgement, judge_reduction};
use muster_core::coins::{Coin, block_inspector, selects_block};
use muster_core::ids::{Block, MemberId, Part, Round};
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, RoundView};
use muster_core::manifest::Manifest;
use muster_core::messages::evidence::Reduction;
use muster_core::messages::round::PartResult;
use muster_core::reduction::reduce;
use muster_core::sign::Signed;
use muster_replica::{Brought, Contact, Exhibited, InputBlocks, PartInputs, Peers, Results, contact};
use muster_store::dataset::Dataset;

/// Tries to fetch what a drawn part needs.
pub const TRIES: u32 = 3;
/// Between two of them.
pub const PAUSE: Duration = Duration::from_secs(1);

/// Drawn blocks of one sealed part.
pub struct Drawn {
    /// What the aggregator signed.
    pub signed: Signed<PartResult>,
    /// The same, checked.
    pub result: PartResult,
    /// By whom.
    pub author: MemberId,
    /// The drawn blocks, ascending.
    pub blocks: Vec<Block>,
    /// The inputs of the part, and who has them.
    pub inputs: PartInputs,
    /// Who may have the values.
    pub holders: Vec<Contact>,
    /// How often it was tried.
    pub tries: u32,
}

/// What a look at drawn blocks gave.
pub enum Seen {
    /// All are what the rule gives.
    Right,
    /// This one is not.
    Wrong(Block),
    /// Something is not to be had.
    Missing(String),
}

/// The drawn parts that have yet to be looked at.
#[derive(Default)]
pub struct Parts {
    surveyed: BTreeSet<Round>,
    queue: Queue<Drawn>,
}

/// What waits for its turn, each from a time on, and how often it was tried. One that waits for another try holds up nobody:
/// who keeps values back, or has none of rounds before this verifier came, must not keep it from looking at the others.
struct Queue<T>(VecDeque<(Instant, u32, T)>);

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Queue<T> {
    fn put(&mut self, from: Instant, tries: u32, item: T) {
        self.0.push_back((from, tries, item));
    }

    /// What was tried least, and of that what came first.
    fn pop(&mut self, now: Instant) -> Option<T> {
        let due = self.0.iter().enumerate().filter(|(_, (from, ..))| *from <= now);
        let (place, _) = due.min_by_key(|(place, (_, tries, _))| (*tries, *place))?;
        self.0.remove(place).map(|(.., item)| item)
    }
}

impl Parts {
    /// Draws blocks of the rounds that are over and were not drawn from before, as verifier `me` with these coins.
    pub fn survey(&mut self, ledger: &Ledger, me: &MemberId, coin: impl Fn(Round) -> Option<Coin>) {
        for view in ledger.rounds().filter(|view| view.results().is_some()) {
            if self.surveyed.insert(view.round())
                && let Some(coin) = coin(view.round())
            {
                let ppm = ledger.manifest().audit.block_ppm;
                let drawn = drawn(view, me, &coin, ppm).into_iter();
                let found = drawn.filter_map(|(part, blocks)| of(ledger, view, part, blocks));
                found.for_each(|drawn| self.queue.put(Instant::now(), 0, drawn));
            }
        }
        let oldest = ledger.rounds().next().map(RoundView::round);
        self.surveyed.retain(|round| oldest.is_none_or(|oldest| *round >= oldest));
        self.queue.0.retain(|(.., drawn)| oldest.is_none_or(|oldest| drawn.result.round >= oldest));
    }

    /// The next one.
    pub fn pop(&mut self) -> Option<Drawn> {
        self.queue.pop(Instant::now())
    }

    /// Has one looked at again after a pause, unless that was tried often enough; whether it will be.
    pub fn again(&mut self, mut drawn: Drawn) -> bool {
        drawn.tries += 1;
        let more = drawn.tries < TRIES;
        if more {
            self.queue.put(Instant::now() + PAUSE, drawn.tries, drawn);
        }
        more
    }
}

/// Blocks of a round that a verifier's coin draws, by part (AUDIT-20).
fn drawn(view: &RoundView, me: &MemberId, coin: &Coin, ppm: u32) -> BTreeMap<Part, Vec<Block>> {
    let mut drawn = BTreeMap::new();
    let (Some(freeze), Some(outcome)) = (view.freeze_digest(), view.outcome_digest()) else { return drawn };
    let inspectors = view.block_inspectors();
    let Some(place) = inspectors.iter().position(|inspector| inspector == me) else { return drawn };
    for (part, plan) in view.parts().iter().enumerate() {
        let mine = |block: &&Block| {
            block_inspector(&outcome, **block, inspectors.len()) == place
                && selects_block(coin, &freeze, **block, ppm)
        };
        let blocks: Vec<Block> = plan.blocks.iter().filter(mine).copied().collect();
        if !blocks.is_empty() {
            drawn.insert(Part(part as u16), blocks);
        }
    }
    drawn
}

/// `None` for a part without a sealed result.
fn of(ledger: &Ledger, view: &RoundView, part: Part, blocks: Vec<Block>) -> Option<Drawn> {
    let signed = view.signed_result(part)?.clone();
    let result = signed.verify(ledger.run()).ok()?;
    let author = result.author();
    let inputs = PartInputs::of(ledger, &result)?;
    let holders = view.signers(part).filter_map(|signer| contact(ledger, &signer)).collect();
    Some(Drawn { signed, result: result.into_inner(), author, blocks, inputs, holders, tries: 0 })
}

impl Drawn {
    /// The values that were applied, from what this replica fetched, else from the aggregator or the steward.
    ///
    /// # Errors
    /// Why they are not to be had.
    pub async fn values(
        &self,
        results: &Results,
        (peers, layout, steward): (&Peers, &Layout, &Contact),
    ) -> Result<(), String> {
        let (round, digest, blocks) = (self.result.round, &self.result.digest, &self.inputs.blocks);
        if results.has(round, blocks, digest) {
            return Ok(());
        }
        let holders: Vec<Contact> = self.holders.iter().chain([steward]).cloned().collect();
        let values = peers.values(&holders, layout, round, blocks, digest).await;
        results.put(round, blocks, digest, values.map_err(|error| error.to_string())?);
        Ok(())
    }

    /// Reduces the drawn blocks again and compares the bits of every value.
    pub fn look(
        &self,
        manifest: &Manifest,
        layout: &Layout,
        results: &Results,
        inputs: &InputBlocks,
    ) -> Seen {
        let view = &self.inputs.view;
        let commitment = |slot| view.commitment(slot);
        let input = |slot, block| {
            let author = view.commitment(slot)?.author;
            inputs.get(&(author, block)).map(|(_, integers)| integers.as_slice())
        };
        let reduced = reduce(manifest, layout, &self.blocks, &self.result.inputs, commitment, input);
        let Some(reduced) = reduced else { return Seen::Missing("an input is not at hand".into()) };
        for (block, values) in self.blocks.iter().zip(&reduced.values) {
            let Some(applied) = results.block(self.result.round, *block, &self.result.digest) else {
                return Seen::Missing(format!("the values of block {block} are not at hand"));
            };
            let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
            if bits(values) != bits(&applied) {
                return Seen::Wrong(*block);
            }
        }
        Seen::Right
    }

    /// What convicts, if a judge agrees.
    pub fn evidence(&self) -> Option<Reduction> {
        self.inputs.view.reduction(&self.result, &self.signed)
    }

    /// Reduces the whole part from inputs that were fetched anew, as every judge will.
    pub fn second_opinion(
        &self,
        manifest: &Manifest,
        dataset: Arc<Dataset>,
        evidence: &Reduction,
        inputs: InputBlocks,
    ) -> Judgement {
        let blocks = inputs.into_iter().map(|(name, (data, _))| (name, data)).collect();
        let brought = Brought { blocks, round: Some(self.inputs.view.clone()), ..Brought::default() };
        let mut witness = Exhibited::new(Vec::new(), dataset, manifest, brought);
        judge_reduction(manifest, evidence, &mut witness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_to_be_had_holds_up_nothing_else() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.put(now + PAUSE, 1, "kept back");
        queue.put(now, 0, "first");
        queue.put(now, 0, "second");
        assert_eq!([(); 3].map(|()| queue.pop(now)), [Some("first"), Some("second"), None]);
        queue.put(now, 0, "new");
        assert_eq!([(); 2].map(|()| queue.pop(now + PAUSE)), [Some("new"), Some("kept back")]);
    }
}
