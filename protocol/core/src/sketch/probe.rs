//! How leaves are compared in one audit: for equality in profile `exact`, within the manifest's tolerance in the
//! others.
//!
//! Two honest leaves of one job differ in few places of the grid, most of them by one. Be ε the relative difference of
//! the real gradients of one group of n coefficients, and N the norm of its integers. The public dither makes a
//! coefficient differ with the probability that is its difference in grid steps while that is below 1, so that
//! D² = ‖q − q′‖² is about ε·√n·N; it is ε²·N² where differences span many steps. The **deviation** of a group is
//! therefore the ε that solves ε·√n·N + ε²·N² = D² − 16: an estimate of the relative difference of the real gradients
//! that depends neither on the grid nor on the size of the gradient. Sixteen coefficients that are off by one are
//! nobody's fault (TOL-3).

use std::ops::Range;

use super::{Sketch, Sketcher, TableRow, add, points, projection};
use crate::grid::LOSS_ONE;
use crate::hash::{Domain, Hasher};
use crate::ids::Digest;
use crate::layout::Layout;
use crate::limits::PROJECTIONS;
use crate::manifest::{Manifest, Tolerance};
use crate::regime::Regime;

/// Deviation, in units of the tolerance, above which a leaf is looked into.
pub const SUSPECT: f64 = 1.0;
/// Deviation, in units of the tolerance, above which a leaf or a total is wrong.
pub const WRONG: f64 = 4.0;
/// Squared distance of a group that is nobody's fault.
pub const SLACK: f64 = 16.0;

/// What sketches are made with in one audit, and how they are compared.
#[derive(Clone, Debug)]
pub struct Probe {
    way: Way,
    groups: Vec<Group>,
    loss: f64,
}

#[derive(Clone, Debug)]
enum Way {
    Points([u64; 2]),
    Signs(Digest),
}

/// A tensor group and its tolerance.
#[derive(Clone, Debug)]
struct Group {
    range: Range<usize>,
    tolerance: f64,
}

impl Probe {
    /// Of an audit of a contribution to the round with this freeze. `beacon` is a value that nobody knew when the
    /// contribution was committed (TOL-2); profile exact does not use it, since its fingerprints leave 2⁻⁶².
    pub fn new(manifest: &Manifest, freeze: &Digest, beacon: &Digest) -> Self {
        if Regime::of(manifest).compares_bits() {
            return Self::exact(freeze);
        }
        let Tolerance { groups: bounds, loss } = &manifest.tolerance;
        let bound = |group: usize| bounds.get(group).or(bounds.last()).map_or(0.0, |bound| bound.value());
        let groups = Layout::of_run(manifest).groups().into_iter().enumerate();
        Self {
            way: Way::Signs(Hasher::new(Domain::PROJECT).part(&freeze.0).part(&beacon.0).finish()),
            groups: groups.map(|(group, range)| Group { range, tolerance: bound(group).into() }).collect(),
            loss: loss.value().into(),
        }
    }

    /// The same in profile exact.
    pub fn exact(freeze: &Digest) -> Self {
        Self { way: Way::Points(points(freeze)), groups: Vec::new(), loss: 0.0 }
    }

    /// The sketch of a vector of the model's length.
    pub fn sketch(&self, q: &[i32]) -> Sketch {
        self.piece(0, q)
    }

    /// The sketch of a piece of such a vector that begins at `offset`: [`Probe::sum`] of those of all pieces is that
    /// of the vector.
    pub fn piece(&self, offset: usize, q: &[i32]) -> Sketch {
        match &self.way {
            Way::Points(points) => {
                let mut sketcher = Sketcher::new(*points);
                sketcher.absorb(offset as u64, q);
                Sketch::Fingerprint(sketcher.finish())
            }
            Way::Signs(seed) => {
                let groups: Vec<_> = self.groups.iter().map(|group| group.range.clone()).collect();
                Sketch::projected(projection::projections(seed, &groups, offset, q))
            }
        }
    }

    /// The row of such a piece: that of the vector has their sum.
    pub fn row_of_piece(&self, offset: usize, q: &[i32]) -> TableRow {
        // A piece has no loss of its own.
        TableRow { sketch: self.piece(offset, q), loss: 0 }
    }

