//! How much is computed, and how an aggregate changes the state.

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

/// What a file calls each [`manifest::Schedule`].
#[derive(Deserialize)]
#[serde(remote = "manifest::Schedule", rename_all = "kebab-case")]
enum ScheduleName {
    Constant,
    Linear,
    Cosine,
}

/// What a file calls each [`manifest::Method`].
#[derive(Deserialize)]
#[serde(remote = "manifest::Method", rename_all = "lowercase")]
enum MethodName {
    AdamW,
    Lamb,
}

section! {
    /// As [`manifest::Optimiser`].
    Optimiser as "optimiser" for manifest::Optimiser {
        /// Which optimiser.
        #[serde(deserialize_with = "MethodName::deserialize")]
        method: manifest::Method = manifest::Method::AdamW => method,
        /// Peak learning rate.
        rate: f32 = 0.01 => rate by real,
        /// Last learning rate.
        minimum_rate: f32 = 0.0 => minimum_rate by real,
        /// Rounds of warm-up.
        warmup: u32 = 40 => warmup,
        /// Shape after the warm-up.
        #[serde(deserialize_with = "ScheduleName::deserialize")]
        schedule: manifest::Schedule = manifest::Schedule::Linear => schedule,
        /// Decay of the first moment.
        beta1: f32 = 0.85 => beta1 by real,
        /// Decay of the second moment.
        beta2: f32 = 0.98 => beta2 by real,
        /// Added to the root of the second moment.
        epsilon: f32 = 1e-8 => epsilon by real,
        /// Weight decay.
        weight_decay: f32 = 0.05 => weight_decay by real,
        /// Largest global norm.
        clip_norm: f32 = 1.0 => clip_norm by real,
    }
}

impl Training {
    pub(super) fn plain(&self) -> manifest::Training {
        let Self { rounds, leaves, leaf_windows, grid_bits, recompute, .. } = *self;
        manifest::Training { rounds, leaves, leaf_windows, grid_bits, recompute }
    }
}
