//! Leaves of all machines beside each other, and the tolerances that follow (TOL-4).

use std::ops::Range;

use muster_core::codec::{List, Real};
use muster_core::error::Misuse;
use muster_core::grid::LOSS_ONE;
use muster_core::layout::Layout;
use muster_core::manifest::{Manifest, Model, Profile, Tolerance};
use muster_core::sketch::probe::{SLACK, deviations};

use super::machines::GridLeaf;
use super::statistics::{COVERED, largest, median, quantile, rounded_up};

/// What 64 projections make of a squared distance at most, but once in a thousand times: χ² with 64 degrees of freedom.
const PROJECTED: f64 = 1.64;
/// The largest tolerance that a manifest may have (TOL-5).
const MOST: f64 = 0.125;
/// Difference of two losses, in units of their fixed point, that no tolerance lies below: a rounding in f32 of a loss
/// of several nats.
const LOSS_UNITS: f64 = 16.0;

/// When to compare, and how many leaves each time.
#[derive(Clone, Debug)]
pub struct SamplingPlan {
    /// Rounds, ascending.
    pub checkpoints: Vec<u32>,
    /// Leaves at each of them, and as many new ones.
    pub leaves: u32,
}

impl SamplingPlan {
    /// Compares before the first round, in the middle, and at the end of `rounds`.
    pub fn of(rounds: u32, leaves: u32) -> Self {
        let mut checkpoints = vec![0, rounds / 2, rounds];
        checkpoints.dedup();
        Self { checkpoints, leaves }
    }

    /// Of training.
    pub fn rounds(&self) -> u32 {
        self.checkpoints.last().copied().unwrap_or_default()
    }

    /// Leaves that are trained, with `leaves` in each round.
    pub fn trained(&self, leaves: u32) -> u64 {
        u64::from(self.rounds()) * u64::from(leaves)
    }

    /// Leaves that are compared: new ones, too.
    pub fn compared(&self) -> u64 {
        2 * self.checkpoints.len() as u64 * u64::from(self.leaves)
    }
}

/// Two machines on the same leaves.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Numbers of both machines.
    pub machines: [usize; 2],
    /// Deviation of each group, of each leaf.
    pub deviations: Vec<Vec<f64>>,
    /// Difference of the losses, where both have one.
    pub losses: Vec<f64>,
}

/// What was compared.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Tensor groups (TOL-1).
    pub groups: Vec<Range<usize>>,
    /// All pairs of machines.
    pub pairs: Vec<Pair>,
    /// Norm of the first machine's integers of each group, of each leaf.
    norms: Vec<Vec<f64>>,
}

/// A group's figures over all leaves, each leaf with its widest pair.
#[derive(Clone, Copy, Debug)]
pub struct DeviationSummary {
    /// In the middle.
    pub median: f64,
    /// Not exceeded by 999 of a thousand; the largest of fewer.
    pub quantile: f64,
    /// The largest.
    pub largest: f64,
    /// What the grid cannot tell from 0.
    pub floor: f64,
}

impl DeviationSummary {
    /// The tolerance.
    pub fn bound(&self) -> f32 {
        rounded_up(self.quantile.max(self.floor) * PROJECTED)
    }
}

impl Measured {
    /// No measurement yet, of this number of machines.
    pub fn new(model: &Model, machines: usize) -> Self {
        let pairs = (0..machines).flat_map(|second| (0..second).map(move |first| [first, second]));
        let pairs = pairs.map(|machines| Pair { machines, deviations: Vec::new(), losses: Vec::new() });
        Self { groups: Layout::of(model).groups(), pairs: pairs.collect(), norms: Vec::new() }
    }

