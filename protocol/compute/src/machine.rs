//! How a machine computes: its owner's settings together with what the run asks for.
//!
//! Every backend that computes leaves is opened here. What follows a leaf's gradient has defined bits in every profile:
//! [`Exact`] computes it, whichever backend computes the leaves.

use std::fmt;
use std::str::FromStr;

use muster_core::error::Misuse;
use muster_core::manifest::{Manifest, Profile};

use crate::Exact;
use crate::backend::{BUILD, Backend, Device, Precision, TorchSetting, has_cuda, has_libtorch, libtorch};
use crate::memory::{buffers, torch_buffers};
use crate::path::{Path, paths};

/// What computes leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// [`Exact`]: defined bits, or f32 within tolerance.
    Exact,
    /// Libtorch, in a program that is built with it.
    Tch,
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
    /// Where libtorch computes; the first graphics processor that it sees, else the processor, if absent.
    pub device: Option<Device>,
}

/// What computes the leaves of a run on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// [`Exact`].
    Exact,
    /// Libtorch, on a device if one is named.
    Tch(Option<Device>, Precision),
}

impl Machine {
    /// A machine with these settings; the run's profile decides the rest.
    pub fn new(threads: usize, path: Option<Path>) -> Self {
        Self { threads, path, library: None, device: None }
    }

    /// What computes the leaves of a profile here.
    ///
    /// # Errors
    /// [`Misuse`] with the reason and the remedy where the profile and the owner's settings contradict each other, or
    /// where this program was built without the library that the profile needs.
    fn choose(&self, profile: Profile) -> Result<Choice, Misuse> {
        let graphics = self.device.is_some_and(|device| device != Device::Cpu);
        let torch = |precision| Ok(Choice::Tch(self.device, precision));
        let refuse = |why: &str| Err(Misuse(format!("this run has the profile {}, {why}", profile.name())));
        match (Precision::of(profile), self.library) {
            (None, Some(Library::Tch)) => {
                refuse("whose bits are defined, and libtorch computes others: leave out --backend tch")
            }
            (None, _) if graphics => {
                refuse("whose bits only the processor computes so far: leave out --device")
            }
            (None, _) => Ok(Choice::Exact),
            (Some(Precision::F32), Some(Library::Exact)) if graphics => Err(Misuse(
                "the backend exact computes on the processor: leave out --device, or add --backend tch"
                    .into(),
            )),
            (Some(Precision::F32), Some(Library::Exact)) => Ok(Choice::Exact),
            (Some(_), Some(Library::Exact)) => {
                refuse("whose products the backend exact does not round: leave out --backend exact")
            }
            (Some(precision), Some(Library::Tch)) => torch(precision),
            // Being built with libtorch changes nothing that nobody asks for.
            (Some(Precision::F32), None) if self.device.is_none() => Ok(Choice::Exact),
            // Where only a graphics processor was asked for, opening it says how to get a program that has libtorch.
            (Some(precision), None) if has_libtorch() || graphics => torch(precision),
            (Some(Precision::F32), None) => Ok(Choice::Exact),
            (Some(_), None) => refuse(&format!("which only libtorch computes: {BUILD}")),
        }
    }

    /// Whether [`Exact`] computes the leaves of a profile here.
    ///
    /// # Errors
    /// As [`Machine::leaves`].
    pub fn is_exact(&self, profile: Profile) -> Result<bool, Misuse> {
        Ok(self.choose(profile)? == Choice::Exact)
    }

    /// The backend for the leaves of a profile, before its self-test.
    ///
    /// # Errors
    /// [`Misuse`] with the reason and the remedy where the profile and the owner's settings contradict each other, where
    /// this program was built without the library that the profile needs, where libtorch is another version or has no
    /// such device, or where the processor lacks the path.
    pub fn leaves(&self, profile: Profile) -> Result<Box<dyn Backend>, Misuse> {
        match self.choose(profile)? {
            Choice::Exact => Ok(Box::new(self.exact()?)),
            Choice::Tch(device, precision) => {
                libtorch(self.torch(device.unwrap_or_else(first_device), precision))
            }
        }
    }

