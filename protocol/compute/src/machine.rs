//! How a machine computes: its owner's settings together with what the run asks for.
//!
//! Every backend that computes leaves is opened here. What follows a leaf's gradient has defined bits in every profile:
//! [`Exact`] computes it, whichever backend computes the leaves.

use std::fmt;
use std::str::FromStr;

use muster_core::error::Misuse;
use muster_core::manifest::{Manifest, Profile};

use crate::Exact;
use crate::backend::{
    BUILD, Backend, Device, DeviceChoice, Numbers, Precision, TorchSetting, has_cuda, has_libtorch, libtorch,
};
use crate::devices;
use crate::gpu::Fleet;
use crate::memory::{buffers, torch_buffers};
use crate::path::{Path, paths};

/// What computes leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// [`Exact`], or [`crate::Gpu`] with the same bits: defined bits, or f32 within tolerance.
    Exact,
    /// Libtorch, in a program that is built with it.
    Tch,
}

impl Library {
    /// Whether this program is built with it, be it on this machine or not.
    pub const fn is_built_in(self) -> bool {
        match self {
            Self::Exact => true,
            Self::Tch => cfg!(feature = "tch"),
        }
    }
}

/// The owner's settings for a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Compute threads; none counts as one.
    pub threads: usize,
    /// Kernel path of everything with defined bits; the fastest if absent.
    pub path: Option<Path>,
    /// What computes leaves; what suits the run's profile if absent.
    pub library: Option<Library>,
    /// Where leaves are computed.
    pub device: DeviceChoice,
}

/// What computes the leaves of a run on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// [`Exact`].
    Exact,
    /// [`Gpu`], on the device of this number.
    Gpu(usize),
    /// [`Fleet`], on the devices of these numbers.
    Gpus(Numbers),
    /// [`Gpu`] on the first graphics processor that gives the known answers, else [`Exact`].
    Either,
    /// Libtorch, on a device if one is named.
    Tch(Option<Device>, Precision),
}

impl Machine {
    /// A machine with these settings; the run's profile decides the rest.
    pub fn new(threads: usize, path: Option<Path>) -> Self {
        Self { threads, path, library: None, device: DeviceChoice::Auto }
    }

    /// What computes the leaves of a profile here.
    ///
    /// # Errors
    /// [`Misuse`] with the reason and the remedy where the profile and the owner's settings contradict each other, or
    /// where this program was built without the library that the profile needs.
    pub(crate) fn choose(&self, profile: Profile) -> Result<Choice, Misuse> {
        let refuse = |why: &str| Err(Misuse(format!("this run has the profile {}, {why}", profile.name())));
        let device = self.device;
        match (Precision::of(profile), self.library) {
            (None, Some(Library::Tch)) => {
                refuse("whose bits are defined, and libtorch computes others: leave out --backend tch")
            }
            (None, _) if matches!(device, DeviceChoice::Cuda(_)) => refuse(
                "whose bits are defined, and cuda is where libtorch computes others: a graphics processor that computes them is \
                 --device gpu:N",
            ),
            (Some(Precision::F32), Some(Library::Exact)) if matches!(device, DeviceChoice::Cuda(_)) => {
                Err(Misuse(
                    "cuda is where libtorch computes: for the backend exact, a graphics processor is --device gpu:N".into(),
                ))
            }
            (None, _) | (Some(Precision::F32), Some(Library::Exact)) => Ok(self.defined()),
            (Some(_), Some(Library::Exact)) => {
                refuse("whose products the backend exact does not round: leave out --backend exact")
            }
            // Being built with libtorch changes nothing that nobody asks for.
            (Some(Precision::F32), None) if device == DeviceChoice::Auto || device.is_gpu() => {
                Ok(self.defined())
            }
            (Some(_), _) if device.is_gpu() => Err(Misuse(
                "what computes on gpu:N has defined bits, and libtorch computes here: its graphics processors are --device cuda:N"
                    .into(),
            )),
            (Some(precision), Some(Library::Tch)) => Ok(self.tch(precision)),
            // Where only a graphics processor was asked for, opening it says how to get a program that has libtorch.
            (Some(precision), None) if has_libtorch() || matches!(device, DeviceChoice::Cuda(_)) => {
                Ok(self.tch(precision))
            }
            (Some(Precision::F32), None) => Ok(self.defined()),
            (Some(_), None) => refuse(&format!("which only libtorch computes: {BUILD}")),
        }
    }

    /// Where defined bits are computed.
    fn defined(&self) -> Choice {
        match self.device {
            DeviceChoice::Auto => Choice::Either,
            DeviceChoice::Gpu(number) => Choice::Gpu(number),
            DeviceChoice::Gpus(numbers) => Choice::Gpus(numbers),
            DeviceChoice::Cpu | DeviceChoice::Cuda(_) => Choice::Exact,
        }
    }

