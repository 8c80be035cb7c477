//! Peer that makes its table add up to a false sum once the points are known, to be right in all rows but one.
//!
//! Its sum is ten times the opposite of the true one. One row, drawn from R_t, takes up the difference and is wrong:
//! the leaves of the audit are drawn only after it has sealed that.

use muster_core::codec::List;
use muster_core::messages::audit::{Rows, TableRow};
use muster_core::sketch::{self, PRIME, Sketch};
use muster_core::state::Arithmetic;
use muster_member::{Assignment, AuditedContribution, NodeConduct, Summed};

use super::flip::Flip;

pub(super) struct Fit;

impl NodeConduct for Fit {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        Flip.contribute(work, arithmetic)
    }

    fn seal(&self, asked: &AuditedContribution<'_>, rows: Rows) -> Option<Rows> {
        let mut rows: Vec<TableRow> = rows.to_vec();
        let index = usize::from(asked.freeze.0[0]) % rows.len().max(1);
        let mut others = rows.clone();
        let loss = (index < rows.len()).then(|| others.remove(index).loss)?;
        let sketch = difference(asked.sketch.clone(), asked.probe.sum(&others).0)?;
        rows[index] = TableRow { sketch, loss };
        List::new(rows).ok()
    }
}

fn difference(total: Sketch, others: Sketch) -> Option<Sketch> {
    match (total, others) {
        (Sketch::Fingerprint(total), Sketch::Fingerprint(others)) => {
            Some(Sketch::Fingerprint(sketch::add(total, others.map(|value| PRIME - value))))
        }
        (Sketch::Projections(total), Sketch::Projections(others)) => {
            let values = total.iter().zip(others.iter()).map(|(total, others)| total.wrapping_sub(*others));
            List::new(values.collect()).ok().map(Sketch::Projections)
        }
        _ => None,
    }
}
