//! Speed and memory of one leaf, for comparison with other implementations of the same network.
//!
//!     cargo run --release -p muster-compute --example leaf -- [name=value …]
//!
//! Prints one line: parameters, seconds of the median leaf, tokens per second, GFLOP/s of the products with weights,
//! and the process's peak memory.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::time::Instant;

use muster_compute::{Exact, Path};
use muster_core::codec::{Real, Text};
use muster_core::ids::{Digest, Leaf, MemberId};
use muster_core::layout::Layout;
use muster_core::manifest::{
    Admission, Aggregation, Albert, Audit, Data, Decoder, Family, Manifest, Method, Model, Optimiser,
    Profile, Retention, Rule, Schedule, Timers, Tokeniser, Training,
};
use muster_core::state::{Arithmetic, LeafJob, State};

type Failure = Box<dyn std::error::Error>;

/// Settings by name, all numbers; `albert` and `recompute` are 0 or 1, `path` counts from the
/// fastest, beyond the last is the fastest that there is.
const DEFAULTS: &[(&str, u32)] = &[
    ("albert", 0),
    ("vocabulary", 256),
    ("embedding", 128),
    ("width", 256),
    ("layers", 6),
    ("heads", 8),
    ("kv", 8),
    ("hidden", 683),
    ("sequence", 256),
    ("windows", 8),
    ("tied", 1),
    ("recompute", 0),
    ("threads", 1),
    ("path", 9),
    ("repeats", 5),
];

struct Settings(BTreeMap<&'static str, u32>);

impl Settings {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut values: BTreeMap<_, _> = DEFAULTS.iter().copied().collect();
        for argument in arguments {
            let (name, value) = argument.split_once('=').ok_or(format!("{argument}: expected name=value"))?;
            let slot = values.get_mut(name).ok_or(format!("no setting is called {name}"))?;
            *slot = value.parse()?;
        }
        Ok(Self(values))
    }

    fn of(&self, name: &str) -> u32 {
        self.0[name]
    }

    fn family(&self) -> Result<Family, Failure> {
        Ok(if self.of("albert") == 1 {
            Family::Albert(Albert { embedding: self.of("embedding"), masked_ppm: 150_000, mask_token: 4 })
        } else {
            Family::Decoder(Decoder {
                key_value_heads: self.of("kv"),
                tied: self.of("tied") == 1,
                rope_base: Real::new(10_000.0)?,
            })
        })
    }

    fn model(&self) -> Result<Model, Failure> {
        Ok(Model {
            vocabulary: self.of("vocabulary"),
            width: self.of("width"),
            layers: self.of("layers"),
            heads: self.of("heads"),
            hidden: self.of("hidden"),
            sequence: self.of("sequence"),
            norm_epsilon: Real::new(1e-5)?,
            initial_scale: Real::new(0.02)?,
            family: self.family()?,
        })
    }

    fn manifest(&self) -> Result<Manifest, Failure> {
        let (nobody, zero) = (MemberId([0; 32]), Real::new(0.0)?);
        Ok(Manifest {
            version: 1,
            name: Text::new("leaf")?,
            organiser: nobody,
            steward: nobody,
            nonce: [1; 16],
            model: self.model()?,
            profile: Profile::Exact,
            data: Data {
                root: Digest::default(),
                bytes: 1 << 30,
                held_out_root: Digest::default(),
                held_out_bytes: 0,
                tokeniser: Tokeniser::Bytes,
            },
            training: Training {
                rounds: 1,
                leaves: 1,
                leaf_windows: self.of("windows"),
                grid_bits: 8,
                recompute: self.of("recompute") == 1,
            },
            optimiser: Optimiser {
                method: Method::AdamW,
                rate: zero,
                minimum_rate: zero,
                warmup: 0,
                schedule: Schedule::Constant,
                beta1: zero,
                beta2: zero,
                epsilon: Real::new(1e-8)?,
                weight_decay: zero,
                clip_norm: zero,
            },
            aggregation: Aggregation {
                rule: Rule::Mean,
                radius: Real::new(1.0)?,
                iterations: 1,
                cap_ppm: 1_000_000,
            },
            audit: Audit { node_ppm: 0, leaves: 1, coin_lead: 1, final_rounds: 1 },
            admission: Admission { start_nodes: 1, start_verifiers: 0, most_members: 1 },
            timers: Timers { commit: 1, part: 1, result: 1, audit: 1, final_audit: 1 },
            retention: Retention { contributions: 1, states: 1 },
            delay: 0,
            exchange: 0,
            groups: 0,
        })
    }
}

fn main() -> Result<(), Failure> {
    let settings = Settings::parse(std::env::args().skip(1))?;
    let manifest = settings.manifest()?;
    let model = &manifest.model;
    let path = Path::ALL.get(settings.of("path") as usize).copied();
    let mut exact = Exact::new(settings.of("threads") as usize, path)?;
    let token = |at: u32| (at.wrapping_mul(2_654_435_761) >> 7) % model.vocabulary;
    let window = |w: u32| (0..=model.sequence).map(|place| token(w * 70_000 + place)).collect();
    let windows: Vec<Vec<u32>> = (0..settings.of("windows")).map(window).collect();
    let state = state(model);
    let mut sum = vec![0; state.parameters.len()];
    let job = LeafJob { state: &state, round_seed: Digest::default(), leaf: Leaf(1), windows: &windows };
    let mut times = Vec::new();
    for _ in 0..settings.of("repeats").max(1) {
        let start = Instant::now();
        exact.leaf(&manifest, &job, &mut sum);
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let seconds = times[times.len() / 2];
    println!(
        "{} parameters  {seconds:.4} s  {:.0} tokens/s  {:.1} GFLOP/s  peak {:.0} MB",
        state.parameters.len(),
        f64::from(settings.of("windows") * model.sequence) / seconds,
        products(model, settings.of("windows")) / seconds / 1e9,
        peak_memory(),
    );
    Ok(())
}

/// Parameters of about the usual size; no moments, which a leaf does not read.
fn state(model: &Model) -> State {
    let layout = Layout::of(model);
    let mut parameters = vec![1.0; layout.parameters()];
    for tensor in layout.tensors().iter().filter(|tensor| tensor.shape[0] > 1) {
        for (place, value) in parameters[tensor.range()].iter_mut().enumerate() {
            *value = (((place as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0) * 0.035;
        }
    }
    let exponents = vec![-20; layout.tensors().len()];
    State { step: 0, beta_powers: [1.0; 2], exponents, parameters, first: Vec::new(), second: Vec::new() }
}

/// Operations of the products with weights, forward and backward.
fn products(model: &Model, windows: u32) -> f64 {
    let [vocabulary, width, layers, heads] =
        [model.vocabulary, model.width, model.layers, model.heads].map(f64::from);
    let [hidden, tokens] = [model.hidden, windows * model.sequence].map(f64::from);
    let per_token = match &model.family {
        Family::Decoder(decoder) => {
            let key_value = width / heads * f64::from(decoder.key_value_heads);
            layers * (2.0 * width * width + 2.0 * width * key_value + 3.0 * width * hidden)
                + vocabulary * width
        }
        Family::Albert(albert) => {
            let (narrow, masked) = (f64::from(albert.embedding), f64::from(albert.masked(model.sequence)));
            let head = masked / f64::from(model.sequence) * (width * narrow + narrow * vocabulary);
            layers * (4.0 * width * width + 2.0 * width * hidden) + width * narrow + head
        }
    };
    6.0 * per_token * tokens
}

/// Peak resident memory in MB; 0 where the system does not say.
fn peak_memory() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) / 1024.0
}
