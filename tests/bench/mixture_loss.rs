//! Trains one model in one process, by the product's arithmetic and without a network, and says its held-out loss:
//! for `mixture_loss.py`.
//!
//! `bench-mixture-loss RUN.toml TRAIN HELD_OUT [name=value …]`: settings as `muster run new` takes them, text as bytes.
//! Names: `seed`; `rows`, `branch` (the round before which the one row becomes `rows` rows) and `table` (a file: for each
//! row 256 integers, then its bias); `route_tokens`; `held`, windows of the held-out text; `every`, rounds between two
//! lines; `threads`. Each line of the output is JSON: the round, the mean loss of its leaves, the held-out loss, seconds; the last
//! one of several rows has the held-out loss of the two best rows mixed (CALL-14) as well.
//!
//! A path is the trunk and one row: to the arithmetic a mixture of one row. Every path has a state of its own, and the
//! trunks of all states have the same bits, because all take the same update of the trunk, whose norm, step and exponents
//! are those of its shard. The trunk's inputs are the leaves of all rows, a row's its own; leaf ℓ is of row ℓ mod R.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use muster_compute::Exact;
use muster_core::assign;
use muster_core::grid::LOSS_ONE;
use muster_core::ids::{Block, Digest, Leaf, MemberId, Round, Row, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::WeightedCommit;
use muster_core::manifest::{Manifest, Profile};
use muster_core::messages::round::{Bitmap, Commit};
use muster_core::reduction::{SealedInputs, reduce};
use muster_core::state::{Arithmetic, LeafJob, State, Update};
use muster_organise::config::{Makers, Settings};
use muster_store::dataset::Dataset;
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

/// Kinds of token that the table knows: a token counts as its number modulo this.
const BUCKETS: usize = 256;
/// Windows that are drawn for each window of a row, and each row: if all of them were another row's, the leaf would be
/// short.
const CANDIDATES: u32 = 64;
/// What a nat is in the scores of the table.
const NAT: f64 = 256.0;

fn main() -> ExitCode {
    match train(std::env::args().skip(1)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => tell(&error),
    }
}

#[allow(clippy::print_stderr)]
fn tell(error: &Failure) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

#[allow(clippy::print_stdout)]
fn train(mut arguments: impl Iterator<Item = String>) -> Result<(), Failure> {
    let mut path =
        || arguments.next().map(PathBuf::from).ok_or("usage: bench-mixture-loss RUN.toml TRAIN HELD_OUT …");
    let [settings, train, held_out] = [path()?, path()?, path()?];
    let options = Options::parse(arguments)?;
    let mut run = Run::new(&settings, [&train, &held_out], &options)?;
    let begun = Instant::now();
    for round in 0..run.manifest.training.rounds {
        let loss = run.round(round);
        if (round + 1) % options.every == 0 || round + 1 == run.manifest.training.rounds {
            let last = round + 1 == run.manifest.training.rounds;
            let mixed = (last && run.paths.len() > 1).then(|| run.evaluate_mixed());
            let line = json!({
                "round": round + 1, "loss": loss, "held_out": run.evaluate(), "rows": run.paths.len(), "mixed": mixed,
                "parameters": run.held(), "seconds": begun.elapsed().as_secs_f64(),
            });
            println!("{line}");
        }
    }
    Ok(())
}

struct Options {
    seed: u8,
    rows: usize,
    branch: u32,
    table: Option<PathBuf>,
    route_tokens: usize,
    held: u64,
    every: u32,
    threads: usize,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut values = BTreeMap::new();
        for argument in arguments {
            let (name, value) = argument.split_once('=').ok_or(format!("{argument}: expected name=value"))?;
            values.insert(name.to_owned(), value.to_owned());
        }
        let table = values.remove("table").map(PathBuf::from);
        let mut number = |name: &str, usual: u32| -> Result<u32, Failure> {
            Ok(values.remove(name).map_or(Ok(usual), |value| value.parse())?)
        };
        let options = Self {
            seed: number("seed", 0)?.try_into()?,
            rows: number("rows", 1)? as usize,
            branch: number("branch", 0)?,
            table,
            route_tokens: number("route_tokens", 64)? as usize,
            held: number("held", 512)?.into(),
            every: number("every", 50)?.max(1),
            threads: number("threads", 1)? as usize,
        };
        if let Some(name) = values.keys().next() {
            return Err(format!("no setting is called {name}").into());
        }
        if options.rows == 0 || options.rows > 1 && options.table.is_none() {
            return Err("rows need a table".into());
        }
        Ok(options)
    }
}

/// Which row a window is of: the largest score of the tokens before it, the lowest row among equals.
struct Table(Vec<Vec<i64>>);

impl Table {
    fn read(file: &Path, rows: usize) -> Result<Self, Failure> {
        let numbers: Result<Vec<i64>, _> =
            std::fs::read_to_string(file)?.split_whitespace().map(str::parse).collect();
        let table: Vec<_> = numbers?.chunks(BUCKETS + 1).map(<[i64]>::to_vec).collect();
        if table.len() != rows || table.iter().any(|row| row.len() != BUCKETS + 1) {
            return Err(format!("{}: expected {rows} rows of {}", file.display(), BUCKETS + 1).into());
        }
        Ok(Self(table))
    }

