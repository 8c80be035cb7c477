//! The loss on the held-out text, beside a replica that goes on.

use std::sync::{Arc, Mutex};

use muster_compute::{Exact, Path};
use muster_core::ids::Round;
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::state::Vector;
use muster_store::dataset::Dataset;

use crate::held::HeldState;
use crate::replica::{Replica, mean_held_out_loss};

/// Parameters of a state that is measured for pages. A step that comes meanwhile copies them.
const MEASURED: u64 = 50_000_000;

/// A state whose loss on the held-out text is to be measured, on one thread, while the replica goes on.
pub struct HeldOutState {
    /// The round that the state is before.
    pub round: Round,
    manifest: Arc<Manifest>,
    dataset: Arc<Dataset>,
    path: Path,
    held: HeldState,
}

impl HeldOutState {
    /// The state of a replica as it is now.
    pub fn of(replica: &Mutex<Replica>) -> Self {
        let mut replica = lock(replica);
        let mut held = replica.held_state().clone();
        // The replica alone has its moments: a step that comes meanwhile would have to copy them.
        (held.state.first, held.state.second) = Default::default();
        let (manifest, dataset) = (replica.manifest().clone(), replica.dataset().clone());
        Self { round: replica.round(), manifest, dataset, path: replica.arithmetic().path(), held }
    }

    /// Its parameters, as far as they are in memory.
    pub fn parameters(&self) -> &Vector {
        &self.held.state.parameters
    }

    /// Its mean loss in nats per token. None without a held-out window that belongs to a row of it.
    pub fn loss(&self) -> Option<f64> {
        let mut arithmetic = Exact::new(1, Some(self.path)).ok()?;
        // Packed matrices would take as much as the parameters, beside a replica that takes the rest.
        arithmetic.pack_up_to(0);
        mean_held_out_loss(&mut arithmetic, &self.manifest, &self.dataset, &self.held)
    }
}

/// Mean loss on the held-out text of the state as it is now, without holding the replica meanwhile, and the round before which the
/// state is that. None for a state that is too large to be copied for pages.
pub fn measure_held_out(replica: &Mutex<Replica>) -> Option<(Round, f64)> {
    if lock(replica).manifest().model.parameters() > MEASURED {
        return None;
    }
    let state = HeldOutState::of(replica);
    Some((state.round, state.loss()?))
}
