//! Leaves of drawn shapes, computed by a device and by the processor.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use muster_compute::{Backend, Exact, Found, Gpu};
use muster_core::codec::Real;
use muster_core::ids::{Digest, Leaf, MemberId};
use muster_core::layout::Layout;
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{
    Albert, Decoder, Family, Manifest, Mixture, Model, Projection, Scaling, Variant,
};
use muster_core::state::{Arithmetic, LeafJob, State};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A model, and what its leaf is computed on.
#[derive(Clone, Debug)]
pub struct Drawn {
    model: Model,
    windows: u32,
    /// Whether products have large tiles; with none, their size decides.
    tiles: Option<bool>,
    /// Whether parameters are infinite, no numbers, or all but zero.
    odd: bool,
    seed: u64,
}

fn real(value: f32) -> Real {
    Real::new(value).expect("a number")
}

/// The sizes that all families share.
fn decoders() -> impl Strategy<Value = (Model, Decoder)> {
    let heads = (1u32..=3, 1u32..=3, 1u32..=20);
    let sizes = (2u32..=300, 1u32..=3, 1u32..=200, 1u32..=150);
    // Of every other shape rows begin at 16 bytes, and slices are whole at any depth.
    let rest = (1u32..=30, any::<bool>(), prop_oneof![Just(1u32), Just(16)]);
    (heads, sizes, rest).prop_map(|(heads, (vocabulary, layers, hidden, sequence), rest)| {
        let ((group, keys, half), (scale, tied, unit)) = (heads, rest);
        let (heads, round) = (group * keys, |size: u32| size.next_multiple_of(unit));
        let width = round(heads * half * 2).next_multiple_of(2 * heads);
        let width = if width.is_multiple_of(unit) { width } else { 2 * heads * unit };
        let decoder = Decoder { key_value_heads: keys, tied, rope_base: real(10_000.0) };
        let model = Model {
            vocabulary: round(vocabulary),
            width,
            layers,
            heads,
            hidden: round(hidden),
            sequence: round(sequence),
            norm_epsilon: real(1e-5),
            initial_scale: real(0.02 * scale as f32),
            family: Family::Decoder(decoder.clone()),
        };
        (model, decoder)
    })
}

/// An expert in the place of a decoder's: often more of them than tokens, so that some have none.
pub fn experts(decoder: Decoder, [columns, active]: [u32; 2], shared_hidden: u32, balance: f32) -> Family {
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

/// A model of each family.
fn models() -> impl Strategy<Value = Model> {
    let mixtures = (decoders(), 1u32..=20, 1u32..=4, 2u32..=100, 0u32..=3);
    let mixtures = mixtures.prop_map(|((model, decoder), columns, active, shared, balance)| {
        let family = experts(decoder, [columns, active.min(columns)], shared, balance as f32);
        Model { family, ..model }
    });
    let alberts = (decoders(), 1u32..=80, 1u32..=400_000);
    let alberts = alberts.prop_map(|((model, _), embedding, masked_ppm)| {
        let family = Family::Albert(Albert { embedding, masked_ppm, mask_token: 0 });
        Model { family, ..model }
    });
    let projection = prop_oneof![Just(Projection::Biased), Just(Projection::Normed)];
    let variants = (decoders(), 1u32..=40, 1u32..=200, projection);
    let variants = variants.prop_map(|((model, decoder), half, original, projection)| {
        let [factor, low, high] = [2.0, 1.0, 4.0].map(real);
        let scaling = Some(Scaling { factor, low, high, original });
        let family = Family::Variant(Variant { decoder, head_width: 2 * half, projection, scaling });
        Model { family, ..model }
    });
    prop_oneof![decoders().prop_map(|(model, _)| model), mixtures, alberts, variants]
}

/// Whatever a leaf may be computed on.
pub fn drawn() -> impl Strategy<Value = Drawn> {
    let tiles = prop_oneof![Just(None), Just(Some(true)), Just(Some(false))];
    (models(), 1u32..=5, tiles, prop::bool::weighted(0.2), any::<u64>())
        .prop_map(|(model, windows, tiles, odd, seed)| Drawn { model, windows, tiles, odd, seed })
}

pub fn manifest(model: Model, windows: u32) -> Manifest {
    let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 4, 1);
    manifest.model = model;
    (manifest.training.leaf_windows, manifest.training.recompute) = (windows, false);
    manifest
}

fn below(draw: &mut ChaCha8Rng, end: u64) -> u64 {
    draw.next_u64() % end
}

/// So many windows. Some tokens lie beyond the vocabulary.
pub fn windows(draw: &mut ChaCha8Rng, model: &Model, count: u32) -> Vec<Vec<u32>> {
    let mut window =
        || (0..=model.sequence).map(|_| below(draw, u64::from(model.vocabulary) + 1) as u32).collect();
    (0..count).map(|_| window()).collect()
}

