//! The arithmetic with defined bits on graphics processors, by OpenCL or CUDA.
//!
//! ARITH-2 makes every element of a product one chain of `fma`, and all else is f32 in a stated order: that is what any
//! device's ordinary units compute, a work-item an element. No tolerance is needed, and none is given: what a device computes
//! is compared for equality, like everybody's.
//!
//! The kernels (`rows.cl`, `product.cl`) are written once, in the words that `opencl.h` and `cuda.h` give to both languages.
//! What a compiler might contract is in kernels of its own, or exact either way.

mod buffers;
mod cuda;
mod decoder;
mod driver;
mod engine;
mod opencl;
mod queue;
mod timed;

use std::time::Instant;

use muster_core::assign::calibration_seed;
use muster_core::error::Misuse;
use muster_core::grid::fixed_loss;
use muster_core::ids::Leaf;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, LeafJob, LeafTask, State, Update};

use crate::Exact;
use crate::backend::Backend;
use crate::devices::{device, guarded};
use crate::leaf::{Batch, LeafTimes};
use crate::self_test;
use driver::{Description, Driver, Fault};
use engine::{Engine, Wanted};
use timed::Timed;
pub use timed::Times;

/// A device that was found, and how it is reached.
pub struct Found {
    description: Description,
    way: Way,
}

enum Way {
    OpenCl(opencl3::device::Device),
    Cuda(i32),
}

impl Found {
    /// Its name, and the driver that reaches it.
    pub fn says(&self) -> String {
        let Description { name, driver, memory, .. } = &self.description;
        format!("{name} ({driver}, {} MiB)", memory >> 20)
    }

    /// Whether it is a graphics processor.
    pub fn is_graphics(&self) -> bool {
        self.description.graphics
    }

    fn open(&self) -> Result<Box<dyn Driver>, Fault> {
        let description = self.description.clone();
        Ok(match &self.way {
            Way::OpenCl(device) => Box::new(opencl::OpenCl::open(description, device)?),
            Way::Cuda(number) => Box::new(cuda::Cuda::open(description, *number)?),
        })
    }
}

/// Asks the drivers of this machine for their devices: graphics processors first. Those that CUDA reaches are named only where
/// OpenCL has none of NVIDIA's.
pub(crate) fn look() -> Vec<Found> {
    // What panics has no devices.
    let by_opencl = guarded(|| Ok(opencl::devices())).unwrap_or_default()
        .into_iter()
        .map(|(description, device)| Found { description, way: Way::OpenCl(device) });
    let mut found: Vec<Found> = by_opencl.collect();
    let forced = std::env::var_os("MUSTER_CUDA").is_some();
    for (description, number) in guarded(|| Ok(cuda::devices())).unwrap_or_default() {
        if forced || !found.iter().any(|other| other.description.name == description.name) {
            found.push(Found { description, way: Way::Cuda(number) });
        }
    }
    if forced {
        found.retain(|found| matches!(found.way, Way::Cuda(_)));
    }
    found.sort_by_key(|found| !found.description.graphics);
    found
}

/// The profile `exact` on a device. What the device does not compute, or no longer, the processor does: with the same bits.
pub struct Gpu {
    exact: Exact,
    engine: Option<Engine>,
    says: String,
    gradient: Vec<f32>,
    spent: LeafTimes,
}

impl Gpu {
    /// Opens the device of this number in [`crate::devices()`], beside the processor.
    ///
    /// # Errors
    /// [`Misuse`] with what is missing and what to do.
    pub fn open(number: usize, exact: Exact) -> Result<Self, Misuse> {
        let found = device(number)?;
        let says = found.says();
        let driver = guarded(|| found.open().map_err(|fault| fault.0));
        let driver =
            driver.map_err(|why| Misuse(format!("{says} cannot compute: {why}; --device cpu does")))?;
        Ok(Self {
            exact,
            engine: Some(Engine::new(driver)),
            says,
            gradient: Vec::new(),
            spent: LeafTimes::default(),
        })
    }

    /// Whether a device computes the leaves of such a run so far; else the processor beside it does.
    pub fn computes(manifest: &Manifest) -> bool {
        Engine::has(&manifest.model) && manifest.local().is_none()
    }

    /// From now on waits after every kernel and adds up what each took: for measuring.
    pub fn time(&mut self) -> Times {
        let times = Times::default();
        self.engine = self.engine.take().map(|engine| {
            Engine::new(Box::new(Timed { driver: engine.into_driver(), times: times.clone() }))
        });
        times
    }

