//! The same training in one process, without a protocol: all leaves of all seats, summed, reduced, applied.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use muster_compute::Exact;
use muster_core::aggregate::{Input, block, bound, weights};
use muster_core::assign;
use muster_core::ids::{Block, Digest, Leaf, Round, Row, ShardId, Slot};
use muster_core::layout::Layout;
use muster_core::manifest::{Aggregation, Family, Manifest, Rule};
use muster_core::messages::record::Body;
use muster_core::messages::round::Route;
use muster_core::rounding::ResultGrid;
use muster_core::state::{Arithmetic, LeafTask, ShardStep, Update};
use muster_replica::archive::Archive;
use muster_replica::leaf_windows;

/// A seat of a clean round: what it committed to.
struct Seated {
    leaves: u32,
    /// How many of them count.
    weight: u32,
    row: Row,
    route: Option<Route>,
}

/// The last state root of a clean run, from its manifest, its text and the leaves that each seat committed to.
pub fn train(folder: &Path) -> Digest {
    let archive = Archive::open(folder).expect("an archive");
    let manifest = &archive.manifest;
    let layout = Layout::of_run(manifest);
    let mut arithmetic = Exact::new(1, None).expect("a processor");
    let windows = |seed: &Digest, leaf, route: Option<&Route>| {
        leaf_windows(manifest, &archive.dataset, seed, leaf, route).expect("the text")
    };
    let calibration = windows(&assign::calibration_seed(manifest.run()), Leaf(0), None);
    let mut state = arithmetic.initial(manifest, &calibration);
    let mut waiting = BTreeMap::new();
    let mut before = state.clone();
    for clean in committed(&archive) {
        let CleanRound { round, behind, seats, steps, .. } = &clean;
        let (round, behind) = (*round, *behind);
        // ROUND-28: with a delay the leaves are on the state before the last step.
        let base = if behind { before } else { state.clone() };
        let seed = assign::round_seed(manifest.run(), round, &base.root());
        let mut sums = Vec::new();
        for (slot, seat) in seats.iter().enumerate() {
            let path = base.select(layout.path(seat.row));
            let mut q = vec![0; layout.coefficients()];
            let mut tasks = (0..seat.leaves).map(|position| {
                let leaf = assign::leaf(Slot(slot as u16), seats.len() as u16, position);
                let windows = windows(&seed, leaf, seat.route.as_ref());
                LeafTask { state: &path, round_seed: seed, leaf, windows, q: Vec::new() }
            });
            arithmetic.leaves(manifest, &mut tasks, &mut |leaf, _| {
                q.iter_mut().zip(&leaf).for_each(|(sum, q): (&mut i32, _)| *sum += q);
            });
            sums.push(q);
        }
        waiting.insert(round, Arc::new(aggregate(manifest, &layout, &clean, &sums)));
        let update =
            Update::of_steps(&layout, steps, |round| waiting.get(&round).cloned()).expect("what waits");
        let fewer = manifest.model.rows_after(state.step());
        before = state.clone();
        arithmetic.apply(manifest, &mut state, &Update { behind, ..update });
        let rows = manifest.model.rows_after(state.step());
        if rows > fewer {
            state = state.branched((0..rows).map(Row));
        }
    }
    state.root()
}

