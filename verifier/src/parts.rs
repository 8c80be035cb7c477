//! The heavy part of looks at drawn blocks: their values and inputs are fetched, the blocks reduced again.

use std::sync::Arc;

use muster_core::audit::{Judgement, judge_reduction};
use muster_core::contribution::block_integers;
use muster_core::layout::Layout;
use muster_core::ledger::RoundView;
use muster_core::manifest::Manifest;
use muster_core::messages::evidence::Reduction;
use muster_core::reduction::{SealedInputs, reduce};
use muster_replica::{Brought, Exhibited, InputBlocks, Results};
use muster_roles::verifier::parts::{DrawnBlocks, Seen};
use muster_store::dataset::Dataset;

/// Reduces the drawn blocks again and compares the bits of every value with what was applied.
pub fn look(
    drawn: &DrawnBlocks,
    manifest: &Manifest,
    layout: &Layout,
    results: &Results,
    inputs: &InputBlocks,
) -> Seen {
    let (view, result) = (&drawn.view, &drawn.result);
    let commitment = |slot| view.commitment(slot);
    let input = |slot, block| {
        let author = view.commitment(slot)?.author;
        block_integers(layout, inputs.get(&(author, block))?).ok()
    };
    let sealed = SealedInputs { freeze: result.freeze, slots: &result.inputs };
    let reduced = reduce(manifest, layout, &drawn.blocks, &sealed, commitment, input);
    let Some(reduced) = reduced else { return Seen::Missing("an input is not at hand".into()) };
    for (block, values) in drawn.blocks.iter().zip(&reduced.values) {
        let Some(applied) = results.block(result.round, *block, &result.digest) else {
            return Seen::Missing(format!("the values of block {block} are not at hand"));
        };
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
        // AUDIT-20: every bit, since the digest was taken over bits.
        if bits(values) != bits(&applied) {
            return Seen::Wrong(*block);
        }
    }
    Seen::Right
}

/// Reduces a whole part of this round from inputs that were fetched anew, as every judge will.
pub fn second_opinion(
    view: RoundView,
    manifest: &Manifest,
    dataset: Arc<Dataset>,
    evidence: &Reduction,
    inputs: InputBlocks,
) -> Judgement {
    // No states: a part is reduced from integers alone.
    let brought = Brought { blocks: inputs, round: Some(view), ..Brought::default() };
    let mut witness = Exhibited::new(Vec::new(), dataset, manifest, brought);
    judge_reduction(manifest, evidence, &mut witness)
}
