//! Peer that jumps between two of its segments, to be where no step of its own leads.
//!
//! The steps before and after the jump are true ones, those after it of the state to which it has jumped. Rows from the
//! jump on are wrong.

use muster_core::layout::Layout;
use muster_core::state::{Arithmetic, State, Vector};
use muster_member::{Assignment, NodeConduct, Summed};

use super::forge::computed;

/// How far it jumps, as a multiple of what its steps so far have moved it, and backwards.
const JUMP: i32 = -4;

pub(super) struct Teleport;

impl NodeConduct for Teleport {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let mut leaves = work.sum(arithmetic).leaves;
        let place = leaves.len() / 2;
        let jump: Vec<i32> =
            leaves.first().map_or_else(Vec::new, |(q, _)| q.iter().map(|q| q * JUMP).collect());
        let moved = State { parameters: landed(work, &jump), ..State::clone(&work.state) };
        let after = computed(work, arithmetic, &moved, |leaf| work.windows(leaf)).leaves;
        leaves.iter_mut().zip(after).skip(place).for_each(|(leaf, after)| *leaf = after);
        if let Some((q, _)) = leaves.get_mut(place) {
            q.iter_mut().zip(&jump).for_each(|(q, jump)| *q = q.saturating_add(*jump));
        }
        Summed::of(leaves)
    }
}

/// The parameters after a move of so many steps of the grid.
fn landed(work: &Assignment, jump: &[i32]) -> Vector {
    let mut parameters = work.state.parameters.clone();
    let layout = Layout::of(&work.manifest.model);
    for (tensor, exponent) in layout.tensors().iter().zip(&work.state.exponents) {
        let unit = 2f32.powi(i32::from(*exponent));
        let moved = parameters[tensor.range()].iter_mut().zip(&jump[tensor.range()]);
        moved.for_each(|(parameter, jump)| *parameter -= *jump as f32 * unit);
    }
    parameters
}
