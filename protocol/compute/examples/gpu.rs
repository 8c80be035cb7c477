//! Devices of this machine: whether their leaves are right to the last bit, how fast they are, and where the time goes.
//!
//! `cargo run --release -p muster-compute --example gpu -- check [leaves] [first]` computes leaves of drawn shapes and all
//! families on every device and on the processor, and counts the coefficients that differ; it exits with 1 where a bit does.
//! `… -- speed [windows] [device] [decoder|mixture|albert]` computes leaves of a decoder of 100 M parameters, or of another family
//! as wide, with windows of 256 tokens. `… -- source` prints the kernels in CUDA C++.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Instant;

use muster_compute::{Backend, Exact, Found, Gpu, cuda_source, devices};
use muster_core::codec::Real;
use muster_core::ids::{Digest, Leaf, MemberId};
use muster_core::layout::Layout;
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{
    Albert, Decoder, Family, Manifest, Mixture, Model, Projection, Scaling, Variant,
};
use muster_core::state::{Arithmetic, LeafJob, LeafTask, State};

/// Numbers of a short cycle (Marsaglia, "Xorshift RNGs", 2003).
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    fn among(&mut self, least: u64, most: u64) -> u32 {
        (least + self.next() % (most - least + 1)) as u32
    }
}

fn real(value: f32) -> Real {
    Real::new(value).expect("a number")
}

fn manifest(model: Model, windows: u32, recompute: bool) -> Manifest {
    let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 4, 1);
    manifest.model = model;
    (manifest.training.leaf_windows, manifest.training.recompute) = (windows, recompute);
    manifest
}

fn decoder(size: [u32; 6], [key_value_heads, sequence]: [u32; 2], tied: bool) -> Model {
    let [vocabulary, width, layers, heads, hidden, scale] = size;
    Model {
        vocabulary,
        width,
        layers,
        heads,
        hidden,
        sequence,
        norm_epsilon: real(1e-5),
        initial_scale: real(0.02 * scale as f32),
        family: Family::Decoder(Decoder { key_value_heads, tied, rope_base: real(10_000.0) }),
    }
}

fn drawn(draw: &mut Draw, leaf: u64) -> (Manifest, u32) {
    let group = draw.among(1, 3);
    let (keys, half) = (draw.among(1, 3), draw.among(1, 20));
    let heads = group * keys;
    let (vocabulary, layers, hidden) = (draw.among(2, 300), draw.among(1, 3), draw.among(1, 200));
    let (sequence, windows) = (draw.among(1, 150), draw.among(1, 5));
    // Every other shape has rows that begin at 16 bytes, and whole slices of any depth.
    let unit = if leaf.is_multiple_of(2) { 1 } else { 16 };
    let round = |size: u32| size.next_multiple_of(unit);
    let width = round(heads * half * 2).next_multiple_of(2 * heads);
    let width = if width % unit == 0 { width } else { 2 * heads * unit };
    let size = [round(vocabulary), width, layers, heads, round(hidden), draw.among(1, 30)];
    let mut model = decoder(size, [keys, round(sequence)], draw.next().is_multiple_of(2));
    // Two leaves in turn have each family.
    model.family = family(draw, model.family, leaf / 2 % 4);
    (manifest(model, windows, false), windows)
}

/// A family in place of a decoder.
fn family(draw: &mut Draw, family: Family, number: u64) -> Family {
    match family {
        Family::Decoder(decoder) if number == 1 => {
            // Often more experts than tokens: some have none.
            let columns = draw.among(1, 20);
            let active = draw.among(1, columns.min(4).into());
            let shared = draw.among(2, 100);
            experts(decoder, [columns, active], shared, draw.among(0, 3) as f32)
        }
        Family::Decoder(_) if number == 2 => Family::Albert(Albert {
            embedding: draw.among(1, 80),
            masked_ppm: draw.among(1, 400_000),
            mask_token: 0,
        }),
        Family::Decoder(decoder) if number == 3 => variant(draw, decoder),
        other => other,
    }
}

/// Heads of any width, with biases or norms, and scaled positions.
fn variant(draw: &mut Draw, decoder: Decoder) -> Family {
    let head_width = 2 * draw.among(1, 40);
    let [factor, low, high] = [2.0, 1.0, 4.0].map(real);
    let scaling = Some(Scaling { factor, low, high, original: draw.among(1, 200) });
    let projection = [Projection::Biased, Projection::Normed][draw.among(0, 1) as usize];
    Family::Variant(Variant { decoder, head_width, projection, scaling })
}

fn experts(decoder: Decoder, [columns, active]: [u32; 2], shared_hidden: u32, balance: f32) -> Family {
    Family::Mixture(Mixture {
        decoder,
        columns: columns as u16,
        active: active as u16,
        shared_hidden,
        balance: real(balance),
        trust: real(4.0),
        rows: 1,
        branch: 0,
        few: 0,
        held: 0,
        lag: 0,
    })
}

fn name(family: &Family) -> &'static str {
    match family {
        Family::Decoder(_) => "decoders",
        Family::Mixture(_) => "mixtures",
        Family::Albert(_) => "ALBERTs",
        Family::Variant(_) => "variants",
    }
}

