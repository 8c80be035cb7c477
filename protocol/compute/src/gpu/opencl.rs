//! Devices by OpenCL, whose library is looked for when the program runs.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
#[cfg(unix)]
use std::ptr::null;
use std::ptr::null_mut;

use opencl3::command_queue::CommandQueue;
use opencl3::context::Context;
use opencl3::device::{
    CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_GPU, CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT, CL_FP_DENORM, CL_FP_FMA,
    CL_FP_INF_NAN, CL_FP_ROUND_TO_NEAREST, Device,
};
use opencl3::error_codes::ClError;
use opencl3::event::Event;
use opencl3::kernel::Kernel;
use opencl3::memory::{Buffer, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE, ClMem};
use opencl3::platform::get_platforms;
use opencl3::program::Program;
use opencl3::types::{CL_BLOCKING, CL_NON_BLOCKING, cl_uint};

use super::driver::{
    Argument, Description, Driver, Fault, ITEMS, Memory, Outcome, Place, Slot, names, source,
};

/// What `exact` needs of a device's f32, and what it is called.
const NEEDED: [(u64, &str); 5] = [
    (CL_FP_ROUND_TO_NEAREST, "rounding to nearest"),
    (CL_FP_INF_NAN, "infinities and NaN"),
    (CL_FP_DENORM, "subnormals"),
    (CL_FP_FMA, "fused multiply-adds"),
    (CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT, "correctly rounded quotients and roots"),
];
/// Commands that are under way at most.
const EVENTS: usize = 4096;
const OPTIONS: &str = "-cl-std=CL1.2 -cl-fp32-correctly-rounded-divide-sqrt";

pub(super) struct OpenCl {
    // Dropped in this order.
    buffers: Vec<Option<Buffer<u8>>>,
    kernels: BTreeMap<&'static str, Kernel>,
    /// Of commands that may not be done. PoCL 3.1 uses what was released before its command ended.
    events: Vec<Event>,
    /// Where copies to the host arrive, by slot.
    hosts: [Option<Host>; 2],
    queue: CommandQueue,
    context: Context,
    description: Description,
}

/// Memory of the host that a device writes by itself.
struct Host {
    event: Option<Event>,
    on_its_way: usize,
    start: *mut u8,
    length: usize,
    /// What `start` is mapped from: it goes with it.
    _buffer: Buffer<u8>,
}

impl Host {
    fn take(context: &Context, queue: &CommandQueue, bytes: usize) -> Outcome<Self> {
        let refused = |error| Fault::new(&format!("taking {bytes} bytes of the host"), error);
        let mut start = null_mut();
        // SAFETY: no memory of the host is given, and the mapping lies within the buffer.
        let buffer = unsafe {
            let buffer =
                Buffer::<u8>::create(context, CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, bytes, null_mut())
                    .map_err(refused)?;
            queue
                .enqueue_map_buffer(
                    &buffer,
                    CL_BLOCKING,
                    CL_MAP_READ | CL_MAP_WRITE,
                    0,
                    bytes,
                    &mut start,
                    &[],
                )
                .map_err(refused)?;
            buffer
        };
        Ok(Self { event: None, on_its_way: 0, start: start.cast(), length: bytes, _buffer: buffer })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The device writes there until then.
        if let Some(event) = self.event.take() {
            let _ = event.wait();
        }
    }
}

// SAFETY: OpenCL's objects may be used from any thread; setting arguments of one kernel from two at once may not, and whoever
// does so has this value exclusively.
unsafe impl Send for OpenCl {}

/// What the signals to stop do, which is put back when this is dropped. A driver's compiler takes them for itself: LLVM removes its
/// files and ends the process, whatever else was to be done.
struct KeptSignals(#[cfg(unix)] [(libc::c_int, libc::sigaction); 3]);

impl KeptSignals {
    fn new() -> Self {
        #[cfg(unix)]
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].map(|signal| {
            // SAFETY: all zeros are an action, which the call fills in.
            unsafe {
                let mut action = std::mem::zeroed();
                libc::sigaction(signal, null(), &mut action);
                (signal, action)
            }
        });
        Self(
            #[cfg(unix)]
            signals,
        )
    }
}

#[cfg(unix)]
impl Drop for KeptSignals {
    fn drop(&mut self) {
        for (signal, action) in &self.0 {
            // SAFETY: the action is one that was in force.
            unsafe { libc::sigaction(*signal, action, null_mut()) };
        }
    }
}

/// All devices of all platforms, in the order in which the library names them; none without the library.
pub(super) fn devices() -> Vec<(Description, Device)> {
    let _signals = KeptSignals::new();
    let platforms = get_platforms().unwrap_or_default();
    let ids =
        platforms.iter().flat_map(|platform| platform.get_devices(CL_DEVICE_TYPE_ALL).unwrap_or_default());
    ids.map(Device::new).map(|device| (describe(&device), device)).collect()
}

