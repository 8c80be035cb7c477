//! Who computes and reduces what: functions of public randomness in which nobody has a choice.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::hash::{Domain, Hasher, below};
use crate::ids::{Block, Digest, Leaf, Part, Round, RunId, Slot};
use crate::layout::Layout;
use crate::limits;
use crate::manifest::{Albert, Model};

/// Seed of a round (ASSIGN-1): `H("round-seed", run, le4(t), root of X_t)`.
pub fn round_seed(run: RunId, round: Round, state: &Digest) -> Digest {
    Hasher::new(Domain::ROUND_SEED).value(&run).value(&round).value(state).finish()
}

/// Seed of the calibration leaf, which sets the first grid exponents (ASSIGN-2): that of round 2³² − 1 on 32 zero
/// bytes.
pub fn calibration_seed(run: RunId) -> Digest {
    round_seed(run, Round(u32::MAX), &Digest::default())
}

/// The windows of a leaf (ASSIGN-3): window `b` is `H("windows", seed, leaf, b)` mapped to `0..windows`.
pub fn windows(seed: &Digest, leaf: Leaf, count: u32, windows: u64) -> Vec<u64> {
    let base = Hasher::new(Domain::WINDOWS).value(seed).value(&leaf);
    (0..count).map(|index| below(base.clone().value(&index).number(), windows)).collect()
}

/// A window as a masked language model sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masked {
    /// What it reads: the first `sequence` tokens, some of them replaced.
    pub inputs: Vec<u32>,
    /// Positions of the tokens to be predicted, ascending.
    pub positions: Vec<u32>,
}

/// Masks window `window` of a leaf: nobody chooses what is easy to predict.
///
/// ASSIGN-8: all draws come, in order, from ChaCha8 keyed with `H("mask", seed, leaf, window)`, 64 bits each
/// (HASH-7). The positions are the first [`Albert::masked`] entries of a Fisher–Yates shuffle from the front, then
/// sorted. Each position, ascending, takes two draws: the first, mapped to 0..10, says whether the token becomes the
/// mask token (below 8), a token that the second maps to the vocabulary (8), or stays (9).
pub fn masked(
    model: &Model,
    albert: &Albert,
    seed: &Digest,
    leaf: Leaf,
    window: u32,
    tokens: &[u32],
) -> Masked {
    let key = Hasher::new(Domain::MASK).value(seed).value(&leaf).value(&window).finish();
    let mut stream = ChaCha8Rng::from_seed(key.0);
    let mut inputs: Vec<u32> = tokens.iter().take(model.sequence as usize).copied().collect();
    let mut positions: Vec<u32> = (0..inputs.len() as u32).collect();
    let count = (albert.masked(model.sequence) as usize).min(positions.len());
    for first in 0..count {
        // No draw is rejected and repeated (HASH-5): everybody takes the same words from the stream.
        let other = first + below(stream.next_u64(), (positions.len() - first) as u64) as usize;
        positions.swap(first, other);
    }
    positions.truncate(count);
    positions.sort_unstable();
    for position in &positions {
        // Two draws, used or not: the next position does not depend on what became of this one.
        let [what, token] = [stream.next_u64(), stream.next_u64()];
        match below(what, 10) {
            0..8 => inputs[*position as usize] = albert.mask_token,
            8 => inputs[*position as usize] = below(token, u64::from(model.vocabulary)) as u32,
            _ => {}
        }
    }
    Masked { inputs, positions }
}

/// The leaf at a position of a slot's contribution (ASSIGN-3): i + n·p. A contribution sums a prefix of them
/// (ASSIGN-4).
pub fn leaf(slot: Slot, seats: u16, position: u32) -> Leaf {
    Leaf(u64::from(slot.0) + u64::from(seats) * u64::from(position))
}

/// A part of a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartPlan {
    /// Its blocks in order.
    pub blocks: Vec<Block>,
    /// Who reduces it at first.
    pub aggregator: Slot,
}

/// Splits the blocks into one part for each aggregator, of nearly equal size.
///
/// ASSIGN-6: part `p` belongs to entry `p` of the aggregators shuffled (Fisher–Yates, from the end) by ChaCha8 keyed
/// with `H("aggregators", seed)`.
pub fn parts(layout: &Layout, seed: &Digest, aggregators: &[Slot]) -> Vec<PartPlan> {
    let plans = blocks(layout, aggregators.len()).into_iter().zip(shuffled(seed, aggregators));
    plans.map(|(blocks, aggregator)| PartPlan { blocks, aggregator }).collect()
}

