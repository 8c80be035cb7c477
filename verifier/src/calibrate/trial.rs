//! New leaves judged by tolerances as an audit judges them: through projections, and in totals.
//!
//! They are computed at every checkpoint, beside those that tolerances are measured with. What is kept of them, rows and
//! the distances of totals, does not depend on tolerances, so that these can still be made larger.

use std::ops::Range;

use muster_core::error::Misuse;
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::Digest;
use muster_core::layout::Layout;
use muster_core::limits;
use muster_core::manifest::{Manifest, Profile};
use muster_core::messages::audit::TableRow;
use muster_core::sketch::probe::{Allowance, Probe, SUSPECT, WRONG, distances, losses, norms};

use super::machines::{GridLeaf, LeafComputer};
use super::measure::{Measured, tolerant, widened};

/// New leaves of all machines, before there are tolerances.
pub struct ToleranceTrial {
    groups: Vec<Range<usize>>,
    /// Those that members may have.
    members: Vec<usize>,
    /// Of each leaf, what each machine says of it.
    rows: Vec<Vec<TableRow>>,
    checkpoints: Vec<StateTotals>,
}

/// The totals of one state's leaves.
struct StateTotals {
    /// So far, of each machine.
    sums: Vec<(Vec<i32>, i64)>,
    /// ‖q‖² of each group, of each leaf, of each machine.
    norms: Vec<Vec<Vec<f64>>>,
    pairs: Vec<TotalDistance>,
}

/// How far the totals of two machines are apart, as leaf by leaf is added.
struct TotalDistance {
    machines: [usize; 2],
    /// Squared, of each group.
    distances: Vec<Vec<f64>>,
    /// Of the losses, in nats.
    losses: Vec<f64>,
}

/// How the tolerances did on the new leaves.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// Largest deviation of each leaf among all groups, the loss, and all pairs of machines, in units of the tolerance.
    pub leaves: Vec<f64>,
    /// Of each pair of machines that members may have, at each checkpoint.
    pub totals: Vec<TotalDeviation>,
}

/// The totals of two machines at one checkpoint.
#[derive(Clone, Debug)]
pub struct TotalDeviation {
    /// Numbers of the one that audits and the other.
    pub machines: [usize; 2],
    /// Leaves in them.
    pub leaves: usize,
    /// Deviation of all leaves'.
    pub last: f64,
    /// Of the first few or all.
    pub largest: f64,
}

/// Tolerances for a run, and what new leaves are by them.
pub struct Settled {
    /// The run's manifest, with profile and tolerance.
    pub manifest: Manifest,
    /// The new leaves.
    pub judged: Judged,
    /// By how much tolerances had to be larger than measured, for totals.
    pub wider: f64,
}

impl ToleranceTrial {
    /// Nothing yet.
    pub fn new(manifest: &Manifest, machines: &[LeafComputer]) -> Self {
        let members = (0..machines.len()).filter(|number| machines[*number].member).collect();
        let groups = Layout::of_run(manifest).groups();
        Self { groups, members, rows: Vec::new(), checkpoints: Vec::new() }
    }

    /// The leaves that follow are those of another state.
    pub fn checkpoint(&mut self) {
        self.checkpoints.push(StateTotals { sums: Vec::new(), norms: Vec::new(), pairs: Vec::new() });
    }

    /// Adds a leaf of the newest checkpoint, as every machine computed it; gives their rows.
    pub fn add(&mut self, probe: &Probe, leaves: &[GridLeaf]) -> Vec<TableRow> {
        // Where windows are taken one by one there is no loss to compare: that of the machine before stands for it, which
        // is the same one with all of them at once.
        let mut known = 0;
        let row = |(q, loss): &GridLeaf| {
            known = loss.unwrap_or(known);
            probe.row(q, known)
        };
        let rows: Vec<TableRow> = leaves.iter().map(row).collect();
        if let Some(checkpoint) = self.checkpoints.last_mut() {
            let said = leaves.iter().zip(&rows).map(|((q, _), row)| (&q[..], row.loss));
            checkpoint.add(&self.groups, &self.members, said.collect());
        }
        self.rows.push(rows.clone());
        rows
    }

    /// Leaves so far.
    pub fn leaves(&self) -> usize {
        self.rows.len()
    }

    /// What an audit makes of them under a manifest with tolerances.
    pub fn judge(&self, tolerant: &Manifest) -> Judged {
        // The seeds are in the rows already.
        let probe = Probe::new(tolerant, &Digest::default(), &Digest::default());
        let leaf = |rows: &Vec<TableRow>| {
            let said = rows.iter().enumerate();
            let pairs = said.flat_map(|(number, said)| rows[..number].iter().map(move |own| (own, said)));
            pairs.map(|(own, said)| probe.deviation(own, said)).fold(0.0, f64::max)
        };
        let totals = self.checkpoints.iter().flat_map(|checkpoint| checkpoint.totals(tolerant));
        Judged { leaves: self.rows.iter().map(leaf).collect(), totals: totals.collect() }
    }
}

