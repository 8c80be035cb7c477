//! Devices that are found here, and what may become of them. Without any device nothing is tried, and each test says so:
//! Debian's `pocl-opencl-icd` makes one of the processor.

mod families;
mod steps;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use muster_core::ids::{Digest, Leaf, MemberId};
use muster_core::manifest::fixture::tiny;
use muster_core::state::{Arithmetic, LeafJob, LeafTask, State};

use super::buffers::Buffers;
use super::driver::{Argument, Description, Driver, Fault, Memory, Outcome, Place, Slot};
use super::engine::Engine;
use super::{Fleet, Gpu, Lot, TWICE};
use crate::Exact;
use crate::backend::Backend;
use crate::plan::NetworkPlan;
use crate::reading::Reading;

/// A device, one at a time: PoCL builds for one process only.
pub(crate) static ONE: Mutex<()> = Mutex::new(());

/// The first device that is found, as something else has it; none, with a word, where there is none.
pub(crate) fn with_device(test: impl FnOnce(Box<dyn Driver>)) {
    let _one = muster_core::lock::lock(&ONE);
    match super::look().first() {
        Some(found) => test(found.open().unwrap()),
        #[allow(clippy::print_stderr)]
        None => eprintln!("no device is found: nothing was tried"),
    }
}

fn gpu(driver: Box<dyn Driver>) -> Gpu {
    Gpu::with(driver, Exact::new(2, None).unwrap(), "a device".into())
}

/// A device that differs from another one in something.
struct Other<C> {
    driver: Box<dyn Driver>,
    description: Description,
    /// May change what is copied to the host.
    change: C,
    /// Launches after which it fails.
    launches: Arc<AtomicU64>,
    copied: Vec<u8>,
}

impl<C: FnMut(&mut [u8]) + Send> Other<C> {
    fn new(driver: Box<dyn Driver>, change: C) -> Self {
        let description = driver.description().clone();
        Self { driver, description, change, launches: Arc::new(AtomicU64::new(u64::MAX)), copied: Vec::new() }
    }
}

impl<C: FnMut(&mut [u8]) + Send> Driver for Other<C> {
    fn description(&self) -> &Description {
        &self.description
    }

    fn allocate(&mut self, bytes: usize) -> Outcome<Memory> {
        self.driver.allocate(bytes)
    }

    fn release(&mut self, memory: Memory) {
        self.driver.release(memory);
    }

    fn upload(&mut self, to: Place, bytes: &[u8]) -> Outcome<()> {
        self.driver.upload(to, bytes)
    }

    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Outcome<()> {
        self.driver.download(from, bytes)?;
        (self.change)(bytes);
        Ok(())
    }

    fn stage(&mut self, slot: Slot, from: Place, bytes: usize) -> Outcome<()> {
        self.driver.stage(slot, from, bytes)
    }

    fn staged(&mut self, slot: Slot) -> Outcome<&[u8]> {
        self.copied = self.driver.staged(slot)?.to_vec();
        (self.change)(&mut self.copied);
        Ok(&self.copied)
    }

    fn clear(&mut self, at: Place, values: usize) -> Outcome<()> {
        self.driver.clear(at, values)
    }

    fn launch(&mut self, kernel: &'static str, groups: u64, arguments: &[Argument]) -> Outcome<()> {
        if self.launches.fetch_sub(1, Ordering::Relaxed) == 0 {
            self.launches.store(0, Ordering::Relaxed);
            return Err(Fault("it was unplugged".into()));
        }
        self.driver.launch(kernel, groups, arguments)
    }

    fn finish(&mut self) -> Outcome<()> {
        self.driver.finish()
    }
}

/// Leaves of some windows each, of a small model.
fn leaves(count: u64) -> (muster_core::manifest::Manifest, State, Vec<Vec<Vec<u32>>>) {
    let manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 4, 1);
    let sequence = manifest.model.sequence;
    let window = |seed: u64| (0..=sequence).map(move |at| (at * 7 + seed as u32 * 13) % 200).collect();
    let windows: Vec<Vec<Vec<u32>>> =
        (0..count).map(|leaf| (0..5).map(|number| window(leaf * 5 + number)).collect()).collect();
    let state = Exact::new(1, None).unwrap().initial(&manifest, &windows[0][..1]);
    (manifest, state, windows)
}

fn computed(backend: &mut dyn Arithmetic, count: u64) -> Vec<(Vec<i32>, i64)> {
    let (manifest, state, windows) = leaves(count.max(1));
    let task = |(leaf, windows): (u64, Vec<Vec<u32>>)| LeafTask {
        state: &state,
        round_seed: Digest([4; 32]),
        leaf: Leaf(leaf),
        windows,
        q: Vec::new(),
    };
    let mut taken = Vec::new();
    backend.leaves(&manifest, &mut (0..count).zip(windows).map(task), &mut |q, loss| taken.push((q, loss)));
    taken
}

fn right(count: u64) -> Vec<(Vec<i32>, i64)> {
    computed(&mut Exact::new(1, None).unwrap(), count)
}

