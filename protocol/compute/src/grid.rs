//! A leaf's gradient on the grid.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use muster_core::grid::{Dither, power_of_two};
use muster_core::ids::Digest;
use muster_core::layout::Layout;
use muster_core::state::LeafJob;

use crate::kernel::dither::dithered;
use crate::path::Kernels;

/// The grid (GRID-2) of one leaf.
pub(crate) struct Grid<'a> {
    kernels: Kernels,
    layout: &'a Layout,
    exponents: &'a [i16],
    key: Digest,
    nanoseconds: AtomicU64,
}

impl<'a> Grid<'a> {
    pub(crate) fn new(kernels: Kernels, layout: &'a Layout, job: &LeafJob<'a>) -> Self {
        let key = Dither::key(&job.round_seed, job.leaf);
        Self { kernels, layout, exponents: &job.state.exponents, key, nanoseconds: AtomicU64::new(0) }
    }

    /// Writes the integers of neighbouring values, the first of which stands here in the gradient, to `q`.
    pub(crate) fn quantise(&self, mut first: usize, mut gradient: &[f32], mut q: &mut [i32]) {
        let begun = Instant::now();
        let before = self.layout.tensors().partition_point(|tensor| tensor.range().end <= first);
        for (tensor, exponent) in self.layout.tensors().iter().zip(self.exponents).skip(before) {
            if gradient.is_empty() {
                break;
            }
            let count = gradient.len().min(tensor.range().end - first);
            let (now, later) = gradient.split_at(count);
            let (integers, integers_later) = std::mem::take(&mut q).split_at_mut(count);
            // GRID-2 multiplies by a power of two, which is exact.
            let inverse_step = power_of_two(-i32::from(*exponent));
            dithered(self.kernels, now, inverse_step, &self.key, first as u64, integers);
            (first, gradient, q) = (first + count, later, integers_later);
        }
        self.nanoseconds.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    /// Writes the integers of a whole gradient to `q`, over some threads.
    pub(crate) fn place_all<W: Send>(&self, workers: &mut [W], gradient: &[f32], q: &mut [i32]) {
        let blocks = self.layout.blocks();
        let parts = crate::parallel::parts(q, blocks.iter().map(|block| block.range.len()));
        crate::parallel::each(workers, blocks.iter().zip(parts), |_, (block, q)| {
            self.quantise(block.range.start, &gradient[block.range.clone()], q);
        });
    }

    /// Time that all threads together have spent here.
    pub(crate) fn spent(&self) -> Duration {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed))
    }
}
