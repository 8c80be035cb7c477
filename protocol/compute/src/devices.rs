//! The devices of this machine, found once a process, and which of them computes where nobody has named one.
//!
//! Drivers are other people's code, loaded into this process: after a trial in another one ([`trial`]). What asks them here is
//! on a thread of its own, is not waited for without end, and may panic.

mod trial;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use muster_core::error::Misuse;
use muster_core::lock::lock;

use crate::Exact;
use crate::backend::Backend;
use crate::gpu::{self, Found, Gpu};
pub use trial::try_drivers_apart;

/// How long the drivers may take to name their devices.
const NAMING: Duration = Duration::from_secs(20);
/// How long a device that nobody has named may take to compile its kernels and to give the known answers.
const PROVING: Duration = Duration::from_secs(120);
/// What a machine needs whose device is not found.
const REMEDY: &str =
    "a graphics processor needs its vendor's driver and OpenCL's loader (Debian: ocl-icd-libopencl1)";

/// What the drivers named, or how they failed.
static NAMED: OnceLock<Result<Vec<Found>, String>> = OnceLock::new();
/// The first graphics processor that gave the known answers, or why none has; nothing before anybody asked.
static FIRST: Mutex<Option<Result<usize, String>>> = Mutex::new(None);

fn named() -> &'static Result<Vec<Found>, String> {
    NAMED.get_or_init(|| {
        trial::pass(NAMING)?;
        apart(NAMING, "naming their devices", || Ok(gpu::look()))
    })
}

/// The devices of this machine, by number: graphics processors first. Their drivers are loaded by the first call.
pub fn devices() -> &'static [Found] {
    named().as_deref().unwrap_or_default()
}

/// Why there is no device, and what to install.
pub fn missing_devices() -> String {
    match broken_drivers() {
        None => format!("no device is found: {REMEDY}"),
        Some(why) => format!("the drivers of devices cannot be used ({why}): install others, or remove them"),
    }
}

/// How the drivers of this machine failed when they were loaded, if they did.
pub fn broken_drivers() -> Option<&'static str> {
    named().as_ref().err().map(String::as_str)
}

/// The device of a number in [`devices`].
///
/// # Errors
/// [`Misuse`] with what is missing and what to do.
pub(crate) fn device(number: usize) -> Result<&'static Found, Misuse> {
    let found = devices();
    found.get(number).ok_or_else(|| {
        Misuse(match found.len() {
            0 => format!("{}; or compute with --device cpu", missing_devices()),
            1 => format!("there is no device gpu:{number}: the only one here is gpu:0, {}", found[0].says()),
            count => format!(
                "there is no device gpu:{number}: those here are gpu:0 to gpu:{}, which `muster doctor` lists",
                count - 1
            ),
        })
    })
}

/// The first graphics processor of this machine that gives the known answers, with a processor beside it that `exact` makes.
/// Which one that is, or that there is none, is found out once a process.
///
/// # Errors
/// Why the processor is to compute, as the end of a sentence about it.
pub(crate) fn first(exact: impl Fn() -> Result<Exact, Misuse>) -> Result<Gpu, String> {
    let mut first = lock(&FIRST);
    let opened = match &*first {
        None => {
            let found = prove(exact);
            *first = Some(found.as_ref().map(|(number, _)| *number).map_err(Clone::clone));
            return found.map(|(_, gpu)| gpu);
        }
        Some(Err(why)) => return Err(why.clone()),
        Some(Ok(number)) => {
            let (number, exact) = (*number, exact().map_err(|misuse| misuse.0)?);
            apart(PROVING, "opening it again", move || Gpu::open(number, exact).map_err(|why| why.0))
        }
    };
    if let Err(why) = &opened {
        *first = Some(Err(why.clone()));
    }
    opened
}

