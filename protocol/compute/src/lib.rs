//! Muster's arithmetic in defined bits: the profile `exact`.
//!
//! [`Exact`] computes a Llama-style decoder or an ALBERT forward and backward, puts its gradient on the grid, and
//! applies a round's aggregate by AdamW or LAMB. Results are equal bit for bit on every [`Path`], thread count and build:
//! an audit recomputes them and compares for equality.
//!
//! Where the bits come from: each element of a matrix product is one chain of fused multiply-adds in order of the
//! depth (`kernel::matrix`), sums over rows have one tree (`kernel`), elementary functions are polynomials of our own
//! (`kernel`, `function`), and windows and tokens are added in order (`turns`). Each thread keeps the activations of
//! one window: of every layer, or, where a run wants it, the residual stream and one layer.
//!
//! [`Gpu`] computes the leaves of decoders with the same bits on a graphics processor, by OpenCL or CUDA, whose libraries are
//! looked for when the program runs ([`devices()`]).
//!
//! With feature `tch`, `Torch` computes the leaves of the same models in libtorch, on graphics processors too, close to
//! those of [`Exact`] but not equal. [`Machine`] makes what a run's profile asks for.
//!
//! `unsafe` is allowed in `kernel`, in `gpu::opencl` and `gpu::cuda`, which call the drivers of devices, and in
//! `torch::library`, which calls a few C functions of our own around libtorch.

mod albert;
mod allocator;
mod attention;
mod backend;
mod decoder;
mod devices;
mod exact;
mod function;
mod gpu;
mod grid;
mod initial;
mod kernel;
#[cfg(feature = "tch")]
pub mod launch;
mod leaf;
mod local;
mod machine;
mod matrix;
#[doc(hidden)]
pub mod measure;
mod memory;
mod optimiser;
mod parallel;
mod passes;
mod path;
mod plan;
mod reading;
mod self_test;
mod sketch;
mod squares;
mod sums;
#[cfg(feature = "tch")]
mod torch;
mod turns;
#[cfg(test)]
mod vectors;
mod workers;

pub use allocator::give_back_soon;
pub use backend::{
    Backend, Closeness, Device, DeviceChoice, Libtorch, Numbers, OpenResult, Precision, TorchSetting,
};
pub use decoder::positions::rotary_divisors;
pub use devices::{broken_drivers, devices, missing_devices, try_drivers_apart};
pub use exact::{Exact, Reader};
pub use gpu::{Fleet, Found, Gpu, Times, cuda_source};
pub use leaf::LeafTimes;
pub use local::reach;
pub use machine::{Library, Machine};
pub use memory::{buffers, graphics_buffers, torch_buffers};
pub use optimiser::ShardStream;
pub use path::{Path, paths};
pub use reading::{Reading, TextReader};
pub use sketch::row;
pub use sums::{add_leaf, copy_leaf};
#[cfg(feature = "tch")]
pub use torch::Torch;
pub use workers::Workers;
