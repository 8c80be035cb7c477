//! The arithmetic with defined bits on graphics processors, by OpenCL or CUDA.
//!
//! ARITH-2 makes every element of a product one chain of `fma`, and all else is f32 in a stated order: that is what any
//! device's ordinary units compute, a work-item an element. No tolerance is needed, and none is given: what a device computes
//! is compared for equality, like everybody's.
//!
//! The kernels (`*.cl`) are written once, in the words that `opencl.h` and `cuda.h` give to both languages.
//! What a compiler might contract is in kernels of its own, or exact either way.

mod albert;
mod attention;
mod buffers;
mod cuda;
mod decoder;
pub(crate) mod driver;
pub(crate) mod engine;
mod fleet;
mod guard;
mod host;
mod opencl;
mod order;
mod proof;
mod queue;
mod steps;
#[cfg(test)]
pub(crate) mod tests;
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
use driver::{Description, Driver, Fault};
use engine::{Begun, Engine, LossParts, batch};
pub use fleet::Fleet;
pub(crate) use guard::guarded;
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

    fn open(&self) -> Result<Box<dyn Driver>, Fault> {
        let description = self.description.clone();
        Ok(match &self.way {
            Reached::OpenCl(device) => Box::new(opencl::OpenCl::open(description, device)?),
            Reached::Cuda(number) => Box::new(cuda::Cuda::open(description, *number)?),
        })
    }
}

/// Asks the drivers of this machine for their devices, each once for every library that reaches it: graphics processors first,
/// and of NVIDIA's those by CUDA, which is a little faster and wants its compiler installed.
pub(crate) fn look() -> Vec<Found> {
    // What panics has no devices.
    let by_cuda = guarded(|| Ok(cuda::devices())).unwrap_or_default().into_iter();
    let by_cuda = by_cuda.map(|(description, number)| (description, Reached::Cuda(number)));
    let by_opencl = guarded(|| Ok(opencl::devices())).unwrap_or_default().into_iter();
    let by_opencl = by_opencl.map(|(description, device)| (description, Reached::OpenCl(device)));
    let mut found: Vec<Found> =
        by_cuda.chain(by_opencl).map(|(description, way)| Found { description, way }).collect();
    found.sort_by_key(|found| !found.description.graphics);
    found
}

/// All kernels as NVIDIA's compiler reads them: for `tests/bench/kernels.py`.
#[doc(hidden)]
pub fn cuda_source() -> String {
    driver::source(cuda::WORDS, true)
}

/// The profile `exact` on a device. What it does not compute (an update, or anything after it failed) the processor does, with
/// the same bits.
pub struct Gpu {
    pub(crate) exact: Exact,
    engine: Option<Engine>,
    says: String,
    /// Which leaves are computed twice.
    lot: Lot,
    /// Why what was computed so far must not be signed.
    doubt: Option<String>,
    gradient: Vec<f32>,
    spent: LeafTimes,
}

impl Gpu {
    /// Opens a device, beside the processor.
    ///
    /// # Errors
    /// [`Misuse`] with what is missing and what to do.
    pub fn open(found: &Found, exact: Exact) -> Result<Self, Misuse> {
        let says = found.says();
        let driver = guarded(|| found.open().map_err(|fault| fault.0));
        let driver =
            driver.map_err(|why| Misuse(format!("{says} cannot compute: {why}; --device cpu does")))?;
        Ok(Self::with(driver, exact, says))
    }

    fn with(driver: Box<dyn Driver>, exact: Exact, says: String) -> Self {
        let engine = Engine::new(driver, exact.kernels, exact.threads());
        Self {
            exact,
            engine: Some(engine),
            says,
            lot: Lot::new(TWICE),
            doubt: None,
            gradient: Vec::new(),
            spent: LeafTimes::default(),
        }
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
        let (kernels, threads) = (self.exact.kernels, self.exact.threads());
        self.engine = self.engine.take().map(|engine| {
            let driver = Timed { driver: engine.into_driver(), times: times.clone() };
            Engine::new(Box::new(driver), kernels, threads)
        });
        times
    }

    /// A decoder's logits of the token that follows these, under these parameters or those of the call before; none where the device
    /// failed.
    ///
    /// # Panics
    /// As [`crate::Reader::after`].
    pub(crate) fn after(
        &mut self,
        manifest: &Manifest,
        parameters: Option<&[f32]>,
        tokens: &[u32],
    ) -> Option<Vec<f32>> {
        let (model, length) = (&manifest.model, tokens.len());
        assert!((1..=model.sequence as usize).contains(&length), "a window has 1 to `sequence` tokens");
        // What follows these tokens changes none of their rows.
        let mut window = tokens.to_vec();
        window.resize(model.sequence as usize + 1, 0);
        self.ask(|engine| engine.logits(model, parameters, &window, length - 1..length))
    }

    /// What the loss of a leaf that was begun is made of, once it is computed.
    fn parts(&mut self, way: &Way<'_>) -> Option<LossParts> {
        let begun = way.begun.as_ref()?;
        self.ask(|engine| engine.loss(begun))
    }

