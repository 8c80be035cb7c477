//! Everything at hand that computes a profile's leaves.

use muster_compute::{Backend, Device, Exact, Library};
use muster_core::error::Misuse;
use muster_core::grid::{Dither, power_of_two, quantise};
use muster_core::layout::Layout;
use muster_core::manifest::{Manifest, Profile};
use muster_core::state::LeafJob;

/// A leaf on the grid and its loss, as a machine computed it.
pub type GridLeaf = (Vec<i32>, Option<i64>);

/// Something that computes leaves.
pub struct LeafComputer {
    /// What it is.
    pub name: String,
    /// Whether its bits are defined.
    pub defined: bool,
    /// Whether a member may compute leaves of the profile with it.
    pub member: bool,
    /// Where it is.
    pub device: Device,
    backend: Box<dyn Backend>,
    /// Whether it takes a leaf's windows one by one: other shapes, and so other kernels and another order of sums.
    apart: bool,
}

impl LeafComputer {
    /// Kernels with defined bits, whose products are those of profile f32.
    ///
    /// # Errors
    /// [`Misuse`] when this processor computes other bits.
    pub fn exact(profile: Profile, threads: usize) -> Result<Self, Misuse> {
        let mut exact = Exact::new(threads, None)?;
        exact.self_test()?;
        let member = matches!(profile, Profile::Exact | Profile::F32);
        Ok(Self {
            name: "exact".into(),
            defined: true,
            member,
            device: Device::Cpu,
            backend: Box::new(exact),
            apart: false,
        })
    }

    /// Libtorch.
    ///
    /// # Errors
    /// [`Misuse`] with the remedy where it is not there, or computes wrongly.
    pub fn torch(profile: Profile, device: Device, threads: usize) -> Result<Self, Misuse> {
        let profile = if profile == Profile::Exact { Profile::F32 } else { profile };
        let library = Some(Library::Tch);
        let machine = muster_compute::Machine {
            library,
            device: device.into(),
            ..muster_compute::Machine::new(threads, None)
        };
        let mut backend = machine.leaves(profile)?;
        backend.self_test()?;
        if let Some(closeness) = backend.closeness() {
            tracing::info!("{device}: {closeness}");
        }
        let name = match device {
            Device::Cpu => format!("cpu, {threads} threads").replace("1 threads", "1 thread"),
            Device::Cuda(_) => device.to_string(),
        };
        Ok(Self { name, defined: false, member: true, device, backend, apart: false })
    }

    /// The same with a leaf's windows one by one.
    #[must_use]
    pub fn apart(self) -> Self {
        Self { name: format!("{}, windows apart", self.name), apart: true, ..self }
    }

    /// A leaf on the grid and its loss; no loss where windows are taken one by one.
    pub fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>) -> GridLeaf {
        if self.apart {
            return (placed(manifest, job, &self.gradient(manifest, job)), None);
        }
        let mut q = vec![0; job.state.parameters.len()];
        let loss = self.backend.leaf(manifest, job, &mut q);
        (q, Some(loss))
    }

    /// The real gradient of a leaf.
    pub fn gradient(&mut self, manifest: &Manifest, job: &LeafJob<'_>) -> Vec<f32> {
        if !self.apart {
            return self.backend.gradient(manifest, job).to_vec();
        }
        let mut sum = vec![0f64; job.state.parameters.len()];
        for window in job.windows.chunks(1) {
            let job = LeafJob { windows: window, ..*job };
            let gradient = self.backend.gradient(manifest, &job);
            sum.iter_mut().zip(gradient).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        sum.iter().map(|sum| (sum / job.windows.len() as f64) as f32).collect()
    }
}