fn describe(device: &Device) -> Description {
    let version = device.version().unwrap_or_default();
    Description {
        name: device.name().unwrap_or_default().trim().to_owned(),
        driver: format!("{}, driver {}", version.trim(), device.driver_version().unwrap_or_default().trim()),
        memory: device.global_mem_size().unwrap_or(0),
        largest: device.max_mem_alloc_size().unwrap_or(0),
        graphics: device.dev_type().unwrap_or(0) & CL_DEVICE_TYPE_GPU != 0,
        units: device.max_compute_units().unwrap_or(1),
        wide: device.double_fp_config().unwrap_or(0) & CL_FP_FMA != 0,
    }
}

impl OpenCl {
    /// Builds the kernels for a device.
    ///
    /// # Errors
    /// [`Fault`] where the device lacks what `exact` needs, or its compiler fails.
    pub(super) fn open(description: Description, device: &Device) -> Outcome<Self> {
        let _signals = KeptSignals::new();
        let has = device.single_fp_config().map_err(|error| Fault::new("asking what it has", error))?;
        if let Some((_, lacking)) = NEEDED.iter().find(|(bit, _)| has & bit == 0) {
            return Err(Fault(format!("it lacks {lacking} in f32")));
        }
        if device.endian_little() != Ok(true) {
            return Err(Fault("its numbers have another order of bytes".into()));
        }
        let context = Context::from_device(device).map_err(|error| Fault::new("making a context", error))?;
        let queue = CommandQueue::create_default_with_properties(&context, 0, 0)
            .or_else(|_| {
                // SAFETY: the device is that of the context. Devices before OpenCL 2 have this call only.
                #[allow(deprecated)]
                unsafe {
                    CommandQueue::create(&context, device.id(), 0)
                }
            })
            .map_err(|error| Fault::new("making a queue", error))?;
        let text = source(include_str!("opencl.h"), description.wide);
        // NVIDIA's compiler gives a work-item as many registers as it wants, and then only half of them are there.
        let of_vendor = if description.driver.contains("CUDA") { " -cl-nv-maxrregcount=128" } else { "" };
        let program =
            Program::create_and_build_from_source(&context, &text, &format!("{OPTIONS}{of_vendor}"))
                .map_err(|log| Fault::new("its compiler failed", log.trim()))?;
        let mut kernels = BTreeMap::new();
        for name in names(description.wide) {
            let kernel = Kernel::create(&program, name).map_err(|error| Fault::new(name, error))?;
            kernels.insert(name, kernel);
        }
        Ok(Self {
            buffers: Vec::new(),
            kernels,
            events: Vec::new(),
            hosts: [None, None],
            queue,
            context,
            description,
        })
    }

    fn buffer(&self, memory: Memory) -> Outcome<&Buffer<u8>> {
        self.buffers
            .get(memory.0)
            .and_then(Option::as_ref)
            .ok_or_else(|| Fault("memory that was released".into()))
    }

    /// Keeps the event of a command.
    fn after(&mut self, what: &str, done: Result<Event, ClError>) -> Outcome<()> {
        self.events.push(done.map_err(|error| Fault::new(what, error))?);
        if self.events.len() < EVENTS { Ok(()) } else { self.finish() }
    }

    fn buffer_mut(&mut self, memory: Memory) -> Outcome<&mut Buffer<u8>> {
        self.buffers
            .get_mut(memory.0)
            .and_then(Option::as_mut)
            .ok_or_else(|| Fault("memory that was released".into()))
    }
}

impl Driver for OpenCl {
    fn description(&self) -> &Description {
        &self.description
    }

