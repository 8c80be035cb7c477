//! The backend on libtorch: the models of [`crate::Exact`], differentiated by autograd, with tolerance instead of bits.
//!
//! Only the real gradient of a leaf comes from libtorch. Initial parameters and exponents, grid, dither, update and losses
//! without gradient are [`Exact`]'s, so that their bits stay defined whatever computes the gradient (TOL-11). Of several leaves,
//! one goes on the grid while the next one is differentiated on a thread of its own.
//!
//! On one device, at one number of threads, a leaf repeats its bits: deterministic kernels are required of libtorch, and
//! it fails where it has none. Other devices and numbers of threads are close, not equal.

mod albert;
mod decoder;
mod library;
mod network;
mod transfer;

use std::panic::resume_unwind;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::scope;
use std::time::{Duration, Instant};

use muster_core::error::Misuse;
use muster_core::grid::fixed_loss;
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, LeafJob, LeafTask, State, Update};
use tch::{Cuda, Kind, Tensor, no_grad};

use crate::backend::{Backend, Closeness, Device, Libtorch, OpenResult, Precision, TorchSetting};
use crate::grid::Grid;
use crate::leaf::{Batch, Setting, check};
use crate::memory::graphics_buffers;
use crate::plan::{FamilyPlan, NetworkPlan};
use crate::{Exact, LeafTimes, Path, self_test};
use library::{check_version, free_memory, load_cuda, settle};
use muster_core::ieee::require_ieee;
use network::{Extent, Network, ParameterTensors, backward, backward_recomputing};
use transfer::{Gradient, Parameters};

/// What NVIDIA's libraries obey before anybody else. Where it is set, no profile is known to be what is computed.
const OVERRIDE: &str = "NVIDIA_TF32_OVERRIDE";

/// Leaves in libtorch, everything else in defined bits. One leaf at a time in a process, whoever asks.
///
/// # Panics
/// Every computation panics when the device fails (out of memory, no deterministic kernel), with libtorch's own words, and
/// when the processor's floating-point mode is not the IEEE default.
pub struct Torch {
    differentiator: Differentiator,
    exact: Exact,
    /// Flat gradients, to be written again: one goes on the grid while another is computed.
    gradients: Vec<Gradient>,
    spent: LeafTimes,
    /// Of the self-test, once it has passed.
    closeness: Option<Closeness>,
}

/// A leaf, its gradient, its mean loss, and how long they took.
type Differentiated<'a> = (LeafTask<'a>, Gradient, f64, Duration);

impl Torch {
    /// Provides libtorch to all of this program.
    pub fn provide() {
        let open = |setting: TorchSetting| -> OpenResult {
            let TorchSetting { device, precision, threads, path, apart } = setting;
            let torch = Self::new(device, precision, threads, path)?;
            Ok(Box::new(if apart { torch.apart() } else { torch }))
        };
        let has_cuda = || load_cuda().is_ok() && Cuda::is_available() && Cuda::device_count() > 0;
        Libtorch { open, has_cuda }.provide();
    }