/// The blocks of each part, in order, for this many aggregators. A part without blocks does not exist.
///
/// ASSIGN-5: blocks go, largest first and by number among equals, to the part with the fewest coefficients so far,
/// the lowest part among equals.
pub fn blocks(layout: &Layout, aggregators: usize) -> Vec<Vec<Block>> {
    // No part without a block: there would be nothing to reduce or to sign.
    let count = aggregators.min(limits::PARTS).min(layout.blocks().len());
    let mut loads = vec![0usize; count];
    let mut blocks = vec![Vec::new(); count];
    let mut order: Vec<usize> = (0..layout.blocks().len()).collect();
    // Largest first keeps the loads of the parts nearly equal.
    order.sort_by_key(|index| (std::cmp::Reverse(layout.blocks()[*index].range.len()), *index));
    for index in order {
        let lightest = (0..count).min_by_key(|part| (loads[*part], *part));
        let Some(part) = lightest else { break };
        loads[part] += layout.blocks()[index].range.len();
        blocks[part].push(Block(index as u32));
    }
    blocks.iter_mut().for_each(|blocks| blocks.sort_unstable());
    blocks
}

/// The second aggregators of the first `parts` parts, in runs that have two (ASSIGN-9): part `p` has entry `p + 1` of
/// the shuffle of [`parts`], the last entry's neighbour being the first. None where there is one aggregator only.
pub fn seconds(seed: &Digest, aggregators: &[Slot], parts: usize) -> Vec<Option<Slot>> {
    let mut drawn = shuffled(seed, aggregators);
    let others = drawn.len() > 1;
    // Neighbours of one shuffle: one draw serves both, nobody has more than two parts, and no pair can be
    // arranged.
    drawn.rotate_left(usize::from(others));
    drawn.into_iter().take(parts).map(|slot| others.then_some(slot)).collect()
}

fn shuffled(seed: &Digest, aggregators: &[Slot]) -> Vec<Slot> {
    let mut drawn = aggregators.to_vec();
    let mut stream = ChaCha8Rng::from_seed(Hasher::new(Domain::AGGREGATORS).value(seed).finish().0);
    for last in (1..drawn.len()).rev() {
        let other = below(stream.next_u64(), last as u64 + 1) as usize;
        drawn.swap(last, other);
    }
    drawn
}

/// The order in which other aggregators are tried for a part whose own one failed (ASSIGN-7): ascending, rotated.
pub fn reassignment(seed: &Digest, part: Part, failed: Slot, aggregators: &[Slot]) -> Vec<Slot> {
    let mut others: Vec<Slot> = aggregators.iter().copied().filter(|slot| *slot != failed).collect();
    if !others.is_empty() {
        // Rotated by the part: the parts of one failed aggregator do not all fall to the same member.
        let turn = Hasher::new(Domain::AGGREGATORS).value(seed).value(&part).number();
        let middle = below(turn, others.len() as u64) as usize;
        others.rotate_left(middle);
    }
    others
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MemberId;
    use crate::manifest::fixture::tiny;

    #[test]
    fn assign_6_part_p_belongs_to_entry_p_of_the_shuffled_aggregators() {
        let layout = Layout::of(&tiny(MemberId([1; 32]), MemberId([2; 32]), 1, 1).model);
        let aggregators: Vec<Slot> = [0, 2, 3, 7, 9].map(Slot).into();
        let mut orders = std::collections::BTreeSet::new();
        for byte in 0..20 {
            let seed = Digest([byte; 32]);
            let key = Hasher::new(Domain::AGGREGATORS).value(&seed).finish();
            let mut stream = ChaCha8Rng::from_seed(key.0);
            let mut expected = aggregators.clone();
            for i in (1..expected.len()).rev() {
                let (low, high) = (u64::from(stream.next_u32()), u64::from(stream.next_u32()));
                expected.swap(i, below(low | high << 32, i as u64 + 1) as usize);
            }
            let drawn: Vec<Slot> =
                parts(&layout, &seed, &aggregators).iter().map(|plan| plan.aggregator).collect();
            assert_eq!(drawn, expected[..drawn.len()]);
            orders.insert(drawn);
        }
        assert!(orders.len() > 10, "another order for another seed");
    }
}
