//! Backends: what computes leaves. One of them is libtorch, which a program may be built without.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use muster_core::error::Misuse;
use muster_core::manifest::{Manifest, Profile};
use muster_core::state::{Arithmetic, LeafJob};

use crate::{LeafTimes, Path};

/// An implementation of leaves: [`crate::Exact`], [`crate::Gpu`], or libtorch.
pub trait Backend: Arithmetic {
    /// The real gradient of a leaf's mean loss, before the grid: `d` values in the canonical layout.
    fn gradient(&mut self, manifest: &Manifest, job: &LeafJob<'_>) -> &[f32];

    /// Time spent on leaves so far. The two parts may overlap.
    fn spent(&self) -> LeafTimes;

    /// Computes small models whose gradients are known.
    ///
    /// # Errors
    /// [`Misuse`] when one differs from the known gradient: this machine or build must not take part in a run.
    fn self_test(&mut self) -> Result<(), Misuse>;

    /// How close the self-test's gradients came to the known ones; none before it, and none where all bits are known.
    fn closeness(&self) -> Option<Closeness> {
        None
    }

    /// Whether the device has the memory that a run's leaves take, as far as that can be known before. Main memory is not
    /// looked at: [`crate::Machine::buffers`].
    ///
    /// # Errors
    /// [`Misuse`] with the remedy when it has not.
    fn has_room(&self, _manifest: &Manifest) -> Result<(), Misuse> {
        Ok(())
    }

    /// Why leaves that it has computed must not be signed (COMMIT-7); none where nothing is known against them.
    fn doubt(&self) -> Option<&str> {
        None
    }

    /// A description. Backends with the same description give the same bits.
    fn describe(&self) -> String;
}

/// A distance between gradients that rounding explains, relative to their length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Closeness {
    /// The distance.
    pub distance: f64,
    /// Above this it would not.
    pub limit: f64,
}

impl fmt::Display for Closeness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { distance, limit } = self;
        write!(
            f,
            "gradients {distance:.1e} of their length away from the defined ones, of {limit:.0e} at most"
        )
    }
}

/// Where libtorch computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
    /// A graphics processor, by number.
    Cuda(usize),
}

/// Where leaves are to be computed, as a machine's owner says it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// On the first graphics processor that will do, else on the processor.
    #[default]
    Auto,
    /// On the processor.
    Cpu,
    /// In defined bits on a device, by its number in [`crate::devices()`].
    Gpu(usize),
    /// In defined bits on several devices, which take leaves by turns.
    Gpus(Numbers),
    /// On a graphics processor by libtorch, by libtorch's number.
    Cuda(usize),
}

impl DeviceChoice {
    /// Whether it names devices that compute in defined bits.
    pub(crate) fn is_gpu(self) -> bool {
        matches!(self, Self::Gpu(_) | Self::Gpus(_))
    }
}

/// Numbers of devices, at least two and each once, below [`Numbers::END`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers(u64);

impl Numbers {
    /// What all of them are below.
    pub const END: usize = 64;

    /// These, ascending.
    pub fn each(self) -> impl Iterator<Item = usize> {
        (0..Self::END).filter(move |number| self.0 >> number & 1 == 1)
    }
}

impl FromStr for Numbers {
    type Err = Misuse;

    fn from_str(names: &str) -> Result<Self, Misuse> {
        let mut found = 0u64;
        for name in names.split(',') {
            let number = name.strip_prefix("gpu:").and_then(|number| number.parse::<usize>().ok());
            let number = number.filter(|number| *number < Self::END).ok_or_else(|| {
                Misuse(format!(
                    "several devices are named as gpu:0,gpu:1, by numbers below {}; {name:?} is none of these",
                    Self::END
                ))
            })?;
            if found >> number & 1 == 1 {
                return Err(Misuse(format!("the device {name} is named twice")));
            }
            found |= 1 << number;
        }
        Ok(Self(found))
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.each().map(|number| format!("gpu:{number}")).collect();
        f.write_str(&names.join(","))
    }
}

impl From<Device> for DeviceChoice {
    fn from(device: Device) -> Self {
        match device {
            Device::Cpu => Self::Cpu,
            Device::Cuda(number) => Self::Cuda(number),
        }
    }
}

impl Precision {
    /// That of a profile with tolerance.
    pub fn of(profile: Profile) -> Option<Self> {
        match profile {
            Profile::Exact => None,
            Profile::F32 => Some(Self::F32),
            Profile::Tf32 => Some(Self::Tf32),
            Profile::Bf16 => Some(Self::Bf16),
        }
    }

    /// The profile that asks for it.
    pub fn profile(self) -> Profile {
        match self {
            Self::F32 => Profile::F32,
            Self::Tf32 => Profile::Tf32,
            Self::Bf16 => Profile::Bf16,
        }
    }
}

/// How libtorch rounds the factors of products. Parameters, residual stream, norms, softmax of the loss, and every sum
/// are f32 in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Not at all.
    #[default]
    F32,
    /// To 10 bits of mantissa, where the device has units for that; else not at all.
    Tf32,
    /// To bf16, and the products as well; attention and the feed-forward's inner values are bf16, too.
    Bf16,
}

impl FromStr for Device {
    type Err = Misuse;