    /// The row of a leaf.
    pub fn row(&self, q: &[i32], loss: i64) -> TableRow {
        TableRow { sketch: self.sketch(q), loss }
    }

    /// Whether a sketch is one of this run.
    pub fn fits(&self, sketch: &Sketch) -> bool {
        match (&self.way, sketch) {
            (Way::Points(_), Sketch::Fingerprint(_)) => true,
            (Way::Signs(_), Sketch::Projections(values)) => values.len() == self.groups.len() * PROJECTIONS,
            _ => false,
        }
    }

    /// The sum of rows: that of the sum of their leaves. What is not of this run adds nothing.
    pub fn sum(&self, rows: &[TableRow]) -> (Sketch, i64) {
        let loss = rows.iter().fold(0, |sum: i64, row| sum.wrapping_add(row.loss));
        let sketches = rows.iter().map(|row| &row.sketch);
        let sketch = match self.way {
            Way::Points(_) => Sketch::Fingerprint(sketches.filter_map(Sketch::fingerprint).fold([0; 2], add)),
            Way::Signs(_) => {
                let mut sum = vec![0i64; self.groups.len() * PROJECTIONS];
                for values in sketches.map(Sketch::projections) {
                    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.wrapping_add(*value));
                }
                Sketch::projected(sum)
            }
        };
        (sketch, loss)
    }

    /// How far what is said of a leaf is from what it is, in units of the tolerance: 0 for what is equal; ∞ for what is
    /// not, in profile exact, and for what cannot be compared.
    pub fn deviation(&self, own: &TableRow, said: &TableRow) -> f64 {
        // Equal rows are 0 in every profile, also where a norm is 0.
        if own == said {
            return 0.0;
        }
        // A stranger's sketch may be of any kind and length.
        let comparable = self.fits(&own.sketch) && self.fits(&said.sketch);
        if matches!(self.way, Way::Points(_)) || !comparable {
            return f64::INFINITY;
        }
        let (own_values, said_values) = (own.sketch.projections(), said.sketch.projections());
        let pairs = own_values.chunks(PROJECTIONS).zip(said_values.chunks(PROJECTIONS));
        let groups = self.groups.iter().zip(pairs);
        let groups =
            groups.map(|(group, (own, said))| projected(group.range.len(), own, said) / group.tolerance);
        groups.fold(losses(own.loss, said.loss) / self.loss, f64::max)
    }
}

/// The deviation of a group of this many coefficients, from the projections of two vectors.
pub fn projected(coefficients: usize, own: &[i64], said: &[i64]) -> f64 {
    let norm = own.iter().map(|a| *a as f64);
    let apart = own.iter().zip(said).map(|(a, b)| (i128::from(*a) - i128::from(*b)) as f64);
    let [norm, distance] = [squares(norm), squares(apart)].map(|sum| sum / PROJECTIONS as f64);
    relative(coefficients, norm.sqrt(), distance)
}

/// ‖q‖² of each group, rounded once.
pub fn norms(groups: &[Range<usize>], q: &[i32]) -> Vec<f64> {
    groups.iter().map(|range| norm(&q[range.clone()])).collect()
}

/// ‖q − q′‖² of each group, rounded once.
pub fn distances(groups: &[Range<usize>], own: &[i32], said: &[i32]) -> Vec<f64> {
    groups.iter().map(|range| distance(&own[range.clone()], &said[range.clone()])).collect()
}

/// The deviation of each group, from the vectors themselves: what calibration measures.
pub fn deviations(groups: &[Range<usize>], own: &[i32], said: &[i32]) -> Vec<f64> {
    let of = |range: &Range<usize>| {
        let (own, said) = (&own[range.clone()], &said[range.clone()]);
        relative(range.len(), norm(own).sqrt(), distance(own, said))
    };
    groups.iter().map(of).collect()
}

