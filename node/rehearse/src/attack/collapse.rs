//! Peer that adds to its leaves a gradient of the router that draws all tokens to one expert, to waste the others.
//!
//! It takes that gradient from the loss that balances the experts (ARITH-73), turned round and a thousand times as
//! heavy as usual, where every token chooses this one expert. Members with one seed draw to the same one. Every row is
//! wrong.

use muster_core::codec::Real;
use muster_core::limits::GRID_LIMIT;
use muster_core::manifest::Model;
use muster_core::state::{Arithmetic, State};
use muster_member::{Assignment, NodeConduct, Summed};

use super::experts::{each, mixture, routers, with};
use super::forge::modelled;

/// In place of `balance`.
const WEIGHT: f32 = -10.0;

pub(super) struct Collapse {
    pub(super) seed: u64,
}

impl NodeConduct for Collapse {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        let model = &work.manifest.model;
        let routers = routers(model);
        let width = model.width as usize;
        let columns = mixture(model).map_or(1, |mixture| u64::from(mixture.columns.max(1)));
        let target = (self.seed % columns) as usize;
        let mut leaves = work.sum(arithmetic).leaves;
        let pulls = modelled(work, arithmetic, &pulling(model), &undecided(work)).leaves;
        for ((q, _), (mut pull, _)) in leaves.iter_mut().zip(pulls) {
            for router in &routers {
                let (Some(q), Some(pull)) = (q.get_mut(router.clone()), pull.get_mut(router.clone())) else {
                    continue;
                };
                // Drawn to is the first expert, which comes first among equals.
                let (first, others) = pull.split_at_mut(width);
                if let Some(line) =
                    target.checked_sub(1).and_then(|at| others.chunks_exact_mut(width).nth(at))
                {
                    first.swap_with_slice(line);
                }
                for (value, pull) in q.iter_mut().zip(pull) {
                    *value = value.saturating_add(*pull).clamp(-GRID_LIMIT, GRID_LIMIT);
                }
            }
        }
        Summed::of(leaves)
    }
}

/// The model in which each token passes one expert, and the fuller one is the better one.
// ARITH-73: with one expert, whose weight is 1, nothing but the balance moves the router.
fn pulling(model: &Model) -> Model {
    with(model, |mixture| {
        mixture.active = 1;
        mixture.balance = Real::new(WEIGHT).unwrap_or(mixture.balance);
    })
}

/// The state in which all scores are equal.
// ARITH-70: among equal numbers the lower expert comes first.
fn undecided(work: &Assignment) -> State {
    let mut state = State::clone(&work.state);
    each(&mut state.parameters, &routers(&work.manifest.model), |weight| *weight = 0.0);
    state
}
