//! How leaf gradients are computed and compared.

use muster_core::codec::{List, Real};
use muster_core::error::Misuse;
use muster_core::manifest;
use serde::Deserialize;

use super::section::section;

/// What a file calls each [`manifest::Profile`].
#[derive(Deserialize)]
#[serde(remote = "manifest::Profile", rename_all = "kebab-case")]
enum ProfileName {
    Exact,
    F32,
    Tf32,
    Bf16,
}

section! {
    /// As [`manifest::Profile`] with [`manifest::Tolerance`]: what `muster-verifier calibrate` writes.
    Arithmetic {
        /// Which profile.
        #[serde(deserialize_with = "ProfileName::deserialize")]
        profile: manifest::Profile = manifest::Profile::Exact,
        /// Largest honest deviation of each tensor group.
        tolerance: Vec<f32> = Vec::new(),
        /// Largest honest difference of a leaf's loss.
        loss_tolerance: f32 = 0.0,
        /// Rounds of training over which they were measured; 0 if unknown.
        calibrated_rounds: u32 = 0,
    }
}

impl Arithmetic {
    pub(super) fn tolerance(&self) -> Result<manifest::Tolerance, Misuse> {
        let groups: Result<Vec<Real>, Misuse> =
            self.tolerance.iter().map(|bound| Real::new(*bound)).collect();
        let groups = groups.and_then(List::new);
        let groups = groups.map_err(|misuse| Misuse(format!("arithmetic.tolerance: {misuse}")))?;
        let loss = Real::new(self.loss_tolerance)
            .map_err(|misuse| Misuse(format!("arithmetic.loss_tolerance: {misuse}")))?;
        Ok(manifest::Tolerance { groups, loss })
    }
}
