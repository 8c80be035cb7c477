//! The memory that is foretold beside that which the process then takes.
#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

#[allow(dead_code)]
#[path = "exact/setting.rs"]
mod setting;

use std::mem::ManuallyDrop;

use muster_compute::{Exact, buffers};
use muster_core::ids::{Digest, Leaf};
use muster_core::manifest::{Model, Projection};
use muster_core::state::{Arithmetic, LeafJob};

use crate::setting::{albert, manifest, mixture, model, variant};

/// Bytes of this process that are in memory.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}

/// Bytes taken for a leaf, over those foretold. Nothing is given back, so that no later case lives on it.
fn share(model: Model, recompute: bool, threads: usize, count: u32) -> f64 {
    let mut manifest = manifest(model);
    manifest.training.leaf_windows = count;
    manifest.training.recompute = recompute;
    let model = &manifest.model;
    let windows = vec![vec![1; model.sequence as usize + 1]; count as usize];
    let mut first = ManuallyDrop::new(Exact::new(1, None).unwrap());
    let state = ManuallyDrop::new(first.initial(&manifest, &windows[..1]));
    // Of the caller, as the state is.
    let mut q = ManuallyDrop::new(vec![1; state.parameters.len()]);
    let job = LeafJob { state: &state, round_seed: Digest::default(), leaf: Leaf(0), windows: &windows };
    let mut exact = ManuallyDrop::new(Exact::new(threads, None).unwrap());
    let before = resident();
    exact.leaf(&manifest, &job, &mut q);
    (resident() - before) / buffers(model, &manifest.training, threads) as f64
}

#[test]
fn buffers_are_foretold() {
    let decoder = |tied| model([6_000, 192, 4, 6, 2, 512, 384], tied);
    let cases = [
        (decoder(true), false, 1),
        (decoder(false), false, 2),
        (decoder(true), true, 2),
        (albert([6_000, 384, 4, 6, 1024, 256], 96), false, 2),
        (albert([6_000, 384, 8, 6, 1024, 256], 96), true, 1),
        (mixture(model([6_000, 192, 4, 6, 2, 256, 384], true), [8, 2, 128], 0.01), false, 2),
        (mixture(model([6_000, 192, 4, 6, 2, 256, 384], false), [16, 1, 64], 0.01), true, 1),
        (variant(model([6_000, 192, 4, 6, 2, 512, 384], true), 96, Projection::Biased), false, 2),
        (variant(model([6_000, 192, 4, 6, 2, 512, 384], false), 12, Projection::Biased), true, 1),
        (variant(model([6_000, 192, 4, 6, 2, 512, 384], true), 96, Projection::Normed), false, 2),
    ];
    // Large enough that matrices are not kept packed.
    let large = || model([3_000, 768, 6, 6, 2, 2_048, 128], true);
    let large = [3, 1].map(|windows| share(large(), false, 1, windows));
    let small = cases.map(|(model, recompute, threads)| share(model, recompute, threads, 3));
    // As they are where one thread takes one window.
    let once = share(model([6_000, 192, 4, 6, 2, 512, 384], true), false, 1, 1);
    let shares = [&small[..], &large, &[once]].concat();
    assert!(shares.iter().all(|share| (0.95..1.05).contains(share)), "{shares:?}");
}

#[test]
fn no_size_is_too_large_to_be_told() {
    let huge = [1 << 20; 7];
    let mut training = manifest(model([2, 2, 1, 1, 1, 2, 2], true)).training;
    training.leaf_windows = u32::MAX;
    assert_eq!(buffers(&model(huge, false), &training, usize::MAX), u64::MAX);
    assert_eq!(buffers(&albert([1 << 20; 6], 1 << 20), &training, usize::MAX), u64::MAX);
    assert_eq!(
        buffers(&variant(model(huge, false), 1 << 20, Projection::Normed), &training, usize::MAX),
        u64::MAX
    );
}
