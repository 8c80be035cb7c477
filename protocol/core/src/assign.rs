//! Who computes and reduces what: functions of public randomness in which nobody has a choice.

mod shares;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use crate::hash::{Domain, Hasher, below};
use crate::ids::{Block, Digest, Leaf, Part, Round, Row, RowSet, RunId, ShardId, ShareClass, Slot};
use crate::layout::Layout;
use crate::limits;
use crate::manifest::{Albert, Manifest, Model};
use crate::messages::round::Route;
use crate::regime::Regime;
use shares::Shares;
pub use shares::{TimedShare, parts_each, timed_classes, weighs};

/// Seed of a round's leaves, or of its parts (ASSIGN-1): `H("round-seed", run, le4(t), root)`, of the state that the leaves are
/// computed on, or the one that they change.
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

/// The windows of a leaf of a seat: by ASSIGN-3 where the state has one row, else by ASSIGN-10. Those of a segment are the
/// windows of its leaves, one after the other. `row_of` gives the row of a window, among the open ones. `None` where it does
/// not know one.
pub fn leaf_windows(
    manifest: &Manifest,
    seed: &Digest,
    leaf: Leaf,
    route: Option<&Route>,
    row_of: &mut dyn FnMut(u64, RowSet) -> Option<Row>,
) -> Option<Vec<u64>> {
    let (count, all) = (manifest.training.leaf_windows, manifest.windows());
    let Some(route) = route else {
        return Some(leaves_of(manifest, leaf).flat_map(|leaf| windows(seed, leaf, count, all)).collect());
    };
    let drawn = DrawnRow { row: route.row, rows: manifest.model.rows() };
    let mut known = true;
    let mut of_leaf = |leaf| {
        windows_of_row(seed, leaf, count, all, drawn, |window| {
            let row = row_of(window, route.open);
            known &= row.is_some();
            row
        })
    };
    let windows = leaves_of(manifest, leaf).flat_map(&mut of_leaf).collect();
    known.then_some(windows)
}

/// ASSIGN-11: the leaves that a number stands for. In a run of local updates it is that of a segment, which has h of them.
pub fn leaves_of(manifest: &Manifest, number: Leaf) -> impl Iterator<Item = Leaf> + use<> {
    let count = u64::from(Regime::of(manifest).leaves_of_number());
    (0..count).map(move |step| Leaf(number.0.wrapping_mul(count).wrapping_add(step)))
}

/// The row whose windows are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrawnRow {
    /// Its number.
    pub row: Row,
    /// Rows of the model.
    pub rows: u16,
}

/// The windows of a leaf in a model of several rows, for a seat of one of them; `of_window` says which row a window
/// has. One row has those of [`windows`].
///
/// ASSIGN-10: window `b` is the first of the candidates j = 0, 1, …, 64·R − 1, each
/// `below(first8(H("windows", seed, leaf, b, j)), windows)`, whose row is the seat's; the last candidate where none is.
pub fn windows_of_row(
    seed: &Digest,
    leaf: Leaf,
    count: u32,
    windows: u64,
    drawn: DrawnRow,
    mut of_window: impl FnMut(u64) -> Option<Row>,
) -> Vec<u64> {
    if drawn.rows < 2 {
        return self::windows(seed, leaf, count, windows);
    }
    let base = Hasher::new(Domain::WINDOWS).value(seed).value(&leaf);
    let window = |index: u32| {
        let base = base.clone().value(&index);
        let candidate = |draw: u32| below(base.clone().value(&draw).number(), windows);
        // Bounded, because a row may have no window at all: its seats then train on what others do.
        let last = limits::ROW_DRAWS * u32::from(drawn.rows) - 1;
        let fitting = (0..last).map(candidate).find(|window| of_window(*window) == Some(drawn.row));
        // Whether the last one fits or not, it is taken.
        fitting.unwrap_or_else(|| candidate(last))
    };
    (0..count).map(window).collect()
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
    /// The shard that its blocks are of.
    pub shard: ShardId,
    /// Its blocks in order.
    pub blocks: Vec<Block>,
    /// Who reduces it at first.
    pub aggregator: Slot,
}

