//! Devices by CUDA, whose driver and compiler (NVRTC) are looked for when the program runs: for machines of NVIDIA's that have
//! no OpenCL.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CString, c_void};

use cudarc::driver::{result, sys};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

use super::driver::{
    Argument, Description, Driver, Fault, ITEMS, Memory, Outcome, Place, Slot, names, source,
};

/// The words of the language.
pub(super) const WORDS: &str = include_str!("cuda.h");

pub(super) struct Cuda {
    device: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    module: sys::CUmodule,
    kernels: BTreeMap<&'static str, sys::CUfunction>,
    /// Where each begins, and its bytes; 0 where it was released.
    memory: Vec<(sys::CUdeviceptr, usize)>,
    /// Where copies to the host arrive, by slot.
    hosts: [Option<Host>; 2],
    description: Description,
}

/// Memory of the host that a device writes by itself.
struct Host {
    event: sys::CUevent,
    on_its_way: usize,
    start: *mut u8,
    length: usize,
}

impl Host {
    fn take(bytes: usize) -> Outcome<Self> {
        let event =
            at("making an event", result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING))?;
        // SAFETY: what it holds is not read before it is written.
        let start =
            at(&format!("taking {bytes} bytes of the host"), unsafe { result::malloc_host(bytes, 0) })?;
        Ok(Self { event, on_its_way: 0, start: start.cast(), length: bytes })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: both were made by `take`; what cannot be given back goes with the process.
        unsafe {
            let _ = result::event::synchronize(self.event);
            let _ = result::event::destroy(self.event);
            let _ = result::free_host(self.start.cast());
        }
    }
}

// SAFETY: every call makes the context that of its thread; whoever calls has this value exclusively.
unsafe impl Send for Cuda {}

/// Whether both libraries are there.
fn is_there() -> bool {
    // SAFETY: looks for a library and loads it.
    unsafe { sys::is_culib_present() && cudarc::nvrtc::sys::is_culib_present() }
}

/// All devices, by number; none without the libraries.
pub(super) fn devices() -> Vec<(Description, i32)> {
    if !is_there() || result::init().is_err() {
        return Vec::new();
    }
    (0..result::device::get_count().unwrap_or(0))
        .filter_map(|number| Some((describe(number)?, number)))
        .collect()
}

fn describe(number: i32) -> Option<Description> {
    let device = result::device::get(number).ok()?;
    let mut version = 0;
    // SAFETY: the library is initialised and writes one number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().ok()?;
    let units = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    // SAFETY: the device exists.
    let units = unsafe { result::device::get_attribute(device, units) }.ok()?;
    // SAFETY: as above.
    let memory = unsafe { result::device::total_mem(device) }.ok()? as u64;
    Some(Description {
        name: result::device::get_name(device).ok()?,
        driver: format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
        memory,
        largest: memory,
        graphics: true,
        units: units.unsigned_abs(),
        wide: true,
    })
}

/// Attaches what was done to an error.
fn at<T>(what: &str, outcome: Result<T, result::DriverError>) -> Outcome<T> {
    outcome.map_err(|error| Fault::new(what, error))
}