    fn from_str(name: &str) -> Result<Self, Misuse> {
        let number = match name {
            "cpu" => return Ok(Self::Cpu),
            "cuda" => Some(0),
            _ => name.strip_prefix("cuda:").and_then(|number| number.parse().ok()),
        };
        number
            .map(Self::Cuda)
            .ok_or_else(|| Misuse(format!("no device is called {name:?}: use cpu, cuda or cuda:N")))
    }
}

impl FromStr for DeviceChoice {
    type Err = Misuse;

    fn from_str(name: &str) -> Result<Self, Misuse> {
        let number = match name {
            "auto" => return Ok(Self::Auto),
            several if several.contains(',') => return several.parse().map(Self::Gpus),
            "gpu" => Some(0),
            _ => name.strip_prefix("gpu:").and_then(|number| number.parse().ok()),
        };
        let of_libtorch = || name.parse::<Device>().ok().map(Self::from);
        number.map(Self::Gpu).or_else(of_libtorch).ok_or_else(|| {
            Misuse(format!(
                "no device is called {name:?}: use auto, cpu, gpu or gpu:N (`muster doctor` lists them), several as gpu:0,gpu:1, or cuda or cuda:N \
                 for libtorch"
            ))
        })
    }
}

impl FromStr for Precision {
    type Err = Misuse;

    fn from_str(name: &str) -> Result<Self, Misuse> {
        match name {
            "f32" => Ok(Self::F32),
            "tf32" => Ok(Self::Tf32),
            "bf16" => Ok(Self::Bf16),
            _ => Err(Misuse(format!("no precision is called {name:?}: use f32, tf32 or bf16"))),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => Device::Cpu.fmt(f),
            Self::Gpu(number) => write!(f, "gpu:{number}"),
            Self::Gpus(numbers) => numbers.fmt(f),
            Self::Cuda(number) => Device::Cuda(*number).fmt(f),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
        })
    }
}

/// A backend, or what is wrong, with the remedy.
pub type OpenResult = Result<Box<dyn Backend>, Misuse>;

/// How libtorch computes leaves.
#[derive(Clone, Copy, Debug)]
pub struct TorchSetting {
    /// Where.
    pub device: Device,
    /// How factors are rounded.
    pub precision: Precision,
    /// Threads of what the processor computes.
    pub threads: usize,
    /// Kernel path of everything that has defined bits.
    pub path: Option<Path>,
    /// Whether the windows of a leaf are taken one by one.
    pub apart: bool,
}

/// How a program reaches libtorch. A program that is linked with it provides a backend. A program that lies beside such a
/// one provides a way to become it. Any other program provides nothing.
#[derive(Clone, Copy, Debug)]
pub struct Libtorch {
    /// Opens a backend.
    pub open: fn(TorchSetting) -> OpenResult,
    /// Whether it sees a graphics processor.
    pub has_cuda: fn() -> bool,
}

static LIBTORCH: OnceLock<Libtorch> = OnceLock::new();

impl Libtorch {
    /// Provides it to the whole program. The first call counts.
    pub fn provide(self) {
        let _ = LIBTORCH.set(self);
    }
}

/// How to get a program that has libtorch.
pub(crate) const BUILD: &str = "run protocol/compute/libtorch.sh, then cargo build --release --features tch";

/// Whether this program can reach libtorch.
pub(crate) fn has_libtorch() -> bool {
    LIBTORCH.get().is_some()
}

/// Libtorch with these settings.
///
/// # Errors
/// [`Misuse`] with the remedy where this program was built without libtorch, finds another version of it, or lacks the
/// device.
pub(crate) fn libtorch(setting: TorchSetting) -> OpenResult {
    match LIBTORCH.get() {
        Some(libtorch) => (libtorch.open)(setting),
        None => Err(Misuse(format!("this program was built without libtorch: {BUILD}"))),
    }
}

/// Whether libtorch sees a graphics processor.
pub(crate) fn has_cuda() -> bool {
    LIBTORCH.get().is_some_and(|libtorch| (libtorch.has_cuda)())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(7)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        for precision in [Precision::F32, Precision::Tf32, Precision::Bf16] {
            assert_eq!(precision.to_string().parse(), Ok(precision));
        }
        for wrong in ["", "gpu", "auto", "cuda:", "cuda:-1", "CPU"] {
            assert!(wrong.parse::<Device>().unwrap_err().to_string().contains("cuda:N"), "{wrong}");
        }
        use DeviceChoice::{Auto, Cpu, Cuda, Gpu};
        for choice in [Auto, Cpu, Gpu(0), Gpu(3), Cuda(0), Cuda(7)] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert_eq!(["gpu", "cuda"].map(str::parse), [Ok(Gpu(0)), Ok(Cuda(0))]);
        for wrong in ["", "GPU", "gpu:", "gpu:x", "gpu0", "cuda:", "opencl"] {
            assert!(wrong.parse::<DeviceChoice>().unwrap_err().to_string().contains("gpu:N"), "{wrong}");
        }
        assert!("fp16".parse::<Precision>().is_err());
    }

    #[cfg(not(feature = "tch"))]
    #[test]
    fn without_libtorch_the_remedy_is_said() {
        let (device, precision) = (Device::Cpu, Precision::F32);
        let setting = TorchSetting { device, precision, threads: 1, path: None, apart: false };
        let Err(misuse) = libtorch(setting) else { panic!("it is not there") };
        assert!(misuse.to_string().contains("--features tch"), "{misuse}");
    }
}
