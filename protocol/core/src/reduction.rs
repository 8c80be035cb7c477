//! Reducing parts by the run's rule: what an aggregator does, what whoever doubts it repeats, and how a contributor
//! sees without the others' inputs that what came out is far off.

use crate::aggregate::{self, Input};
use crate::contribution::PartDigest;
use crate::grid::power_of_two;
use crate::ids::{Block, Digest, ShardId, Slot};
use crate::ieee::require_ieee;
use crate::layout::Layout;
use crate::ledger::WeightedCommit;
use crate::manifest::{Aggregation, Manifest, Rule};
use crate::messages::round::Bitmap;
use crate::regime::{Regime, RowRules};
use crate::rounding::ResultGrid;

/// A reduced part.
pub struct Reduced {
    /// Values in order of blocks.
    pub values: Vec<Vec<f32>>,
    /// What the aggregator signs.
    pub digest: Digest,
    /// For each counted slot in order, the mean over the blocks of the factor that the rule left it, weighted by
    /// their coefficients: 1 is untouched.
    pub factors: Vec<(Slot, f64)>,
}

/// What each of a part's inputs weighs, for the rule and for objections alike. AGG-1: the weights are of m_eff, the
/// averages and radii of m; who claims many leaves has no more to say for it.
pub fn weights(manifest: &Manifest, commitments: &[&WeightedCommit]) -> Vec<u64> {
    let counted: Vec<u32> = commitments.iter().map(|commitment| commitment.weight).collect();
    aggregate::weights(&counted, manifest.aggregation.cap_ppm)
}

/// What a part is reduced over.
#[derive(Clone, Copy, Debug)]
pub struct SealedInputs<'a> {
    /// R_t, by which results are rounded (AGG-23).
    pub freeze: Digest,
    /// The counted slots.
    pub slots: &'a Bitmap,
}

/// A block as the rule leaves it.
#[derive(Clone, Debug, Default)]
pub struct ReducedBlock {
    values: Vec<f32>,
    /// For each slot in order, the factor that the rule left it times the block's coefficients; none of moments.
    kept: Option<Vec<f64>>,
}

/// The rule over the inputs of a part, of which each block is reduced by itself.
pub struct Reducer<'a> {
    manifest: &'a Manifest,
    layout: &'a Layout,
    freeze: Digest,
    slots: Vec<Slot>,
    commitments: Vec<&'a WeightedCommit>,
    weights: Vec<u64>,
    scale: Option<f64>,
}

impl<'a> Reducer<'a> {
    /// Over these inputs. `commitment` gives m and m_eff of a counted slot; `None` when one has none.
    pub fn new(
        manifest: &'a Manifest,
        layout: &'a Layout,
        inputs: &SealedInputs<'_>,
        commitment: impl Fn(Slot) -> Option<&'a WeightedCommit>,
    ) -> Option<Self> {
        let slots: Vec<Slot> = inputs.slots.slots().collect();
        let commitments: Vec<&WeightedCommit> =
            slots.iter().map(|slot| commitment(*slot)).collect::<Option<_>>()?;
        let weights = weights(manifest, &commitments);
        let segments = commitments.iter().map(|commitment| commitment.commit.leaves.into());
        let scaled = Regime::of(manifest).scales_aggregates();
        let scale = scaled.then(|| mean_segments(&weights, segments));
        Some(Self { manifest, layout, freeze: inputs.freeze, slots, commitments, weights, scale })
    }