fn windows(draw: &mut Draw, model: &Model, count: u32) -> Vec<Vec<u32>> {
    // Some lie beyond the vocabulary.
    (0..count)
        .map(|_| (0..=model.sequence).map(|_| draw.among(0, model.vocabulary.into())).collect())
        .collect()
}

fn state(manifest: &Manifest, exact: &mut Exact, draw: &mut Draw) -> State {
    let calibration = windows(draw, &manifest.model, 1);
    let mut state = exact.initial(manifest, &calibration);
    // Biases begin at zero, and would not show.
    for tensor in Layout::of(&manifest.model).tensors().iter().filter(|tensor| tensor.name.ends_with(".bias"))
    {
        state.parameters[tensor.range()].fill_with(|| draw.among(0, 200) as f32 * 0.01 - 1.0);
    }
    state
}

fn check(leaves: u64, first: u64) -> bool {
    let mut right = true;
    for (number, found) in devices().iter().enumerate() {
        println!("gpu:{number} {}", found.says());
        right &= check_device(found, first..first + leaves);
    }
    right
}

fn check_device(found: &Found, leaves: Range<u64>) -> bool {
    let mut exact = Exact::new(threads(), None).expect("a path");
    let begun = Instant::now();
    let mut gpu = match Gpu::open(found, Exact::new(threads(), None).expect("a path")) {
        Ok(gpu) => gpu,
        Err(why) => {
            println!("  {why}");
            return false;
        }
    };
    println!("  opened in {:.1} s", begun.elapsed().as_secs_f64());
    let proved = gpu.self_test();
    match &proved {
        Ok(()) => println!("  known answers: right"),
        Err(why) => println!("  {why}"),
    }
    let (mut coefficients, mut differ, mut losses) = (0, 0, 0);
    let mut families: BTreeMap<&str, u64> = BTreeMap::new();
    let count = leaves.end - leaves.start;
    for leaf in leaves {
        let compared = compare(leaf, &mut gpu, &mut exact, losses + differ < 5);
        coefficients += compared.coefficients;
        differ += compared.differ;
        losses += usize::from(compared.loss_differs);
        *families.entry(compared.family).or_default() += 1;
    }
    let families: Vec<String> = families.iter().map(|(name, count)| format!("{name}: {count}")).collect();
    println!(
        "  {count} leaves ({}), {coefficients} coefficients and integers: {differ} differ; {losses} losses differ",
        families.join(", ")
    );
    println!("  computed by {}", gpu.describe());
    proved.is_ok() && differ == 0 && losses == 0
}

/// A leaf on a device and on the processor.
struct Compared {
    family: &'static str,
    /// And grid integers.
    coefficients: usize,
    differ: usize,
    loss_differs: bool,
}

/// With `loud`, says what differs.
fn compare(leaf: u64, gpu: &mut Gpu, exact: &mut Exact, loud: bool) -> Compared {
    let mut draw = Draw(0x9E37_79B9_7F4A_7C15 ^ (leaf + 1).wrapping_mul(0xD134_2543_DE82_EF95));
    (0..9).for_each(|_| {
        draw.next();
    });
    let (manifest, count) = drawn(&mut draw, leaf);
    gpu.force_tiles([None, Some(true), Some(false), Some(true)][leaf as usize / 6 % 4]);
    let mut state = state(&manifest, exact, &mut draw);
    if leaf % 5 == 4 {
        // Something infinite, or not a number, or all but zero.
        for value in [f32::INFINITY, f32::NAN, 1e-42, -0.0] {
            let at = draw.next() as usize % state.parameters.len();
            state.parameters[at] = value;
        }
    }
    let windows = windows(&mut draw, &manifest.model, count);
    let job =
        LeafJob { state: &state, round_seed: Digest([leaf as u8; 32]), leaf: Leaf(leaf), windows: &windows };
    let [mut own, mut other] = [(); 2].map(|()| vec![0; state.parameters.len()]);
    let (loss, right_loss) = (gpu.leaf(&manifest, &job, &mut own), exact.leaf(&manifest, &job, &mut other));
    let real = |value: &f32| if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() };
    let found: Vec<u32> = gpu.gradient(&manifest, &job).iter().map(real).collect();
    let wanted: Vec<u32> = exact.gradient(&manifest, &job).iter().map(real).collect();
    let differ = found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted).count()
        + own.iter().zip(&other).filter(|(own, other)| own != other).count();
    if loud && (differ > 0 || loss != right_loss) {
        let (count, model) = (wanted.len(), &manifest.model);
        println!("  leaf {leaf}: {differ} of {count} differ, losses {loss} and {right_loss}: {model:?}");
        for tensor in Layout::of(model).tensors() {
            let wrong = tensor.range().filter(|at| found[*at] != wanted[*at]).count();
            if wrong > 0 {
                println!("    {}: {wrong} of {}", tensor.name, tensor.range().len());
            }
        }
    }
    Compared {
        family: name(&manifest.model.family),
        coefficients: 2 * wanted.len(),
        differ,
        loss_differs: loss != right_loss,
    }
}

/// A decoder, or what is named in its place.
fn large(family: &str) -> Model {
    let mut model = decoder([4096, 1024, 8, 16, 2752, 1], [16, 256], true);
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
    let manifest = manifest(model, count, false);
    let mut draw = Draw(7);
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
        _ => std::process::exit(i32::from(!check(number(1, 100), number(2, 0)))),
    }
}
