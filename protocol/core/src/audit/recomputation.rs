//! A contribution computed again: one leaf, or all of them.

use std::sync::{Arc, Mutex, PoisonError};

use super::frozen::FrozenCommit;
use super::judgement::Witness;
use crate::assign;
use crate::contribution::{Commitment, PackedContribution};
use crate::ids::Digest;
use crate::layout::Layout;
use crate::lock::lock;
use crate::manifest::Manifest;
use crate::messages::audit::TableRow;
use crate::messages::round::Commit;
use crate::regime::Regime;
use crate::sketch::Probe;
use crate::sketch::probe::Allowance;
use crate::state::{Arithmetic, LeafJob, LeafPieces, LeafTask, State};

/// Parameters and exponents of the path that a contribution was computed on, and in a run of local updates its moments, where
/// the witness has them.
pub fn leaf_state(manifest: &Manifest, commit: &Commit, witness: &mut dyn Witness) -> Option<State> {
    let state = witness.state(&commit.state, &commit.shards(&Layout::of_run(manifest)))?;
    // LOCAL-1: steps begin with the second moments. A copy without them is as good as none.
    let whole = !Regime::of(manifest).begins_with_moments() || state.second.len() == state.parameters.len();
    whole.then_some(state)
}

/// What leaves of a contribution are recomputed with.
pub struct Recomputing<'a> {
    /// The manifest.
    pub manifest: &'a Manifest,
    /// The contribution.
    pub commit: &'a Commit,
    /// The path of the state before the round that it was computed on.
    pub state: &'a State,
    /// Who has the text.
    pub witness: &'a mut dyn Witness,
    /// The arithmetic.
    pub arithmetic: &'a mut dyn Arithmetic,
}

impl Recomputing<'_> {
    /// Recomputes the leaves at these positions, which are ascending, and gives each with its position. `None` when windows
    /// are unavailable.
    // LOCAL-8: the segments before one that is wanted are computed as well, from the state of the round. What a member says
    // of the states in between is not needed, so that it cannot withhold it.
    pub fn each(&mut self, positions: &[u32], take: &mut dyn FnMut(u32, Vec<i32>, i64)) -> Option<()> {
        let Self { manifest, commit, state, .. } = *self;
        let computed = manifest.computed_for(positions);
        let tasks =
            computed.iter().map(|position| leaf_task(manifest, commit, *position, state, self.witness));
        let tasks: Vec<_> = tasks.collect::<Option<_>>()?;
        let mut computed = computed.iter();
        self.arithmetic.leaves(manifest, &mut tasks.into_iter(), &mut |q, loss| {
            if let Some(position) = computed.next().filter(|position| positions.contains(position)) {
                take(*position, q, loss);
            }
        });
        Some(())
    }

    /// The row of one leaf, sketched as it is computed where that can be: its integers would take as much as the model. `None` when
    /// its windows are unavailable.
    pub fn row(&mut self, position: u32, probe: &Probe) -> Option<TableRow> {
        let Self { manifest, commit, state, .. } = *self;
        // LOCAL-8: a segment begins where the one before it ends.
        if !Regime::of(manifest).recomputes_chains()
            && let Some(leaves) = self.arithmetic.in_pieces()
        {
            let task = leaf_task(manifest, commit, position, state, self.witness)?;
            return Some(row_in_pieces(leaves, manifest, &task.job(), probe));
        }
        let (q, loss) = self.leaf(position)?;
        Some(probe.row(&q, loss))
    }

    /// The integers and the loss of one leaf. `None` when its windows are unavailable.
    pub fn leaf(&mut self, position: u32) -> Option<(Vec<i32>, i64)> {
        let mut found = None;
        self.each(&[position], &mut |_, q, loss| found = Some((q, loss)))?;
        found
    }
}

fn row_in_pieces(
    leaves: &mut dyn LeafPieces,
    manifest: &Manifest,
    job: &LeafJob<'_>,
    probe: &Probe,
) -> TableRow {
    let sum = Mutex::new(probe.row(&[], 0));
    let loss = leaves.leaf_in_pieces(manifest, job, &|first, q| {
        let piece = probe.row_of_piece(first, q);
        let mut sum = lock(&sum);
        // In any order: sums of sketches have no other result.
        sum.sketch = probe.sum(&[sum.clone(), piece]).0;
    });
    TableRow { loss, ..sum.into_inner().unwrap_or_else(PoisonError::into_inner) }
}