    /// The slots of its inputs, in order.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// A block, of which `input` gives a slot's integers. `None` when an input is missing.
    pub fn block<Integers: AsRef<[i32]>>(
        &self,
        block: Block,
        input: impl Fn(Slot) -> Option<Integers>,
    ) -> Option<ReducedBlock> {
        let Self { manifest, layout, commitments, weights, .. } = self;
        // A withheld or shortened input gives no result, never one over fewer coefficients.
        let length = layout.block(block)?.range.len();
        let integers = self.slots.iter().map(|slot| input(*slot).filter(|q| q.as_ref().len() == length));
        let integers: Vec<Integers> = integers.collect::<Option<_>>()?;
        let weighted = integers.iter().zip(commitments).zip(weights);
        let mut vectors: Vec<Input<'_>> = weighted
            .map(|((q, commitment), weight)| Input {
                q: q.as_ref(),
                m: commitment.commit.leaves,
                weight: *weight,
            })
            .collect();
        if layout.is_of_moments(block) {
            return Some(ReducedBlock { values: moments(manifest, &mut vectors)?, kept: None });
        }
        let mut aggregate = aggregate::block(&manifest.aggregation, &vectors)?;
        if let Some(scale) = self.scale {
            aggregate.values.iter_mut().for_each(|value| *value = (f64::from(*value) * scale) as f32);
        }
        let left = bound(manifest, layout, block, &mut aggregate.values);
        // AGG-23: last, so that what is signed and applied is what travels in few bits.
        ResultGrid::of(layout, block).round(&mut aggregate.values, &self.freeze, block);
        let kept = aggregate.factors.iter().map(|factor| factor * left * length as f64).collect();
        Some(ReducedBlock { values: aggregate.values, kept: Some(kept) })
    }

    /// A part of these blocks, of which `one` gives each. `None` when it lacks one.
    pub fn part(
        &self,
        blocks: &[Block],
        mut one: impl FnMut(Block) -> Option<ReducedBlock>,
    ) -> Option<Reduced> {
        let mut values = Vec::with_capacity(blocks.len());
        let mut digest = PartDigest::default();
        let mut sums = vec![0.0; self.slots.len()];
        let mut coefficients = 0.0;
        for block in blocks {
            let ReducedBlock { values: of_block, kept } = one(*block)?;
            if let Some(kept) = kept {
                sums.iter_mut().zip(kept).for_each(|(sum, kept)| *sum += kept);
                coefficients += of_block.len() as f64;
            }
            digest = digest.block(&of_block);
            values.push(of_block);
        }
        let means = sums.iter().map(|sum| sum / f64::max(coefficients, 1.0));
        let factors = self.slots.iter().copied().zip(means).collect();
        Some(Reduced { values, digest: digest.finish(), factors })
    }
}

/// Reduces a part over its sealed inputs, block by block. `commitment` gives m and m_eff of a counted slot, `input` its integers
/// in a block. `None` when an input is missing.
pub fn reduce<'a, Integers: AsRef<[i32]>>(
    manifest: &'a Manifest,
    layout: &'a Layout,
    blocks: &[Block],
    inputs: &SealedInputs<'_>,
    commitment: impl Fn(Slot) -> Option<&'a WeightedCommit>,
    input: impl Fn(Slot, Block) -> Option<Integers>,
) -> Option<Reduced> {
    let reducer = Reducer::new(manifest, layout, inputs, commitment)?;
    reducer.part(blocks, |block| reducer.block(block, |slot| input(slot, block)))
}

/// LOCAL-6: M, by which the aggregate of a segment is multiplied: Σ w·m/Σ w over the inputs of a part, in f64; 1 where
/// gradients are exchanged.
// Not S: where everybody is slow, it would stretch what they did.
pub fn scale(manifest: &Manifest, commitments: &[&WeightedCommit]) -> f64 {
    if !Regime::of(manifest).scales_aggregates() {
        return 1.0;
    }
    let segments = commitments.iter().map(|commitment| commitment.commit.leaves.into());
    mean_segments(&weights(manifest, commitments), segments)
}

/// Σ w·m/Σ w; 1 where nothing weighs.
pub fn mean_segments(weights: &[u64], m: impl Iterator<Item = u64>) -> f64 {
    let total: u64 = weights.iter().sum();
    let taken: u64 = weights.iter().zip(m).map(|(weight, m)| weight.saturating_mul(m)).sum();
    if total == 0 { 1.0 } else { taken as f64 / total as f64 }
}

