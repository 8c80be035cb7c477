//! Peer that computes with weights rounded to fewer bits, to fit a cheaper machine.
//!
//! The gradients point where the true ones do; in the profile `exact` every row is wrong nevertheless.

use muster_core::layout::Layout;
use muster_core::state::{Arithmetic, State};
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::computed;

/// What its machine keeps of a weight.
pub(super) enum RoundedWeights {
    /// Eight bits of a tensor's largest.
    Int8,
    /// The upper half of its bits, rounded to nearest, ties to even.
    Bf16,
}

impl NodeConduct for RoundedWeights {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let mut state = State::clone(&work.state);
        for tensor in Layout::of_run(&work.manifest).tensors() {
            let Some(weights) = state.parameters.get_mut(tensor.range()) else { continue };
            let step = weights.iter().fold(0f32, |most, weight| most.max(weight.abs())) / 127.0;
            weights.iter_mut().for_each(|weight| *weight = self.round(*weight, step));
        }
        computed(work, arithmetic, &state, |leaf| work.windows(leaf))
    }
}

impl RoundedWeights {
    fn round(&self, weight: f32, step: f32) -> f32 {
        match self {
            Self::Int8 if step > 0.0 => (weight / step).round_ties_even() * step,
            Self::Int8 => weight,
            Self::Bf16 => {
                let bits = weight.to_bits();
                f32::from_bits(bits.saturating_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
            }
        }
    }
}
