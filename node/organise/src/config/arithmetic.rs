//! How leaf gradients are computed and compared.

use muster_core::codec::{List, Real};
use muster_core::error::Misuse;
use muster_core::manifest;
use serde::Deserialize;

use super::section::section;

/// As [`manifest::Profile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileSetting {
    /// Defined bits.
    Exact,
    /// f32 in any order.
    F32,
    /// Factors of products in tf32.
    Tf32,
    /// Products in bf16.
    Bf16,
}

section! {
    /// As [`manifest::Profile`] with [`manifest::Tolerance`]: what `muster-verifier calibrate` writes.
    Arithmetic {
        /// Which profile.
        profile: ProfileSetting = ProfileSetting::Exact,
        /// Largest honest deviation of each tensor group.
        tolerance: Vec<f32> = Vec::new(),
        /// Largest honest difference of a leaf's loss.
        loss_tolerance: f32 = 0.0,
        /// Rounds of training over which they were measured; 0 if unknown.
        calibrated_rounds: u32 = 0,
    }
}

impl ProfileSetting {
    pub(super) fn plain(self) -> manifest::Profile {
        match self {
            Self::Exact => manifest::Profile::Exact,
            Self::F32 => manifest::Profile::F32,
            Self::Tf32 => manifest::Profile::Tf32,
            Self::Bf16 => manifest::Profile::Bf16,
        }
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