/// What the sum of a contribution may be apart from another machine's.
///
/// Differences of honest leaves are independent, so that their squares add up; those of a member that leans the same
/// way in every leaf add up themselves. The unit is the root of the sum of what squares the leaves may have each, so
/// that a lean of β tolerances shows in m leaves where β·√m exceeds [`WRONG`] (TOL-6).
#[derive(Clone, Debug)]
pub struct Allowance {
    groups: Vec<Allowed>,
    loss: f64,
    leaves: f64,
}

/// A group with its tolerance, and the squared distance that its leaves may have.
#[derive(Clone, Debug)]
struct Allowed {
    range: Range<usize>,
    tolerance: f64,
    squared: f64,
}

impl Allowance {
    /// Of no leaf.
    pub fn new(manifest: &Manifest) -> Self {
        let Probe { groups, loss, .. } = Probe::new(manifest, &Digest::default(), &Digest::default());
        let allowed = |group: Group| Allowed { range: group.range, tolerance: group.tolerance, squared: 0.0 };
        Self { groups: groups.into_iter().map(allowed).collect(), loss, leaves: 0.0 }
    }

    /// Adds that of a leaf.
    pub fn add(&mut self, q: &[i32]) {
        let norms = norms(&self.ranges(), q);
        self.add_norms(&norms);
    }

    /// Adds that of a leaf with these [`norms`].
    pub fn add_norms(&mut self, norms: &[f64]) {
        for (Allowed { range, tolerance, squared }, norm) in self.groups.iter_mut().zip(norms) {
            let (n, t) = (range.len() as f64, *tolerance);
            // Squares add up where honest differences are independent; a lean in every leaf adds up itself, and
            // shows.
            *squared += t * (n * norm).sqrt() + t * t * norm + SLACK;
        }
        self.leaves += 1.0;
    }

    /// How far two totals, {Q, loss}, are apart.
    pub fn deviation(&self, own: (&[i32], i64), said: (&[i32], i64)) -> f64 {
        self.apart(&distances(&self.ranges(), own.0, said.0), losses(own.1, said.1))
    }

    /// As [`Allowance::deviation`], of totals with these [`distances`] whose losses are `losses` nats apart.
    pub fn apart(&self, distances: &[f64], losses: f64) -> f64 {
        let of = |(group, distance): (&Allowed, &f64)| {
            if *distance == 0.0 { 0.0 } else { (distance / group.squared).sqrt() }
        };
        let loss = if losses == 0.0 { 0.0 } else { losses / (self.loss * self.leaves.sqrt()) };
        self.groups.iter().zip(distances).map(of).fold(loss, f64::max)
    }

    fn ranges(&self) -> Vec<Range<usize>> {
        self.groups.iter().map(|group| group.range.clone()).collect()
    }
}

/// The ε that solves ε·√n·N + ε²·N² = D² − [`SLACK`].
fn relative(n: usize, norm: f64, distance: f64) -> f64 {
    let (n, excess) = (n as f64, distance - SLACK);
    if excess <= 0.0 {
        return 0.0;
    }
    // Leaves of zeros differ in nothing: whatever is said beyond the slack is made up.
    if norm == 0.0 {
        return f64::INFINITY;
    }
    // An estimate of ε, not a distance: an honest norm goes as √ε and would need a threshold for each scale of
    // gradient.
    2.0 * excess / (norm * ((n + 4.0 * excess).sqrt() + n.sqrt()))
}

/// How far two losses are apart, in nats per token.
pub fn losses(own: i64, said: i64) -> f64 {
    // Wide: a stranger's loss is any i64.
    ((i128::from(own) - i128::from(said)) as f64 / LOSS_ONE as f64).abs()
}

fn squares(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, value| sum + value * value)
}

/// ‖q‖², rounded once.
fn norm(q: &[i32]) -> f64 {
    energy(q.iter().map(|value| i64::from(*value)))
}

/// ‖q − q′‖², rounded once.
fn distance(own: &[i32], said: &[i32]) -> f64 {
    energy(own.iter().zip(said).map(|(a, b)| i64::from(*a) - i64::from(*b)))
}

fn energy(values: impl Iterator<Item = i64>) -> f64 {
    values.map(|value| u128::from(value.unsigned_abs()) * u128::from(value.unsigned_abs())).sum::<u128>()
        as f64
}
