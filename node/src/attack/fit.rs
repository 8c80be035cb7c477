//! Peer that makes its table add up to a false sum once the points are known, to be right in all rows but one.
//!
//! Its sum is ten times the opposite of the true one. One row, drawn from R_t, takes up the difference and is wrong:
//! the leaves of the audit are drawn only after it has sealed that.

use muster_core::codec::List;
use muster_core::messages::audit::{Row, Rows};
use muster_core::sketch::{self, PRIME};
use muster_core::state::Arithmetic;

use super::flip::Flip;
use crate::join::{Asked, Conduct, Summed, Work};

pub(super) struct Fit;

impl Conduct for Fit {
    fn contribute(&self, work: &Work, arithmetic: &mut dyn Arithmetic) -> Summed {
        Flip.contribute(work, arithmetic)
    }

    fn seal(&self, asked: &Asked<'_>, rows: Rows) -> Option<Rows> {
        let committed = sketch::fingerprint(sketch::points(&asked.freeze), asked.q);
        let said = rows.iter().fold([0; 2], |sum, row| sketch::add(sum, row.sketch));
        let missing = sketch::add(committed, said.map(|value| PRIME - value));
        let mut rows: Vec<Row> = rows.to_vec();
        let place = usize::from(asked.freeze.0[0]) % rows.len().max(1);
        let row = rows.get_mut(place)?;
        row.sketch = sketch::add(row.sketch, missing);
        List::new(rows).ok()
    }
}
