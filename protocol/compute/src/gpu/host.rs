//! The processor beside a device.

use crate::path::Kernels;

/// What has defined bits and is done here computes so: the choice of experts, and the grid, where the device has no f64.
#[derive(Clone, Copy)]
pub(super) struct Host {
    pub kernels: Kernels,
    pub threads: usize,
}