    fn allocate(&mut self, bytes: usize) -> Outcome<Memory> {
        // SAFETY: no memory of the host is given.
        let buffer =
            unsafe { Buffer::<u8>::create(&self.context, CL_MEM_READ_WRITE, bytes.max(4), null_mut()) };
        let buffer =
            buffer.map_err(|error| Fault::new(&format!("taking {bytes} bytes of its memory"), error))?;
        let free = self.buffers.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.buffers.push(None);
            self.buffers.len() - 1
        });
        self.buffers[number] = Some(buffer);
        Ok(Memory(number))
    }

    fn release(&mut self, memory: Memory) {
        if let Some(buffer) = self.buffers.get_mut(memory.0) {
            *buffer = None;
        }
    }

    fn upload(&mut self, to: Place, bytes: &[u8]) -> Outcome<()> {
        let Self { queue, buffers, .. } = self;
        let buffer = buffers.get_mut(to.memory.0).and_then(Option::as_mut);
        let buffer = buffer.ok_or_else(|| Fault("memory that was released".into()))?;
        // SAFETY: the call returns when the bytes are read; the library refuses what is beyond the buffer.
        let done = unsafe { queue.enqueue_write_buffer(buffer, CL_BLOCKING, 4 * to.first, bytes, &[]) };
        self.after("copying to it", done)
    }

    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Outcome<()> {
        let buffer = self.buffer(from.memory)?;
        // SAFETY: the call returns when the bytes are written; the library refuses what is beyond the buffer.
        let done = unsafe { self.queue.enqueue_read_buffer(buffer, CL_BLOCKING, 4 * from.first, bytes, &[]) };
        self.after("copying from it", done)?;
        self.events.clear();
        Ok(())
    }

    fn stage(&mut self, slot: Slot, from: Place, bytes: usize) -> Outcome<()> {
        let Self { hosts, queue, buffers, context, .. } = self;
        let host = &mut hosts[slot as usize];
        if host.as_ref().is_none_or(|host| host.length < bytes) {
            *host = None;
        }
        let host = match host {
            Some(host) => host,
            None => host.insert(Host::take(context, queue, bytes)?),
        };
        let buffer = buffers.get(from.memory.0).and_then(Option::as_ref);
        let buffer = buffer.ok_or_else(|| Fault("memory that was released".into()))?;
        host.on_its_way = bytes;
        // SAFETY: nobody reads or writes these bytes before the event is over; the library refuses what is beyond the buffer.
        let done = unsafe {
            let target = std::slice::from_raw_parts_mut(host.start, bytes);
            queue.enqueue_read_buffer(buffer, CL_NON_BLOCKING, 4 * from.first, target, &[])
        };
        host.event = Some(done.map_err(|error| Fault::new("copying from it", error))?);
        queue.flush().map_err(|error| Fault::new("copying from it", error))
    }

    fn staged(&mut self, slot: Slot) -> Outcome<&[u8]> {
        let Some(host) = &mut self.hosts[slot as usize] else {
            return Err(Fault("nothing is on its way".into()));
        };
        let Some(event) = host.event.take() else { return Err(Fault("nothing is on its way".into())) };
        event.wait().map_err(|error| Fault::new("waiting for a copy", error))?;
        // SAFETY: so many bytes were written, and nobody writes there before the next copy.
        Ok(unsafe { std::slice::from_raw_parts(host.start, host.on_its_way) })
    }

    fn clear(&mut self, at: Place, values: usize) -> Outcome<()> {
        if values == 0 {
            return Ok(());
        }
        let buffer = self.buffer_mut(at.memory)?.get_mut();
        // SAFETY: the pattern is copied by the call.
        let done = unsafe {
            opencl3::command_queue::enqueue_fill_buffer(
                self.queue.get(),
                buffer,
                [0u8; 4].as_ptr().cast(),
                4,
                4 * at.first,
                4 * values,
                0,
                std::ptr::null(),
            )
        };
        self.after("clearing", done.map(Event::new).map_err(ClError))
    }

    fn launch(&mut self, kernel: &'static str, groups: u64, arguments: &[Argument]) -> Outcome<()> {
        if groups == 0 {
            return Ok(());
        }
        let found = self.kernels.get(kernel).ok_or_else(|| Fault(format!("no kernel is called {kernel}")))?;
        let mut number: cl_uint = 0;
        for argument in arguments {
            // SAFETY: the kernels' sources and their callers in this module agree on kinds and order, which every kernel's
            // known answers try; the library refuses other sizes.
            let set = unsafe {
                match argument {
                    Argument::Int(value) => found.set_arg(number, value),
                    Argument::Long(value) => found.set_arg(number, value),
                    Argument::Real(value) => found.set_arg(number, value),
                    Argument::Wide(value) => found.set_arg(number, value),
                    Argument::At(place) => {
                        let buffer = self.buffer(place.memory)?;
                        let set = found.set_arg(number, &buffer.get());
                        number += 1;
                        set.and_then(|()| found.set_arg(number, &(place.first as u64)))
                    }
                }
            };
            set.map_err(|error| Fault::new(&format!("argument {number} of {kernel}"), error))?;
            number += 1;
        }
        // SAFETY: all arguments are set, each within its buffer.
        let done = unsafe {
            self.queue.enqueue_nd_range_kernel(
                found.get(),
                1,
                std::ptr::null(),
                [(groups * ITEMS) as usize].as_ptr(),
                [ITEMS as usize].as_ptr(),
                &[],
            )
        };
        self.after(kernel, done)
    }

    fn finish(&mut self) -> Outcome<()> {
        self.queue.finish().map_err(|error| Fault::new("waiting for it", error))?;
        self.events.clear();
        Ok(())
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn what_a_driver_does_to_signals_is_undone() {
        let now = || KeptSignals::new().0[2].1.sa_sigaction;
        let before = now();
        let kept = KeptSignals::new();
        // SAFETY: to ignore a signal is an action.
        unsafe {
            let mut ignored: libc::sigaction = std::mem::zeroed();
            ignored.sa_sigaction = if before == libc::SIG_IGN { libc::SIG_DFL } else { libc::SIG_IGN };
            libc::sigaction(libc::SIGHUP, &ignored, null_mut());
        }
        assert_ne!(now(), before);
        drop(kept);
        assert_eq!(now(), before);
    }
}
