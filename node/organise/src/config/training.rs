//! How much is computed, and how an aggregate changes the state.

use muster_core::error::Misuse;
use muster_core::manifest;
use serde::Deserialize;

use super::number::real;
use super::section::section;

section! {
    /// As [`manifest::Training`].
    Training {
        /// Rounds.
        rounds: u32 = 150,
        /// Leaves of a round.
        leaves: u32 = 16,
        /// Windows of a leaf.
        leaf_windows: u32 = 2,
        /// Negative log₂ of κ.
        grid_bits: u8 = 8,
        /// Whether activations are computed again.
        recompute: bool = false,
        /// Whether leaves are computed while the values of the round before travel.
        overlap: bool = false,
    }
}

/// As [`manifest::Schedule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleSetting {
    /// Stays.
    Constant,
    /// Falls linearly.
    Linear,
    /// Falls along half a cosine.
    Cosine,
}

/// As [`manifest::Method`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MethodSetting {
    /// Adam with decoupled weight decay.
    Adamw,
    /// Layer-wise scaled AdamW.
    Lamb,
}

section! {
    /// As [`manifest::Optimiser`].
    Optimiser {
        /// Which optimiser.
        method: MethodSetting = MethodSetting::Adamw,
        /// Peak learning rate.
        rate: f32 = 0.01,
        /// Last learning rate.
        minimum_rate: f32 = 0.0,
        /// Rounds of warm-up.
        warmup: u32 = 40,
        /// Shape after the warm-up.
        schedule: ScheduleSetting = ScheduleSetting::Linear,
        /// Decay of the first moment.
        beta1: f32 = 0.85,
        /// Decay of the second moment.
        beta2: f32 = 0.98,
        /// Added to the root of the second moment.
        epsilon: f32 = 1e-8,
        /// Weight decay.
        weight_decay: f32 = 0.05,
        /// Largest global norm.
        clip_norm: f32 = 1.0,
    }
}

impl Training {
    pub(super) fn plain(&self) -> manifest::Training {
        let Self { rounds, leaves, leaf_windows, grid_bits, recompute, .. } = *self;
        manifest::Training { rounds, leaves, leaf_windows, grid_bits, recompute }
    }
}

impl Optimiser {
    pub(super) fn checked(&self) -> Result<manifest::Optimiser, Misuse> {
        Ok(manifest::Optimiser {
            method: match self.method {
                MethodSetting::Adamw => manifest::Method::AdamW,
                MethodSetting::Lamb => manifest::Method::Lamb,
            },
            rate: real("optimiser.rate", self.rate)?,
            minimum_rate: real("optimiser.minimum_rate", self.minimum_rate)?,
            warmup: self.warmup,
            schedule: match self.schedule {
                ScheduleSetting::Constant => manifest::Schedule::Constant,
                ScheduleSetting::Linear => manifest::Schedule::Linear,
                ScheduleSetting::Cosine => manifest::Schedule::Cosine,
            },
            beta1: real("optimiser.beta1", self.beta1)?,
            beta2: real("optimiser.beta2", self.beta2)?,
            epsilon: real("optimiser.epsilon", self.epsilon)?,
            weight_decay: real("optimiser.weight_decay", self.weight_decay)?,
            clip_norm: real("optimiser.clip_norm", self.clip_norm)?,
        })
    }
}
