//! A single-process oracle: trains a byte-level model on one text and prints what a run of the same settings computes
//! with plain means. For finding settings and measuring speed.
//!
//!     cargo run --release -p muster-compute --example train -- TRAIN.txt HELD_OUT.txt [name=value …]
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::time::Instant;

use muster_compute::{Exact, Path};
use muster_core::codec::Real;
use muster_core::hash::{Domain, Hasher, below};
use muster_core::ids::{Leaf, MemberId};
use muster_core::layout::Layout;
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{
    Aggregation, Data, Decoder, Family, Manifest, Method, Model, Optimiser, Rule, Schedule, Training,
};
use muster_core::state::{Arithmetic, LeafJob, State, Update};

type Failure = Box<dyn std::error::Error>;

/// Settings by name, all numbers.
struct NumericSettings(BTreeMap<String, f64>);

impl NumericSettings {
    const DEFAULTS: &'static [(&'static str, f64)] = &[
        ("width", 64.0),
        ("layers", 2.0),
        ("heads", 4.0),
        ("kv", 4.0),
        ("hidden", 172.0),
        ("sequence", 128.0),
        ("vocabulary", 256.0),
        ("tied", 1.0),
        ("scale", 0.1),
        ("base", 10_000.0),
        ("rounds", 150.0),
        ("leaves", 16.0),
        ("windows", 2.0),
        ("bits", 8.0),
        ("rate", 0.01),
        ("minimum", 0.0),
        ("warmup", 40.0),
        ("schedule", 1.0),
        ("beta1", 0.85),
        ("beta2", 0.98),
        ("epsilon", 1e-8),
        ("decay", 0.05),
        ("clip", 1.0),
        ("threads", 1.0),
        ("portable", 0.0),
        ("held", 128.0),
        ("every", 10.0),
        ("seed", 1.0),
    ];

    fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut values: BTreeMap<String, f64> =
            Self::DEFAULTS.iter().map(|(k, v)| ((*k).to_owned(), *v)).collect();
        for argument in arguments {
            let (name, value) = argument.split_once('=').ok_or(format!("{argument}: expected name=value"))?;
            let slot = values.get_mut(name).ok_or(format!("no setting is called {name}"))?;
            *slot = value.parse()?;
        }
        Ok(Self(values))
    }

    fn number(&self, name: &str) -> u32 {
        self.0[name] as u32
    }

    fn real(&self, name: &str) -> Result<Real, Failure> {
        Real::new(self.0[name] as f32).map_err(Into::into)
    }

    fn model(&self) -> Result<Model, Failure> {
        Ok(Model {
            vocabulary: self.number("vocabulary"),
            width: self.number("width"),
            layers: self.number("layers"),
            heads: self.number("heads"),
            hidden: self.number("hidden"),
            sequence: self.number("sequence"),
            norm_epsilon: Real::new(1e-5)?,
            initial_scale: self.real("scale")?,
            family: Family::Decoder(Decoder {
                key_value_heads: self.number("kv"),
                tied: self.number("tied") == 1,
                rope_base: self.real("base")?,
            }),
        })
    }

    fn optimiser(&self) -> Result<Optimiser, Failure> {
        Ok(Optimiser {
            method: Method::AdamW,
            rate: self.real("rate")?,
            minimum_rate: self.real("minimum")?,
            warmup: self.number("warmup"),
            schedule: [Schedule::Constant, Schedule::Linear, Schedule::Cosine]
                [self.number("schedule") as usize],
            beta1: self.real("beta1")?,
            beta2: self.real("beta2")?,
            epsilon: self.real("epsilon")?,
            weight_decay: self.real("decay")?,
            clip_norm: self.real("clip")?,
        })
    }

    /// A run of one node on a text of this length. Another seed gives another run of the same settings.
    fn manifest(&self, bytes: u64) -> Result<Manifest, Failure> {
        let nobody = MemberId([0; 32]);
        let tiny = tiny(nobody, nobody, self.number("rounds"), 1);
        Ok(Manifest {
            nonce: [self.number("seed") as u8; 16],
            model: self.model()?,
            data: Data { bytes, ..tiny.data },
            training: Training {
                leaves: self.number("leaves"),
                leaf_windows: self.number("windows"),
                grid_bits: self.number("bits") as u8,
                ..tiny.training
            },
            optimiser: self.optimiser()?,
            aggregation: Aggregation { rule: Rule::Mean, ..tiny.aggregation },
            ..tiny
        })
    }
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [train, held_out, settings @ ..] = arguments.as_slice() else {
        return Err("usage: train TRAIN.txt HELD_OUT.txt [name=value …]".into());
    };
    let settings = NumericSettings::parse(settings)?;
    let [train, held_out] = [std::fs::read(train)?, std::fs::read(held_out)?];
    let manifest = settings.manifest(train.len() as u64)?;
    manifest.check()?;
    let path = (settings.number("portable") == 1).then_some(Path::Portable);
    let mut exact = Exact::new(settings.number("threads") as usize, path)?;
    let sequence = manifest.model.sequence as usize;
    let held = settings.number("held") as usize;
    let stride = (held_out.len() / sequence / held.max(1)).max(1);
    let held: Vec<_> = (0..held).map(|i| window(&held_out, sequence, (i * stride) as u64)).collect();
    run(&manifest, &mut exact, &train, &held, settings.number("every"));
    Ok(())
}