/// One leaf of a contribution, to be recomputed. `None` when its windows are unavailable.
fn leaf_task<'a>(
    manifest: &Manifest,
    commit: &Commit,
    position: u32,
    state: &'a State,
    witness: &mut dyn Witness,
) -> Option<LeafTask<'a>> {
    // From the commitment, not from the accuser: which leaf it is follows from what the member signed.
    let round_seed = assign::round_seed(manifest.run(), commit.round, &commit.state);
    let leaf = assign::leaf(commit.slot, commit.seats, position);
    let row_of = &mut |window, open| witness.row(window, open);
    let indices = assign::leaf_windows(manifest, &round_seed, leaf, commit.route.as_ref(), row_of)?;
    Some(LeafTask { state, round_seed, leaf, windows: witness.windows(&indices)?, q: Vec::new() })
}

/// A contribution, all leaves recomputed.
#[derive(Clone, Debug)]
pub struct Sum {
    /// Q.
    pub q: Vec<i32>,
    /// Of all leaves.
    pub loss: i64,
    allowance: Allowance,
}

impl Sum {
    /// Q as it travels.
    pub fn packed(&self, manifest: &Manifest) -> Arc<PackedContribution> {
        Arc::new(PackedContribution::new(&Layout::of_run(manifest), &self.q))
    }

    /// The root that Q would be committed with.
    pub fn root(&self, manifest: &Manifest) -> Digest {
        Commitment::new(&Layout::of_run(manifest), &self.q).root()
    }

    /// How this differs from what was committed; none where root and loss are the same.
    pub(super) fn mismatch(&self, manifest: &Manifest, commit: &Commit) -> Option<String> {
        let root = self.root(manifest);
        let differs = self.loss != commit.loss || root != commit.root;
        differs.then(|| {
            let (loss, committed) = (self.loss, commit.root);
            format!("the leaves give {root} with loss {loss}, committed is {committed} with {}", commit.loss)
        })
    }

    /// How far what was committed is from this, in units of what honest contributions may be apart: 0 or ∞ in profile
    /// exact. The others compare the committed integers (TOL-6); `None` where they are needed and unavailable.
    pub fn deviation(
        &self,
        manifest: &Manifest,
        commit: &Commit,
        committed: impl FnOnce() -> Option<Arc<PackedContribution>>,
    ) -> Option<f64> {
        if self.mismatch(manifest, commit).is_none() {
            return Some(0.0);
        }
        if !Regime::of(manifest).keeps_integers() {
            return Some(f64::INFINITY);
        }
        let said = committed()?.whole(&Layout::of_run(manifest))?;
        Some(self.allowance.deviation((&self.q, self.loss), (&said, commit.loss)))
    }
}

/// Recomputes all leaves of a contribution. `None` when windows are unavailable.
pub fn recompute_sum(
    manifest: &Manifest,
    commit: &Commit,
    state: &State,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Option<Sum> {
    let planes = Layout::of_run(manifest).planes();
    let q = vec![0i32; planes * state.parameters.len()];
    let mut sum = Sum { q, loss: 0, allowance: Allowance::new(manifest) };
    let all: Vec<u32> = (0..commit.leaves).collect();
    // What of each leaf a tolerance allows takes all of its integers.
    let regime = Regime::of(manifest);
    if !regime.recomputes_chains()
        && !regime.keeps_integers()
        && let Some(leaves) = arithmetic.in_pieces()
    {
        let q = Mutex::new(&mut sum.q);
        for position in all {
            let task = leaf_task(manifest, commit, position, state, witness)?;
            let loss = leaves.leaf_in_pieces(manifest, &task.job(), &|first, piece| {
                let mut q = lock(&q);
                // In any order: sums of integers have no other result.
                add(&mut q[first..], piece);
            });
            sum.loss = sum.loss.wrapping_add(loss);
        }
        return Some(sum);
    }
    Recomputing { manifest, commit, state, witness, arithmetic }.each(&all, &mut |_, q, loss| {
        add(&mut sum.q, &q);
        sum.loss = sum.loss.wrapping_add(loss);
        sum.allowance.add(&q);
    })?;
    Some(sum)
}

/// Adds the integers of a leaf.
fn add(sum: &mut [i32], leaf: &[i32]) {
    // Wrapping: an honest sum stays below 2³⁰ (GRID-2), and a stranger's must not stop the judge.
    sum.iter_mut().zip(leaf).for_each(|(sum, leaf)| *sum = sum.wrapping_add(*leaf));
}

/// The committed integers, where the witness has them.
pub fn committed_total(
    manifest: &Manifest,
    frozen: &FrozenCommit,
    witness: &mut dyn Witness,
) -> Option<Arc<PackedContribution>> {
    let q = witness.contribution(frozen.commit.round, &frozen.author)?;
    // Nobody's statement of Q is evidence: the frozen root decides (AUDIT-7).
    (q.is_whole(&Layout::of_run(manifest)) && q.root() == frozen.commit.root).then_some(q)
}
