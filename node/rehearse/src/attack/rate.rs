//! Peer that takes steps of another size than the run's, to weigh more than others.

use muster_core::codec::Real;
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::altered;

/// How many times as large its steps are.
const FACTOR: f32 = 3.0;

pub(super) struct Rate;

impl NodeConduct for Rate {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        altered(work, arithmetic, |manifest| {
            let optimiser = &mut manifest.optimiser;
            for rate in [&mut optimiser.rate, &mut optimiser.minimum_rate] {
                *rate = Real::new(rate.value() * FACTOR).unwrap_or(*rate);
            }
        })
    }
}