    /// Where libtorch computes.
    fn tch(&self, precision: Precision) -> Choice {
        let device = match self.device {
            DeviceChoice::Cpu => Some(Device::Cpu),
            DeviceChoice::Cuda(number) => Some(Device::Cuda(number)),
            DeviceChoice::Auto | DeviceChoice::Gpu(_) | DeviceChoice::Gpus(_) => None,
        };
        Choice::Tch(device, precision)
    }

    /// Whether [`Exact`] computes a run's leaves here.
    ///
    /// # Errors
    /// As [`Machine::leaves`].
    pub fn is_exact(&self, manifest: &Manifest) -> Result<bool, Misuse> {
        let torch = matches!(self.choose(manifest.profile)?, Choice::Tch(..));
        Ok(!torch && !self.is_on_device(manifest)?)
    }

    /// Whether a device computes a run's leaves here, in defined bits.
    ///
    /// # Errors
    /// As [`Machine::leaves`].
    pub fn is_on_device(&self, manifest: &Manifest) -> Result<bool, Misuse> {
        Ok(match self.choose(manifest.profile)? {
            Choice::Gpu(_) | Choice::Gpus(_) => true,
            Choice::Either => devices::has_first(|| self.exact()).is_ok(),
            Choice::Exact | Choice::Tch(..) => false,
        })
    }

    /// Why that computes a run's leaves which [`Machine::leaves`] gives: what follows its description in a sentence.
    pub fn reason(&self, manifest: &Manifest) -> String {
        match self.choose(manifest.profile) {
            Ok(Choice::Exact | Choice::Gpu(_) | Choice::Gpus(_)) => {
                format!(", as --device {} says", self.device)
            }
            Ok(Choice::Either) => match devices::has_first(|| self.exact()) {
                Ok(()) => ", the first graphics processor here that gives the known answers".into(),
                Err(why) => format!(", because {why}"),
            },
            _ => String::new(),
        }
    }

    /// The backend for the leaves of a profile, before its self-test.
    ///
    /// # Errors
    /// [`Misuse`] with the reason and the remedy where the profile and the owner's settings contradict each other, where
    /// this program was built without the library that the profile needs, where libtorch is another version or has no
    /// such device, where a device that is named is missing or fails, or where the processor lacks the path.
    pub fn leaves(&self, profile: Profile) -> Result<Box<dyn Backend>, Misuse> {
        match self.choose(profile)? {
            Choice::Exact => Ok(Box::new(self.exact()?)),
            Choice::Gpu(number) => Ok(Box::new(devices::open(number, self.exact()?)?)),
            Choice::Gpus(numbers) => self.fleet(numbers),
            Choice::Either => match devices::first(|| self.exact()) {
                Ok(gpu) => Ok(Box::new(gpu)),
                Err(_) => Ok(Box::new(self.exact()?)),
            },
            Choice::Tch(device, precision) => {
                libtorch(self.torch(device.unwrap_or_else(first_device), precision))
            }
        }
    }

    fn fleet(&self, numbers: Numbers) -> Result<Box<dyn Backend>, Misuse> {
        let gpus = numbers.each().map(|number| devices::open(number, self.exact()?));
        let mut gpus = gpus.collect::<Result<Vec<_>, Misuse>>()?;
        let first = gpus.remove(0);
        Ok(Box::new(Fleet::new(first, gpus)))
    }

    /// A second backend for a run's leaves, with as much different code as this machine has. Before anybody is accused, it must
    /// agree with the first one.
    ///
    /// In `exact` that is another kernel path of the processor, also where a device computes: what goes on where the device
    /// fails is the processor's first path. Within tolerance it is the other library where the profile allows both, else
    /// libtorch on the same device in another order: on another number of threads, or, where these change nothing, with a
    /// leaf's windows one by one (a leaf of one window is computed the same way again). The processor gives no opinion of a graphics processor's leaves: in bf16 they may be further apart than a run's
    /// tolerance, which was measured on devices of its members.
    ///
    /// # Errors
    /// As [`Machine::leaves`].
    pub fn second(&self, manifest: &Manifest) -> Result<Box<dyn Backend>, Misuse> {
        let profile = manifest.profile;
        match (self.choose(profile)?, Precision::of(profile)) {
            (Choice::Tch(_, Precision::F32), _) => Ok(Box::new(self.exact()?)),
            (Choice::Tch(device, precision), _) => {
                libtorch(self.torch(device.unwrap_or_else(first_device), precision).differently())
            }
            (_, Some(precision)) if has_libtorch() => libtorch(self.torch(Device::Cpu, precision)),
            // On a processor that has one path only, the same path computes again.
            _ => {
                let first = self.path.unwrap_or_else(Path::detect);
                let path = paths().into_iter().find(|path| *path != first);
                Ok(Box::new(Exact::new(self.threads, path)?))
            }
        }
    }

