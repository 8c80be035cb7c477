//! What a device must show before anything that it computed is signed (ARITH-27): one wrong bit is a ban for life.

use muster_core::codec::Real;
use muster_core::error::Misuse;
use muster_core::ids::{Digest, Leaf};
use muster_core::layout::Layout;
use muster_core::manifest::{Albert, Decoder, Family, Mixture, Model, Projection, Variant};
use muster_core::state::{LeafJob, State};

use super::driver::{Outcome, Place};
use super::engine::Engine;
use super::queue::Queue;
use crate::initial;
use crate::kernel::rows::exponentials_of;
use crate::kernel::{Fma, Software};
use crate::leaf::{self, Setting};
use crate::path::Kernels;
use crate::self_test::{self, Computes};

/// Numbers that each function is tried with.
const COUNT: usize = 1 << 17;

/// Compares what a device computes with what the processor does: functions over all magnitudes, the known answers and leaves
/// of other shapes, with large tiles and with small ones.
///
/// # Errors
/// [`Misuse`] with what differs: this device, its driver or its compiler must not take part in a run.
pub(super) fn prove(engine: &mut Engine, kernels: Kernels, name: &str) -> Result<(), Misuse> {
    let refuse = |what: String| Misuse(format!("{name} is not exact, and its leaves would be false: {what}"));
    let wrong = functions(engine.queue(), kernels).map_err(|fault| refuse(fault.0))?;
    if let Some(wrong) = wrong {
        return Err(refuse(wrong));
    }
    let proved = [true, false].into_iter().try_for_each(|large| {
        engine.force_tiles(Some(large));
        self_test::run(engine, kernels, name)?;
        leaves(engine, kernels).map_err(|Misuse(what)| refuse(what))
    });
    engine.force_tiles(None);
    proved
}

/// The first function that gives another number than the processor, with its arguments.
fn functions(queue: &mut Queue, kernels: Kernels) -> Outcome<Option<String>> {
    // Every exponent and both signs, and pairs whose quotients and sums are near to each other or far apart.
    let spread = |factor: u32| (0..COUNT as u32).map(move |i| f32::from_bits(i.wrapping_mul(factor)));
    let [mut x, mut y]: [Vec<f32>; 2] = [0x9E37_79B1, 0x85EB_CA77].map(|factor| spread(factor).collect());
    // What fusing rounds otherwise, subnormals in and out, zeros, NaN, the ends of e^x.
    let edges = [
        (1.0 + 1.0 / 4096.0, 1.0 + 1.0 / 4096.0),
        (f32::from_bits(1), 0.5),
        (f32::from_bits(0x007f_ffff), 2.0),
        (f32::MIN_POSITIVE, f32::MAX),
        (-0.0, -0.0),
        (f32::NAN, 1.0),
        (f32::INFINITY, f32::NEG_INFINITY),
        (-87.0, 3.0),
        (88.5, 3.0),
    ];
    for (at, (a, b)) in edges.into_iter().enumerate() {
        (x[at], y[at]) = (a, b);
    }
    let mut wanted = vec![0.0; COUNT];
    exponentials_of(kernels, &x, &mut wanted);
    wanted.extend(x.iter().zip(&y).map(|(x, y)| x / y));
    wanted.extend(x.iter().map(|x| x.sqrt()));
    wanted.extend(x.iter().zip(&y).map(|(x, y)| Software::fma(*x, *y, *x)));
    wanted.extend(x.iter().zip(&y).map(|(x, y)| x * y + x));
    let memory = queue.driver.allocate(4 * 7 * COUNT)?;
    let at = |row: usize| Place { memory, first: row * COUNT };
    let mut found = vec![0f32; 5 * COUNT];
    let asked = queue
        .driver
        .upload(at(0), bytemuck::cast_slice(&x))
        .and_then(|()| queue.driver.upload(at(1), bytemuck::cast_slice(&y)))
        .and_then(|()| queue.functions(COUNT, [at(0), at(1), at(2)]))
        .and_then(|()| queue.driver.download(at(2), bytemuck::cast_slice_mut(&mut found)));
    queue.driver.release(memory);
    asked?;
    let differs = found.iter().zip(&wanted).position(|(found, wanted)| bits(*found) != bits(*wanted));
    Ok(differs.map(|at| {
        let names = ["e^x", "x/y", "√x", "fma(x, y, x)", "x·y + x"];
        let (x, y) = (x[at % COUNT], y[at % COUNT]);
        format!("{} of x = {x:e}, y = {y:e} is {:e}, not {:e}", names[at / COUNT], found[at], wanted[at])
    }))
}