impl StateTotals {
    fn add(&mut self, groups: &[Range<usize>], members: &[usize], leaves: Vec<(&[i32], i64)>) {
        if self.sums.is_empty() {
            self.sums = leaves.iter().map(|(q, _)| (vec![0; q.len()], 0)).collect();
            self.norms = vec![Vec::new(); leaves.len()];
            let pairs = members.iter().enumerate();
            let pairs = pairs.flat_map(|(index, own)| members[index + 1..].iter().map(|said| [*own, *said]));
            let pair = |machines| TotalDistance { machines, distances: Vec::new(), losses: Vec::new() };
            self.pairs = pairs.map(pair).collect();
        }
        for (((sum, total), squared), (q, loss)) in self.sums.iter_mut().zip(&mut self.norms).zip(leaves) {
            sum.iter_mut().zip(q).for_each(|(sum, q)| *sum += q);
            *total += loss;
            squared.push(norms(groups, q));
        }
        for TotalDistance { machines, distances: found, losses: nats } in &mut self.pairs {
            let [(own, own_loss), (said, said_loss)] = machines.map(|number| &self.sums[number]);
            found.push(distances(groups, own, said));
            nats.push(losses(*own_loss, *said_loss));
        }
    }

    /// Each pair in both turns: the unit is of the leaves of the one that audits.
    fn totals(&self, tolerant: &Manifest) -> Vec<TotalDeviation> {
        let turns = self.pairs.iter().flat_map(|pair| {
            let [own, said] = pair.machines;
            [(pair, [own, said]), (pair, [said, own])]
        });
        let total = |(pair, machines): (&TotalDistance, [usize; 2])| {
            let mut allowance = Allowance::new(tolerant);
            let leaves = pair.distances.iter().zip(&pair.losses).zip(&self.norms[machines[0]]);
            let along = leaves.map(|((distances, losses), norms)| {
                allowance.add_norms(norms);
                allowance.apart(distances, *losses)
            });
            let along: Vec<f64> = along.collect();
            let last = along.last().copied().unwrap_or_default();
            TotalDeviation {
                machines,
                leaves: along.len(),
                last,
                largest: along.into_iter().fold(0.0, f64::max),
            }
        };
        turns.map(total).collect()
    }
}

impl Judged {
    /// By how much tolerances must be larger, 1 at least, for machines that lean (TOL-5): no total is further than one
    /// unit, and if all of the last one leans the same way, none of `most` leaves is wrong.
    pub fn widening(&self, most: u32) -> f64 {
        let needed = |total: &TotalDeviation| {
            let grows = (f64::from(most) / total.leaves.max(1) as f64).sqrt();
            (total.largest / SUSPECT).max(total.last * grows / WRONG)
        };
        self.totals.iter().map(needed).fold(1.0, f64::max)
    }
}

/// Tolerances by what was measured, as much larger as totals need (TOL-5).
///
/// # Errors
/// [`Misuse`] when machines are further apart than a manifest may allow.
pub fn settle(
    manifest: &Manifest,
    profile: Profile,
    measured: &Measured,
    trial: &ToleranceTrial,
) -> Result<Settled, Misuse> {
    let found = measured.tolerance()?;
    let most = manifest.training.leaves.min(limits::QUOTA);
    let mut wider = 1.0;
    let mut with = tolerant(manifest, profile, found.clone());
    loop {
        let judged = trial.judge(&with);
        let needed = judged.widening(most);
        if needed <= 1.0 {
            return Ok(Settled { manifest: with, judged, wider });
        }
        // The grid's share of what a total may be apart does not grow: the factor that was needed may not be enough. No
        // step is so small that rounding takes it back.
        wider *= needed.max(1.05);
        with = tolerant(manifest, profile, widened(&found, wider)?);
    }
}

/// What nobody could know, of a leaf.
pub fn beacon(leaf: u64) -> Digest {
    Hasher::new(Domain::PROJECT).value(&leaf).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(last: f64, largest: f64) -> Judged {
        let total = |last, largest| TotalDeviation { machines: [0, 1], leaves: 16, last, largest };
        Judged { leaves: vec![0.1; 48], totals: vec![total(0.1, 0.2), total(last, largest)] }
    }

    #[test]
    fn tolerances_grow_with_the_leaves_that_may_lean() {
        assert_eq!(judged(0.5, 0.9).widening(16), 1.0);
        assert_eq!(judged(0.5, 0.9).widening(256), 1.0, "256 leaves lean by 4 times what 16 do: 2 units");
        assert_eq!(judged(0.5, 3.0).widening(16), 3.0, "a total on the way");
        assert_eq!(judged(2.0, 2.0).widening(16 * 16), 2.0);
        assert_eq!(judged(2.0, 2.0).widening(16 * 100), 5.0, "20 units where 4 are wrong");
        assert_eq!(Judged::default().widening(256), 1.0);
    }
}
