//! Peer that lies about second moments, to make its own steps, or those of the next rounds, far too large.

use muster_core::state::{Arithmetic, State};
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::{changed, computed};

/// By how much it makes second moments smaller: steps become eight times as large.
const FACTOR: f32 = 1.0 / 64.0;
/// The same in steps of their grid, four to a factor of two.
const STEPS: i32 = 24;

pub(super) enum Moments {
    /// It begins with smaller ones than the run's.
    Wrong,
    /// It contributes smaller ones than it has come to.
    Poisoned,
}

impl NodeConduct for Moments {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        match self {
            Self::Wrong => {
                let mut state = State::clone(&work.state);
                state
                    .second
                    .iter_mut()
                    .for_each(|moment| *moment = moment.mul_add(FACTOR, f32::MIN_POSITIVE));
                computed(work, arithmetic, &state, |leaf| work.windows(leaf))
            }
            Self::Poisoned => {
                let parameters = work.state.parameters.len();
                let quota = work.quota.max(1) as i32;
                changed(work, arithmetic, |_, q| {
                    q.iter_mut().skip(parameters).for_each(|steps| *steps -= (STEPS / quota).max(1));
                })
            }
        }
    }
}