/// LOCAL-7: the weighted coordinate median of second moments, which nobody's number of segments divides.
fn moments(manifest: &Manifest, inputs: &mut [Input<'_>]) -> Option<Vec<f32>> {
    inputs.iter_mut().for_each(|input| input.m = 1);
    let median = Aggregation { rule: Rule::Median, mixing: false, ..manifest.aggregation };
    Some(aggregate::block(&median, inputs)?.values)
}

/// AGG-22: cuts a block of a row to what it is trusted with; returns what is left of it, 1 for all.
fn bound(manifest: &Manifest, layout: &Layout, block: Block, values: &mut [f32]) -> f64 {
    let Some(RowRules { trust, .. }) = Regime::of(manifest).row_rules() else { return 1.0 };
    if layout.shard_of(block) == Some(ShardId::TRUNK) {
        return 1.0;
    }
    let most = f64::from(trust) * power_of_two(i32::from(manifest.training.grid_bits) + 1);
    aggregate::bound(values, most)
}

/// How many times its own length a block's result may be away from a contributor's block: with x = Q/m, one objects
/// unless ‖x − v‖² ≤ 9·(‖x‖² + n·s²), s being the step of n values.
// Measured by the contributor's own length: the rule's spread s is known to the aggregator alone.
pub const OBJECTION: f64 = 3.0;

/// What its author compares a block's result with.
#[derive(Clone, Copy)]
pub struct OwnBlock<'a> {
    /// Its integers there.
    pub q: &'a [i32],
    /// Its leaves.
    pub m: u32,
    /// What the result of a leaf was multiplied by ([`scale`]).
    pub scale: f64,
    /// Step to which results are rounded there ([`ResultGrid::step`]).
    pub step: f64,
}

impl OwnBlock<'_> {
    /// Whether their author objects to the values of a block (AGG-20). A value that is no number draws an objection, as
    /// lengths that differ do.
    ///
    /// Both sums run in order of coefficients, the first from +0, the second from n·s²; x is the rounded quotient, times the
    /// scale.
    ///
    /// # Panics
    /// When the processor's floating-point mode is not the IEEE default.
    pub fn objects(&self, values: &[f32]) -> bool {
        let Self { q, m, scale, step } = *self;
        // What cannot be compared is objected to: silence would let it pass.
        if q.len() != values.len() || m == 0 {
            return true;
        }
        require_ieee();
        // A value may be rounded by a step: where a block has hardly moved, that is no reason to object.
        let (mut away, mut own) = (0.0f64, q.len() as f64 * (step * step));
        for (q, v) in q.iter().zip(values) {
            let x = f64::from(*q) / f64::from(m) * scale;
            let y = x - f64::from(*v);
            away += y * y;
            own += x * x;
        }
        // Not the opposite comparison: it would be false for what is no number.
        let near = away <= OBJECTION * OBJECTION * own;
        !near
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects(q: &[i32], m: u32, values: &[f32]) -> bool {
        objects_by(q, m, values, 0.0)
    }

    fn objects_by(q: &[i32], m: u32, values: &[f32], step: f64) -> bool {
        OwnBlock { q, m, scale: 1.0, step }.objects(values)
    }

    #[test]
    fn agg_20_a_contributor_objects_to_what_is_far_from_its_own() {
        let q = [6, -3, 9];
        let times = |factor: f32| [3.0 * factor, -1.5 * factor, 4.5 * factor];
        assert!(!objects(&q, 2, &times(1.0)));
        assert!(!objects(&q, 2, &times(4.0)), "three lengths away is still near");
        assert!(objects(&q, 2, &times(4.01)));
        assert!(!objects(&q, 2, &times(-2.0)));
        assert!(objects(&q, 2, &times(-2.01)));
        assert!(objects(&q, 2, &[3.0, f32::NAN, 4.5]));
        assert!(objects(&q, 2, &[3.0, f32::INFINITY, 4.5]));
        assert!(objects(&q, 2, &times(1.0)[..2]), "a length that differs");
    }

    #[test]
    fn agg_20_nothing_is_near_nothing_only() {
        assert!(!objects(&[0, 0], 1, &[0.0, -0.0]));
        assert!(objects(&[0, 0], 1, &[0.0, 1e-30]));
    }

    #[test]
    fn agg_20_nobody_objects_to_three_steps() {
        let all = |value: f32| [value; 4];
        assert!(!objects_by(&[0; 4], 1, &all(12.0), 4.0) && objects_by(&[0; 4], 1, &all(16.0), 4.0));
        assert!(!objects_by(&[0; 4], 1, &[24.0, 0.0, 0.0, 0.0], 4.0), "of all values together");
    }
}