    /// Computes leaves on a device; on this many threads (at least one) what a processor computes, along `path` or the
    /// fastest one what has defined bits.
    ///
    /// # Errors
    /// [`Misuse`] with the remedy when libtorch is another version, has no such device, or is told by the environment how
    /// to round there; when the processor lacks the path.
    pub fn new(
        device: Device,
        precision: Precision,
        threads: usize,
        path: Option<Path>,
    ) -> Result<Self, Misuse> {
        // Before any other call of the library; that it failed matters only where CUDA is asked for.
        let cuda = load_cuda();
        check_version()?;
        let at = match device {
            Device::Cpu => tch::Device::Cpu,
            Device::Cuda(number) => {
                cuda?;
                if std::env::var_os(OVERRIDE).is_some() {
                    return Err(Misuse(format!(
                        "{OVERRIDE} is set, which rounds products on graphics processors otherwise than a run's profile \
                         says: unset it"
                    )));
                }
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
        let differentiator = Differentiator {
            named: device,
            device: at,
            precision,
            threads: exact.threads(),
            apart: false,
            plan: None,
            parameters: Parameters::new(at, exact.threads()),
        };
        Ok(Self {
            differentiator,
            exact,
            gradients: Vec::new(),
            spent: LeafTimes::default(),
            closeness: None,
        })
    }

    /// The same with a leaf's windows one by one, whose gradients are added up: products of other sizes, for which
    /// libtorch has other kernels, and another order of sums.
    #[must_use]
    pub fn apart(mut self) -> Self {
        self.differentiator.apart = true;
        self
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
        for (found, right) in self.gradients.first_mut().map_or(&[][..], Gradient::values).iter().zip(right) {
            error += (f64::from(*found) - f64::from(*right)).powi(2);
            length += f64::from(*right).powi(2);
        }
        let limit = match self.differentiator.precision {
            Precision::F32 => 1e-5,
            Precision::Tf32 => 1e-2,
            Precision::Bf16 => 1e-1,
        };
        ((error / length).sqrt(), limit)
    }

    /// Computes a gradient into the first vector and returns the mean loss.
    fn differentiate(&mut self, setting: Setting<'_>, parameters: &[f32], batch: Batch<'_>) -> f64 {
        let mut gradient = self.gradients.pop().unwrap_or_else(|| Gradient::new(self.differentiator.device));
        let flat = self.differentiator.parameters.of(parameters);
        let loss = self.differentiator.differentiate(setting, &flat, batch, &mut gradient);
        gradient.values();
        self.gradients.insert(0, gradient);
        loss
    }
}

/// What computes gradients in libtorch.
struct Differentiator {
    named: Device,
    device: tch::Device,
    precision: Precision,
    threads: usize,
    /// Whether it takes windows one by one.
    apart: bool,
    plan: Option<NetworkPlan>,
    parameters: Parameters,
}

impl Differentiator {
    /// Writes the gradient of the mean loss, which may arrive later, and returns that loss; NaN and zeros without windows.
    fn differentiate(
        &mut self,
        setting: Setting<'_>,
        flat: &Tensor,
        batch: Batch<'_>,
        gradient: &mut Gradient,
    ) -> f64 {
        require_ieee();
        if batch.windows.is_empty() {
            gradient.clear(flat.numel());
            return f64::NAN;
        }
        // Libtorch's settings are the process's: nobody else computes with it before this leaf is done.
        let _turn = settle(self.threads, self.precision == Precision::Tf32);
        let products = if self.precision == Precision::Bf16 { Kind::BFloat16 } else { Kind::Float };
        let plan = self.plan.take().filter(|plan| plan.model == *setting.model);
        let plan = plan.unwrap_or_else(|| NetworkPlan::new(setting.model));
        check(&plan, batch.windows);
        let weights = ParameterTensors::new(&plan, flat, products);
        // In `apart`, the gradients of windows add up in the parts, as their shares of the mean loss do.
        let together = if self.apart { 1 } else { batch.windows.len() };
        let groups = (0..).step_by(together).zip(batch.windows.chunks(together));
        let losses = groups.map(|(first, windows)| {
            let predicted = batch.windows.len() * plan.predicted;
            let extent = Extent { layers: plan.layers, windows: windows.len(), predicted };
            let back = if setting.recompute { backward_recomputing } else { backward };
            back(&*network(&plan, &weights, Batch { windows, ..batch }, first), extent)
        });
        let loss = losses.sum();
        no_grad(|| weights.gradient(&plan, gradient.collect(flat.numel())));
        gradient.send();
        self.plan = Some(plan);
        // The library shares this thread: what follows signs bits.
        require_ieee();
        loss
    }

    /// Differentiates leaves as long as there are some and somebody takes them. The parameters of neighbouring leaves
    /// of one state are compared with those on the device once.
    fn feed<'a>(
        &mut self,
        manifest: &Manifest,
        tasks: &mut (dyn Iterator<Item = LeafTask<'a>> + Send),
        spare: &Receiver<Gradient>,
        done: Sender<Differentiated<'a>>,
    ) {
        let mut uploaded: Option<(&'a State, Tensor)> = None;
        for task in tasks {
            // Two buffers go round: this waits until one of them has been put on the grid.
            let Ok(mut gradient) = spare.recv() else { return };
            let begun = Instant::now();
            // Both are borrowed until the last leaf is taken: the same address is the same state.
            let kept = uploaded.take().filter(|(state, _)| std::ptr::eq(*state, task.state));
            let flat = kept.map_or_else(|| self.parameters.of(&task.state.parameters), |(_, flat)| flat);
            let loss = self.differentiate(Setting::of(manifest), &flat, batch(&task.job()), &mut gradient);
            uploaded = Some((task.state, flat));
            if done.send((task, gradient, loss, begun.elapsed())).is_err() {
                return;
            }
        }
    }
}

/// The network of a model over some windows of a leaf; `first` is the number of the first one in the leaf.
fn network<'a>(
    plan: &'a NetworkPlan,
    weights: &'a ParameterTensors,
    batch: Batch<'_>,
    first: u32,
) -> Box<dyn Network + 'a> {
    match &plan.network {
        FamilyPlan::Decoder(ranges) => Box::new(decoder::TorchDecoder::new(plan, ranges, weights, batch)),
        FamilyPlan::Albert(_) => Box::new(albert::TorchAlbert::new(plan, weights, batch, first)),
    }
}

impl Backend for Torch {
    fn gradient(&mut self, manifest: &Manifest, job: &LeafJob<'_>) -> &[f32] {
        self.differentiate(Setting::of(manifest), &job.state.parameters, batch(job));
        self.gradients.first_mut().map_or(&[], Gradient::values)
    }

