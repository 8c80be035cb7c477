//! Flat vectors between memory and the device: parameters there, gradients back.

use std::sync::atomic::{AtomicBool, Ordering};

use tch::{Device, Kind, Tensor};

use super::library::{Download, pin, values, values_mut};
use crate::parallel::{each, parts};

/// Values that one task compares or copies: a few times what a thread costs to start.
const PIECE: usize = 1 << 17;

/// Zeros in memory; where a graphics processor is to reach them, in memory that it reads and writes by itself, as far as
/// the system grants that.
fn memory(length: usize, device: Device) -> Tensor {
    let mut vector = Tensor::zeros([length as i64], (Kind::Float, Device::Cpu));
    if length > 0 && device.is_cuda() {
        // Such memory is limited. Any other takes the same copies, only slower.
        pin(&mut vector);
    }
    vector
}

/// A vector on a graphics processor, with arbitrary content; nothing where the processor itself computes.
fn beyond(length: usize, device: Device) -> Option<Tensor> {
    device.is_cuda().then(|| Tensor::empty([length as i64], (Kind::Float, device)))
}

/// Parameters where they are computed with. They stay there: a state's next leaf copies none.
pub(super) struct Parameters {
    device: Device,
    threads: usize,
    /// What the device got; on the processor, what is computed with.
    host: Tensor,
    /// The same on a graphics processor; none where the processor computes, and while it may differ.
    there: Option<Tensor>,
    #[cfg(test)]
    uploads: usize,
}

impl Parameters {
    /// None yet; they are compared and copied on this many threads.
    pub(super) fn new(device: Device, threads: usize) -> Self {
        Self {
            device,
            threads,
            host: memory(0, device),
            there: None,
            #[cfg(test)]
            uploads: 0,
        }
    }

    /// These parameters on the device, for as long as no others are asked for.
    pub(super) fn of(&mut self, parameters: &[f32]) -> Tensor {
        // Every bit is compared: an address, or a state's number of updates, may come again with other parameters, and
        // what is computed of the former ones would be signed as a leaf of these.
        let usable = self.there.is_some() || !self.device.is_cuda();
        if !usable || !same_bits(self.threads, values(&self.host), parameters) {
            self.upload(parameters);
        }
        self.there.as_ref().unwrap_or(&self.host).shallow_clone()
    }

    fn upload(&mut self, parameters: &[f32]) {
        // Gone from here until all of it is new: a copy that fails half-way leaves nothing to be taken for either.
        let there = self.there.take();
        if self.host.numel() != parameters.len() {
            self.host = memory(parameters.len(), self.device);
        }
        copy(self.threads, values_mut(&mut self.host), parameters);
        let there = there.filter(|there| there.numel() == parameters.len());
        self.there = there.or_else(|| beyond(parameters.len(), self.device)).map(|mut there| {
            there.copy_(&self.host);
            there
        });
        #[cfg(test)]
        {
            self.uploads += 1;
        }
    }
}

/// A flat gradient in memory. Where a graphics processor computes it, it is collected there and copied at once, beside
/// whatever is computed next.
pub(super) struct Gradient {
    device: Device,
    /// On its way, both ends; the ends otherwise.
    arriving: Option<Download>,
    host: Tensor,
    there: Option<Tensor>,
}

impl Gradient {
    /// An empty one.
    pub(super) fn new(device: Device) -> Self {
        Self { device, arriving: None, host: memory(0, device), there: None }
    }

    /// Where a new gradient is written to: on the device.
    pub(super) fn collect(&mut self, length: usize) -> &mut Tensor {
        self.wait();
        if self.host.numel() != length {
            self.host = memory(length, self.device);
            self.there = beyond(length, self.device);
        }
        self.there.as_mut().unwrap_or(&mut self.host)
    }

    /// Takes what was collected to memory, without waiting for it.
    pub(super) fn send(&mut self) {
        if let Some(there) = self.there.take() {
            let host = std::mem::replace(&mut self.host, memory(0, self.device));
            match Download::begin(host, there) {
                Ok(download) => self.arriving = Some(download),
                // Slower, and if the device is what failed, this says so.
                Err([mut host, there]) => {
                    host.copy_(&there);
                    (self.host, self.there) = (host, Some(there));
                }
            }
        }
    }