    /// The rows with their scores, the best first, the lowest row among equals.
    fn ranked(&self, before: &[u32]) -> Vec<(usize, i64)> {
        let score =
            |row: &[i64]| row[BUCKETS] + before.iter().map(|t| row[*t as usize % BUCKETS]).sum::<i64>();
        let mut ranked: Vec<(usize, i64)> = self.0.iter().map(|row| score(row)).enumerate().collect();
        ranked.sort_by_key(|(_, score)| std::cmp::Reverse(*score));
        ranked
    }
}

/// A text, and what is drawn of it.
struct Text {
    dataset: Dataset,
    windows: u64,
    sequence: u32,
    route_tokens: usize,
    table: Option<Table>,
}

impl Text {
    fn window(&self, index: u64) -> Vec<u32> {
        self.dataset.window(index, self.sequence).expect("a text in memory")
    }

    /// The row of a window, by what stands before it.
    fn row(&self, index: u64) -> usize {
        self.ranked(index).first().map_or(0, |(row, _)| *row)
    }

    /// All rows with their scores, the best first.
    fn ranked(&self, index: u64) -> Vec<(usize, i64)> {
        let Some(table) = &self.table else { return Vec::new() };
        let Some(before) = index.checked_sub(1) else { return table.ranked(&[]) };
        let before = self.window(before);
        let end = self.sequence as usize;
        table.ranked(&before[end.saturating_sub(self.route_tokens)..end])
    }
}

struct Run {
    manifest: Manifest,
    layout: Layout,
    exact: Exact,
    rows: usize,
    branch: u32,
    train: Text,
    held_out: Vec<u64>,
    held_text: Text,
    paths: Vec<State>,
}

impl Run {
    fn new(settings: &Path, texts: [&Path; 2], options: &Options) -> Result<Self, Failure> {
        let nobody = MemberId([0; 32]);
        let makers = Makers { organiser: nobody, steward: nobody, nonce: [options.seed; 16] };
        let [train, held_out] = [std::fs::read(texts[0])?, std::fs::read(texts[1])?];
        let dataset = Dataset::of_bytes(train, held_out.clone());
        let toml = std::fs::read_to_string(settings)?;
        let manifest = Settings::parse(settings, &toml)?.manifest(&makers, dataset.data())?;
        manifest.check()?;
        // The trunk's bits are those of all paths only if every path is updated in every round.
        if options.rows > manifest.training.leaves as usize {
            return Err("every row needs a leaf".into());
        }
        let text = |dataset: Dataset| -> Result<Text, Failure> {
            let sequence = manifest.model.sequence;
            let windows = dataset.data().bytes.saturating_sub(1) / u64::from(sequence);
            let table = options.table.as_deref().map(|file| Table::read(file, options.rows)).transpose()?;
            Ok(Text { dataset, windows, sequence, route_tokens: options.route_tokens, table })
        };
        let (train, held_text) = (text(dataset)?, text(Dataset::of_bytes(held_out, Vec::new()))?);
        let taken = options.held.min(held_text.windows);
        let mut run = Self {
            layout: Layout::of_run(&manifest),
            exact: Exact::new(options.threads, None)?,
            rows: options.rows,
            branch: options.branch,
            train,
            held_out: (0..taken).map(|index| index * held_text.windows / taken).collect(),
            held_text,
            paths: Vec::new(),
            manifest,
        };
        let calibration = run.windows(&assign::calibration_seed(run.manifest.run()), Leaf(0), None);
        run.paths = vec![run.exact.initial(&run.manifest, &calibration)];
        Ok(run)
    }

    /// The windows of a leaf, all of a row if there is one.
    fn windows(&self, seed: &Digest, leaf: Leaf, row: Option<usize>) -> Vec<Vec<u32>> {
        let count = self.manifest.training.leaf_windows;
        let drawn = row.map_or(1, |_| CANDIDATES * self.rows as u32);
        let drawn = assign::windows(seed, leaf, count * drawn, self.train.windows);
        let own = drawn.into_iter().filter(|index| row.is_none_or(|row| self.train.row(*index) == row));
        own.take(count as usize).map(|index| self.train.window(index)).collect()
    }

    /// One round; the mean loss of its leaves.
    fn round(&mut self, round: u32) -> f64 {
        if round == self.branch {
            self.paths = vec![self.paths[0].clone(); self.rows];
        }
        let seed = assign::round_seed(self.manifest.run(), Round(round), &self.paths[0].root());
        let (leaves, rows) = (self.manifest.training.leaves as usize, self.paths.len());
        let mut sums = vec![vec![0; self.layout.parameters()]; rows];
        let (mut counts, mut q, mut loss) = (vec![0; rows], vec![0; self.layout.parameters()], 0);
        for leaf in 0..leaves {
            let row = leaf % rows;
            let windows = self.windows(&seed, Leaf(leaf as u64), (rows > 1).then_some(row));
            let state = &self.paths[row];
            let job = LeafJob { state, round_seed: seed, leaf: Leaf(leaf as u64), windows: &windows };
            loss += self.exact.leaf(&self.manifest, &job, &mut q);
            sums[row].iter_mut().zip(&q).for_each(|(sum, q): (&mut i32, _)| *sum += q);
            counts[row] += 1;
        }
        self.step(seed, &sums, &counts);
        loss as f64 / leaves as f64 / LOSS_ONE as f64
    }