    /// Leaves the device to itself, after it failed.
    fn leave(&mut self, fault: &Fault) {
        self.says = format!("the processor, since {} failed: {fault}", self.says);
        self.engine = None;
    }

    /// Asks the device, where there is one that computes such models.
    fn ask<T>(
        &mut self,
        model: &muster_core::manifest::Model,
        ask: impl FnOnce(&mut Engine) -> Result<T, Fault>,
    ) -> Option<T> {
        let engine = self.engine.as_mut().filter(|_| Engine::has(model))?;
        match ask(engine) {
            Ok(answer) => Some(answer),
            Err(fault) => {
                self.leave(&fault);
                None
            }
        }
    }
}

impl Backend for Gpu {
    fn gradient(&mut self, manifest: &Manifest, job: &LeafJob<'_>) -> &[f32] {
        let mut gradient = std::mem::take(&mut self.gradient);
        gradient.resize(job.state.parameters.len(), 0.0);
        let (model, parameters, batch) = (&manifest.model, &job.state.parameters, batch(job));
        let done =
            self.ask(model, |engine| engine.leaf(model, parameters, batch, Wanted::Reals(&mut gradient)));
        self.gradient = gradient;
        match done {
            Some(_) => &self.gradient,
            None => self.exact.gradient(manifest, job),
        }
    }

    fn spent(&self) -> LeafTimes {
        let LeafTimes { gradient, grid } = self.exact.spent();
        LeafTimes { gradient: self.spent.gradient + gradient, grid: self.spent.grid + grid }
    }

    fn self_test(&mut self) -> Result<(), Misuse> {
        self.exact.self_test()?;
        let Self { exact, engine: Some(engine), says, .. } = self else { return Ok(()) };
        self_test::run(engine, exact.kernels, says, Engine::has)
    }

    fn describe(&self) -> String {
        self.says.clone()
    }
}

impl Arithmetic for Gpu {
    fn initial(&mut self, manifest: &Manifest, calibration: &[Vec<u32>]) -> State {
        self.exact.initial(manifest, calibration)
    }

    fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64 {
        let begun = Instant::now();
        let (model, parameters, batch) = (&manifest.model, &job.state.parameters, batch(job));
        let done = self.ask(model, |engine| engine.leaf(model, parameters, batch, Wanted::Integers(job, q)));
        match done {
            Some(loss) => {
                self.spent.gradient += begun.elapsed();
                fixed_loss(loss)
            }
            None => self.exact.leaf(manifest, job, q),
        }
    }

    fn leaves<'a>(
        &mut self,
        manifest: &Manifest,
        tasks: &mut (dyn Iterator<Item = LeafTask<'a>> + Send),
        take: &mut dyn FnMut(Vec<i32>, i64),
    ) {
        // The steps of a member between two rounds are the processor's.
        if manifest.local().is_some() {
            return self.exact.leaves(manifest, tasks, take);
        }
        for mut task in tasks {
            let mut q = std::mem::take(&mut task.q);
            q.resize(task.state.parameters.len(), 0);
            let loss = self.leaf(manifest, &task.job(), &mut q);
            take(q, loss);
        }
    }

    fn apply(&mut self, manifest: &Manifest, state: &mut State, update: &Update) {
        self.exact.apply(manifest, state, update);
    }

    fn evaluate(&mut self, manifest: &Manifest, state: &State, windows: &[Vec<u32>]) -> f64 {
        let model = &manifest.model;
        let batch = Batch { windows, seed: calibration_seed(manifest.run()), leaf: Leaf(1) };
        let done = self.ask(model, |engine| engine.evaluate(model, &state.parameters, batch));
        done.unwrap_or_else(|| self.exact.evaluate(manifest, state, windows))
    }

    fn logits(
        &mut self,
        manifest: &Manifest,
        state: &State,
        tokens: &[u32],
        positions: usize,
    ) -> Option<Vec<f32>> {
        self.exact.logits(manifest, state, tokens, positions)
    }

    fn threads(&self) -> usize {
        self.exact.threads()
    }
}

fn batch<'a>(job: &LeafJob<'a>) -> Batch<'a> {
    Batch { windows: job.windows, seed: job.round_seed, leaf: job.leaf }
}
