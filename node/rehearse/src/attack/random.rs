//! Peer that commits ten times its gradients' size in one random direction, to drown them.
//!
//! The direction is the same in every leaf and round, so that it does not average out. Every row is wrong.

use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Summed};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::forge::changed;

const FACTOR: f64 = 10.0;

pub(super) struct RandomGradient {
    pub(super) seed: u64,
}

impl NodeConduct for RandomGradient {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        changed(work, arithmetic, |_, q| {
            let square: f64 = q.iter().map(|value| f64::from(*value) * f64::from(*value)).sum();
            let size = (FACTOR * (square / q.len().max(1) as f64).sqrt()).ceil() as i32;
            let mut stream = ChaCha8Rng::seed_from_u64(self.seed);
            for value in q.iter_mut() {
                *value = if stream.next_u32() & 1 == 0 { size } else { -size };
            }
        })
    }
}
