//! Local updates whose steps take their gradients from a device.

use std::sync::atomic::Ordering;

use muster_core::ids::{Digest, Leaf, MemberId};
use muster_core::manifest::fixture::{local, tiny};
use muster_core::state::{Arithmetic, LeafTask};

use super::{Lot, Other, gpu, with_device};
use crate::Exact;
use crate::backend::Backend;

/// Segments of a member's contribution.
const SEGMENTS: u64 = 3;

/// What the segments add, and their losses.
fn contribution(backend: &mut dyn Arithmetic) -> Vec<(Vec<i32>, i64)> {
    let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 4, 1);
    local(&mut manifest, SEGMENTS as u32);
    let each = manifest.local().unwrap().segment * manifest.training.leaf_windows;
    let token = |seed: u32, at: u32| (at * at * 5 + at * 7 + seed * 13) % 200;
    let window = |seed: u32| (0..=manifest.model.sequence).map(|at| token(seed, at)).collect();
    let state = Exact::new(1, None).unwrap().initial(&manifest, &[window(99)]);
    let mut tasks = (0..SEGMENTS).map(|segment| LeafTask {
        state: &state,
        round_seed: Digest([4; 32]),
        leaf: Leaf(segment),
        windows: (0..each).map(|number| window(segment as u32 * each + number)).collect(),
        q: Vec::new(),
    });
    let mut taken = Vec::new();
    backend.leaves(&manifest, &mut tasks, &mut |q, loss| taken.push((q, loss)));
    taken
}

fn right() -> Vec<(Vec<i32>, i64)> {
    contribution(&mut Exact::new(1, None).unwrap())
}

#[test]
fn steps_by_a_device_are_those_of_the_processor() {
    with_device(|driver| {
        let other = Other::new(driver, |_: &mut [u8]| ());
        let (launches, mut gpu) = (other.launches.clone(), gpu(Box::new(other)));
        let (found, right) = (contribution(&mut gpu), right());
        assert_eq!(found.len(), SEGMENTS as usize);
        assert!(found == right && right.iter().any(|(q, _)| q.iter().any(|q| *q != 0)));
        assert!(gpu.engine.is_some() && launches.load(Ordering::Relaxed) < u64::MAX, "{}", gpu.describe());
        // In the middle of the contribution, the processor takes over.
        launches.store((u64::MAX - launches.load(Ordering::Relaxed)) / 2, Ordering::Relaxed);
        gpu.lot = Lot::new(u64::MAX);
        assert!(contribution(&mut gpu) == right);
        assert!(gpu.engine.is_none() && gpu.doubt().is_none(), "{}", gpu.describe());
    });
}

/// COMMIT-7.
#[test]
fn a_step_that_a_device_computes_in_two_ways_is_noticed() {
    with_device(|driver| {
        let mut copies = 0;
        // The first copy of the second computation: its gradient.
        let flip = move |bytes: &mut [u8]| {
            copies += 1;
            if copies == 4 {
                bytes[2] ^= 1;
            }
        };
        let mut gpu = gpu(Box::new(Other::new(driver, flip)));
        gpu.lot = Lot::new(1);
        contribution(&mut gpu);
        assert!(gpu.doubt().is_some_and(|why| why.contains("in two ways")), "{:?}", gpu.doubt());
    });
}
