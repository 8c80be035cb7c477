//! A contribution computed again: one leaf, or all of them.

use super::frozen::FrozenCommit;
use super::judgement::Witness;
use crate::assign;
use crate::contribution::Commitment;
use crate::ids::Digest;
use crate::layout::Layout;
use crate::manifest::{Manifest, Profile};
use crate::messages::round::Commit;
use crate::sketch::probe::Allowance;
use crate::state::{Arithmetic, LeafTask, State};

/// Parameters and exponents of the path that a contribution was computed on, where the witness has them.
pub fn leaf_state(manifest: &Manifest, commit: &Commit, witness: &mut dyn Witness) -> Option<State> {
    witness.state(&commit.state, &commit.shards(&Layout::of(&manifest.model)))
}

/// Recomputes one leaf of a contribution. `None` when its windows are unavailable.
pub fn recompute(
    manifest: &Manifest,
    commit: &Commit,
    position: u32,
    state: &State,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Option<(Vec<i32>, i64)> {
    let task = leaf_task(manifest, commit, position, state, witness)?;
    let mut q = vec![0; state.parameters.len()];
    let loss = arithmetic.leaf(manifest, &task.job(), &mut q);
    Some((q, loss))
}

/// One leaf of a contribution, to be recomputed among others. `None` when its windows are unavailable.
pub fn leaf_task<'a>(
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
    /// The root that Q would be committed with.
    pub fn root(&self, manifest: &Manifest) -> Digest {
        Commitment::new(&Layout::of(&manifest.model), &self.q).root()
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
        committed: impl FnOnce() -> Option<Vec<i32>>,
    ) -> Option<f64> {
        if self.mismatch(manifest, commit).is_none() {
            return Some(0.0);
        }
        if manifest.profile == Profile::Exact {
            return Some(f64::INFINITY);
        }
        Some(self.allowance.deviation((&self.q, self.loss), (&committed()?, commit.loss)))
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
    let mut sum = Sum { q: vec![0i32; state.parameters.len()], loss: 0, allowance: Allowance::new(manifest) };
    let tasks = (0..commit.leaves).map(|position| leaf_task(manifest, commit, position, state, witness));
    let tasks: Vec<_> = tasks.collect::<Option<_>>()?;
    arithmetic.leaves(manifest, &mut tasks.into_iter(), &mut |q, loss| {
        // Wrapping: an honest sum stays below 2³⁰ (GRID-2), and a stranger's must not stop the judge.
        sum.q.iter_mut().zip(&q).for_each(|(sum, leaf)| *sum = sum.wrapping_add(*leaf));
        sum.loss = sum.loss.wrapping_add(loss);
        sum.allowance.add(&q);
    });
    Some(sum)
}

/// The committed integers, where the witness has them.
pub fn committed_total(
    manifest: &Manifest,
    frozen: &FrozenCommit,
    witness: &mut dyn Witness,
) -> Option<Vec<i32>> {
    let q = witness.contribution(frozen.commit.round, &frozen.author)?;
    let layout = Layout::of(&manifest.model);
    // Nobody's statement of Q is evidence: the frozen root decides (AUDIT-7).
    (q.len() == layout.parameters() && Commitment::new(&layout, &q).root() == frozen.commit.root).then_some(q)
}