/// Bits, with one NaN (ARITH-20).
fn bits(value: f32) -> u32 {
    if value.is_nan() { 0x7fc0_0000 } else { value.to_bits() }
}

/// Leaves of each family.
fn leaves(engine: &mut Engine, kernels: Kernels) -> Result<(), Misuse> {
    let decoder = Decoder { key_value_heads: 1, tied: true, rope_base: Real::new(10_000.0)? };
    let mixture = Mixture {
        decoder: decoder.clone(),
        columns: 6,
        active: 2,
        shared_hidden: 48,
        balance: Real::new(0.1)?,
        trust: Real::new(4.0)?,
        rows: 1,
        branch: 0,
        few: 0,
        held: 0,
        lag: 0,
    };
    let albert = Albert { embedding: 48, masked_ppm: 200_000, mask_token: 3 };
    let variant = |projection| {
        Family::Variant(Variant { decoder: decoder.clone(), head_width: 40, projection, scaling: None })
    };
    let families = [
        Family::Decoder(decoder.clone()),
        Family::Mixture(mixture),
        Family::Albert(albert),
        variant(Projection::Biased),
        variant(Projection::Normed),
    ];
    families.into_iter().try_for_each(|family| leaves_of(engine, kernels, family))
}

/// Leaves whose rows begin at 16 bytes, over the edges of tiles, with and without numbers that are none.
fn leaves_of(engine: &mut Engine, kernels: Kernels, family: Family) -> Result<(), Misuse> {
    let model = Model {
        vocabulary: 260,
        width: 96,
        layers: 2,
        heads: 3,
        hidden: 176,
        sequence: 80,
        norm_epsilon: Real::new(1e-5)?,
        initial_scale: Real::new(0.2)?,
        family,
    };
    let layout = Layout::of(&model);
    let token = |window: u32| move |at: u32| (at * at * 7 + at * 3 + window * 31) % 300;
    let windows: Vec<Vec<u32>> =
        (0..3).map(|window| (0..=model.sequence).map(token(window)).collect()).collect();
    let mut processor = leaf::Engine::new(kernels, 1);
    for wild in [false, true] {
        let mut parameters = initial::draw(&model, Digest([11; 32]), 1);
        if wild {
            for (at, value) in [(5, f32::NAN), (777, f32::INFINITY), (70_000, 1e-41), (90_001, -0.0)] {
                let at = at % parameters.len();
                parameters[at] = value;
            }
        }
        let mut state = State::initial(&layout, parameters);
        state.exponents.fill(-18);
        let job = LeafJob { state: &state, round_seed: Digest([3; 32]), leaf: Leaf(2), windows: &windows };
        let setting = Setting { model: &model, recompute: false };
        let [mut found, mut wanted] = [(); 2].map(|()| vec![0; layout.parameters()]);
        let loss = Computes::leaf(engine, setting, &job, &mut found)?;
        let right = processor.leaf(setting, &job, &mut wanted);
        let differ = found.iter().zip(&wanted).filter(|(found, wanted)| found != wanted).count();
        if differ > 0 || loss != right {
            return Err(Misuse(format!(
                "{differ} of {} integers of a leaf differ from the processor's",
                wanted.len()
            )));
        }
    }
    Ok(())
}
