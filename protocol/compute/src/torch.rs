//! The backend on libtorch: the models of [`crate::Exact`], differentiated by autograd, with tolerance instead of bits.
//!
//! Only the real gradient of a leaf comes from libtorch. Initial parameters and exponents, grid, dither and update are
//! [`Exact`]'s, so that their bits stay defined whatever computes the gradient.
//!
//! On one device, at one number of threads, a leaf repeats its bits: deterministic kernels are required of libtorch, and
//! it fails where it has none. Other devices and numbers of threads are close, not equal.

mod albert;
mod decoder;
mod library;
mod network;

use std::time::Instant;

use muster_core::assign::calibration_seed;
use muster_core::error::Misuse;
use muster_core::grid::fixed_loss;
use muster_core::ids::Leaf;
use muster_core::manifest::{Manifest, Model};
use muster_core::state::{Arithmetic, LeafJob, State, Update};
use tch::{Cuda, Kind};

use crate::backend::{Backend, Device, Precision};
use crate::grid::Grid;
use crate::kernel::require_ieee;
use crate::leaf::{Batch, Setting, check};
use crate::plan::{Network as Places, Plan};
use crate::{Exact, Path, Spent, self_test, setting};
use library::{check_version, load_cuda, settle};
use network::{Extent, Network, Weights, backward, backward_recomputing, forward};

/// Leaves in libtorch, everything else in defined bits. One leaf at a time in a process, whoever asks.
///
/// # Panics
/// Every computation panics when the device fails (out of memory, no deterministic kernel), with libtorch's own words, and
/// when the processor's floating-point mode is not the IEEE default.
pub struct Torch {
    device: tch::Device,
    precision: Precision,
    exact: Exact,
    plan: Option<Plan>,
    gradient: Vec<f32>,
    spent: Spent,
}

impl Torch {
    /// Computes leaves on a device; on this many threads (at least one) what a processor computes, along `path` or the
    /// fastest one what has defined bits.
    ///
    /// # Errors
    /// [`Misuse`] with the remedy when libtorch is another version, or has no such device; when the processor lacks the
    /// path.
    pub fn new(
        device: Device,
        precision: Precision,
        threads: usize,
        path: Option<Path>,
    ) -> Result<Self, Misuse> {
        let cuda = load_cuda();
        check_version()?;
        let device = match device {
            Device::Cpu => tch::Device::Cpu,
            Device::Cuda(number) => {
                cuda?;
                let count = if Cuda::is_available() { Cuda::device_count() } else { 0 };
                if number as i64 >= count {
                    return Err(Misuse(format!(
                        "libtorch sees {count} devices for CUDA, and none has number {number}: name one with --device \
                         cuda:N, or compute with --device cpu"
                    )));
                }
                tch::Device::Cuda(number)
            }
        };
        let exact = Exact::new(threads, path)?;
        Ok(Self { device, precision, exact, plan: None, gradient: Vec::new(), spent: Spent::default() })
    }

    /// Computes leaves of small models and compares them with those that have defined bits.
    ///
    /// # Errors
    /// [`Misuse`] when one is further away than rounding explains: this device or library must not take part in a run.
    pub fn self_test(&mut self) -> Result<(), Misuse> {
        self.exact.self_test()?;
        self_test::compare(self)
    }

    /// How far a gradient is from the one with defined bits, relative to its length; how far rounding takes it at most.
    pub(crate) fn distance(
        &mut self,
        setting: Setting<'_>,
        parameters: &[f32],
        batch: Batch<'_>,
    ) -> (f64, f64) {
        self.differentiate(setting, parameters, batch);
        let right = self.exact.engine.gradient(setting, parameters, batch);
        let [mut error, mut length] = [0.0; 2];
        for (found, right) in self.gradient.iter().zip(right) {
            error += (f64::from(*found) - f64::from(*right)).powi(2);
            length += f64::from(*right).powi(2);
        }
        let limit = match self.precision {
            Precision::F32 => 1e-5,
            Precision::Tf32 => 1e-2,
            Precision::Bf16 => 1e-1,
        };
        ((error / length).sqrt(), limit)
    }

