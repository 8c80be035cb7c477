//! The same training in one process, without a protocol: all leaves of all seats, summed, reduced, applied.

use std::path::Path;
use std::sync::Arc;

use muster_compute::Exact;
use muster_core::aggregate::{Input, block, weights};
use muster_core::assign;
use muster_core::ids::{Digest, Leaf, Round, Slot};
use muster_core::layout::Layout;
use muster_core::messages::record::Body;
use muster_core::state::{Arithmetic, LeafJob, State, Update};
use muster_replica::archive::Archive;

/// The last state root of a clean run, from its manifest, its text and the leaves that each seat committed to.
pub fn train(folder: &Path) -> Digest {
    let archive = Archive::open(folder).expect("an archive");
    let manifest = &archive.manifest;
    let dataset = &archive.dataset;
    let layout = Layout::of(&manifest.model);
    let mut arithmetic = Exact::new(1, None).expect("a processor");
    let (windows_of_leaf, sequence) = (manifest.training.leaf_windows, manifest.model.sequence);
    let windows = |seed: &Digest, leaf| -> Vec<Vec<u32>> {
        let indices = assign::windows(seed, leaf, windows_of_leaf, manifest.windows());
        indices.into_iter().map(|index| dataset.window(index, sequence)).collect()
    };
    let calibration = windows(&assign::calibration_seed(manifest.run()), Leaf(0));
    let mut state = arithmetic.initial(manifest, &calibration);
    for (round, seats) in committed(&archive) {
        let seed = assign::round_seed(manifest.run(), round, &state.root());
        let mut sums = Vec::new();
        for (slot, leaves) in seats.iter().enumerate() {
            let [mut q, mut leaf_q] = [0, 0].map(|zero| vec![zero; layout.parameters()]);
            for position in 0..leaves.0 {
                let leaf = assign::leaf(Slot(slot as u16), seats.len() as u16, position);
                let job = LeafJob { state: &state, round_seed: seed, leaf, windows: &windows(&seed, leaf) };
                arithmetic.leaf(manifest, &job, &mut leaf_q);
                q.iter_mut().zip(&leaf_q).for_each(|(sum, q): (&mut i32, _)| *sum += q);
            }
            sums.push(q);
        }
        step(&mut arithmetic, &archive, &layout, &mut state, &seats, &sums);
    }
    state.root()
}

fn step(
    arithmetic: &mut Exact,
    archive: &Archive,
    layout: &Layout,
    state: &mut State,
    seats: &[(u32, u32)],
    sums: &[Vec<i32>],
) {
    let manifest = &archive.manifest;
    let counted: Vec<u32> = seats.iter().map(|(_, counted)| *counted).collect();
    let weights = weights(&counted, manifest.aggregation.cap_ppm);
    let mut update = Update { values: Vec::new(), present: vec![true; layout.blocks().len()] };
    for range in layout.blocks() {
        let rows = sums.iter().zip(seats).zip(&weights);
        let inputs: Vec<Input<'_>> = rows
            .filter(|(_, weight)| **weight > 0)
            .map(|((q, (m, _)), weight)| Input { q: &q[range.range.clone()], m: *m, weight: *weight })
            .collect();
        update.values.extend(block(&manifest.aggregation, &inputs).expect("inputs").values);
    }
    arithmetic.apply(manifest, state, &update);
}

/// Rounds with the leaves that each slot committed to, and how many of them count.
fn committed(archive: &Archive) -> Vec<(Round, Vec<(u32, u32)>)> {
    let mut ledger = muster_core::ledger::Ledger::new(Arc::clone(&archive.manifest));
    let mut rounds = Vec::new();
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        let Body::Outcome(outcome) = &record.body else { continue };
        let view = ledger.round(outcome.round).expect("a round just ended");
        let leaves: Vec<(u32, u32)> = view.commitments().map(|(_, c)| (c.commit.leaves, c.weight)).collect();
        assert_eq!(leaves.len(), view.seats().len(), "every seat of a clean run commits");
        rounds.push((view.round(), leaves));
    }
    rounds
}