#[test]
fn a_device_proves_itself_and_computes_what_the_processor_does() {
    with_device(|driver| {
        let mut gpu = gpu(driver);
        gpu.self_test().unwrap();
        for count in [0, 1, 2, 5] {
            assert!(computed(&mut gpu, count) == right(count), "{count} leaves");
        }
        // No windows have no place on a device: the processor answers, and the device stays.
        let (manifest, state, _) = leaves(1);
        let job = LeafJob { state: &state, round_seed: Digest([4; 32]), leaf: Leaf(0), windows: &[] };
        assert!(gpu.evaluate(&manifest, &state, &[]).is_nan());
        assert!(gpu.gradient(&manifest, &job).iter().all(|value| *value == 0.0));
        assert!(gpu.engine.is_some(), "{}", gpu.describe());
    });
}

#[test]
fn a_device_reads_what_the_processor_reads_and_goes_on_without_it() {
    with_device(|driver| {
        let (manifest, state, windows) = leaves(1);
        let mut exact = Exact::new(1, None).unwrap();
        let mut processor = exact.reader(&manifest, &state.parameters);
        let texts: Vec<&[u32]> = [1, 5, 8].into_iter().map(|length| &windows[0][0][..length]).collect();
        let right: Vec<Vec<f32>> = texts.iter().map(|text| processor.after(text)).collect();
        let read = |reading: &mut Reading| {
            let mut reader = reading.with(&manifest, &state.parameters);
            texts.iter().map(|text| reader.after(text)).collect::<Vec<_>>()
        };
        let mut reading = Reading::Device(Box::new(gpu(driver)));
        assert!(read(&mut reading) == right && read(&mut reading) == right);
        let Reading::Device(gpu) = &mut reading else { unreachable!() };
        assert!(gpu.engine.take().is_some(), "{}", gpu.describe());
        assert!(read(&mut reading) == right, "where it failed");
    });
}

/// Of one state, the second leaf of more windows than the first: its memory is another one.
#[test]
fn a_leaf_of_more_windows_has_its_parameters() {
    with_device(|driver| {
        let (manifest, state, windows) = leaves(3);
        let counts = [1, 3, 2];
        let taken = |backend: &mut dyn Arithmetic| {
            let task = |leaf: usize| LeafTask {
                state: &state,
                round_seed: Digest([4; 32]),
                leaf: Leaf(leaf as u64),
                windows: windows[leaf][..counts[leaf]].to_vec(),
                q: Vec::new(),
            };
            let mut taken = Vec::new();
            backend.leaves(&manifest, &mut (0..3).map(task), &mut |q, loss| taken.push((q, loss)));
            taken
        };
        let mut gpu = gpu(driver);
        gpu.lot = Lot::new(u64::MAX);
        assert!(taken(&mut gpu) == taken(&mut Exact::new(1, None).unwrap()));
        assert!(gpu.engine.is_some(), "{}", gpu.describe());
    });
}

/// It puts no gradient on the grid: the processor does.
#[test]
fn a_device_without_f64_computes_what_the_processor_does() {
    with_device(|driver| {
        let mut other = Other::new(driver, |_: &mut [u8]| ());
        other.description.wide = false;
        let mut gpu = gpu(Box::new(other));
        gpu.lot = Lot::new(2);
        assert!(computed(&mut gpu, 5) == right(5));
        assert!(gpu.engine.is_some() && gpu.doubt().is_none(), "{}", gpu.describe());
    });
}

/// One bit in a million of what it gives.
#[test]
fn arith_27_a_device_that_flips_bits_is_refused() {
    with_device(|driver| {
        let mut passed = 0u64;
        let flip = move |bytes: &mut [u8]| {
            for byte in bytes {
                passed += 8;
                if passed > 1_000_000 {
                    (passed, *byte) = (0, *byte ^ 4);
                }
            }
        };
        let refused = gpu(Box::new(Other::new(driver, flip))).self_test().unwrap_err();
        assert!(refused.to_string().contains("not exact"), "{refused}");
    });
}

/// COMMIT-7: it proved itself, and its memory fails later.
#[test]
fn commit_7_a_leaf_that_a_device_computes_in_two_ways_is_noticed() {
    with_device(|driver| {
        let (manifest, state, _) = leaves(1);
        assert!(manifest.local().is_none());
        let length = 4 * state.parameters.len();
        // A bit of the third copy of a leaf, and of no other.
        let mut copies = 0;
        let flip = move |bytes: &mut [u8]| {
            copies += u32::from(bytes.len() == length);
            if bytes.len() == length && copies == 3 {
                bytes[17] ^= 1;
            }
        };
        let mut gpu = gpu(Box::new(Other::new(driver, flip)));
        gpu.lot = Lot::new(1);
        assert!(computed(&mut gpu, 1) == right(1) && gpu.doubt().is_none());
        assert!(computed(&mut gpu, 3) == right(3), "the processor computes what is in doubt");
        assert!(gpu.doubt().is_some_and(|why| why.contains("in two ways")), "{:?}", gpu.doubt());
    });
}

