//! Muster's arithmetic in defined bits: the profile `exact`.
//!
//! [`Exact`] computes a Llama-style decoder forward and backward, puts its gradient on the grid, and applies a round's
//! aggregate by AdamW. Results are equal bit for bit on every [`Path`], thread count and build: what an audit
//! recomputes, it compares for equality.
//!
//! Where the bits come from: each element of a matrix product is one chain of fused multiply-adds in order of the
//! depth (`kernel::matrix`), sums over rows have one tree (`kernel`), elementary functions are polynomials of our own
//! (`kernel`, `function`), and windows and tokens are added in order (`leaf`). Activations of a leaf are kept whole,
//! scores of one window too: memory is the price of speed here.

mod attention;
mod decoder;
mod function;
mod initial;
mod kernel;
mod leaf;
#[doc(hidden)]
pub mod measure;
mod optimiser;
mod parallel;
mod path;
mod plan;
mod self_test;
mod tape;

use muster_core::error::Misuse;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, LeafJob, State, Update};

pub use leaf::Spent;
pub use path::{Path, paths};

use kernel::require_ieee;
use optimiser::Rules;
use path::Kernels;

/// The arithmetic of profile `exact`. One value serves one caller at a time and keeps its buffers.
///
/// Every entry panics when the processor's floating-point mode is not the IEEE default: wrong bits would be signed.
pub struct Exact {
    kernels: Kernels,
    engine: leaf::Engine,
    /// One unit a thread.
    threads: Vec<()>,
}

impl Exact {
    /// Computes on this many threads (at least one) along `path`, or along the fastest one.
    ///
    /// # Errors
    /// [`Misuse`] when the processor lacks the path.
    pub fn new(threads: usize, path: Option<Path>) -> Result<Self, Misuse> {
        let kernels = Kernels::new(path.unwrap_or_else(Path::detect))?;
        Ok(Self { kernels, engine: leaf::Engine::new(kernels, threads), threads: vec![(); threads.max(1)] })
    }

    /// Computes two rounds of a small model and compares with the bits that they have.
    ///
    /// # Errors
    /// [`Misuse`] when a bit differs: this processor or build must not take part in a run.
    pub fn self_test(&mut self) -> Result<(), Misuse> {
        require_ieee();
        self_test::run(&mut self.engine, self.kernels)
    }

    /// Time spent on leaves so far.
    pub fn spent(&self) -> Spent {
        self.engine.spent
    }

    /// The path in use.
    pub fn path(&self) -> Path {
        self.kernels.path()
    }
}

impl Arithmetic for Exact {
    fn initial(&mut self, manifest: &Manifest, given: Option<Vec<f32>>, calibration: &[Vec<u32>]) -> State {
        require_ieee();
        let mut state = initial::state(manifest, given);
        let gradient = self.engine.gradient(&manifest.model, &state.parameters, calibration);
        state.exponents = initial::exponents(self.kernels, manifest, gradient);
        state
    }

    fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, sum: &mut [i32]) -> i64 {
        require_ieee();
        self.engine.leaf(&manifest.model, job, sum)
    }

    fn apply(&mut self, manifest: &Manifest, state: &mut State, update: &Update) {
        require_ieee();
        let Manifest { model, optimiser, training, .. } = manifest;
        let rules = Rules { model, optimiser, rounds: training.rounds, grid_bits: training.grid_bits };
        optimiser::apply(self.kernels, &mut self.threads, &rules, state, update);
    }

    fn evaluate(&mut self, manifest: &Manifest, state: &State, windows: &[Vec<u32>]) -> f64 {
        require_ieee();
        self.engine.evaluate(&manifest.model, &state.parameters, windows)
    }
}
