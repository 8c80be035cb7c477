//! How well a leaf of a mixture of experts uses the processor, beside a dense decoder's.
//!
//!     cargo run --release -p muster-compute --example mixture -- [name=value …]
//!
//! Both have the same width, layers and tokens, and a token passes the same number of inner values: the dense decoder's
//! `hidden` is the shared expert's plus those of the active ones. For each model, window, vocabulary and number of threads
//! it prints the GFLOP/s of both (medians; only products that a token passes count), and the mixture's as a share of the
//! dense decoder's: median and quartiles of pairs of leaves, computed by turns in this process. The last line is
//! `verdict: met` where every median is 0.6 at least; else `verdict: missed`, and the program exits with 1.
//!
//! Names: `pairs`; `width`, `sequence`, `vocabulary` and `threads` choose among the settings; `windows` of a leaf;
//! `columns`, experts of a row in place of 8.
#![allow(clippy::print_stdout)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use muster_compute::Exact;
use muster_core::codec::Real;
use muster_core::ids::{Digest, Leaf, MemberId};
use muster_core::manifest::fixture::tiny;
use muster_core::manifest::{Decoder, Family, Manifest, Mixture, Model};
use muster_core::state::{Arithmetic, LeafJob, State};

type Failure = Box<dyn std::error::Error>;

/// Least share of the dense decoder's speed.
const GOAL: f64 = 0.6;
const SEQUENCES: [u32; 2] = [128, 256];
const VOCABULARIES: [u32; 2] = [256, 4096];
const THREADS: [usize; 3] = [1, 2, 4];

const NAMES: [&str; 7] = ["pairs", "width", "sequence", "vocabulary", "threads", "windows", "columns"];

/// Sizes of a mixture.
#[derive(Clone, Copy)]
struct Sizes {
    width: u32,
    layers: u32,
    heads: u32,
    columns: u16,
    hidden: u32,
    shared: u32,
    active: u16,
}

const MODELS: [Sizes; 2] = [
    Sizes { width: 128, layers: 4, heads: 4, columns: 8, hidden: 112, shared: 64, active: 2 },
    Sizes { width: 384, layers: 6, heads: 6, columns: 8, hidden: 320, shared: 128, active: 2 },
];

/// What is computed by turns with another one.
struct Side {
    manifest: Manifest,
    state: State,
    exact: Exact,
    q: Vec<i32>,
    /// Seconds of each leaf.
    seconds: Vec<f64>,
}

impl Side {
    fn new(model: Model, threads: usize) -> Result<Self, Failure> {
        let nobody = MemberId([0; 32]);
        let manifest = Manifest { model, ..tiny(nobody, nobody, 1, 1) };
        let mut exact = Exact::new(threads, None)?;
        let state = exact.initial(&manifest, &[]);
        let q = vec![0; state.parameters.len()];
        Ok(Self { manifest, state, exact, q, seconds: Vec::new() })
    }

    fn leaf(&mut self, windows: &[Vec<u32>], number: u64) {
        let job = LeafJob { state: &self.state, round_seed: Digest([1; 32]), leaf: Leaf(number), windows };
        let begun = Instant::now();
        self.exact.leaf(&self.manifest, &job, &mut self.q);
        // The first leaf makes the buffers.
        if number > 0 {
            self.seconds.push(begun.elapsed().as_secs_f64());
        }
    }
}

impl Sizes {
    /// A mixture, or the dense decoder beside it.
    fn model(&self, mixture: bool, sequence: u32, vocabulary: u32) -> Result<Model, Failure> {
        let decoder = Decoder { key_value_heads: self.heads, tied: true, rope_base: Real::new(10_000.0)? };
        let (hidden, family) = if mixture {
            let [balance, trust] = [Real::new(0.01)?, Real::new(4.0)?];
            let Self { columns, active, shared: shared_hidden, .. } = *self;
            (
                self.hidden,
                Family::Mixture(Mixture {
                    decoder,
                    columns,
                    active,
                    shared_hidden,
                    balance,
                    trust,
                    rows: 1,
                    branch: 0,
                    few: 0,
                    held: 0,
                    lag: 0,
                }),
            )
        } else {
            (self.shared + u32::from(self.active) * self.hidden, Family::Decoder(decoder))
        };
        Ok(Model {
            vocabulary,
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            hidden,
            sequence,
            norm_epsilon: Real::new(1e-5)?,
            initial_scale: Real::new(0.02)?,
            family,
        })
    }