/// Window `w` of a text, one token a byte.
fn window(text: &[u8], sequence: usize, w: u64) -> Vec<u32> {
    let start = w as usize * sequence;
    text[start..=start + sequence].iter().map(|byte| u32::from(*byte)).collect()
}

fn windows(manifest: &Manifest, text: &[u8], round: u32, leaf: u32) -> Vec<Vec<u32>> {
    let draw = |b: u32| {
        let word = Hasher::new(Domain::WINDOWS).value(&(round, leaf, b)).number();
        window(text, manifest.model.sequence as usize, below(word, manifest.windows()))
    };
    (0..manifest.training.leaf_windows).map(draw).collect()
}

fn run(manifest: &Manifest, exact: &mut Exact, text: &[u8], held: &[Vec<u32>], every: u32) {
    let layout = Layout::of(&manifest.model);
    let mut state = exact.initial(manifest, &windows(manifest, text, u32::MAX, 0));
    println!(
        "{} parameters, path {}, held out {:.4}",
        layout.parameters(),
        exact.path().name(),
        exact.evaluate(manifest, &state, held)
    );
    let leaves = manifest.training.leaves;
    let tokens = leaves * manifest.training.leaf_windows * manifest.model.sequence;
    let [mut leaf_time, mut apply_time] = [0.0; 2];
    for round in 0..manifest.training.rounds {
        let round_seed = Hasher::new(Domain::ROUND_SEED).value(&round).finish();
        let [mut sum, mut q] = [0, 0].map(|zero| vec![zero; layout.parameters()]);
        let mut loss = 0;
        let start = Instant::now();
        for leaf in 0..leaves {
            let windows = windows(manifest, text, round, leaf);
            let job = LeafJob { state: &state, round_seed, leaf: Leaf(leaf.into()), windows: &windows };
            loss += exact.leaf(manifest, &job, &mut q);
            sum.iter_mut().zip(&q).for_each(|(sum, q)| *sum += q);
        }
        leaf_time += start.elapsed().as_secs_f64();
        let start = Instant::now();
        apply_mean(manifest, exact, &mut state, &layout, &sum);
        apply_time += start.elapsed().as_secs_f64();
        if (round + 1) % every == 0 {
            let loss = loss as f64 / f64::from(leaves) / (1 << 24) as f64;
            let done = f64::from(round + 1);
            println!(
                "round {:4}  loss {loss:.4}  held out {:.4}  {:.0} tokens/s  leaf {:.3} ms  apply {:.3} ms",
                round + 1,
                exact.evaluate(manifest, &state, held),
                f64::from(tokens) * done / leaf_time,
                1e3 * leaf_time / done / f64::from(leaves),
                1e3 * apply_time / done,
            );
        }
    }
}

fn apply_mean(manifest: &Manifest, exact: &mut Exact, state: &mut State, layout: &Layout, sum: &[i32]) {
    let leaves = f64::from(manifest.training.leaves);
    let values = sum.iter().map(|q| (f64::from(*q) / leaves) as f32).collect();
    exact.apply(manifest, state, &Update::whole(layout, values));
}