/// Shard by shard and block by block, from the seats that compute on it.
fn aggregate(manifest: &Manifest, layout: &Layout, clean: &CleanRound, sums: &[Vec<i32>]) -> Update {
    let CleanRound { round, freeze, seats, inputs, .. } = clean;
    let held: BTreeSet<ShardId> = seats.iter().flat_map(|seat| layout.path(seat.row)).collect();
    let mut update = Update::empty(layout, held.iter().copied());
    for shard in held {
        let own = |seat: &Seated| layout.path(seat.row).any(|of| of == shard) && seat.weight > 0;
        let planes = manifest.planes_in(*round);
        for number in (0..planes).flat_map(|plane| layout.blocks_in(shard, plane)) {
            let range = layout.block(number).expect("a block of the shard").range.clone();
            // A part may lack what a member that was killed has not delivered.
            let delivered =
                |slot: usize| inputs.get(&number).is_some_and(|slots| slots.contains(&Slot(slot as u16)));
            let counted: Vec<(&Seated, &Vec<i32>)> = seats
                .iter()
                .zip(sums)
                .enumerate()
                .filter(|(slot, (seat, _))| own(seat) && delivered(*slot))
                .map(|(_, input)| input)
                .collect();
            if counted.is_empty() {
                continue;
            }
            let weights = weights(
                &counted.iter().map(|(seat, _)| seat.weight).collect::<Vec<_>>(),
                manifest.aggregation.cap_ppm,
            );
            // LOCAL-6: what a segment adds, times the segments that the seats have on average.
            let by = counted.iter().zip(&weights).map(|((seat, _), weight)| weight * u64::from(seat.leaves));
            let scale = by.sum::<u64>() as f64 / weights.iter().sum::<u64>() as f64;
            let inputs = counted.iter().zip(&weights).map(|((seat, q), weight)| Input {
                q: &q[range.clone()],
                m: if layout.is_of_moments(number) { 1 } else { seat.leaves },
                weight: *weight,
            });
            let inputs: Vec<Input<'_>> = inputs.collect();
            if layout.is_of_moments(number) {
                let median = Aggregation { rule: Rule::Median, ..manifest.aggregation };
                let values = block(&median, &inputs).expect("inputs").values;
                update.put(layout, number, &values).expect("a block of the shard");
                continue;
            }
            let mut values = block(&manifest.aggregation, &inputs).expect("inputs").values;
            if manifest.local().is_some() {
                values.iter_mut().for_each(|value| *value = (f64::from(*value) * scale) as f32);
            }
            if let Family::Mixture(mixture) = &manifest.model.family
                && shard != ShardId::TRUNK
            {
                let most =
                    f64::from(mixture.trust.value()) * 2f64.powi(i32::from(manifest.training.grid_bits) + 1);
                bound(&mut values, most);
            }
            ResultGrid::of(layout, number).round(&mut values, freeze, number);
            update.put(layout, number, &values).expect("a block of the shard");
        }
    }
    update
}

/// A clean round: what each slot committed to, and the steps that were taken.
struct CleanRound {
    round: Round,
    /// R_t.
    freeze: Digest,
    behind: bool,
    seats: Vec<Seated>,
    /// Who delivered a block, of each that was reduced.
    inputs: BTreeMap<Block, BTreeSet<Slot>>,
    steps: Vec<ShardStep>,
}

fn committed(archive: &Archive) -> Vec<CleanRound> {
    let mut ledger = muster_core::ledger::Ledger::new(Arc::clone(&archive.manifest));
    let mut rounds = Vec::new();
    for signed in &archive.records {
        let record = ledger.apply(signed).expect("an honest ledger");
        let Body::Outcome(outcome) = &record.body else { continue };
        let view = ledger.round(outcome.round).expect("a round just ended");
        let seated = view.commitments().map(|(slot, c)| Seated {
            leaves: c.commit.leaves,
            weight: c.weight,
            row: view.row_of(slot),
            route: view.route(slot),
        });
        let seated: Vec<Seated> = seated.collect();
        assert_eq!(seated.len(), view.seats().len(), "every seat of a clean run commits");
        let (freeze, behind) = (view.freeze_digest().expect("a round just ended"), view.is_behind());
        let (round, steps) = (view.round(), outcome.shard_steps());
        let results = view.results().expect("a round just ended").iter();
        let reduced =
            view.parts().iter().zip(results).zip(view.inputs()).filter(|((_, result), _)| result.is_some());
        let inputs = reduced.flat_map(|((plan, _), inputs)| {
            let slots: BTreeSet<Slot> = inputs.slots().collect();
            plan.blocks.iter().map(move |block| (*block, slots.clone()))
        });
        rounds.push(CleanRound { round, freeze, behind, seats: seated, inputs: inputs.collect(), steps });
    }
    rounds
}