/// Whether [`first`] gives a graphics processor. It is opened only where nobody has done so yet: that takes seconds.
///
/// # Errors
/// As [`first`].
pub(crate) fn has_first(exact: impl Fn() -> Result<Exact, Misuse>) -> Result<(), String> {
    let known = lock(&FIRST).as_ref().map(|first| first.as_ref().map(|_| ()).map_err(Clone::clone));
    known.unwrap_or_else(|| first(exact).map(|_| ()))
}

fn prove(exact: impl Fn() -> Result<Exact, Misuse>) -> Result<(usize, Gpu), String> {
    let mut failed = Vec::new();
    for (number, found) in devices().iter().enumerate().filter(|(_, found)| found.is_graphics()) {
        let exact = exact().map_err(|misuse| misuse.0)?;
        let proved = apart(PROVING, "giving the known answers", move || {
            let mut gpu = Gpu::open(number, exact).map_err(|why| why.0)?;
            gpu.self_test().map_err(|why| why.0)?;
            Ok(gpu)
        });
        match proved {
            Ok(gpu) => return Ok((number, gpu)),
            Err(why) => failed.push(format!("gpu:{number}, {}: {why}", found.says())),
        }
    }
    Err(match (failed.is_empty(), named()) {
        (false, _) => failed.join("; "),
        (true, Ok(_)) => "no graphics processor is found".into(),
        (true, Err(_)) => missing_devices(),
    })
}

/// Does what calls drivers, on a thread of its own. One that hangs is left there until the process ends.
fn apart<T: Send + 'static>(
    patience: Duration,
    what: &str,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (done, wait) = channel();
    let thread = std::thread::Builder::new().name("devices".into());
    let started = thread.spawn(move || {
        // Nobody may wait any more.
        let _ = done.send(guarded(work));
    });
    started.map_err(|error| format!("the system gives no thread ({error})"))?;
    match wait.recv_timeout(patience) {
        Ok(outcome) => outcome,
        Err(RecvTimeoutError::Timeout) => Err(format!("{what} has taken more than {} s", patience.as_secs())),
        Err(RecvTimeoutError::Disconnected) => Err(format!("{what} ended without an answer")),
    }
}

/// Does what calls drivers; a panic becomes an error. What bindings to a driver do where it lacks a function is to panic.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    // What the work has half done is dropped with it.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let words =
            panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(words.unwrap_or("its driver panicked").lines().next().unwrap_or_default().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_panics_or_hangs_is_an_error() {
        let patience = Duration::from_secs(60);
        assert_eq!(apart(patience, "adding", || Ok(1 + 1)), Ok(2));
        assert_eq!(apart::<()>(patience, "failing", || Err("why".into())), Err("why".into()));
        let panicked = apart::<()>(patience, "panicking", || panic!("no function {}", "f"));
        assert_eq!(panicked, Err("no function f".into()));
        let (_open, never) = channel::<()>();
        let hung =
            apart(Duration::from_millis(10), "waiting", move || never.recv().map_err(|_| String::new()));
        assert!(hung.unwrap_err().contains("waiting has taken more than"));
    }

    #[test]
    fn a_device_that_is_not_there_is_said_with_what_to_do() {
        let why = device(1_000_000).err().expect("no machine has so many").0;
        let remedy = if devices().is_empty() { "ocl-icd-libopencl1" } else { "here" };
        assert!(why.contains(remedy) && !why.contains('\n'), "{why}");
    }

    #[test]
    fn the_first_graphics_processor_is_looked_for_once() {
        let exact = || Exact::new(1, None);
        let graphics = devices().iter().any(Found::is_graphics);
        for _ in 0..2 {
            let found = first(exact);
            assert_eq!(has_first(exact).err(), found.as_ref().err().cloned());
            match found {
                Ok(gpu) => assert!(graphics, "{}", gpu.describe()),
                Err(why) => assert!(
                    graphics || why == "no graphics processor is found" || why.contains("drivers"),
                    "{why}"
                ),
            }
        }
    }
}