impl Cuda {
    /// Builds the kernels for a device.
    ///
    /// # Errors
    /// [`Fault`] where it cannot be opened, or the compiler fails.
    pub(super) fn open(description: Description, number: i32) -> Outcome<Self> {
        let device = at("asking for it", result::device::get(number))?;
        let capability = |attribute| {
            // SAFETY: the device exists.
            at("asking what it has", unsafe { result::device::get_attribute(device, attribute) })
        };
        let major = capability(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = capability(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let options = CompileOptions {
            fmad: Some(false),
            ftz: Some(false),
            prec_div: Some(true),
            prec_sqrt: Some(true),
            options: vec![format!("--gpu-architecture=compute_{major}{minor}"), "-w".into()],
            ..CompileOptions::default()
        };
        let ptx = compile_ptx_with_opts(source(WORDS, true), options)
            .map_err(|error| Fault::new("its compiler failed", error))?;
        let image = ptx.as_bytes().ok_or_else(|| Fault("its compiler gave nothing".into()))?;
        // SAFETY: the device exists; the image is a string that ends with 0.
        unsafe {
            let context = at("making a context", result::primary_ctx::retain(device))?;
            at("taking the context", result::ctx::set_current(context))?;
            let stream =
                at("making a stream", result::stream::create(result::stream::StreamKind::NonBlocking))?;
            let module = at("loading the kernels", result::module::load_data(image.as_ptr().cast()))?;
            let mut kernels = BTreeMap::new();
            for name in names(true) {
                let own = CString::new(name).map_err(|error| Fault::new(name, error))?;
                kernels.insert(name, at(name, result::module::get_function(module, own))?);
            }
            Ok(Self {
                device,
                context,
                stream,
                module,
                kernels,
                memory: Vec::new(),
                hosts: [None, None],
                description,
            })
        }
    }

    /// Makes the context that of this thread.
    fn enter(&self) -> Outcome<()> {
        // SAFETY: the context lives as long as this.
        at("taking the context", unsafe { result::ctx::set_current(self.context) })
    }

    /// The address of a place with so many bytes after it.
    fn address(&self, place: Place, bytes: usize) -> Outcome<sys::CUdeviceptr> {
        match self.memory.get(place.memory.0) {
            Some((start, length)) if *start != 0 && 4 * place.first + bytes <= *length => {
                Ok(start + 4 * place.first as u64)
            }
            _ => Err(Fault(format!("{bytes} bytes at {place:?} are no memory of it"))),
        }
    }
}

impl Driver for Cuda {
    fn description(&self) -> &Description {
        &self.description
    }

    fn allocate(&mut self, bytes: usize) -> Outcome<Memory> {
        self.enter()?;
        let bytes = bytes.max(4);
        // SAFETY: what it holds is not read before it is written.
        let start =
            at(&format!("taking {bytes} bytes of its memory"), unsafe { result::malloc_sync(bytes) })?;
        let free = self.memory.iter().position(|(start, _)| *start == 0);
        let number = free.unwrap_or_else(|| {
            self.memory.push((0, 0));
            self.memory.len() - 1
        });
        self.memory[number] = (start, bytes);
        Ok(Memory(number))
    }

    fn release(&mut self, memory: Memory) {
        let entered = self.enter();
        if let Some((start, length)) = self.memory.get_mut(memory.0)
            && *start != 0
            && entered.is_ok()
        {
            // SAFETY: the call waits for what uses it, and nobody reaches it any more.
            let _ = unsafe { result::free_sync(*start) };
            (*start, *length) = (0, 0);
        }
    }

    fn upload(&mut self, to: Place, bytes: &[u8]) -> Outcome<()> {
        self.enter()?;
        let target = self.address(to, bytes.len())?;
        // SAFETY: within the memory; the bytes are there until the stream is done.
        unsafe {
            at("copying to it", result::memcpy_htod_async(target, bytes, self.stream))?;
            at("copying to it", result::stream::synchronize(self.stream))
        }
    }

    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Outcome<()> {
        self.enter()?;
        let start = self.address(from, bytes.len())?;
        // SAFETY: as above.
        unsafe {
            at("copying from it", result::memcpy_dtoh_async(bytes, start, self.stream))?;
            at("copying from it", result::stream::synchronize(self.stream))
        }
    }

    fn stage(&mut self, slot: Slot, from: Place, bytes: usize) -> Outcome<()> {
        self.enter()?;
        let start = self.address(from, bytes)?;
        let host = &mut self.hosts[slot as usize];
        if host.as_ref().is_none_or(|host| host.length < bytes) {
            *host = None;
        }
        let host = match host {
            Some(host) => host,
            None => host.insert(Host::take(bytes)?),
        };
        host.on_its_way = bytes;
        // SAFETY: nobody reads or writes these bytes before the event is over.
        unsafe {
            let target = std::slice::from_raw_parts_mut(host.start, bytes);
            at("copying from it", result::memcpy_dtoh_async(target, start, self.stream))?;
            at("copying from it", result::event::record(host.event, self.stream))
        }
    }

    fn staged(&mut self, slot: Slot) -> Outcome<&[u8]> {
        self.enter()?;
        let Some(host) = &self.hosts[slot as usize] else {
            return Err(Fault("nothing is on its way".into()));
        };
        // SAFETY: the event lives as long as the host's memory, in which so many bytes were written.
        unsafe {
            at("waiting for a copy", result::event::synchronize(host.event))?;
            Ok(std::slice::from_raw_parts(host.start, host.on_its_way))
        }
    }

    fn clear(&mut self, place: Place, values: usize) -> Outcome<()> {
        self.enter()?;
        let start = self.address(place, 4 * values)?;
        // SAFETY: within the memory.
        at("clearing", unsafe { result::memset_d8_async(start, 0, 4 * values, self.stream) })
    }

    fn launch(&mut self, kernel: &'static str, groups: u64, arguments: &[Argument]) -> Outcome<()> {
        if groups == 0 {
            return Ok(());
        }
        self.enter()?;
        let found =
            *self.kernels.get(kernel).ok_or_else(|| Fault(format!("no kernel is called {kernel}")))?;
        let groups = u32::try_from(groups).map_err(|error| Fault::new(kernel, error))?;
        // Eight bytes for each: a kernel reads as many as its argument has, and this processor has the low ones first.
        let mut values: Vec<u64> = Vec::with_capacity(2 * arguments.len());
        for argument in arguments {
            match argument {
                Argument::Int(value) => values.push(u64::from(value.cast_unsigned())),
                Argument::Long(value) => values.push(*value),
                Argument::Real(value) => values.push(u64::from(value.to_bits())),
                Argument::Wide(value) => values.push(value.to_bits()),
                Argument::At(place) => {
                    values.push(self.address(Place { first: 0, ..*place }, 0)?);
                    values.push(place.first as u64);
                }
            }
        }
        let mut pointers: Vec<*mut c_void> =
            values.iter_mut().map(|value| (&raw mut *value).cast()).collect();
        // SAFETY: the kernels' sources and their callers in this module agree on kinds and order, which every kernel's known
        // answers try; each is within its memory.
        let done = unsafe {
            result::launch_kernel(found, (groups, 1, 1), (ITEMS as u32, 1, 1), 0, self.stream, &mut pointers)
        };
        at(kernel, done)
    }

    fn finish(&mut self) -> Outcome<()> {
        self.enter()?;
        // SAFETY: the stream lives as long as this.
        at("waiting for it", unsafe { result::stream::synchronize(self.stream) })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        self.hosts = [None, None];
        // SAFETY: nothing of these is used any more. What cannot be given back goes with the process.
        unsafe {
            let _ = result::stream::synchronize(self.stream);
            for (start, _) in &self.memory {
                if *start != 0 {
                    let _ = result::free_sync(*start);
                }
            }
            let _ = result::module::unload(self.module);
            let _ = result::stream::destroy(self.stream);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
