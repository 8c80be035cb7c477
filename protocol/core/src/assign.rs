//! Who computes and reduces what: functions of public randomness in which nobody has a choice.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::hash::{Domain, Hasher, below};
use crate::ids::{Block, Digest, Leaf, Part, Round, RunId, Slot};
use crate::layout::Layout;
use crate::limits;

/// Seed of a round: `H("round-seed", run, t, root X_t)`.
pub fn round_seed(run: RunId, round: Round, state: &Digest) -> Digest {
    Hasher::new(Domain::ROUND_SEED).value(&run).value(&round).value(state).finish()
}

/// Seed of the calibration leaf, which sets the first grid exponents: that of round 2³²−1 on the zero root.
pub fn calibration_seed(run: RunId) -> Digest {
    round_seed(run, Round(u32::MAX), &Digest::default())
}

/// The windows of a leaf: window `b` is `H("windows", seed, leaf, b)` mapped to `0..windows`.
pub fn windows(seed: &Digest, leaf: Leaf, count: u32, windows: u64) -> Vec<u64> {
    let base = Hasher::new(Domain::WINDOWS).value(seed).value(&leaf);
    (0..count).map(|index| below(base.clone().value(&index).number(), windows)).collect()
}

/// The leaf at a position of a slot's contribution.
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
/// Blocks go, largest first and by number among equals, to the part with the fewest coefficients so far, the lowest
/// part among equals. Part `p` belongs to entry `p` of the aggregators shuffled (Fisher–Yates, from the end) by
/// ChaCha8 keyed with `H("aggregators", seed)`. Parts without blocks do not exist.
pub fn parts(layout: &Layout, seed: &Digest, aggregators: &[Slot]) -> Vec<PartPlan> {
    let count = aggregators.len().min(limits::PARTS).min(layout.blocks().len());
    let mut loads = vec![0usize; count];
    let mut blocks = vec![Vec::new(); count];
    let mut order: Vec<usize> = (0..layout.blocks().len()).collect();
    order.sort_by_key(|index| (std::cmp::Reverse(layout.blocks()[*index].range.len()), *index));
    for index in order {
        let lightest = (0..count).min_by_key(|part| (loads[*part], *part));
        let Some(part) = lightest else { break };
        loads[part] += layout.blocks()[index].range.len();
        blocks[part].push(Block(index as u32));
    }
    let mut drawn = aggregators.to_vec();
    let mut stream = ChaCha8Rng::from_seed(Hasher::new(Domain::AGGREGATORS).value(seed).finish().0);
    for last in (1..drawn.len()).rev() {
        let other = below(stream.next_u64(), last as u64 + 1) as usize;
        drawn.swap(last, other);
    }
    let plans = blocks.into_iter().zip(drawn);
    plans
        .map(|(mut blocks, aggregator)| {
            blocks.sort_unstable();
            PartPlan { blocks, aggregator }
        })
        .collect()
}

/// The order in which other aggregators are tried for a part whose own one failed.
pub fn reassignment(seed: &Digest, part: Part, failed: Slot, aggregators: &[Slot]) -> Vec<Slot> {
    let mut others: Vec<Slot> = aggregators.iter().copied().filter(|slot| *slot != failed).collect();
    if !others.is_empty() {
        let turn = Hasher::new(Domain::AGGREGATORS).value(seed).value(&part).number();
        let middle = below(turn, others.len() as u64) as usize;
        others.rotate_left(middle);
    }
    others
}
