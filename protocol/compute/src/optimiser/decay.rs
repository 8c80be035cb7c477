//! Which tensors decay.

use muster_core::layout::Tensor;
use muster_core::manifest::Optimiser;

/// Weight decay of a tensor: none where it has one row (ARITH-7, ARITH-67).
pub(super) fn decay(optimiser: &Optimiser, tensor: &Tensor) -> f64 {
    if tensor.shape[0] > 1 { f64::from(optimiser.weight_decay.value()) } else { 0.0 }
}