/// What the parts of a round follow from.
#[derive(Clone, Copy)]
pub struct Seating<'a> {
    /// The layout of a path.
    pub layout: &'a Layout,
    /// Planes that are exchanged.
    pub planes: usize,
    /// The seed of the round's parts.
    pub seed: &'a Digest,
    /// The row of each slot.
    pub rows: &'a [Row],
    /// Rows with a seat, where the state has several.
    pub route: Option<&'a Route>,
    /// The slots that can reduce, ascending.
    pub aggregators: &'a [Slot],
    /// The share class of each slot; none where they do not count (ASSIGN-12), so that all are alike.
    pub classes: &'a [ShareClass],
}

/// The shards that somebody computes on, in order: of a state with several rows, the trunk and the rows with a seat.
pub fn open_shards(layout: &Layout, route: Option<&Route>) -> Vec<ShardId> {
    let open = |id: &ShardId| route.zip(id.row()).is_none_or(|(route, row)| route.open.contains(row));
    layout.all_shards(if route.is_some() { layout.rows() } else { 1 }).filter(open).collect()
}

/// How many parts each of these shards has, for so many aggregators.
///
/// ASSIGN-5: divided for A aggregators, a shard has ⌊A·load/all loads⌋ parts, at least one, at most one a block. The load of a row
/// is its coefficients, and that of the trunk its coefficients times the open rows, of which each brings contributors.
/// Without an aggregator there is no part.
// Not by the seats of each row: whoever lacks the ledger could not tell the parts.
fn shares(layout: &Layout, open: &[ShardId], aggregators: usize) -> Vec<usize> {
    let size = |shard| layout.shard(shard).map_or((0, 0), |s| (s.coefficients.len(), s.blocks.len()));
    let rows = open.len().saturating_sub(1).max(1) as u128;
    let load = |shard: &ShardId| size(*shard).0 as u128 * if *shard == ShardId::TRUNK { rows } else { 1 };
    let all = open.iter().map(load).sum::<u128>().max(1);
    let share = |shard: &ShardId| {
        let share = usize::try_from(aggregators as u128 * load(shard) / all).unwrap_or(usize::MAX);
        share.clamp(aggregators.min(1), size(*shard).1)
    };
    open.iter().map(share).collect()
}

/// The shards and blocks of a round's parts, from their number alone: what whoever lacks the ledger knows of them. `None`
/// where no number of aggregators gives so many.
pub fn parts_in(
    layout: &Layout,
    planes: usize,
    open: &[ShardId],
    parts: usize,
) -> Option<Vec<(ShardId, Vec<Block>)>> {
    // No shard has fewer parts with more aggregators, so that all numbers of them that give this sum give the same parts.
    let fits = |aggregators: &usize| shares(layout, open, *aggregators).iter().sum::<usize>() == parts;
    let aggregators = (0..=limits::SEATS).find(fits)?;
    Some(blocks(layout, planes, open, aggregators))
}

/// The shards and blocks of each part, in order. A part without blocks does not exist.
fn blocks(
    layout: &Layout,
    planes: usize,
    open: &[ShardId],
    aggregators: usize,
) -> Vec<(ShardId, Vec<Block>)> {
    let counted = open.iter().zip(shares(layout, open, aggregators));
    counted
        .flat_map(|(shard, count)| {
            divided(layout, planes, *shard, count).into_iter().map(|blocks| (*shard, blocks))
        })
        .collect()
}