    /// Operations of a token, forward and backward, as `muster bench` counts them.
    fn operations(&self, mixture: bool, sequence: u32, vocabulary: u32) -> f64 {
        let [width, sequence, vocabulary] = [self.width, sequence, vocabulary].map(f64::from);
        let hidden = f64::from(self.shared + u32::from(self.active) * self.hidden);
        let scores = if mixture { width * (f64::from(self.columns) + 1.0) } else { 0.0 };
        let weights = 4.0 * width * width + 3.0 * width * hidden + scores;
        3.0 * (f64::from(self.layers) * (2.0 * weights + 2.0 * width * sequence) + 2.0 * vocabulary * width)
    }
}

/// Settings by name, all numbers.
struct Wanted(BTreeMap<String, u32>);

impl Wanted {
    fn parse() -> Result<Self, Failure> {
        let mut wanted = BTreeMap::new();
        for argument in std::env::args().skip(1) {
            let (name, value) = argument.split_once('=').ok_or(format!("{argument}: expected name=value"))?;
            if !NAMES.contains(&name) {
                return Err(format!("no setting is called {name}").into());
            }
            wanted.insert(name.to_owned(), value.parse()?);
        }
        Ok(Self(wanted))
    }

    fn or(&self, name: &str, usual: u32) -> u32 {
        self.0.get(name).copied().unwrap_or(usual)
    }

    fn wants(&self, name: &str, value: u32) -> bool {
        self.or(name, value) == value
    }
}

/// Windows of tokens that follow no pattern that matters.
fn windows(count: u32, sequence: u32, vocabulary: u32) -> Vec<Vec<u32>> {
    let token = |index: u32| (index.wrapping_mul(0x9e37_79b9) >> 7) % vocabulary;
    (0..count).map(|w| (0..=sequence).map(|t| token(w * sequence + t)).collect()).collect()
}

/// The quartiles.
fn quartiles(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

/// Measures one setting, prints it, and returns the median share.
fn measure(
    wanted: &Wanted,
    sizes: &Sizes,
    [sequence, vocabulary]: [u32; 2],
    threads: usize,
) -> Result<f64, Failure> {
    let windows = windows(wanted.or("windows", 16), sequence, vocabulary);
    let [mut mixture, mut dense] = [
        Side::new(sizes.model(true, sequence, vocabulary)?, threads)?,
        Side::new(sizes.model(false, sequence, vocabulary)?, threads)?,
    ];
    for number in 0..=u64::from(wanted.or("pairs", 9)) {
        mixture.leaf(&windows, number);
        dense.leaf(&windows, number);
    }
    let tokens = f64::from(sequence) * windows.len() as f64;
    let speeds = [(&mixture, true), (&dense, false)].map(|(side, mixture)| {
        let operations = tokens * sizes.operations(mixture, sequence, vocabulary);
        side.seconds.iter().map(|seconds| operations / seconds / 1e9).collect::<Vec<_>>()
    });
    let shares = speeds[0].iter().zip(&speeds[1]).map(|(mixture, dense)| mixture / dense).collect();
    let [low, share, high] = quartiles(shares);
    let [[_, mixture, _], [_, dense, _]] = speeds.map(quartiles);
    println!(
        "{:5}{sequence:10}{vocabulary:12}{threads:9}{mixture:9.1}{dense:7.1}{share:9.2} ({low:.2} to {high:.2})",
        sizes.width
    );
    Ok(share)
}

fn main() -> Result<ExitCode, Failure> {
    let wanted = Wanted::parse()?;
    println!("width  sequence  vocabulary  threads  mixture  dense    share (quartiles)");
    let mut met = true;
    for sizes in MODELS.into_iter().filter(|sizes| wanted.wants("width", sizes.width)) {
        let sizes = Sizes { columns: wanted.or("columns", sizes.columns.into()).try_into()?, ..sizes };
        for sequence in SEQUENCES.into_iter().filter(|sequence| wanted.wants("sequence", *sequence)) {
            for vocabulary in VOCABULARIES.into_iter().filter(|size| wanted.wants("vocabulary", *size)) {
                for threads in THREADS.into_iter().filter(|count| wanted.wants("threads", *count as u32)) {
                    met &= measure(&wanted, &sizes, [sequence, vocabulary], threads)? >= GOAL;
                }
            }
        }
    }
    println!("verdict: {}", if met { "met" } else { "missed" });
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
