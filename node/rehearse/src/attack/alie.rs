//! Peer that commits the honest mean less one standard deviation, to hide within the honest spread.
//!
//! "A little is enough" (Baruch et al. 2019), all of a coalition alike. No rule that looks at one round only can tell
//! it from honest members; every row is wrong.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::Coalition;
use super::forge::{honest, repeated};

/// Standard deviations: an honest member strays further in a third of all coefficients.
const Z: f64 = 1.0;

pub(super) struct Alie {
    pub(super) coalition: Coalition,
}

impl NodeConduct for Alie {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let crowd = honest(work, arithmetic, &self.coalition);
        let moved = crowd.mean.iter().zip(&crowd.deviation).map(|(mean, deviation)| mean - Z * deviation);
        repeated(work, (moved.map(|value| value.round() as i32).collect(), crowd.loss))
    }
}
