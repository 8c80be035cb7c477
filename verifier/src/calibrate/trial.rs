//! New leaves judged by tolerances as an audit judges them: through projections, and in totals.

use std::ops::Range;

use muster_core::hash::{Domain, Hasher};
use muster_core::ids::Digest;
use muster_core::manifest::Manifest;
use muster_core::sketch::probe::{Allowance, Probe, SUSPECT, WRONG};

use super::course::Course;
use super::machines::Machine;

/// What came of it.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Largest deviation of each leaf among all pairs of machines, in units of the tolerance.
    pub leaves: Vec<f64>,
    /// Of each pair of machines that members may have: the deviation of the totals of all leaves, and the largest one
    /// on the way there.
    pub totals: Vec<Total>,
}

/// The totals of two machines.
#[derive(Clone, Debug)]
pub struct Total {
    /// Numbers of the one that audits and the other.
    pub machines: [usize; 2],
    /// Of all leaves.
    pub last: f64,
    /// Of the first few or all.
    pub largest: f64,
}

impl Trial {
    /// By how much tolerances must be larger, 1 at least, for machines that lean (TOL-5): no total is further than one
    /// unit, and if all of the last one leans the same way, none of `most` leaves is wrong.
    pub fn widening(&self, most: u32) -> f64 {
        let grows = (f64::from(most) / self.leaves.len().max(1) as f64).sqrt();
        let needed = |total: &Total| (total.largest / SUSPECT).max(total.last * grows / WRONG);
        self.totals.iter().map(needed).fold(1.0, f64::max)
    }
}

/// What a machine said so far.
struct Said {
    sum: Vec<i32>,
    loss: i64,
    allowance: Allowance,
}

/// Tries leaves of the course's round under a manifest with tolerances; says when a leaf is done.
pub fn attempt(
    course: &Course,
    machines: &mut [Machine],
    tolerant: &Manifest,
    leaves: Range<u64>,
    done: &dyn Fn(),
) -> Trial {
    let d = course.state().parameters.len();
    let members: Vec<usize> = (0..machines.len()).filter(|number| machines[*number].member).collect();
    let pairs = members.iter().flat_map(|own| members.iter().map(move |said| [*own, *said]));
    let pairs = pairs.filter(|[own, said]| own != said);
    let totals = pairs.map(|machines| Total { machines, last: 0.0, largest: 0.0 });
    let mut trial = Trial { leaves: Vec::new(), totals: totals.collect() };
    let said = |_| Said { sum: vec![0; d], loss: 0, allowance: Allowance::new(tolerant) };
    let mut so_far: Vec<Said> = (0..machines.len()).map(said).collect();
    for leaf in leaves {
        let passage = course.passage(leaf);
        let job = course.job(&passage);
        let probe = Probe::new(tolerant, &Digest::default(), &beacon(leaf));
        let mut rows = Vec::new();
        let mut known_loss = 0;
        for (machine, Said { sum, loss, allowance }) in machines.iter_mut().zip(&mut so_far) {
            let (q, found) = machine.leaf(course.manifest(), &job);
            // Where windows are taken one by one there is no loss to compare.
            let found = found.unwrap_or(known_loss);
            known_loss = found;
            sum.iter_mut().zip(&q).for_each(|(sum, q)| *sum += q);
            *loss += found;
            allowance.add(&q);
            rows.push(probe.row(&q, found));
        }
        let deviations = rows
            .iter()
            .enumerate()
            .flat_map(|(number, said)| rows[..number].iter().map(|own| probe.deviation(own, said)));
        trial.leaves.push(deviations.fold(0.0, f64::max));
        for Total { machines: [own, said], last, largest } in &mut trial.totals {
            let [own, said] = [&so_far[*own], &so_far[*said]];
            *last = own.allowance.deviation((&own.sum, own.loss), (&said.sum, said.loss));
            *largest = largest.max(*last);
        }
        done();
    }
    trial
}

/// What nobody could know, of a leaf.
pub fn beacon(leaf: u64) -> Digest {
    Hasher::new(Domain::PROJECT).value(&leaf).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(last: f64, largest: f64) -> Trial {
        let total = |last, largest| Total { machines: [0, 1], last, largest };
        Trial { leaves: vec![0.1; 16], totals: vec![total(0.1, 0.2), total(last, largest)] }
    }

    #[test]
    fn tolerances_grow_with_the_leaves_that_may_lean() {
        assert_eq!(trial(0.5, 0.9).widening(16), 1.0);
        assert_eq!(trial(0.5, 0.9).widening(256), 1.0, "256 leaves lean by 4 times what 16 do: 2 units");
        assert_eq!(trial(0.5, 3.0).widening(16), 3.0, "a total on the way");
        assert_eq!(trial(2.0, 2.0).widening(16 * 16), 2.0);
        assert_eq!(trial(2.0, 2.0).widening(16 * 100), 5.0, "20 units where 4 are wrong");
        assert_eq!(Trial { leaves: Vec::new(), totals: Vec::new() }.widening(256), 1.0);
    }
}
