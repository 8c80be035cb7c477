//! The arithmetic with defined bits on graphics processors, by OpenCL or CUDA.
//!
//! ARITH-2 makes every element of a product one chain of `fma`, and all else is f32 in a stated order: that is what any
//! device's ordinary units compute, a work-item an element. No tolerance is needed, and none is given: what a device computes
//! is compared for equality, like everybody's.
//!
//! The kernels (`rows.cl`, `product.cl`) are written once, in the words that `opencl.h` and `cuda.h` give to both languages.
//! What a compiler might contract is in kernels of its own, or exact either way.

mod attention;
mod buffers;
#[allow(unsafe_code)]
mod cuda;
mod decoder;
mod driver;
mod engine;
mod mixture;
#[allow(unsafe_code)]
mod opencl;
mod order;
mod queue;
#[cfg(test)]
mod tests;
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
use crate::leaf::{Batch, LeafTimes};
use crate::self_test;
use driver::{Description, Driver, Fault};
use engine::{Begun, Engine, Host, LossParts, batch};
use timed::Timed;
pub use timed::Times;

/// A device that was found, and how it is reached.
pub struct Found {
    description: Description,
    way: Reached,
}

enum Reached {
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

    fn open(self) -> Result<Box<dyn Driver>, Fault> {
        Ok(match self.way {
            Reached::OpenCl(device) => Box::new(opencl::OpenCl::open(self.description, &device)?),
            Reached::Cuda(number) => Box::new(cuda::Cuda::open(self.description, number)?),
        })
    }
}

/// The devices of this machine, by number: graphics processors first. Those that CUDA reaches are named only where OpenCL has
/// none of NVIDIA's.
pub fn devices() -> Vec<Found> {
    let by_opencl = opencl::devices()
        .into_iter()
        .map(|(description, device)| Found { description, way: Reached::OpenCl(device) });
    let mut found: Vec<Found> = by_opencl.collect();
    let forced = std::env::var_os("MUSTER_CUDA").is_some();
    for (description, number) in cuda::devices() {
        if forced || !found.iter().any(|other| other.description.name == description.name) {
            found.push(Found { description, way: Reached::Cuda(number) });
        }
    }
    if forced {
        found.retain(|found| matches!(found.way, Reached::Cuda(_)));
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
    /// Opens the device of this number in [`devices`], beside the processor.
    ///
    /// # Errors
    /// [`Misuse`] with what is missing and what to do.
    pub fn open(number: usize, exact: Exact) -> Result<Self, Misuse> {
        let found = devices();
        let count = found.len();
        let Some(found) = found.into_iter().nth(number) else {
            return Err(Misuse(match count {
                0 => "no graphics processor is found: OpenCL needs its loader (Debian: ocl-icd-libopencl1) and the driver of the \
                      device's vendor; or leave out --device"
                    .into(),
                _ => format!("there is no device gpu:{number}: the last one here is gpu:{}", count - 1),
            }));
        };
        let says = found.says();
        let driver = found.open().map_err(|fault| Misuse(format!("{says} cannot compute: {fault}")))?;
        let engine = Engine::new(driver, host(&exact));
        Ok(Self { exact, engine: Some(engine), says, gradient: Vec::new(), spent: LeafTimes::default() })
    }

    /// From now on all products have large tiles, or small ones; with none, their size decides: for tests.
    #[doc(hidden)]
    pub fn force_tiles(&mut self, large: Option<bool>) {
        if let Some(engine) = &mut self.engine {
            engine.force_tiles(large);
        }
    }

    /// From now on waits after every kernel and adds up what each took: for measuring.
    pub fn time(&mut self) -> Times {
        let times = Times::default();
        let host = host(&self.exact);
        self.engine = self.engine.take().map(|engine| {
            Engine::new(Box::new(Timed { driver: engine.into_driver(), times: times.clone() }), host)
        });
        times
    }

    /// Waits for the leaf before, and begins the next one. Gives what the loss of the leaf before is made of, where the device
    /// has computed it.
    fn turn<'a>(
        &mut self,
        manifest: &Manifest,
        before: Option<&Way<'a>>,
        next: Option<LeafTask<'a>>,
    ) -> (Option<LossParts>, Option<Way<'a>>) {
        let parts = before.and_then(|way| {
            let begun = way.begun.as_ref()?;
            self.ask(&manifest.model, |engine| engine.loss(begun))
        });
        let next = next.map(|task| {
            // Both are borrowed until the last leaf is taken: the same address is the same state.
            let same =
                before.is_some_and(|way| way.begun.is_some() && std::ptr::eq(way.task.state, task.state));
            let begun = self.ask(&manifest.model, |engine| engine.begin(&manifest.model, &task.job(), same));
            Way { task, begun }
        });
        (parts, next)
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
        let done = self.ask(model, |engine| engine.gradient(model, parameters, batch, &mut gradient));
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
        let begun_at = Instant::now();
        let done = self.ask(&manifest.model, |engine| {
            let begun = engine.begin(&manifest.model, job, false)?;
            let parts = engine.loss(&begun)?;
            engine.integers(&begun, job, q)?;
            Ok(fixed_loss(parts.mean()))
        });
        self.spent.gradient += begun_at.elapsed();
        done.unwrap_or_else(|| self.exact.leaf(manifest, job, q))
    }

    fn leaves<'a>(
        &mut self,
        manifest: &Manifest,
        tasks: &mut (dyn Iterator<Item = LeafTask<'a>> + Send),
        take: &mut dyn FnMut(Vec<i32>, i64),
    ) {
        if manifest.local().is_some() || self.engine.is_none() || !Engine::has(&manifest.model) {
            return self.exact.leaves(manifest, tasks, take);
        }
        let mut before: Option<Way<'a>> = None;
        loop {
            let begun_at = Instant::now();
            let next = tasks.next();
            // While the next leaf is computed, the one before is copied and taken.
            let (parts, next) = self.turn(manifest, before.as_ref(), next);
            if let Some(Way { mut task, begun }) = before {
                let mut q = std::mem::take(&mut task.q);
                q.resize(task.state.parameters.len(), 0);
                let job = task.job();
                let loss = parts.and_then(|parts| {
                    let begun = begun?;
                    self.ask(&manifest.model, |engine| engine.integers(&begun, &job, &mut q))?;
                    Some(fixed_loss(parts.mean()))
                });
                let loss = loss.unwrap_or_else(|| self.exact.leaf(manifest, &job, &mut q));
                self.spent.gradient += begun_at.elapsed();
                take(q, loss);
            }
            let Some(next) = next else { return };
            before = Some(next);
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

/// How the processor beside a device computes.
fn host(exact: &Exact) -> Host {
    Host { kernels: exact.kernels, threads: exact.threads() }
}

/// A leaf on its way; not begun where the device failed.
struct Way<'a> {
    task: LeafTask<'a>,
    begun: Option<Begun>,
}
