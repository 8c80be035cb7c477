//! Devices of this machine: whether their leaves are right to the last bit, how fast they are, and where the time goes.
//!
//! `cargo run --release -p muster-compute --example gpu -- check [leaves] [seed]` computes leaves of drawn shapes and all
//! families on every device and on the processor; where a bit differs it says in which smallest leaf, and exits with 1.
//! `… -- speed [windows] [device] [decoder|mixture|albert]` computes leaves of a decoder of 100 M parameters, or of another family
//! as wide, with windows of 256 tokens. `… -- source` prints the kernels in CUDA C++.
#![allow(clippy::print_stdout)]

#[path = "../tests/shapes/drawn.rs"]
mod drawn;

use std::time::Instant;

use muster_compute::{Backend, Exact, Found, Gpu, cuda_source, devices};
use muster_core::codec::Real;
use muster_core::ids::{Digest, Leaf};
use muster_core::manifest::{Albert, Decoder, Family, Model};
use muster_core::state::{Arithmetic, LeafJob, LeafTask};
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use rand_chacha::ChaCha8Rng;
use rand_core::SeedableRng;

use crate::drawn::{experts, manifest, state, windows};

/// Whether no device has other bits than the processor, in so many leaves that are drawn from a seed.
fn check(leaves: u32, seed: u64) -> bool {
    let mut right = true;
    for (number, found) in devices().iter().enumerate() {
        println!("gpu:{number} {}", found.says());
        right &= check_device(found, leaves, seed);
    }
    right
}

fn check_device(found: &Found, leaves: u32, seed: u64) -> bool {
    let mut seeds = [0; 32];
    seeds[..8].copy_from_slice(&seed.to_le_bytes());
    let draw = TestRng::from_seed(RngAlgorithm::ChaCha, &seeds);
    let mut runner = TestRunner::new_with_rng(drawn::cases(leaves), draw);
    match drawn::compare(found, threads(), &mut runner) {
        Ok(tried) => {
            let families: Vec<String> =
                tried.families.iter().map(|(name, count)| format!("{name}: {count}")).collect();
            let numbers = tried.numbers;
            println!(
                "  known answers: right\n  {leaves} leaves ({}), {numbers} coefficients and integers: 0 differ",
                families.join(", ")
            );
            true
        }
        Err(why) => {
            println!("  {why}");
            false
        }
    }
}

/// A decoder, or what is named in its place.
fn large(family: &str) -> Model {
    let decoder = Decoder { key_value_heads: 16, tied: true, rope_base: real(10_000.0) };
    let mut model = Model {
        vocabulary: 4096,
        width: 1024,
        layers: 8,
        heads: 16,
        hidden: 2752,
        sequence: 256,
        norm_epsilon: real(1e-5),
        initial_scale: real(0.02),
        family: Family::Decoder(decoder),
    };
    match (family, &model.family) {
        // A token passes as many inner values as the decoder has.
        ("mixture", Family::Decoder(decoder)) => {
            model.hidden = 688;
            model.family = experts(decoder.clone(), [16, 2], 1376, 0.01);
        }
        ("albert", _) => {
            model.family = Family::Albert(Albert { embedding: 128, masked_ppm: 150_000, mask_token: 0 });
        }
        _ => {}
    }
    model
}

fn speed(count: u32, number: usize, model: Model) {
    let parameters = model.parameters();
    let manifest = manifest(model, count);
    let mut draw = ChaCha8Rng::seed_from_u64(7);
    let mut exact = Exact::new(threads(), None).expect("a path");
    let state = state(&manifest, &mut exact, &mut draw);
    let windows = windows(&mut draw, &manifest.model, count);
    let mut gpu = Gpu::open(devices().get(number).expect("a device"), exact).expect("a device");
    println!("{parameters} parameters, {count} windows of 256 tokens, {}", gpu.describe());
    let mut q = vec![0; state.parameters.len()];
    let tokens = f64::from(count) * 256.0;
    let mut run = |gpu: &mut Gpu, what: &str| {
        let job = LeafJob { state: &state, round_seed: Digest([3; 32]), leaf: Leaf(3), windows: &windows };
        let begun = Instant::now();
        let loss = gpu.leaf(&manifest, &job, &mut q);
        let passed = begun.elapsed().as_secs_f64();
        println!(
            "  {what}: {:.1} ms, {:.0} tokens/s, loss {:.4}",
            1e3 * passed,
            tokens / passed,
            loss as f64 / 16_777_216.0
        );
    };
    (0..3).for_each(|turn| run(&mut gpu, if turn == 0 { "first leaf" } else { "leaf" }));
    const LEAVES: u64 = 8;
    let mut tasks = (0..LEAVES).map(|leaf| LeafTask {
        state: &state,
        round_seed: Digest([3; 32]),
        leaf: Leaf(leaf),
        windows: windows.clone(),
        q: Vec::new(),
    });
    let (mut ends, begun) = (Vec::new(), Instant::now());
    let mut kept = Vec::new();
    gpu.leaves(&manifest, &mut tasks, &mut |q, _| {
        ends.push(begun.elapsed().as_secs_f64());
        kept = q;
    });
    let each = (ends[ends.len() - 1] - ends[1]) / (ends.len() - 2) as f64;
    println!("  one after the other: {:.1} ms each, {:.0} tokens/s", 1e3 * each, tokens / each);
    let times = gpu.time();
    run(&mut gpu, "timed leaf");
    let times = times.lock().expect("nobody panicked").clone();
    let all: f64 = times.values().map(|(_, passed)| passed.as_secs_f64()).sum();
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_by_key(|(_, (_, passed))| std::cmp::Reverse(*passed));
    for (name, (launches, passed)) in times {
        let passed = passed.as_secs_f64();
        println!("    {name:18} {launches:5} times {:9.2} ms {:5.1} %", 1e3 * passed, 100.0 * passed / all);
    }
    println!("  computed by {}", gpu.describe());
}

fn real(value: f32) -> Real {
    Real::new(value).expect("a number")
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, other: u64| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(other);
    let family = words.get(3).map_or("decoder", String::as_str);
    match words.first().map(String::as_str) {
        Some("source") => print!("{}", cuda_source()),
        Some("speed") => speed(number(1, 128) as u32, number(2, 0) as usize, large(family)),
        _ => std::process::exit(i32::from(!check(number(1, 100) as u32, number(2, 0)))),
    }
}
