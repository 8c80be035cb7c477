//! Who runs the passes of a rule: with which vector instructions, and on how many threads.

use crate::ieee::require_ieee;

/// A pass over coefficients: loops over arrays of fixed size, of which compilers make vector instructions.
///
/// What [`CoefficientPass::run`] calls in its loops is inlined into it, so that a runner that compiles it for wider
/// vectors compiles all of it so.
pub trait CoefficientPass {
    /// What it finds.
    type Output;

    /// Runs it.
    fn run(self) -> Self::Output;
}

/// Runs passes. Every runner gives the same bits: no operation of a pass is contracted or changes its place.
pub trait Runner: Sync {
    /// Runs one pass.
    fn pass<P: CoefficientPass>(&self, pass: P) -> P::Output;

    /// The results of the tasks `0..count`, in this order; tasks may run at the same time.
    fn each<T: Send>(&self, count: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T>;
}

/// One pass after another, compiled for the widest vectors of this processor.
///
/// A pass panics when the processor's floating-point mode is not the IEEE default: wrong bits would be signed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plain;

impl Runner for Plain {
    fn pass<P: CoefficientPass>(&self, pass: P) -> P::Output {
        // AGG-21: "MUST check first that its thread is in the mode of ARITH-1".
        require_ieee();
        // Wider vectors change no bit: no operation of a pass is contracted or moved.
        pulp::Arch::new().dispatch(|| pass.run())
    }

    fn each<T: Send>(&self, count: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
        (0..count).map(task).collect()
    }
}