    /// Libtorch as this machine has it.
    fn torch(&self, device: Device, precision: Precision) -> TorchSetting {
        TorchSetting { device, precision, threads: self.threads, path: self.path, apart: false }
    }

    /// The arithmetic for everything but leaves, in defined bits.
    ///
    /// # Errors
    /// [`Misuse`] when the processor lacks the path.
    pub fn exact(&self) -> Result<Exact, Misuse> {
        Exact::new(self.threads, self.path)
    }

    /// Whether the integers of a leaf come as a whole, from what the owner has named: the processor gives them in pieces
    /// (`Arithmetic::in_pieces`).
    pub fn gives_leaves_whole(&self, manifest: &Manifest) -> bool {
        !matches!(self.choose(manifest.profile), Ok(Choice::Exact | Choice::Either))
    }

    /// Bytes of main memory that computing a run's leaves takes here, as [`buffers`] counts them; where the machine cannot
    /// compute them, those of [`Exact`]. So it is where a device computes: the processor must be able to go on without it.
    pub fn buffers(&self, manifest: &Manifest) -> u64 {
        let (model, training) = (&manifest.model, &manifest.training);
        match self.choose(manifest.profile) {
            Ok(Choice::Tch(device, precision)) => {
                torch_buffers(model, training, device.unwrap_or_else(first_device), precision)
            }
            _ => buffers(model, training, self.threads),
        }
    }
}

impl TorchSetting {
    /// Other sums of the same leaves on the same device.
    fn differently(self) -> Self {
        match self.device {
            Device::Cpu => Self { threads: if self.threads > 1 { 1 } else { 2 }, ..self },
            Device::Cuda(_) => Self { apart: true, ..self },
        }
    }
}

/// The device of libtorch where the owner names none.
fn first_device() -> Device {
    if has_cuda() { Device::Cuda(0) } else { Device::Cpu }
}

impl FromStr for Library {
    type Err = Misuse;

    fn from_str(name: &str) -> Result<Self, Misuse> {
        match name {
            "exact" => Ok(Self::Exact),
            "tch" => Ok(Self::Tch),
            _ => Err(Misuse(format!("no backend is called {name:?}: use exact or tch"))),
        }
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exact => "exact",
            Self::Tch => "tch",
        })
    }
}

#[cfg(test)]
mod tests {
    use muster_core::ids::MemberId;
    use muster_core::lock::lock;
    use muster_core::manifest::fixture::tiny;

    use super::*;

    fn built_with_libtorch() -> bool {
        #[cfg(feature = "tch")]
        crate::Torch::provide();
        has_libtorch()
    }

    const PROFILES: [Profile; 4] = [Profile::Exact, Profile::F32, Profile::Tf32, Profile::Bf16];

    fn machine(library: Option<Library>, device: DeviceChoice) -> Machine {
        Machine { library, device, ..Machine::new(1, None) }
    }

    /// What is chosen for each profile, libtorch as `T`; `-` where it is refused.
    fn chosen(library: Option<Library>, device: DeviceChoice) -> String {
        let chosen = PROFILES.map(|profile| match machine(library, device).choose(profile) {
            Ok(Choice::Exact) => 'P',
            Ok(Choice::Gpu(number)) => {
                assert_eq!(DeviceChoice::Gpu(number), device);
                'G'
            }
            Ok(Choice::Gpus(numbers)) => {
                assert_eq!(DeviceChoice::Gpus(numbers), device);
                'S'
            }
            Ok(Choice::Either) => 'E',
            Ok(Choice::Tch(..)) => 'T',
            Err(why) => {
                assert!(why.0.contains("--"), "{why}");
                '-'
            }
        });
        chosen.into_iter().collect()
    }

    #[test]
    fn each_profile_has_its_backends() {
        use DeviceChoice::{Auto, Cpu, Cuda, Gpu};
        let (exact, tch) = (Some(Library::Exact), Some(Library::Tch));
        assert_eq!(
            [Auto, Cpu, Gpu(1), Cuda(1)].map(|device| chosen(exact, device)),
            ["EE--", "PP--", "GG--", "----"]
        );
        assert_eq!(
            [Auto, Cpu, Gpu(1), Cuda(1)].map(|device| chosen(tch, device)),
            ["-TTT", "-TTT", "----", "-TTT"]
        );
        let several: DeviceChoice = "gpu:0,gpu:3".parse().unwrap();
        assert_eq!([exact, tch, None].map(|library| chosen(library, several)), ["SS--", "----", "SS--"]);
        let free = [Auto, Cpu, Gpu(1), Cuda(1)].map(|device| chosen(None, device));
        let wanted = if built_with_libtorch() {
            ["EETT", "PTTT", "GG--", "-TTT"]
        } else {
            ["EE--", "PP--", "GG--", "-TTT"]
        };
        assert_eq!(free, wanted);
    }