    fn spent(&self) -> LeafTimes {
        self.spent
    }

    fn self_test(&mut self) -> Result<(), Misuse> {
        self.exact.self_test()?;
        let closeness =
            self_test::compare(|setting, parameters, batch| self.distance(setting, parameters, batch))?;
        self.closeness = Some(closeness);
        Ok(())
    }

    fn closeness(&self) -> Option<Closeness> {
        self.closeness
    }

    fn has_room(&self, manifest: &Manifest) -> Result<(), Misuse> {
        let Differentiator { named: Device::Cuda(number), precision, .. } = self.differentiator else {
            return Ok(());
        };
        let needed = graphics_buffers(&manifest.model, &manifest.training, precision);
        match free_memory(number) {
            Some(free) if free < needed => {
                let [needed, free] = [needed, free].map(|bytes| bytes as f64 / 1e9);
                Err(Misuse(format!(
                    "a leaf takes about {needed:.1} GB of cuda:{number}, of which {free:.1} GB are free: end what else \
                     computes there, name another device with --device, or take a run with training.recompute or with \
                     smaller leaves (training.leaf_windows)"
                )))
            }
            _ => Ok(()),
        }
    }

    fn describe(&self) -> String {
        let Differentiator { named, precision, threads, apart, .. } = &self.differentiator;
        let apart = if *apart { ", windows apart" } else { "" };
        format!("libtorch in {precision} on {named}, threads {threads}{apart}")
    }
}

impl Arithmetic for Torch {
    fn initial(&mut self, manifest: &Manifest, calibration: &[Vec<u32>]) -> State {
        self.exact.initial(manifest, calibration)
    }

    fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64 {
        let begun = Instant::now();
        let loss = self.differentiate(Setting::of(manifest), &job.state.parameters, batch(job));
        self.spent.gradient += begun.elapsed();
        let differentiated = Instant::now();
        let gradient = self.gradients.first_mut().map_or(&[][..], Gradient::values);
        let layout = Layout::of(&manifest.model);
        let grid = Grid::new(self.exact.kernels, &layout, job);
        grid.place_all(&mut self.exact.threads, gradient, q);
        self.spent.grid += differentiated.elapsed();
        fixed_loss(loss)
    }

    fn leaves<'a>(
        &mut self,
        manifest: &Manifest,
        tasks: &mut (dyn Iterator<Item = LeafTask<'a>> + Send),
        take: &mut dyn FnMut(Vec<i32>, i64),
    ) {
        let layout = Layout::of(&manifest.model);
        let Self { differentiator, exact, gradients, spent, .. } = self;
        gradients.resize_with(2, || Gradient::new(differentiator.device));
        scope(|scope| {
            let ((give, spare), (done, differentiated)) = (channel(), channel());
            for gradient in gradients.drain(..) {
                let _ = give.send(gradient);
            }
            let feeding = scope.spawn(move || {
                differentiator.feed(manifest, tasks, &spare, done);
                spare
            });
            for (mut task, mut gradient, loss, passed) in differentiated {
                let arriving = Instant::now();
                gradient.values();
                spent.gradient += passed + arriving.elapsed();
                let begun = Instant::now();
                let mut q = std::mem::take(&mut task.q);
                q.resize(layout.parameters(), 0);
                let grid = Grid::new(exact.kernels, &layout, &task.job());
                grid.place_all(&mut exact.threads, gradient.values(), &mut q);
                let _ = give.send(gradient);
                spent.grid += begun.elapsed();
                take(q, fixed_loss(loss));
            }
            match feeding.join() {
                Ok(spare) => gradients.extend(spare.try_iter()),
                // With the library's own words, as where one thread does everything.
                Err(panic) => resume_unwind(panic),
            }
        });
    }

    fn apply(&mut self, manifest: &Manifest, state: &mut State, update: &Update) {
        self.exact.apply(manifest, state, update);
    }

    fn evaluate(&mut self, manifest: &Manifest, state: &State, windows: &[Vec<u32>]) -> f64 {
        self.exact.evaluate(manifest, state, windows)
    }

    fn threads(&self) -> usize {
        self.differentiator.threads
    }
}

fn batch<'a>(job: &LeafJob<'a>) -> Batch<'a> {
    Batch { windows: job.windows, seed: job.round_seed, leaf: job.leaf }
}