/// A gradient on the grid, by GRID-4.
pub fn placed(manifest: &Manifest, job: &LeafJob<'_>, gradient: &[f32]) -> Vec<i32> {
    let mut words = vec![0; gradient.len()];
    Dither::new(&job.round_seed, job.leaf).fill(&mut words);
    let layout = Layout::of_run(manifest);
    let tensors = layout.tensors().iter().zip(&job.state.exponents);
    let placed = tensors.flat_map(|(tensor, exponent)| {
        let inverse_step = power_of_two(-i32::from(*exponent));
        let pairs = gradient[tensor.range()].iter().zip(&words[tensor.range()]);
        pairs.map(move |(value, word)| quantise(*value, inverse_step, *word))
    });
    placed.collect()
}

/// Every machine's leaf.
pub fn computed(machines: &mut [LeafComputer], manifest: &Manifest, job: &LeafJob<'_>) -> Vec<GridLeaf> {
    machines.iter_mut().map(|machine| machine.leaf(manifest, job)).collect()
}

/// On how many threads libtorch computes on a device, and whether it takes windows one by one, too.
///
/// On the processor it is 1, 2, 4, … and all threads, and these once more with the windows apart; on a graphics processor,
/// where threads change nothing, both once.
fn ways(device: Device, threads: usize, several: bool) -> Vec<(usize, bool)> {
    let counts = (0..).map(|power| 1 << power).take_while(|count| *count < threads && device == Device::Cpu);
    let at_once = counts.chain([threads]).map(|count| (count, false));
    at_once.chain(several.then_some((threads, true))).collect()
}

/// What computes leaves of a profile here, the defined bits first, unless members may not use them and only what they may
/// is wanted; and why something is not among it.
///
/// Libtorch takes a leaf's windows all at once and one by one on each device (an ALBERT's only at once: what it masks
/// depends on a window's number in its leaf).
///
/// # Errors
/// [`Misuse`] with the remedy where there is no libtorch, or it computes wrongly, or lacks a device that is asked for.
pub fn at_hand(
    profile: Profile,
    threads: usize,
    devices: &[Device],
    members_only: bool,
    manifest: &Manifest,
) -> Result<(Vec<LeafComputer>, Vec<String>), Misuse> {
    let (mut machines, mut absent) = (vec![LeafComputer::exact(profile, threads)?], Vec::new());
    let left_out = members_only && !machines[0].member;
    if left_out {
        machines.clear();
    }
    let several = manifest.model.decoder().is_some() && manifest.training.leaf_windows > 1;
    let on = |device: Device| -> Result<Vec<LeafComputer>, Misuse> {
        let machine = |(count, apart)| {
            let machine = LeafComputer::torch(profile, device, count)?;
            Ok(if apart { machine.apart() } else { machine })
        };
        ways(device, threads, several).into_iter().map(machine).collect()
    };
    if devices.is_empty() || devices.contains(&Device::Cpu) {
        machines.extend(on(Device::Cpu)?);
    }
    let asked = devices.iter().copied().filter(|device| *device != Device::Cpu);
    for device in asked {
        machines.extend(on(device)?);
    }
    let unasked = (0..).map(Device::Cuda).take_while(|_| devices.is_empty());
    for device in unasked {
        match on(device) {
            Ok(found) => machines.extend(found),
            Err(misuse) => {
                if device == Device::Cuda(0) {
                    absent.push(format!("no graphics processor: {misuse}"));
                }
                break;
            }
        }
    }
    let device = machines.first().map(|machine| machine.device);
    if let Some(device) =
        device.filter(|device| left_out && machines.iter().all(|machine| machine.device == *device))
    {
        absent.push(format!(
            "all machines here are on {device}: a member on another kind of device can be found guilty though it is honest; \
             measure on one of each kind"
        ));
    }
    Ok((machines, absent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_takes_windows_at_once_and_apart() {
        let cpu = [(1, false), (2, false), (4, false), (6, false), (6, true)];
        assert_eq!(ways(Device::Cpu, 6, true), cpu);
        assert_eq!(ways(Device::Cpu, 1, true), [(1, false), (1, true)]);
        assert_eq!(ways(Device::Cuda(1), 6, true), [(6, false), (6, true)]);
        assert_eq!(ways(Device::Cuda(1), 6, false), [(6, false)], "an ALBERT, or leaves of one window");
    }
}
