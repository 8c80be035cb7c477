//! Peer that takes the last of equal or nearly equal experts instead of the first, as a sloppy router would.
//!
//! Scores are hardly ever equal to the last bit, so it tilts them: those of expert j count 1 + j/64 times. Of equal
//! positive scores the last comes first then, and so it is where two differ by less. The tokens of a window that stand
//! between two experts go to the other one; what all others pass has weights that are a little off. Every row is wrong.

use muster_core::state::{Arithmetic, State};
use muster_member::{Assignment, NodeConduct, Summed};

use super::experts::routers;
use super::forge::modelled;

/// From one expert to the next.
const TILT: f32 = 1.0 / 64.0;

pub(super) struct Tie;

impl NodeConduct for Tie {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let model = &work.manifest.model;
        let mut state = State::clone(&work.state);
        for router in routers(model) {
            let lines = state.parameters.get_mut(router).unwrap_or_default();
            for (expert, line) in (0u16..).zip(lines.chunks_exact_mut(model.width as usize)) {
                line.iter_mut().for_each(|weight| *weight *= 1.0 + f32::from(expert) * TILT);
            }
        }
        modelled(work, arithmetic, model, &state)
    }
}
