//! Trains one model in one process, by the product's arithmetic, rule and update and without a network, and says its
//! held-out loss: for `diloco.py` and `bytes.py`.
//!
//! `bench-train RUN.toml TRAIN HELD_OUT [name=value …]`: settings as `muster run new` takes them, text as bytes. Names:
//! `seed`; `members`, which share the round's leaves, or each have a chain of local steps; `flip`, the last members that
//! turn the sign of what they contribute and make it ten times as large; `held`, windows of the held-out text; `every`,
//! rounds between two lines; `threads`. Each line of the output is JSON: the round, steps of each member so far, the
//! mean loss of the members' own leaves, the held-out loss, bytes a parameter of a contribution and of the results since the
//! line before, seconds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use muster_compute::Exact;
use muster_core::assign;
use muster_core::grid::LOSS_ONE;
use muster_core::ids::{Block, Digest, Leaf, MemberId, Round, Slot};
use muster_core::layout::Layout;
use muster_core::ledger::WeightedCommit;
use muster_core::manifest::{Manifest, Profile};
use muster_core::messages::round::{Bitmap, Commit};
use muster_core::packing::pack;
use muster_core::reduction::{SealedInputs, reduce};
use muster_core::rounding::ResultGrid;
use muster_core::state::{Arithmetic, LeafTask, State, Update};
use muster_organise::config::{Makers, Settings};
use muster_replica::leaf_windows;
use muster_store::dataset::Dataset;
use serde_json::json;

type Failure = Box<dyn std::error::Error>;

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
        || arguments.next().map(PathBuf::from).ok_or("usage: bench-train RUN.toml TRAIN HELD_OUT …");
    let [settings, train, held_out] = [path()?, path()?, path()?];
    let options = Options::parse(arguments)?;
    let mut run = Run::new(&settings, [&train, &held_out], &options)?;
    let (begun, rounds) = (Instant::now(), run.manifest.training.rounds);
    let (mut sent, mut results, mut since) = (0, 0, 0);
    for round in (0..rounds).map(Round) {
        let done = run.round(round);
        (sent, results, since) = (sent + done.bytes, results + done.results, since + 1);
        let count = round.0 + 1;
        if count % options.every == 0 || count == rounds {
            let parameters = run.layout.parameters();
            let each = |bytes: usize| bytes as f64 / since as f64 / parameters as f64;
            let line = json!({
                "round": count, "steps": count * run.steps(), "loss": done.loss, "held_out": run.evaluate(),
                "bytes": each(sent) / options.members as f64, "result_bytes": each(results),
                "parameters": parameters, "seconds": begun.elapsed().as_secs_f64(),
            });
            println!("{line}");
            (sent, results, since) = (0, 0, 0);
        }
    }
    Ok(())
}

struct Options {
    seed: u8,
    members: usize,
    flip: usize,
    held: usize,
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
        let mut number = |name: &str, usual: u32| -> Result<u32, Failure> {
            Ok(values.remove(name).map_or(Ok(usual), |value| value.parse())?)
        };
        let options = Self {
            seed: number("seed", 0)?.try_into()?,
            members: number("members", 4)? as usize,
            flip: number("flip", 0)? as usize,
            held: number("held", 256)? as usize,
            every: number("every", 10)?.max(1),
            threads: number("threads", 1)? as usize,
        };
        match values.keys().next() {
            Some(name) => Err(format!("no setting is called {name}").into()),
            None => Ok(options),
        }
    }
}

/// What became of a round.
struct Done {
    loss: f64,
    /// Of all contributions, as they travel.
    bytes: usize,
    /// Of all results.
    results: usize,
}

struct Run {
    manifest: Manifest,
    layout: Layout,
    exact: Exact,
    dataset: Dataset,
    held_out: Vec<Vec<u32>>,
    state: State,
    /// The state before the last step, where updates come late (ROUND-28).
    earlier: Option<State>,
    members: usize,
    flip: usize,
}

impl Run {
    fn new(settings: &Path, texts: [&Path; 2], options: &Options) -> Result<Self, Failure> {
        let nobody = MemberId([0; 32]);
        let makers = Makers { organiser: nobody, steward: nobody, nonce: [options.seed; 16] };
        let [train, held_out] = [std::fs::read(texts[0])?, std::fs::read(texts[1])?];
        let dataset = Dataset::of_bytes(train, held_out);
        let toml = std::fs::read_to_string(settings)?;
        let manifest = Settings::parse(settings, &toml)?.manifest(&makers, dataset.data())?;
        let held_out = dataset.held_out_windows(manifest.model.sequence, options.held)?;
        let mut exact = Exact::new(options.threads, None)?;
        let seed = assign::calibration_seed(manifest.run());
        let state = exact.initial(&manifest, &leaf_windows(&manifest, &dataset, &seed, Leaf(0), None)?);
        let (members, flip) = (options.members, options.flip);
        let layout = Layout::of_run(&manifest);
        Ok(Self { manifest, layout, exact, dataset, held_out, state, earlier: None, members, flip })
    }

