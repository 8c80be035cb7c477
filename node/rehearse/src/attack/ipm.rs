//! Peer that commits −ε times the mean of the honest members, to turn the aggregate against them.
//!
//! Inner-product manipulation (Xie et al. 2019): ε is small enough to hide among honest members, or just large enough
//! to stop the descent. Every row is wrong.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::Coalition;
use super::forge::{honest, repeated};

pub(super) struct Ipm {
    pub(super) epsilon: f64,
    pub(super) coalition: Coalition,
}

impl NodeConduct for Ipm {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let crowd = honest(work, arithmetic, &self.coalition);
        let q = crowd.mean.iter().map(|mean| (-self.epsilon * mean).round() as i32).collect();
        repeated(work, (q, crowd.loss))
    }
}
