//! The shared library itself: which one it is, its settings, its kernels for CUDA; memory that it shares with Rust.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use muster_core::error::Misuse;
use muster_core::lock::lock;
use tch::{Kind, Tensor};
use torch_sys::C_tensor;

/// What this crate was written and measured with.
const VERSION: &str = "2.11.0";

// Defined in `settings.cpp` and `device.cpp`; the strings are their own and stay, that of a failure until the
// next one.
unsafe extern "C" {
    safe fn muster_torch_load_cuda() -> *const c_char;
    safe fn muster_torch_configuration() -> *const c_char;
    safe fn muster_torch_settle(tf32: bool) -> *const c_char;
    safe fn muster_torch_free(number: i64) -> i64;
    safe fn muster_torch_failure() -> *const c_char;
    fn muster_torch_pin(vector: *mut C_tensor) -> bool;
    fn muster_torch_download(to: *mut C_tensor, from: *const C_tensor) -> *mut c_void;
    fn muster_torch_wait(download: *mut c_void) -> bool;
}

/// What such a function says.
fn said(text: *const c_char) -> String {
    // SAFETY: they return C strings that stay for as long as this takes.
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
    assert_flat(vector);
    if vector.numel() == 0 {
        return &[];
    }
    // SAFETY: `numel` f32 lie there, one after the other, as long as the tensor lives; what writes to a tensor borrows
    // it exclusively, and no other tensor of ours shares this one's memory while it is only borrowed.
    unsafe { std::slice::from_raw_parts(vector.data_ptr().cast(), vector.numel()) }
}

/// The same, to be changed. No other tensor that shares its memory is in use.
///
/// # Panics
/// When it is another kind of tensor.
pub(super) fn values_mut(vector: &mut Tensor) -> &mut [f32] {
    assert_flat(vector);
    if vector.numel() == 0 {
        return &mut [];
    }
    // SAFETY: as in `values`, and the tensor is borrowed exclusively.
    unsafe { std::slice::from_raw_parts_mut(vector.data_ptr().cast(), vector.numel()) }
}

fn assert_flat(vector: &Tensor) {
    let flat = vector.dim() == 1 && vector.is_contiguous();
    assert!(flat && vector.kind() == Kind::Float && vector.device() == tch::Device::Cpu, "a flat vector");
}

/// Moves a vector to memory that graphics processors read and write by themselves, as far as the system grants that.
pub(super) fn pin(vector: &mut Tensor) {
    // SAFETY: it is a tensor, which becomes another one of the same values; after a failure it is what it was.
    let _ = unsafe { muster_torch_pin(vector.as_mut_ptr()) };
}

/// A vector on its way from a graphics processor to memory. It holds both ends, so that nothing of them is touched before
/// it has arrived.
pub(super) struct Download {
    /// None once it was waited for.
    copied: Option<NonNull<c_void>>,
    to: Tensor,
    from: Tensor,
}

// SAFETY: the pointer is an event of CUDA's, which any thread may wait for, and only its owner does.
unsafe impl Send for Download {}

impl Download {
    /// Begins to copy, after what the device was asked to do so far.
    ///
    /// # Errors
    /// Both ends, where the device cannot do so beside its computations.
    pub(super) fn begin(mut to: Tensor, from: Tensor) -> Result<Self, [Tensor; 2]> {
        // SAFETY: both tensors live in what is returned, until the copy is over.
        let copied = unsafe { muster_torch_download(to.as_mut_ptr(), from.as_ptr()) };
        match NonNull::new(copied) {
            None => Err([to, from]),
            copied => Ok(Self { copied, to, from }),
        }
    }

    /// Both ends, once it has arrived: `to`, then `from`.
    ///
    /// # Panics
    /// With libtorch's own words, when the device fails.
    pub(super) fn wait(mut self) -> [Tensor; 2] {
        assert!(self.arrives(), "{}", said(muster_torch_failure()));
        [&mut self.to, &mut self.from].map(|end| std::mem::replace(end, Tensor::new()))
    }

    fn arrives(&mut self) -> bool {
        // SAFETY: it is the event of a download that began, and is given away here.
        self.copied.take().is_none_or(|copied| unsafe { muster_torch_wait(copied.as_ptr()) })
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // The device writes until then, and the memory would be another vector's.
        let _ = self.arrives();
    }
}

/// Bytes that are free on a graphics processor, if that can be known.
pub(super) fn free_memory(number: usize) -> Option<u64> {
    u64::try_from(muster_torch_free(i64::try_from(number).ok()?)).ok()
}

/// Libtorch's settings are the process's: whoever holds this is the only one who computes with it.
pub(super) type LibtorchGuard = MutexGuard<'static, ()>;

/// Waits for the library and settles it: this many threads, deterministic kernels, products as asked.
///
/// # Panics
/// With libtorch's own words, when it cannot be settled.
pub(super) fn settle(threads: usize, tf32: bool) -> LibtorchGuard {
    static PROCESS: Mutex<()> = Mutex::new(());
    let turn = lock(&PROCESS);
    tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
    let reason = said(muster_torch_settle(tf32));
    assert!(reason.is_empty(), "{reason}");
    turn
}