    /// Steps of a member in a round, or of all where gradients are exchanged.
    fn steps(&self) -> u32 {
        self.manifest.local().map_or(1, |local| local.steps)
    }

    /// The leaves of a member.
    fn quota(&self, member: usize) -> u32 {
        let (leaves, members) = (self.manifest.training.leaves, self.members as u32);
        let share = leaves / members + u32::from((member as u32) < leaves % members);
        if self.manifest.local().is_some() { leaves } else { share }
    }

    fn round(&mut self, round: Round) -> Done {
        let base = self.earlier.as_ref().unwrap_or(&self.state);
        let seed = assign::round_seed(self.manifest.run(), round, &base.root());
        let blocks: Vec<Block> = (0..self.manifest.planes_in(round))
            .flat_map(|plane| {
                self.state.held().flat_map(|shard| self.layout.blocks_in(shard, plane)).collect::<Vec<_>>()
            })
            .collect();
        let (mut sums, mut commits) = (Vec::new(), Vec::new());
        let (mut loss, mut leaves, mut bytes) = (0, 0, 0);
        for member in 0..self.members {
            let (mut sum, quota) = (vec![0; self.layout.coefficients()], self.quota(member));
            let (manifest, dataset) = (&self.manifest, &self.dataset);
            let state = self.earlier.as_ref().unwrap_or(&self.state);
            let mut tasks = (0..quota).map(|position| {
                let leaf = assign::leaf(Slot(member as u16), self.members as u16, position);
                let windows = leaf_windows(manifest, dataset, &seed, leaf, None).expect("the text");
                LeafTask { state, round_seed: seed, leaf, windows, q: Vec::new() }
            });
            self.exact.leaves(manifest, &mut tasks, &mut |q, own| {
                sum.iter_mut().zip(&q).for_each(|(sum, q): (&mut i32, _)| *sum += q);
                loss += own;
            });
            if member + self.flip >= self.members {
                sum.iter_mut().for_each(|q| *q *= -10);
            }
            leaves += quota;
            let chunks = blocks.iter().filter_map(|block| self.layout.block(*block));
            let chunks = chunks.flat_map(|block| &self.layout.chunks()[block.chunks.clone()]);
            bytes += chunks.map(|chunk| pack(&sum[chunk.clone()]).len()).sum::<usize>();
            sums.push(sum);
            commits.push(commitment(quota));
        }
        let results = self.apply(seed, &blocks, &sums, &commits);
        Done { loss: loss as f64 / f64::from(leaves) / LOSS_ONE as f64, bytes, results }
    }

    /// Reduces and takes the step; `freeze` stands for R_t. Returns the bytes of the results.
    fn apply(
        &mut self,
        freeze: Digest,
        blocks: &[Block],
        sums: &[Vec<i32>],
        commits: &[WeightedCommit],
    ) -> usize {
        let mut inputs = Bitmap::default();
        (0..sums.len()).for_each(|slot| inputs.insert(Slot(slot as u16)));
        let input = |slot: Slot, block| Some(&sums[slot.index()][self.layout.block(block)?.range.clone()]);
        let commitment = |slot: Slot| commits.get(slot.index());
        let sealed = SealedInputs { freeze, slots: &inputs };
        let reduced = reduce(&self.manifest, &self.layout, blocks, &sealed, commitment, input);
        let (mut bytes, mut update) = (0, Update::empty(&self.layout, self.state.held()));
        for (block, values) in blocks.iter().zip(reduced.expect("every member has every block").values) {
            bytes += ResultGrid::of(&self.layout, *block).pack(&values).expect("values of a result").len();
            update.put(&self.layout, *block, &values).expect("a block of the state");
        }
        update.behind = self.earlier.is_some();
        self.earlier = (self.manifest.delay > 0).then(|| self.state.clone());
        self.exact.apply(&self.manifest, &mut self.state, &update);
        bytes
    }

    fn evaluate(&mut self) -> f64 {
        self.exact.evaluate(&self.manifest, &self.state, &self.held_out)
    }
}

/// What a member's sum counts for.
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