    /// A second backend for the leaves of a profile, with as much different code as this machine has. Before anybody is
    /// accused, it must agree with the first one.
    ///
    /// In `exact` that is another kernel path. Within tolerance it is the other library where the profile allows both,
    /// else libtorch on the same device in another order: on another number of threads, or, where these change nothing, with
    /// a leaf's windows one by one (a leaf of one window is computed the same way again). The processor gives no opinion of
    /// a graphics processor's leaves: in bf16 they may be further apart than a run's tolerance, which was measured on
    /// devices of its members.
    ///
    /// # Errors
    /// As [`Machine::leaves`].
    pub fn second(&self, profile: Profile) -> Result<Box<dyn Backend>, Misuse> {
        match (self.choose(profile)?, Precision::of(profile)) {
            (Choice::Tch(_, Precision::F32), _) => Ok(Box::new(self.exact()?)),
            (Choice::Tch(device, precision), _) => {
                libtorch(self.torch(device.unwrap_or_else(first_device), precision).differently())
            }
            (Choice::Exact, Some(precision)) if has_libtorch() => {
                libtorch(self.torch(Device::Cpu, precision))
            }
            // On a processor that has one path only, the same path computes again.
            (Choice::Exact, _) => {
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

    /// Bytes that computing a run's leaves takes here, as [`buffers`] counts them; where the machine cannot compute
    /// them, those of [`Exact`].
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
    use super::*;

    fn built_with_libtorch() -> bool {
        #[cfg(feature = "tch")]
        crate::Torch::provide();
        has_libtorch()
    }

    const PROFILES: [Profile; 4] = [Profile::Exact, Profile::F32, Profile::Tf32, Profile::Bf16];

    fn machine(library: Option<Library>, device: Option<Device>) -> Machine {
        Machine { library, device, ..Machine::new(1, None) }
    }

    /// What is chosen for each profile; none where it is refused.
    fn chosen(library: Option<Library>, device: Option<Device>) -> [Option<bool>; 4] {
        PROFILES.map(|profile| {
            let choice = machine(library, device).choose(profile);
            choice
                .map(|choice| choice != Choice::Exact)
                .map_err(|why| assert!(why.0.contains(": ") || why.0.contains("leave out")))
                .ok()
        })
    }

    #[test]
    fn each_profile_has_its_backends() {
        let (exact, tch) = (Some(false), Some(true));
        assert_eq!(chosen(Some(Library::Exact), None), [exact, exact, None, None]);
        assert_eq!(chosen(Some(Library::Tch), None), [None, tch, tch, tch]);
        assert_eq!(chosen(Some(Library::Tch), Some(Device::Cuda(1))), [None, tch, tch, tch]);
        assert_eq!(chosen(Some(Library::Exact), Some(Device::Cuda(1))), [None; 4]);
        assert_eq!(chosen(None, Some(Device::Cuda(0))), [None, tch, tch, tch]);
        let built = |choice| if built_with_libtorch() { choice } else { None };
        assert_eq!(chosen(None, None), [exact, exact, built(tch), built(tch)]);
        let f32 = built(tch).or(exact);
        assert_eq!(chosen(None, Some(Device::Cpu)), [exact, f32, built(tch), built(tch)]);
    }

    #[test]
    fn a_refusal_says_why_and_what_to_do() {
        let why = |library, profile| machine(library, None).choose(profile).unwrap_err().0;
        let refused = why(Some(Library::Tch), Profile::Exact);
        assert!(refused.contains("exact, whose bits") && refused.contains("--backend tch"), "{refused}");
        let refused = why(Some(Library::Exact), Profile::Bf16);
        assert!(refused.contains("bf16") && refused.contains("--backend exact"), "{refused}");
        if !built_with_libtorch() {
            let refused = why(None, Profile::Tf32);
            assert!(refused.contains("tf32") && refused.contains("--features tch"), "{refused}");
            let Err(refused) = machine(Some(Library::Tch), None).leaves(Profile::F32) else {
                panic!("it is not there")
            };
            assert!(refused.0.contains("--features tch"), "{refused}");
        }
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
            let second = machine.second(Profile::Exact).unwrap();
            assert!(
                paths().len() == 1 || second.describe() != machine.leaves(Profile::Exact).unwrap().describe()
            );
            if built_with_libtorch() {
                for profile in PROFILES {
                    let first = machine.leaves(profile).unwrap().describe();
                    assert_ne!(machine.second(profile).unwrap().describe(), first, "{profile:?}");
                }
            }
        }
    }
}