    fn run(profile: Profile) -> Manifest {
        Manifest { profile, ..tiny(MemberId([1; 32]), MemberId([2; 32]), 1, 1) }
    }

    #[test]
    fn a_machine_says_what_computes_and_why() {
        let (on, run) = (|device| machine(None, device), run(Profile::Exact));
        assert_eq!(on(DeviceChoice::Cpu).reason(&run), ", as --device cpu says");
        assert!(on(DeviceChoice::Cpu).is_exact(&run).unwrap());
        assert!(on(DeviceChoice::Gpu(0)).is_on_device(&run).unwrap());
        let automatic = on(DeviceChoice::Auto);
        let exact = automatic.is_exact(&run).unwrap();
        assert_ne!(exact, automatic.is_on_device(&run).unwrap());
        let reason = automatic.reason(&run);
        assert_eq!(reason.starts_with(", because "), exact, "{reason}");
        let kernels = automatic.exact().unwrap().describe();
        assert_eq!(automatic.leaves(Profile::Exact).unwrap().describe() == kernels, exact);
        let Err(missing) = on(DeviceChoice::Gpu(1_000_000)).leaves(Profile::Exact) else {
            panic!("no machine has so many")
        };
        assert!(missing.0.contains("device"), "{missing}");
    }

    #[test]
    fn several_devices_are_named_each_once() {
        let parsed = |names: &str| names.parse::<DeviceChoice>();
        let several = parsed("gpu:2,gpu:0").unwrap();
        assert_eq!(several.to_string(), "gpu:0,gpu:2");
        assert!(machine(None, several).is_on_device(&run(Profile::Exact)).unwrap());
        for (names, why) in [
            ("gpu:0,gpu:0", "gpu:0 is named twice"),
            ("gpu:0,cuda:1", "\"cuda:1\" is none of these"),
            ("gpu:0,", "\"\" is none of these"),
            ("gpu:0,gpu:64", "by numbers below 64"),
        ] {
            let refused = parsed(names).unwrap_err().0;
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn a_refusal_says_why_and_what_to_do() {
        let why = |library, profile| machine(library, DeviceChoice::Auto).choose(profile).unwrap_err().0;
        let refused = why(Some(Library::Tch), Profile::Exact);
        assert!(refused.contains("exact, whose bits") && refused.contains("--backend tch"), "{refused}");
        let refused = why(Some(Library::Exact), Profile::Bf16);
        assert!(refused.contains("bf16") && refused.contains("--backend exact"), "{refused}");
        if !built_with_libtorch() {
            let refused = why(None, Profile::Tf32);
            assert!(refused.contains("tf32") && refused.contains("--features tch"), "{refused}");
            let Err(refused) = machine(Some(Library::Tch), DeviceChoice::Auto).leaves(Profile::F32) else {
                panic!("it is not there")
            };
            assert!(refused.0.contains("--features tch"), "{refused}");
        }
    }

    /// Wherever OpenCL has a device.
    #[test]
    fn the_second_opinion_on_a_device_is_the_processor_s() {
        let device = machine(None, DeviceChoice::Gpu(0));
        let second = device.second(&run(Profile::Exact)).unwrap();
        // Not what goes on where the device fails: that would be one opinion, twice.
        assert!(second.describe().starts_with("kernels "), "{}", second.describe());
        assert!(paths().len() == 1 || second.describe() != device.exact().unwrap().describe());
        if devices::devices().is_empty() {
            return;
        }
        let _one = lock(&crate::gpu::tests::ONE);
        let first = device.leaves(Profile::Exact).unwrap();
        assert_ne!(first.describe(), second.describe());
    }

    /// A run may be calibrated on graphics processors alone.
    #[test]
    fn a_second_opinion_comes_from_the_same_device() {
        for device in [Device::Cpu, Device::Cuda(1)] {
            for threads in [1, 4] {
                let first = Machine::new(threads, None).torch(device, Precision::Bf16);
                let second = first.differently();
                assert_eq!(second.device, device);
                assert_ne!((second.threads, second.apart), (first.threads, first.apart), "{device}");
            }
        }
    }

    #[test]
    fn a_second_opinion_comes_from_other_code() {
        for threads in [1, 2] {
            let machine = Machine::new(threads, None);
            let second = machine.second(&run(Profile::Exact)).unwrap();
            assert!(
                paths().len() == 1 || second.describe() != machine.leaves(Profile::Exact).unwrap().describe()
            );
            if built_with_libtorch() {
                for profile in PROFILES {
                    let first = machine.leaves(profile).unwrap().describe();
                    assert_ne!(machine.second(&run(profile)).unwrap().describe(), first, "{profile:?}");
                }
            }
        }
    }
}
