//! The shared library itself: which one it is, its settings, its kernels for CUDA.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::sync::{Mutex, MutexGuard};

use muster_core::error::Misuse;
use muster_core::lock::lock;
use tch::{Kind, Tensor};

/// What this crate was written and measured with.
const VERSION: &str = "2.11.0";

// Defined in `settings.cpp`; the strings are its own and stay.
unsafe extern "C" {
    safe fn muster_torch_load_cuda() -> *const c_char;
    safe fn muster_torch_configuration() -> *const c_char;
    safe fn muster_torch_settle(tf32: bool);
}

/// What a function of `settings.cpp` says.
fn said(text: *const c_char) -> String {
    // SAFETY: they return C strings that stay.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Whether the library that the system found is the one that this program was built for.
///
/// # Errors
/// [`Misuse`] with the remedy.
pub(super) fn check_version() -> Result<(), Misuse> {
    let configuration = said(muster_torch_configuration());
    let version =
        configuration.split("TORCH_VERSION=").nth(1).and_then(|rest| rest.split([',', '\n']).next());
    let version = version.unwrap_or("unknown").trim();
    if version == VERSION {
        return Ok(());
    }
    Err(Misuse(format!(
        "this program was built for libtorch {VERSION} and found version {version}: let LD_LIBRARY_PATH begin with the \
         folder torch/lib of a PyTorch {VERSION}"
    )))
}

/// Loads the kernels for CUDA, if they are there; before any other call.
///
/// # Errors
/// [`Misuse`] with the reason and the remedy.
pub(super) fn load_cuda() -> Result<(), Misuse> {
    let reason = said(muster_torch_load_cuda());
    if reason.is_empty() {
        return Ok(());
    }
    Err(Misuse(format!(
        "libtorch has no CUDA here ({reason}): let LD_LIBRARY_PATH begin with the folder torch/lib of a whole PyTorch \
         {VERSION}, or compute with --device cpu"
    )))
}

/// The values of a flat vector on the processor.
///
/// # Panics
/// When it is another kind of tensor.
pub(super) fn values(vector: &Tensor) -> &[f32] {
    let flat = vector.dim() == 1 && vector.is_contiguous();
    assert!(flat && vector.kind() == Kind::Float && vector.device() == tch::Device::Cpu, "a flat vector");
    if vector.numel() == 0 {
        return &[];
    }
    // SAFETY: `numel` f32 lie there, one after the other, as long as the tensor lives; what writes to a tensor borrows
    // it exclusively, and no other tensor of ours shares this one's memory while it is only borrowed.
    unsafe { std::slice::from_raw_parts(vector.data_ptr().cast(), vector.numel()) }
}

/// Libtorch's settings are the process's: whoever holds this is the only one who computes with it.
pub(super) type LibtorchGuard = MutexGuard<'static, ()>;

/// Waits for the library and settles it: this many threads, deterministic kernels, products as asked.
pub(super) fn settle(threads: usize, tf32: bool) -> LibtorchGuard {
    static PROCESS: Mutex<()> = Mutex::new(());
    let turn = lock(&PROCESS);
    tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
    muster_torch_settle(tf32);
    turn
}