impl Seating<'_> {
    /// The aggregators in the order of ASSIGN-6: Fisher–Yates, from the end, by ChaCha8 keyed with
    /// `H("aggregators", seed)`.
    fn shuffled(&self) -> Vec<Slot> {
        let mut drawn = self.aggregators.to_vec();
        let mut stream = ChaCha8Rng::from_seed(Hasher::new(Domain::AGGREGATORS).value(self.seed).finish().0);
        for last in (1..drawn.len()).rev() {
            let other = below(stream.next_u64(), last as u64 + 1) as usize;
            drawn.swap(last, other);
        }
        drawn
    }

    /// Whether a slot computes on a shard.
    fn holds(&self, slot: Slot, shard: ShardId) -> bool {
        self.rows.get(slot.index()).is_some_and(|row| self.layout.path(*row).any(|held| held == shard))
    }

    /// Of these slots, those that do not compute on a row: nobody who does reduces it while there are others. All of them
    /// for the trunk, and where there are no others.
    // A row has few contributors. One that reduced it, too, could say what the others gave.
    fn outside(&self, slots: &[Slot], shard: ShardId) -> Vec<Slot> {
        let outside: Vec<Slot> = slots.iter().copied().filter(|slot| !self.holds(*slot, shard)).collect();
        if shard == ShardId::TRUNK || outside.is_empty() { slots.to_vec() } else { outside }
    }
}

/// Splits the blocks of the shards that somebody computes on into parts of nearly equal load, and gives each to an
/// aggregator.
///
/// ASSIGN-6: parts go in order to the aggregator that is done first with what it has, the first one of the shuffle among
/// equals; a row's parts to those outside of the row, while there are any.
pub fn parts(seating: &Seating<'_>) -> Vec<PartPlan> {
    let drawn = seating.shuffled();
    let shares = Shares::of(seating.aggregators, seating.classes);
    let open = open_shards(seating.layout, seating.route);
    let blocks = blocks(seating.layout, seating.planes, &open, shares.divisor());
    let mut filling = shares.filling(blocks.len());
    let mut plans = Vec::new();
    for (shard, blocks) in blocks {
        let Some(aggregator) = filling.give(&seating.outside(&drawn, shard)) else { break };
        plans.push(PartPlan { shard, blocks, aggregator });
    }
    plans
}

/// Splits the blocks of a shard into so many parts, or into one a block.
// ASSIGN-5: blocks go, largest first and by number among equals, to the part with the fewest coefficients so far, the
// lowest part among equals.
fn divided(layout: &Layout, planes: usize, shard: ShardId, parts: usize) -> Vec<Vec<Block>> {
    let length = |block: &Block| layout.block(*block).map_or(0, |block| block.range.len());
    let mut order: Vec<Block> = (0..planes).flat_map(|plane| layout.blocks_in(shard, plane)).collect();
    // No part without a block: there would be nothing to reduce or to sign.
    let count = parts.min(order.len());
    let mut loads = vec![0usize; count];
    let mut divided = vec![Vec::new(); count];
    // Largest first keeps the loads of the parts nearly equal.
    order.sort_by_key(|block| (std::cmp::Reverse(length(block)), *block));
    for block in order {
        let lightest = (0..count).min_by_key(|part| (loads[*part], *part));
        let Some(part) = lightest else { break };
        loads[part] += length(&block);
        divided[part].push(block);
    }
    divided.iter_mut().for_each(|blocks| blocks.sort_unstable());
    divided
}

/// The aggregators that have none of these parts because others are faster (ASSIGN-12).
pub fn passed_over(aggregators: &[Slot], classes: &[ShareClass], parts: &[PartPlan]) -> Vec<Slot> {
    shares::passed_over(aggregators, classes, |slot| parts.iter().any(|plan| plan.aggregator == slot))
}

