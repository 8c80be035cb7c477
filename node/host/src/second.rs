//! The second code path for leaves, built when the first ban for life depends on it (AUDIT-12).

use std::sync::Mutex;

use muster_compute::{Backend, Machine};
use muster_core::lock::lock;
use muster_core::manifest::Manifest;
use muster_core::state::Arithmetic;
use muster_replica::exit::{Failure, Outcome};

/// The code path that must agree before a ban for life.
pub(super) struct Second {
    machine: Machine,
    made: Mutex<Option<Box<dyn Backend>>>,
}

impl Second {
    /// The second code path of this machine, not built yet.
    pub(super) fn new(machine: Machine) -> Self {
        Self { machine, made: Mutex::new(None) }
    }

    /// Computes something on it; builds it the first time.
    ///
    /// # Errors
    /// [`Failure`] where this machine has no second code path, or it fails its self-test.
    pub(super) fn with<T>(
        &self,
        manifest: &Manifest,
        compute: impl FnOnce(&mut dyn Arithmetic) -> T,
    ) -> Outcome<T> {
        let mut made = lock(&self.made);
        let second = match &mut *made {
            Some(second) => second,
            none => {
                let broken = |misuse: muster_core::error::Misuse| Failure::environment(misuse.to_string());
                // Only now: it takes as much memory as the first one, and a run without such a ban never
                // needs it.
                let mut second = self.machine.second(manifest).map_err(broken)?;
                second.self_test().map_err(broken)?;
                none.insert(second)
            }
        };
        Ok(compute(&mut **second))
    }
}