    /// The gradient of nothing.
    pub(super) fn clear(&mut self, length: usize) {
        let _ = self.collect(length).zero_();
        self.send();
    }

    /// The gradient, once it has arrived.
    ///
    /// # Panics
    /// With libtorch's own words, when the device failed.
    pub(super) fn values(&mut self) -> &[f32] {
        self.wait();
        values(&self.host)
    }

    fn wait(&mut self) {
        if let Some(download) = self.arriving.take() {
            let [host, there] = download.wait();
            (self.host, self.there) = (host, Some(there));
        }
    }
}

/// Whether two vectors are equal to the bit, signs of zeros and NaN included.
fn same_bits(threads: usize, one: &[f32], other: &[f32]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let same = AtomicBool::new(true);
    let pairs = one.chunks(PIECE).zip(other.chunks(PIECE));
    each(&mut workers(threads, one.len()), pairs, |(), (one, other)| {
        // Without a way out in the middle, so that it is compared in vectors; nothing more once a piece differs.
        let differ = |differ: u32, (one, other): (&f32, &f32)| differ | (one.to_bits() ^ other.to_bits());
        if same.load(Ordering::Relaxed) && one.iter().zip(other).fold(0, differ) != 0 {
            same.store(false, Ordering::Relaxed);
        }
    });
    same.into_inner()
}

fn copy(threads: usize, target: &mut [f32], source: &[f32]) {
    let mut workers = workers(threads, source.len());
    let targets = parts(target, source.chunks(PIECE).map(<[f32]>::len));
    each(&mut workers, targets.zip(source.chunks(PIECE)), |(), (target, source)| {
        target.copy_from_slice(source)
    });
}

/// One for each thread that a vector of this length occupies.
fn workers(threads: usize, length: usize) -> Vec<()> {
    vec![(); threads.clamp(1, length.div_ceil(PIECE).max(1))]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(length: usize) -> Vec<f32> {
        (0..length).map(|index| (index % 1021) as f32 / 255.0 - 2.0).collect()
    }

    #[test]
    fn parameters_are_copied_once_and_again_after_any_change() {
        for (threads, length) in [(1, 5), (3, 2 * PIECE + 77)] {
            let mut kept = Parameters::new(Device::Cpu, threads);
            let mut state = some(length);
            // The same place each time, as a state has that a round updates.
            for (uploads, index) in (1..).zip([0, length / 2, length - 1]) {
                for _ in 0..2 {
                    assert!(same_bits(1, values(&kept.of(&state)), &state));
                    assert_eq!(kept.uploads, uploads, "{length} on {threads}");
                }
                state[index] = f32::from_bits(state[index].to_bits() ^ 1);
            }
            for _ in 0..2 {
                assert!(same_bits(1, values(&kept.of(&state.clone())), &state));
                assert_eq!(kept.uploads, 4, "elsewhere, but the same");
            }
            for (uploads, others) in [(5, &state[1..]), (6, &[])] {
                assert!(same_bits(1, values(&kept.of(others)), others));
                assert_eq!(kept.uploads, uploads);
            }
        }
    }

    #[test]
    fn bits_are_compared_and_not_numbers() {
        let nan = f32::from_bits(0x7fc0_0001);
        assert!(same_bits(2, &[nan, 0.0], &[nan, 0.0]));
        assert!(!same_bits(2, &[0.0], &[-0.0]));
        assert!(!same_bits(2, &[nan], &[f32::NAN]));
        assert!(!same_bits(2, &[1.0], &[1.0, 1.0]));
    }

    #[test]
    fn a_gradient_is_what_was_collected_last() {
        let mut gradient = Gradient::new(Device::Cpu);
        for length in [4, 4, 7] {
            gradient.collect(length).copy_(&Tensor::from_slice(&some(length)));
            gradient.send();
            assert_eq!(gradient.values(), &some(length));
            gradient.clear(length);
            assert_eq!(gradient.values(), &vec![0.0; length]);
        }
    }
}