    /// Begins a leaf. With `same`, the one before had the same parameters.
    fn begin<'a>(&mut self, manifest: &Manifest, task: LeafTask<'a>, same: bool) -> Way<'a> {
        let begun = match task.windows.is_empty() {
            true => None,
            false => self.ask(|engine| engine.begin(&manifest.model, &task.job(), same)),
        };
        Way { task, begun, twice: self.lot.draw() }
    }

    /// The integers and the loss of a leaf whose parts are there; by the processor where the device failed.
    fn finish(
        &mut self,
        manifest: &Manifest,
        way: &mut Way<'_>,
        parts: Option<LossParts>,
    ) -> (Vec<i32>, i64) {
        let mut q = std::mem::take(&mut way.task.q);
        q.resize(way.task.state.parameters.len(), 0);
        let job = way.task.job();
        let loss = parts.and_then(|parts| {
            let begun = way.begun.take()?;
            self.ask(|engine| engine.integers(&begun, &job, &mut q))?;
            Some(fixed_loss(parts.mean()))
        });
        let loss = loss.unwrap_or_else(|| self.exact.leaf(manifest, &job, &mut q));
        (q, loss)
    }

    /// Computes a leaf once more. Where the device gives something else, what it computed before is in doubt as well; the
    /// processor computes this leaf, and from now on all.
    fn check(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32], loss: &mut i64) {
        let same = self.ask(|engine| {
            let begun = engine.begin(&manifest.model, job, true)?;
            let parts = engine.loss(&begun)?;
            Ok(engine.has_integers(&begun, job, q)? && fixed_loss(parts.mean()) == *loss)
        });
        if same == Some(false) {
            let why = "it computed one leaf in two ways: its memory or its units fail";
            self.distrust(&Fault(why.into()));
            *loss = self.exact.leaf(manifest, job, q);
        }
    }

    /// Leaves the device to itself, and what it has computed so far unsigned.
    fn distrust(&mut self, fault: &Fault) {
        self.leave(fault);
        self.doubt = Some(self.says.clone());
    }

    /// Leaves the device to itself, after it failed.
    fn leave(&mut self, fault: &Fault) {
        tracing::error!("{} failed, and the processor goes on: {fault}", self.says);
        self.says = format!("the processor, since {} failed: {fault}", self.says);
        self.engine = None;
    }

    /// Asks the device, where there is one.
    fn ask<T>(&mut self, ask: impl FnOnce(&mut Engine) -> Result<T, Fault>) -> Option<T> {
        let engine = self.engine.as_mut()?;
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
        if job.windows.is_empty() {
            return self.exact.gradient(manifest, job);
        }
        let mut gradient = std::mem::take(&mut self.gradient);
        gradient.resize(job.state.parameters.len(), 0.0);
        let (model, parameters, batch) = (&manifest.model, &job.state.parameters, batch(job));
        let done = self.ask(|engine| engine.gradient(model, parameters, batch, &mut gradient));
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
        proof::prove(engine, exact.kernels, says)
    }

    fn describe(&self) -> String {
        self.says.clone()
    }

    fn doubt(&self) -> Option<&str> {
        self.doubt.as_deref()
    }
}

impl Arithmetic for Gpu {
    fn initial(&mut self, manifest: &Manifest, calibration: &[Vec<u32>]) -> State {
        self.exact.initial(manifest, calibration)
    }

    fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64 {
        if job.windows.is_empty() {
            return self.exact.leaf(manifest, job, q);
        }
        let begun_at = Instant::now();
        let done = self.ask(|engine| {
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
        if self.engine.is_none() {
            return self.exact.leaves(manifest, tasks, take);
        }
        if let Some(local) = manifest.local() {
            return self.segments(manifest, local, tasks, take);
        }
        let mut before: Option<Way<'a>> = None;
        loop {
            let begun_at = Instant::now();
            let next = tasks.next();
            let mut parts = before.as_ref().and_then(|way| self.parts(way));
            // Both are borrowed until the last leaf is taken: the same address is the same state.
            let state = before.as_ref().filter(|way| way.begun.is_some()).map(|way| way.task.state);
            let same = |task: &LeafTask<'a>| state.is_some_and(|state| std::ptr::eq(state, task.state));
            let mut taken = None;
            // Before the next leaf is begun, or while it is computed.
            if let Some(way) = before.as_mut().filter(|way| way.twice && way.begun.is_some()) {
                let (mut q, mut loss) = self.finish(manifest, way, parts.take());
                self.check(manifest, &way.task.job(), &mut q, &mut loss);
                taken = Some((q, loss));
            }
            let next = next.map(|task| {
                let same = same(&task);
                self.begin(manifest, task, same)
            });
            if let Some(mut way) = before.take() {
                let (q, loss) = taken.unwrap_or_else(|| self.finish(manifest, &mut way, parts));
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
        if windows.is_empty() {
            return self.exact.evaluate(manifest, state, windows);
        }
        let model = &manifest.model;
        let batch = Batch { windows, seed: calibration_seed(manifest.run()), leaf: Leaf(1) };
        let done = self.ask(|engine| engine.evaluate(model, &state.parameters, batch));
        done.unwrap_or_else(|| self.exact.evaluate(manifest, state, windows))
    }

    fn logits(
        &mut self,
        manifest: &Manifest,
        state: &State,
        tokens: &[u32],
        positions: usize,
    ) -> Option<Vec<f32>> {
        // An answer to a call is signed, and a false one is a ban (CALL-5): nothing tells a device that fails in it.
        self.exact.logits(manifest, state, tokens, positions)
    }

    fn threads(&self) -> usize {
        self.exact.threads()
    }
}

/// A leaf on its way; not begun where the device failed.
struct Way<'a> {
    task: LeafTask<'a>,
    begun: Option<Begun>,
    /// Whether it is computed once more.
    twice: bool,
}

/// One leaf of so many, by lot: which ones it are need not be secret, a fault does not choose its leaf.
struct Lot {
    of: u64,
    state: u64,
}

/// Leaves of which one is computed twice.
const TWICE: u64 = 16;

impl Lot {
    fn new(of: u64) -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self { of, state: RandomState::new().hash_one(of) }
    }

    fn draw(&mut self) -> bool {
        // Knuth's linear congruential numbers ("Seminumerical Algorithms", 3.3.4); their upper bits are good enough.
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33).is_multiple_of(self.of)
    }
}