    /// Computes the gradient and returns the mean loss.
    fn differentiate(&mut self, setting: Setting<'_>, parameters: &[f32], batch: Batch<'_>) -> f64 {
        self.gradient.resize(parameters.len(), 0.0);
        if batch.windows.is_empty() {
            self.gradient.fill(0.0);
            return f64::NAN;
        }
        let mut gradient = std::mem::take(&mut self.gradient);
        let back = if setting.recompute { backward_recomputing } else { backward };
        let loss = self.run(setting.model, parameters, (batch, 0), |plan, weights, network, extent| {
            let loss = back(network, extent);
            weights.gradient(plan, &mut gradient);
            loss
        });
        self.gradient = gradient;
        loss
    }

    /// Lets `compute` have the network over some windows, the first of which has this number in its batch.
    fn run(
        &mut self,
        model: &Model,
        parameters: &[f32],
        (batch, first): (Batch<'_>, u32),
        compute: impl FnOnce(&Plan, &Weights, &dyn Network, Extent) -> f64,
    ) -> f64 {
        require_ieee();
        let _turn = settle(self.exact.threads(), self.precision == Precision::Tf32);
        let products = if self.precision == Precision::Bf16 { Kind::BFloat16 } else { Kind::Float };
        let plan = self.plan.take().filter(|plan| plan.model == *model).unwrap_or_else(|| Plan::new(model));
        check(&plan, batch.windows);
        let weights = Weights::new(&plan, parameters, self.device, products);
        let windows = batch.windows.len();
        let extent = Extent { layers: plan.layers, windows, predicted: windows * plan.predicted };
        let loss = match &plan.network {
            Places::Decoder(places) => {
                compute(&plan, &weights, &decoder::Decoder::new(&plan, places, &weights, batch), extent)
            }
            Places::Albert(_) => {
                compute(&plan, &weights, &albert::Albert::new(&plan, &weights, (batch, first)), extent)
            }
        };
        self.plan = Some(plan);
        // The library shares this thread: what follows signs bits.
        require_ieee();
        loss
    }
}

impl Backend for Torch {
    fn gradient(&mut self, manifest: &Manifest, job: &LeafJob<'_>) -> &[f32] {
        self.differentiate(setting(manifest), &job.state.parameters, batch(job));
        &self.gradient
    }

    fn spent(&self) -> Spent {
        self.spent
    }
}

impl Arithmetic for Torch {
    fn initial(&mut self, manifest: &Manifest, calibration: &[Vec<u32>]) -> State {
        self.exact.initial(manifest, calibration)
    }

    fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64 {
        let begun = Instant::now();
        let loss = self.differentiate(setting(manifest), &job.state.parameters, batch(job));
        let differentiated = Instant::now();
        if let Some(plan) = &self.plan {
            let grid = Grid::new(self.exact.kernels, &plan.layout, job);
            grid.place_all(&mut self.exact.threads, &self.gradient, q);
        }
        self.spent.gradient += differentiated - begun;
        self.spent.grid += differentiated.elapsed();
        fixed_loss(loss)
    }

    fn apply(&mut self, manifest: &Manifest, state: &mut State, update: &Update) {
        self.exact.apply(manifest, state, update);
    }

    fn evaluate(&mut self, manifest: &Manifest, state: &State, windows: &[Vec<u32>]) -> f64 {
        let seed = calibration_seed(manifest.run());
        let most = (manifest.training.leaf_windows as usize).max(1);
        let mut sum = 0.0;
        for (first, windows) in (0..).step_by(most).zip(windows.chunks(most)) {
            let batch = Batch { windows, seed, leaf: Leaf(1) };
            let mean =
                self.run(&manifest.model, &state.parameters, (batch, first), |_, _, network, extent| {
                    forward(network, extent)
                });
            sum += mean * windows.len() as f64;
        }
        let mean = sum / windows.len() as f64;
        if mean.is_finite() { mean } else { f64::NAN }
    }
}

fn batch<'a>(job: &LeafJob<'a>) -> Batch<'a> {
    Batch { windows: job.windows, seed: job.round_seed, leaf: job.leaf }
}