    /// Compares a leaf as every machine computed it.
    pub fn compare(&mut self, leaves: &[GridLeaf]) {
        for Pair { machines: [first, second], deviations: found, losses } in &mut self.pairs {
            let [(own, own_loss), (said, said_loss)] = [&leaves[*first], &leaves[*second]];
            found.push(deviations(&self.groups, own, said));
            if let (Some(own), Some(said)) = (own_loss, said_loss) {
                losses.push(own.abs_diff(*said) as f64 / LOSS_ONE as f64);
            }
        }
        if let Some((q, _)) = leaves.first() {
            let norm = |range: &Range<usize>| {
                q[range.clone()].iter().map(|q| f64::from(*q).powi(2)).sum::<f64>().sqrt()
            };
            self.norms.push(self.groups.iter().map(norm).collect());
        }
    }

    /// Leaves compared.
    pub fn leaves(&self) -> usize {
        self.norms.len()
    }

    /// Of a group.
    pub fn spread(&self, group: usize) -> DeviationSummary {
        let widest = |leaf: usize| self.pairs.iter().map(move |pair| pair.deviations[leaf][group]);
        let sample: Vec<f64> = (0..self.leaves()).map(|leaf| widest(leaf).fold(0.0, f64::max)).collect();
        // The ε of ε·√n·N = 16: sixteen more coefficients off by one are nobody's fault (TOL-3).
        let coefficients = (self.groups[group].len() as f64).sqrt();
        let norms = self.norms.iter().map(|norms| norms[group]).filter(|norm| *norm > 0.0);
        let floors: Vec<f64> = norms.map(|norm| SLACK / (coefficients * norm)).collect();
        spread(&sample, median(&floors))
    }

    /// Of the losses.
    pub fn loss(&self) -> DeviationSummary {
        let compared: Vec<&[f64]> =
            self.pairs.iter().map(|pair| &pair.losses[..]).filter(|losses| !losses.is_empty()).collect();
        let sample: Vec<f64> = (0..self.leaves())
            .map(|leaf| compared.iter().map(|losses| losses[leaf]).fold(0.0, f64::max))
            .collect();
        spread(&sample, LOSS_UNITS / LOSS_ONE as f64)
    }

    /// What a manifest says of it.
    ///
    /// # Errors
    /// [`Misuse`] when machines are further apart than a manifest may allow.
    pub fn tolerance(&self) -> Result<Tolerance, Misuse> {
        let bound = |(what, spread): (String, DeviationSummary)| bounded(&what, spread.bound());
        let groups =
            (0..self.groups.len()).map(|group| bound((format!("group {group}"), self.spread(group))));
        let groups = List::new(groups.collect::<Result<Vec<_>, _>>()?)?;
        Ok(Tolerance { groups, loss: bound(("the loss".to_owned(), self.loss()))? })
    }
}

/// So much larger ones.
///
/// # Errors
/// [`Misuse`] when a manifest may not have them.
pub fn widened(tolerance: &Tolerance, factor: f64) -> Result<Tolerance, Misuse> {
    let wider = |what: &str, bound: &Real| bounded(what, rounded_up(f64::from(bound.value()) * factor));
    let groups = tolerance.groups.iter().enumerate();
    let groups = groups.map(|(group, bound)| wider(&format!("group {group}"), bound));
    let groups = List::new(groups.collect::<Result<Vec<_>, _>>()?)?;
    Ok(Tolerance { groups, loss: wider("the loss", &tolerance.loss)? })
}

fn bounded(what: &str, bound: f32) -> Result<Real, Misuse> {
    if !bound.is_finite() || f64::from(bound) > MOST {
        return Err(Misuse(format!(
            "{what} is {bound:e} apart on honest machines, and a tolerance is at most {MOST}: take another profile or model"
        )));
    }
    Real::new(bound)
}

fn spread(sample: &[f64], floor: f64) -> DeviationSummary {
    DeviationSummary {
        median: median(sample),
        quantile: quantile(sample, COVERED),
        largest: largest(sample),
        floor,
    }
}

/// The manifest of a run with this profile and tolerance.
pub fn tolerant(manifest: &Manifest, profile: Profile, tolerance: Tolerance) -> Manifest {
    Manifest { profile, tolerance, ..manifest.clone() }
}
