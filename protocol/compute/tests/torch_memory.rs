//! The memory that is foretold for libtorch beside that which the process then takes.

#![cfg(all(feature = "tch", target_os = "linux"))]
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "exact/setting.rs"]
mod setting;

use muster_compute::{Device, Exact, Precision, Torch, torch_buffers};
use muster_core::ids::{Digest, Leaf};
use muster_core::manifest::Model;
use muster_core::state::{Arithmetic, LeafTask};

use crate::setting::{albert, manifest, model};

/// Most bytes of this process that were in memory at once.
fn peak() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1024.0
}

/// Bytes taken for leaves, over those foretold.
fn share(model: Model, recompute: bool, precision: Precision) -> f64 {
    let mut manifest = manifest(model);
    manifest.training.leaf_windows = 6;
    manifest.training.recompute = recompute;
    let windows = vec![vec![1; manifest.model.sequence as usize + 1]; 6];
    let state = Exact::new(1, None).unwrap().initial(&manifest, &windows[..1]);
    let mut sums = vec![vec![0; state.parameters.len()]; 2];
    // Forgets the largest size so far.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = peak();
    let mut torch = Torch::new(Device::Cpu, precision, 1, None).unwrap();
    let mut tasks = (0..2).map(|number| LeafTask {
        state: &state,
        round_seed: Digest::default(),
        leaf: Leaf(number),
        windows: windows.clone(),
        q: sums.pop().unwrap_or_default(),
    });
    let mut kept = Vec::new();
    torch.leaves(&manifest, &mut tasks, &mut |sum, _| kept.push(sum));
    (peak() - before) / torch_buffers(&manifest.model, &manifest.training, Device::Cpu, precision) as f64
}

/// Where a process of its own finds which case is its.
const CASE: &str = "MUSTER_MEMORY_CASE";

/// Each case in a process of its own: what one has taken, the next one would have for nothing.
#[test]
fn buffers_of_libtorch_are_foretold() {
    let decoder = || model([6_000, 384, 4, 6, 6, 1024, 384], true);
    let shared = || albert([6_000, 384, 4, 6, 1024, 256], 96);
    let cases = [
        (decoder(), false, Precision::F32),
        (decoder(), false, Precision::Bf16),
        (decoder(), true, Precision::F32),
        (shared(), false, Precision::F32),
        (shared(), false, Precision::Bf16),
    ];
    let own = std::env::var(CASE).ok().and_then(|number| number.parse::<usize>().ok());
    if let Some((model, recompute, precision)) = own.and_then(|number| cases.get(number).cloned()) {
        let share = share(model, recompute, precision);
        assert!((0.5..1.1).contains(&share), "{share:.2} of what is foretold");
        return;
    }
    let this = std::env::current_exe().unwrap();
    for number in 0..cases.len() {
        let alone = std::process::Command::new(&this)
            .args(["--exact", "buffers_of_libtorch_are_foretold", "--nocapture"])
            .env(CASE, number.to_string())
            .output()
            .unwrap();
        assert!(alone.status.success(), "case {number}: {}", String::from_utf8_lossy(&alone.stderr));
    }
}