pub fn state(manifest: &Manifest, exact: &mut Exact, draw: &mut ChaCha8Rng) -> State {
    let calibration = windows(draw, &manifest.model, 1);
    let mut state = exact.initial(manifest, &calibration);
    // Biases begin at zero, and would not show.
    for tensor in Layout::of(&manifest.model).tensors().iter().filter(|tensor| tensor.name.ends_with(".bias"))
    {
        state.parameters[tensor.range()].fill_with(|| below(draw, 201) as f32 * 0.01 - 1.0);
    }
    state
}

impl Drawn {
    fn family(&self) -> &'static str {
        match self.model.family {
            Family::Decoder(_) => "decoders",
            Family::Mixture(_) => "mixtures",
            Family::Albert(_) => "ALBERTs",
            Family::Variant(_) => "variants",
        }
    }

    /// How many coefficients and grid integers a device was asked for.
    ///
    /// # Errors
    /// What differs from the processor's, by tensor.
    fn compare(&self, gpu: &mut Gpu, exact: &mut Exact) -> Result<u64, String> {
        let mut draw = ChaCha8Rng::seed_from_u64(self.seed);
        let manifest = manifest(self.model.clone(), self.windows);
        gpu.force_tiles(self.tiles);
        let mut state = state(&manifest, exact, &mut draw);
        if self.odd {
            for value in [f32::INFINITY, f32::NAN, 1e-42, -0.0] {
                let at = below(&mut draw, state.parameters.len() as u64) as usize;
                state.parameters[at] = value;
            }
        }
        let windows = windows(&mut draw, &self.model, self.windows);
        let leaf = Leaf(below(&mut draw, 1 << 20));
        let job = LeafJob { state: &state, round_seed: Digest([3; 32]), leaf, windows: &windows };
        let [mut own, mut other] = [(); 2].map(|()| vec![0; state.parameters.len()]);
        let losses = [gpu.leaf(&manifest, &job, &mut own), exact.leaf(&manifest, &job, &mut other)];
        // No two machines agree on which of all values that are no numbers one is.
        let bits = |value: &f32| if value.is_nan() { 0x7FC0_0000 } else { value.to_bits() };
        let found: Vec<u32> = gpu.gradient(&manifest, &job).iter().map(bits).collect();
        let wanted: Vec<u32> = exact.gradient(&manifest, &job).iter().map(bits).collect();
        let wrong = |at: &usize| found[*at] != wanted[*at] || own[*at] != other[*at];
        let layout = Layout::of(&self.model);
        let counts =
            layout.tensors().iter().map(|tensor| (&tensor.name, tensor.range().filter(wrong).count()));
        let counts: Vec<String> =
            counts.filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name}: {count}")).collect();
        match counts.is_empty() && losses[0] == losses[1] {
            true => Ok(2 * wanted.len() as u64),
            false => Err(format!("losses {losses:?}, wrong: {}", counts.join(", "))),
        }
    }
}

/// What was found right on a device.
#[derive(Default)]
pub struct Tried {
    /// Leaves by family.
    pub families: BTreeMap<&'static str, u64>,
    /// Coefficients and grid integers.
    pub numbers: u64,
}

/// Has so many drawn leaves computed by a device and by the processor. `runner` draws.
///
/// # Errors
/// Why the device does not compute, or the smallest leaf that was found wrong.
pub fn compare(found: &Found, threads: usize, runner: &mut TestRunner) -> Result<Tried, String> {
    let exact = || Exact::new(threads, None).map_err(|why| why.to_string());
    let mut opened = Gpu::open(found, exact()?).map_err(|why| why.to_string())?;
    opened.self_test().map_err(|why| why.to_string())?;
    let says = opened.describe();
    let (gpu, exact, tried) = (RefCell::new(opened), RefCell::new(exact()?), RefCell::new(Tried::default()));
    let failed = Cell::new(false);
    let outcome = runner.run(&drawn(), |drawn| {
        let compared = drawn.compare(&mut gpu.borrow_mut(), &mut exact.borrow_mut());
        let numbers = compared.map_err(TestCaseError::fail).inspect_err(|_| failed.set(true))?;
        // The processor takes over from a device that fails, and agrees with itself.
        prop_assert_eq!(gpu.borrow().describe(), says.as_str());
        // What is tried to make a failure small is no part of the count.
        if !failed.get() {
            let mut tried = tried.borrow_mut();
            tried.numbers += numbers;
            *tried.families.entry(drawn.family()).or_default() += 1;
        }
        Ok(())
    });
    match outcome {
        Ok(()) => Ok(tried.into_inner()),
        Err(TestError::Fail(why, drawn)) => Err(format!("{why}: {drawn:?}")),
        Err(error) => Err(error.to_string()),
    }
}

/// So many leaves, of which none is written down where it fails.
pub fn cases(count: u32) -> Config {
    Config { cases: count, failure_persistence: None, ..Config::default() }
}
