//! What both methods follow in a tensor.

use crate::kernel::update::AdamStep;

/// What a step follows in a tensor.
pub(super) struct TensorStep {
    pub(super) adam: AdamStep,
    /// The learning rate.
    pub(super) rate: f64,
    /// LAMB: c₁ of ARITH-67.
    pub(super) first_scale: f32,
    /// Weight decay.
    pub(super) decay: f32,
}
