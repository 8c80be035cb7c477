//! Reducing blocks by the run's rule: what an aggregator does, and what replay repeats.

use muster_compute::Workers;
use muster_core::aggregate::{self, Input, weights};
use muster_core::contribution::PartDigest;
use muster_core::ids::{Block, Digest, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::Commitment;
use muster_core::manifest::Manifest;
use muster_core::messages::round::Bitmap;

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

/// Reduces a part over its sealed inputs. `commitment` gives m and m_eff of a counted slot, `input` its integers in a
/// block. `None` when an input is missing.
pub fn reduce<'a>(
    manifest: &Manifest,
    layout: &Layout,
    blocks: &[Block],
    inputs: &Bitmap,
    commitment: impl Fn(Slot) -> Option<&'a Commitment>,
    input: impl Fn(Slot, Block) -> Option<&'a [i32]>,
) -> Option<Reduced> {
    let slots: Vec<Slot> = inputs.slots().collect();
    let commitments: Vec<&Commitment> = slots.iter().map(|slot| commitment(*slot)).collect::<Option<_>>()?;
    // AGG-1: the weights are of m_eff, the averages and radii of m.
    let counted: Vec<u32> = commitments.iter().map(|commitment| commitment.weight).collect();
    let weights = weights(&counted, manifest.aggregation.cap_ppm);
    let runner = Workers::new(1);
    let mut values = Vec::with_capacity(blocks.len());
    let mut digest = PartDigest::default();
    let mut kept = vec![0.0; slots.len()];
    let mut coefficients = 0.0;
    for block in blocks {
        let length = layout.block(*block)?.range.len();
        let mut vectors = Vec::with_capacity(slots.len());
        for ((slot, commitment), weight) in slots.iter().zip(&commitments).zip(&weights) {
            let q = input(*slot, *block).filter(|q| q.len() == length)?;
            vectors.push(Input { q, m: commitment.commit.leaves, weight: *weight });
        }
        let aggregate = aggregate::vector(&runner, &manifest.aggregation, &vectors)?;
        kept.iter_mut().zip(&aggregate.factors).for_each(|(sum, factor)| *sum += factor * length as f64);
        coefficients += length as f64;
        digest = digest.block(&aggregate.values);
        values.push(aggregate.values);
    }
    let factors = slots.into_iter().zip(kept.iter().map(|sum| sum / f64::max(coefficients, 1.0))).collect();
    Some(Reduced { values, digest: digest.finish(), factors })
}