/// Three ways to one device stand in for three devices: the driver of the second fails in its second leaf, and the processor takes
/// its turns.
#[test]
fn devices_take_leaves_by_turns() {
    with_device(|driver| {
        let found = crate::gpu::look();
        let more = || found[0].open().unwrap();
        let failing = Other::new(more(), |_: &mut [u8]| ());
        let launches = failing.launches.clone();
        let others = vec![gpu(Box::new(failing)), gpu(more())];
        let mut fleet = Fleet::new(gpu(driver), others);
        for count in [0, 1, 2, 3, 7] {
            assert!(computed(&mut fleet, count) == right(count), "{count} leaves");
        }
        assert!(!fleet.describe().contains("failed"), "{}", fleet.describe());
        launches.store(40, Ordering::Relaxed);
        assert!(computed(&mut fleet, 7) == right(7));
        assert!(fleet.describe().matches("failed").count() == 1, "{}", fleet.describe());
        assert!(fleet.doubt().is_none());
    });
}

/// COMMIT-7: one of them is enough.
#[test]
fn commit_7_a_fleet_is_in_doubt_with_one_of_its_devices() {
    with_device(|driver| {
        let found = crate::gpu::look();
        let (_, state, _) = leaves(1);
        let (length, mut copies) = (4 * state.parameters.len(), 0);
        let flip = move |bytes: &mut [u8]| {
            copies += u32::from(bytes.len() == length);
            if bytes.len() == length && copies == 2 {
                bytes[17] ^= 1;
            }
        };
        let mut lying = gpu(Box::new(Other::new(found[0].open().unwrap(), flip)));
        lying.lot = Lot::new(1);
        let mut fleet = Fleet::new(gpu(driver), vec![lying]);
        assert!(computed(&mut fleet, 4) == right(4), "the processor computes what is in doubt");
        assert!(fleet.doubt().is_some_and(|why| why.contains("in two ways")), "{:?}", fleet.doubt());
    });
}

#[test]
fn one_leaf_of_sixteen_is_computed_twice() {
    let mut lot = Lot::new(TWICE);
    let drawn = (0..16_000).filter(|_| lot.draw()).count();
    assert!((800..1200).contains(&drawn), "{drawn}");
}

#[test]
fn where_a_device_fails_the_processor_goes_on() {
    with_device(|driver| {
        let other = Other::new(driver, |_: &mut [u8]| ());
        let (launches, mut gpu) = (other.launches.clone(), gpu(Box::new(other)));
        gpu.lot = Lot::new(u64::MAX);
        let (manifest, state, windows) = leaves(1);
        let job = LeafJob { state: &state, round_seed: Digest([4; 32]), leaf: Leaf(0), windows: &windows[0] };
        gpu.leaf(&manifest, &job, &mut vec![0; state.parameters.len()]);
        let of_leaf = u64::MAX - launches.load(Ordering::Relaxed);
        // In the middle of the third leaf of five.
        launches.store(2 * of_leaf + of_leaf / 2, Ordering::Relaxed);
        assert!(computed(&mut gpu, 5) == right(5));
        assert!(gpu.engine.is_none() && gpu.describe().contains("unplugged"), "{}", gpu.describe());
    });
}

/// Chains go on from portion to portion, and a layer that was not kept is computed again.
#[test]
fn arith_28_a_small_device_takes_some_windows_at_a_time_and_one_layer() {
    with_device(|driver| {
        let (manifest, ..) = leaves(1);
        let plan = NetworkPlan::new(&manifest.model);
        let mut other = Other::new(driver, |_: &mut [u8]| ());
        let portion = |other: &mut Other<_>| {
            Buffers::take(other, &plan, 5).map(|found| {
                let portion = (found.portion().windows, found.portion().kept);
                found.give_back(other);
                portion
            })
        };
        let layers = plan.layers;
        let mut wanted = vec![(5, layers), (2, layers), (1, layers), (1, 1)];
        if layers == 1 {
            wanted.pop();
        }
        let mut found = Vec::new();
        while let Ok(next) = portion(&mut other) {
            if found.last() != Some(&(next, other.description.memory)) {
                found.push((next, other.description.memory));
            }
            other.description.memory = other.description.memory / 100 * 99;
        }
        let why = portion(&mut other).unwrap_err().0;
        assert!(why.contains("MB"), "{why}");
        let mut driver: Box<dyn Driver> = other.driver;
        for wanted in wanted {
            let (_, memory) = *found.iter().find(|(found, _)| *found == wanted).unwrap();
            let mut small = Other::new(driver, |_: &mut [u8]| ());
            small.description.memory = memory;
            let mut gpu = gpu(Box::new(small));
            assert!(computed(&mut gpu, 2) == right(2), "{wanted:?}");
            let engine: Engine = gpu.engine.take().unwrap();
            driver = engine.into_driver();
        }
    });
}
