//! How much is computed in a round, and how its aggregate changes the parameters.

use crate::codec::Real;
use crate::{choice, wire};

wire! {
    /// Amount and grain of the work.
    pub struct Training {
        /// Rounds to train.
        pub rounds: u32,
        /// Leaves of a round, over all members.
        pub leaves: u32,
        /// Windows of a leaf.
        pub leaf_windows: u32,
        /// Negative log₂ of κ: a grid step is 2^−`grid_bits` of the last aggregate's rms.
        pub grid_bits: u8,
        /// Whether activations are computed again in the backward pass: less memory, more time, the same bits.
        pub recompute: bool,
    }
}

choice! {
    /// How an aggregate changes parameters.
    pub enum Method {
        /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
        AdamW,
        /// Layer-wise scaled AdamW for large batches (You et al. 2020).
        Lamb,
    }
}

choice! {
    /// How the learning rate goes down after the warm-up.
    pub enum Schedule {
        /// Stays.
        Constant,
        /// Falls linearly to the minimum in the last round.
        Linear,
        /// Falls along half a cosine to the minimum in the last round.
        Cosine,
    }
}

wire! {
    /// AdamW or LAMB, on a gradient clipped by global norm.
    pub struct Optimiser {
        /// Which.
        pub method: Method,
        /// Peak learning rate.
        pub rate: Real,
        /// Last learning rate.
        pub minimum_rate: Real,
        /// Rounds of linear warm-up.
        pub warmup: u32,
        /// Shape after the warm-up.
        pub schedule: Schedule,
        /// Decay of the first moment.
        pub beta1: Real,
        /// Decay of the second moment.
        pub beta2: Real,
        /// Added to the root of the second moment.
        pub epsilon: Real,
        /// Weight decay of matrices; norms have none.
        pub weight_decay: Real,
        /// Largest global norm of the gradient; 0 turns clipping off.
        pub clip_norm: Real,
    }
}