/// The second aggregators of these parts, in runs that have two (ASSIGN-9): the one behind the first in the shuffle of
/// [`parts`], the last one's neighbour being the first, of those that may reduce the part. None where there is one aggregator
/// only.
pub fn seconds(seating: &Seating<'_>, parts: &[PartPlan]) -> Vec<Option<Slot>> {
    let drawn = seating.shuffled();
    // Neighbours of one shuffle: one draw serves both, and no pair can be arranged.
    let second = |part: &PartPlan| {
        let place = drawn.iter().position(|slot| *slot == part.aggregator)?;
        let behind: Vec<Slot> = drawn.iter().cycle().skip(place + 1).take(drawn.len() - 1).copied().collect();
        seating.outside(&behind, part.shard).first().copied()
    };
    parts.iter().map(second).collect()
}

/// The order in which other aggregators are tried for a part whose own one failed (ASSIGN-7): ascending, rotated, those
/// outside of the part's row first, and those that are not `passed` over before others.
pub fn reassignment(seating: &Seating<'_>, part: Part, plan: &PartPlan, passed: &[Slot]) -> Vec<Slot> {
    let others = seating.aggregators.iter().copied().filter(|slot| *slot != plan.aggregator);
    let mut others: Vec<Slot> = others.collect();
    if !others.is_empty() {
        // Rotated by the part: the parts of one failed aggregator do not all fall to the same member.
        let turn = Hasher::new(Domain::AGGREGATORS).value(seating.seed).value(&part).number();
        let middle = below(turn, others.len() as u64) as usize;
        others.rotate_left(middle);
    }
    let inside = |slot: Slot| plan.shard != ShardId::TRUNK && seating.holds(slot, plan.shard);
    others.sort_by_key(|slot| (inside(*slot), passed.contains(slot)));
    others
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MemberId;
    use crate::manifest::fixture::tiny;

    #[test]
    fn assign_10_a_window_is_the_first_candidate_of_the_row_else_the_last() {
        let (seed, leaf, drawn) = (Digest([3; 32]), Leaf(5), DrawnRow { row: Row(1), rows: 3 });
        let candidate = |b: u32, j: u32| {
            let hasher = Hasher::new(Domain::WINDOWS).value(&seed).value(&leaf).value(&b).value(&j);
            below(hasher.number(), 1000)
        };
        let mixed = |window| Some(Row((window % 3) as u16));
        let mut places = std::collections::BTreeSet::new();
        for (b, window) in (0..).zip(windows_of_row(&seed, leaf, 20, 1000, drawn, mixed)) {
            let first = (0..192).find(|j| candidate(b, *j) % 3 == 1).unwrap();
            assert_eq!(window, candidate(b, first));
            places.insert(first);
        }
        assert!(places.contains(&0) && places.len() > 2, "{places:?}");
        // The last candidate is taken where no window is of the row, and where no row is open.
        let last = [candidate(0, 191), candidate(1, 191)];
        for row in [Some(Row(0)), None] {
            assert_eq!(windows_of_row(&seed, leaf, 2, 1000, drawn, |_| row), last);
        }
        // It is taken as well where it alone fits.
        let only = |window| Some(Row(u16::from(window == last[0])));
        assert_eq!(windows_of_row(&seed, leaf, 1, 1000, drawn, only), last[..1]);
    }

    #[test]
    fn assign_10_one_row_has_the_windows_of_a_model_without_rows() {
        let (seed, one) = (Digest([3; 32]), DrawnRow { row: Row(0), rows: 1 });
        let drawn = windows_of_row(&seed, Leaf(5), 9, 1000, one, |_| None);
        assert_eq!(drawn, windows(&seed, Leaf(5), 9, 1000));
    }

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
            let seating = Seating {
                layout: &layout,
                planes: 1,
                seed: &seed,
                rows: &[Row(0); 10],
                route: None,
                aggregators: &aggregators,
                classes: &[ShareClass(8); 10],
            };
            let drawn: Vec<Slot> = parts(&seating).iter().map(|plan| plan.aggregator).collect();
            assert_eq!(drawn, expected[..drawn.len()]);
            orders.insert(drawn);
        }
        assert!(orders.len() > 10, "another order for another seed");
    }
}
