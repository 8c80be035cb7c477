//! Peer that takes all its steps and delivers the prefix of them that it likes best.
//!
//! What it delivers is true. Here it likes the segments up to the one that has moved it furthest.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

pub(super) struct Prefix;

impl NodeConduct for Prefix {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let mut leaves = work.sum(arithmetic).leaves;
        let size = |q: &[i32]| q.iter().map(|q| f64::from(*q).powi(2)).sum::<f64>();
        let sizes: Vec<f64> = leaves.iter().map(|(q, _)| size(q)).collect();
        let largest = (0..sizes.len()).max_by(|one, other| sizes[*one].total_cmp(&sizes[*other]));
        leaves.truncate(largest.map_or(1, |largest| largest + 1));
        Summed::of(leaves)
    }
}