    /// Reduces what the rows have summed, and applies it to every path.
    ///
    /// `freeze` stands for R_t.
    fn step(&mut self, freeze: Digest, sums: &[Vec<i32>], counts: &[u32]) {
        let commits: Vec<_> = counts.iter().map(|leaves| commitment(*leaves)).collect();
        let blocks = |row: bool| -> Vec<Block> {
            let shards = self.layout.path(Row(0)).filter(|shard| shard.row().is_some() == row);
            shards.flat_map(|shard| self.layout.blocks_of(shard)).collect()
        };
        let (own, trunk) = (blocks(true), blocks(false));
        let reduce = |blocks: &[Block], slots: &mut dyn Iterator<Item = usize>| -> Vec<f32> {
            let mut inputs = Bitmap::default();
            slots.for_each(|slot| inputs.insert(Slot(slot as u16)));
            let range = |block| self.layout.block(block).map(|block| block.range.clone());
            let input = |slot: Slot, block| Some(&sums[slot.index()][range(block)?]);
            let commitment = |slot: Slot| commits.get(slot.index());
            let sealed = SealedInputs { freeze, slots: &inputs };
            let reduced = reduce(&self.manifest, &self.layout, blocks, &sealed, commitment, input);
            reduced.expect("every slot has every block").values.concat()
        };
        let rows = 0..counts.len();
        let trunk = reduce(&trunk, &mut rows.clone());
        let updates: Vec<Vec<f32>> =
            rows.map(|row| [&*trunk, &*reduce(&own, &mut [row].into_iter())].concat()).collect();
        for (state, values) in self.paths.iter_mut().zip(updates) {
            self.exact.apply(&self.manifest, state, &Update::whole(&self.layout, values));
        }
    }

    /// The held-out loss, each window by the row that it is of.
    fn evaluate(&mut self) -> f64 {
        let trunks = self.paths.iter().map(|state| state.roots().shards[0]);
        assert!(trunks.is_sorted_by(|one, next| one == next), "all paths have one trunk");
        let mut windows = vec![Vec::new(); self.paths.len()];
        for index in &self.held_out {
            let row = if self.paths.len() > 1 { self.held_text.row(*index) } else { 0 };
            windows[row].push(self.held_text.window(*index));
        }
        let of_row = |(state, windows): (&State, &Vec<Vec<u32>>)| {
            self.exact.evaluate(&self.manifest, state, windows) * windows.len() as f64
        };
        // The mean over no windows is no number.
        let paths = self.paths.iter().zip(&windows).filter(|(_, windows)| !windows.is_empty());
        paths.map(of_row).sum::<f64>() / self.held_out.len() as f64
    }

    /// The held-out loss of the logits of the two best rows, averaged by their scores.
    fn evaluate_mixed(&mut self) -> f64 {
        let (vocabulary, length) =
            (self.manifest.model.vocabulary as usize, self.held_text.sequence as usize);
        let (mut sum, mut count) = (0.0, 0);
        for index in self.held_out.clone() {
            let window = self.held_text.window(index);
            let best: Vec<(usize, i64)> = self.held_text.ranked(index).into_iter().take(2).collect();
            let top = best.first().map_or(0, |(_, score)| *score);
            let weight = |score: i64| ((score - top) as f64 / NAT).exp();
            let all: f64 = best.iter().map(|(_, score)| weight(*score)).sum();
            let mut mixed = vec![0.0; length * vocabulary];
            for (row, score) in &best {
                let (state, tokens) = (&self.paths[*row], &window[..length]);
                let logits = self.exact.logits(&self.manifest, state, tokens, length).expect("a decoder");
                let share = weight(*score) / all;
                mixed.iter_mut().zip(logits).for_each(|(sum, logit)| *sum += share * f64::from(logit));
            }
            for (logits, next) in mixed.chunks(vocabulary).zip(&window[1..]) {
                let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let all: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
                sum += most + all.ln() - logits[*next as usize];
                count += 1;
            }
        }
        sum / f64::from(count)
    }

    /// Parameters that all paths have together: the trunk once.
    fn held(&self) -> usize {
        let trunk = self.layout.shards().first().map_or(0, |trunk| trunk.coefficients.len());
        trunk + self.paths.len() * (self.layout.parameters() - trunk)
    }
}

/// What a row's sum counts for.
fn commitment(leaves: u32) -> WeightedCommit {
    let zero = Digest::default();
    let commit = Commit {
        round: Round(0),
        head: zero,
        state: zero,
        slot: Slot(0),
        seats: 1,
        route: None,
        leaves,
        profile: Profile::Exact,
        loss: 0,
        root: zero,
    };
    WeightedCommit { commit, author: MemberId([0; 32]), weight: leaves, audit_ppm: 0 }
}
