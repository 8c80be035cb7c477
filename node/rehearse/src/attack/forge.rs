//! Ways to forge a contribution whose table adds up.

use muster_core::ids::{Leaf, Slot};
use muster_core::layout::Layout;
use muster_core::manifest::{Manifest, Model};
use muster_core::state::{Arithmetic, State};
use muster_member::{Assignment, LeafSum, Recipe, Summed};

use super::Coalition;

/// The true leaves, each changed; it is told the position.
pub(super) fn changed(
    work: &Assignment,
    arithmetic: &mut dyn Arithmetic,
    change: impl Fn(usize, &mut [i32]),
) -> Summed {
    let mut leaves = work.sum(arithmetic).leaves;
    leaves.iter_mut().enumerate().for_each(|(position, (q, _))| change(position, q));
    Summed::of(leaves)
}

/// One leaf, again and again, as often as the quota allows.
pub(super) fn repeated(work: &Assignment, leaf: LeafSum) -> Summed {
    Summed::of(vec![leaf; work.quota as usize])
}

/// Mean and standard deviation of what the honest members will commit to a leaf, coefficient by coefficient, and
/// their mean loss: every leaf of theirs is recomputed.
pub(super) fn honest(work: &Assignment, arithmetic: &mut dyn Arithmetic, coalition: &Coalition) -> Crowd {
    let d = Layout::of_run(&work.manifest).planes() * work.state.parameters.len();
    let (mut mean, mut square, mut loss) = (vec![0.0f64; d], vec![0.0f64; d], 0.0);
    let slots = coalition.honest(work);
    for slot in &slots {
        let quota = work.seating.get(slot.index()).map_or(1, |seat| seat.quota).max(1);
        let Summed { q, loss: own, .. } = sum_of(work, arithmetic, *slot, quota);
        for ((mean, square), q) in mean.iter_mut().zip(&mut square).zip(&q) {
            let x = f64::from(*q) / f64::from(quota);
            *mean += x;
            *square += x * x;
        }
        loss += own as f64 / f64::from(quota);
    }
    let n = slots.len().max(1) as f64;
    let deviation = |(mean, square): (&mut f64, f64)| {
        *mean /= n;
        (square / n - *mean * *mean).max(0.0).sqrt()
    };
    let deviation = mean.iter_mut().zip(square).map(deviation).collect();
    Crowd { mean, deviation, loss: (loss / n) as i64 }
}

/// The honest members of a round, as a leaf of theirs looks on average.
pub(super) struct Crowd {
    pub(super) mean: Vec<f64>,
    pub(super) deviation: Vec<f64>,
    pub(super) loss: i64,
}

/// The contribution of another slot.
pub(super) fn sum_of(work: &Assignment, arithmetic: &mut dyn Arithmetic, slot: Slot, quota: u32) -> Summed {
    let windows = |leaf| work.windows(leaf);
    summed(work, arithmetic, &Recipe { slot, ..work.recipe(&windows) }, quota)
}

/// True gradients, but under this state and of this text.
pub(super) fn computed(
    work: &Assignment,
    arithmetic: &mut dyn Arithmetic,
    state: &State,
    windows: impl Fn(Leaf) -> Option<Vec<Vec<u32>>> + Sync,
) -> Summed {
    summed(work, arithmetic, &Recipe { state, ..work.recipe(&windows) }, work.quota)
}

/// True gradients of the assigned text, but of this model in this state.
pub(super) fn modelled(
    work: &Assignment,
    arithmetic: &mut dyn Arithmetic,
    model: &Model,
    state: &State,
) -> Summed {
    let manifest = Manifest { model: model.clone(), ..Manifest::clone(&work.manifest) };
    let windows = |leaf| work.windows(leaf);
    summed(work, arithmetic, &Recipe { manifest: &manifest, state, ..work.recipe(&windows) }, work.quota)
}

/// True steps of the assigned text, but under a manifest that says something else.
pub(super) fn altered(
    work: &Assignment,
    arithmetic: &mut dyn Arithmetic,
    alter: impl FnOnce(&mut Manifest),
) -> Summed {
    let mut manifest = Manifest::clone(&work.manifest);
    alter(&mut manifest);
    let windows = |leaf| work.windows(leaf);
    summed(work, arithmetic, &Recipe { manifest: &manifest, ..work.recipe(&windows) }, work.quota)
}

/// As many leaves of this recipe.
pub(super) fn summed(
    work: &Assignment,
    arithmetic: &mut dyn Arithmetic,
    recipe: &Recipe<'_>,
    quota: u32,
) -> Summed {
    let mut leaves = Vec::new();
    work.compute(arithmetic, recipe, &mut (0..quota), &mut |leaf| leaves.push(leaf));
    Summed::of(leaves)
}
