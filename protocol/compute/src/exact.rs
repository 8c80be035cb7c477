//! The arithmetic with defined bits.

use std::borrow::Cow;

use muster_core::assign::calibration_seed;
use muster_core::error::Misuse;
use muster_core::ids::{Leaf, Row};
use muster_core::ieee::require_ieee;
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::state::{Arithmetic, LeafJob, LeafPieces, LeafTask, Shard, State, Update};

use crate::backend::Backend;
use crate::leaf::{Batch, Engine, LeafTimes, Setting};
use crate::local::Chain;
use crate::optimiser::{self, Rules, ShardStream};
use crate::path::{Kernels, Path};
use crate::{initial, self_test};

/// The arithmetic of profile `exact`. One value serves one caller at a time and keeps its buffers.
///
/// Every entry panics when the processor's floating-point mode is not the IEEE default: wrong bits would be signed.
pub struct Exact {
    pub(crate) kernels: Kernels,
    pub(crate) engine: Engine,
    /// One unit a thread.
    pub(crate) threads: Vec<()>,
}

impl Exact {
    /// Computes on this many threads (at least one) along `path`, or along the fastest one.
    ///
    /// # Errors
    /// [`Misuse`] when the processor lacks the path.
    pub fn new(threads: usize, path: Option<Path>) -> Result<Self, Misuse> {
        let kernels = Kernels::new(path.unwrap_or_else(Path::detect))?;
        Ok(Self { kernels, engine: Engine::new(kernels, threads), threads: vec![(); threads.max(1)] })
    }

    /// Computes two rounds of a small model and compares with the bits that they have.
    ///
    /// # Errors
    /// [`Misuse`] when a bit differs: this processor or build must not take part in a run.
    pub fn self_test(&mut self) -> Result<(), Misuse> {
        require_ieee();
        let name = format!("the {} kernels", self.path().name());
        self_test::run(&mut self.engine, self.kernels, &name)
    }

    /// Keeps matrices packed up to so many bytes, both directions together. Larger ones are packed again for each window, which
    /// changes no bit.
    pub fn pack_up_to(&mut self, bytes: u64) {
        self.engine.packed_bytes = bytes;
    }

    /// The real gradient of a leaf's mean loss, before the grid: for comparison with other implementations.
    pub fn gradient(&mut self, manifest: &Manifest, job: &LeafJob<'_>) -> &[f32] {
        require_ieee();
        let batch = Batch { windows: job.windows, seed: job.round_seed, leaf: job.leaf };
        self.engine.gradient(Setting::of(manifest), &job.state.parameters, batch)
    }

    /// As [`Arithmetic::initial`], from parameters of a path that were given: `d` in the canonical layout. All rows begin with
    /// them.
    ///
    /// # Panics
    /// When there are more or fewer of them.
    pub fn initial_from(
        &mut self,
        manifest: &Manifest,
        parameters: Vec<f32>,
        calibration: &[Vec<u32>],
    ) -> State {
        require_ieee();
        assert_eq!(parameters.len() as u64, manifest.model.parameters(), "given are all parameters");
        self.calibrated(manifest, initial::from(manifest, parameters), calibration)
    }

    /// A state with the exponents of the calibration leaf (GRID-3): of the trunk on the path of row 0, of each row on its
    /// own.
    fn calibrated(&mut self, manifest: &Manifest, mut state: State, calibration: &[Vec<u32>]) -> State {
        let layout = Layout::of(&manifest.model);
        if let Some(local) = manifest.local() {
            state.exponents.fill(initial::local_exponent(manifest, local));
            return state;
        }
        let batch = Batch { windows: calibration, seed: calibration_seed(manifest.run()), leaf: Leaf(0) };
        for row in (0..manifest.model.rows_after(0)).rev().map(Row) {
            let path = layout.path(row).filter_map(|id| state.shard(id));
            // One row is the whole state: nothing is copied.
            let path: Cow<'_, [f32]> = match manifest.model.rows_after(0) {
                1 => Cow::from(&*state.parameters),
                _ => path.flat_map(|shard| shard.vectors[0].to_vec()).collect::<Vec<f32>>().into(),
            };
            let squares = self.engine.squares(Setting::of(manifest), &path, batch);
            let exponents = initial::exponents(manifest, &squares);
            for (id, range) in layout.path(row).zip(layout.shards()) {
                if let Some(shard) = state.shard_mut(id) {
                    let own = &exponents[range.tensors.clone()];
                    shard.exponents.chunks_mut(own.len()).for_each(|part| part.copy_from_slice(own));
                }
            }
        }
        state
    }

    /// Packs parameters once, to ask for logits of many texts.
    pub fn reader<'a>(&'a mut self, manifest: &'a Manifest, parameters: &'a [f32]) -> Reader<'a> {
        require_ieee();
        self.engine.open(&manifest.model, parameters);
        Reader { engine: &mut self.engine, manifest, parameters }
    }

    /// Applies a round's aggregate to a shard whose vectors are elsewhere, some blocks at a time: with its grid exponents. What
    /// the aggregate lacks of the shard changes nothing.
    ///
    /// # Errors
    /// What reading and writing the vectors reports. The shard is of no use any more then.
    pub fn apply_streamed<S: ShardStream>(
        &mut self,
        manifest: &Manifest,
        shard: (&mut Shard, &mut [i16], &mut S),
        update: &Update,
    ) -> Result<(), S::Error> {
        require_ieee();
        optimiser::apply_streamed(self.kernels, &mut self.threads, &Rules::of(manifest), shard, update)
    }

    /// Time spent on leaves so far.
    pub fn spent(&self) -> LeafTimes {
        self.engine.spent
    }

    /// Threads in use.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// The path in use.
    pub fn path(&self) -> Path {
        self.kernels.path()
    }
}

/// Parameters that are ready to be read with.
pub struct Reader<'a> {
    engine: &'a mut Engine,
    manifest: &'a Manifest,
    parameters: &'a [f32],
}

impl Reader<'_> {
    /// Logits, `vocabulary` a row: a decoder's for each of at most `sequence` tokens; ALBERT's for each place that
    /// [`muster_core::assign::masked`] hides of a whole window under the calibration seed, leaf 1, window 0.
    ///
    /// # Panics
    /// When there are no tokens, or more than a window has.
    pub fn logits(&mut self, tokens: &[u32]) -> Vec<f32> {
        self.rows(tokens, 0)
    }

    /// A decoder's logits of the token that follows these: the last row of [`Self::logits`].
    ///
    /// # Panics
    /// As [`Self::logits`].
    pub fn after(&mut self, tokens: &[u32]) -> Vec<f32> {
        self.last(tokens, 1)
    }

    /// A decoder's last rows of [`Self::logits`], this many of them: what a call asks for.
    ///
    /// # Panics
    /// As [`Self::logits`].
    pub fn last(&mut self, tokens: &[u32], positions: usize) -> Vec<f32> {
        self.rows(tokens, tokens.len().saturating_sub(positions))
    }

    fn rows(&mut self, tokens: &[u32], first: usize) -> Vec<f32> {
        require_ieee();
        let mut model = self.manifest.model.clone();
        let length = 1..=model.sequence as usize;
        assert!(length.contains(&tokens.len()), "a window has 1 to `sequence` tokens");
        if model.decoder().is_some() {
            // What would follow these tokens changes none of their rows.
            model.sequence = tokens.len() as u32;
        }
        let mut window = tokens.to_vec();
        // The token after the last one is a target only, and no logit depends on it.
        window.resize(model.sequence as usize + 1, 0);
        let seed = calibration_seed(self.manifest.run());
        let batch = Batch { windows: &[window], seed, leaf: Leaf(1) };
        self.engine.logits(&model, self.parameters, batch, first)
    }
}

impl Arithmetic for Exact {
    fn initial(&mut self, manifest: &Manifest, calibration: &[Vec<u32>]) -> State {
        require_ieee();
        self.calibrated(manifest, initial::state(manifest), calibration)
    }

    fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64 {
        require_ieee();
        self.engine.leaf(Setting::of(manifest), job, q)
    }

    fn leaves<'a>(
        &mut self,
        manifest: &Manifest,
        tasks: &mut (dyn Iterator<Item = LeafTask<'a>> + Send),
        take: &mut dyn FnMut(Vec<i32>, i64),
    ) {
        require_ieee();
        let mut chain: Option<Chain<'a>> = None;
        for mut task in tasks {
            let Some(local) = manifest.local() else {
                let mut q = std::mem::take(&mut task.q);
                q.resize(task.state.parameters.len(), 0);
                let loss = self.leaf(manifest, &task.job(), &mut q);
                take(q, loss);
                continue;
            };
            let chain = chain.get_or_insert_with(|| Chain::new(&task));
            let loss = chain.segment(&mut self.engine, &mut self.threads, manifest, local, &mut task);
            take(task.q, loss);
        }
    }

    fn in_pieces(&mut self) -> Option<&mut dyn LeafPieces> {
        Some(self)
    }

    fn apply(&mut self, manifest: &Manifest, state: &mut State, update: &Update) {
        require_ieee();
        optimiser::apply(self.kernels, &mut self.threads, &Rules::of(manifest), state, update);
    }

    fn evaluate(&mut self, manifest: &Manifest, state: &State, windows: &[Vec<u32>]) -> f64 {
        require_ieee();
        // Masks are drawn here, too, where a model has them: by everybody alike, and not those of the calibration leaf.
        let batch = Batch { windows, seed: calibration_seed(manifest.run()), leaf: Leaf(1) };
        self.engine.evaluate(&manifest.model, &state.parameters, batch)
    }

    /// CALL-4: the logits of ARITH-45 over the text alone: what would follow it changes none of them.
    fn logits(
        &mut self,
        manifest: &Manifest,
        state: &State,
        tokens: &[u32],
        positions: usize,
    ) -> Option<Vec<f32>> {
        manifest.model.decoder()?;
        Some(self.reader(manifest, &state.parameters).last(tokens, positions))
    }

    fn threads(&self) -> usize {
        Self::threads(self)
    }
}

impl LeafPieces for Exact {
    fn leaf_in_pieces(
        &mut self,
        manifest: &Manifest,
        job: &LeafJob<'_>,
        take: &(dyn Fn(usize, &[i32]) + Sync),
    ) -> i64 {
        require_ieee();
        self.engine.leaf_in_pieces(Setting::of(manifest), job, take)
    }
}

impl Backend for Exact {
    fn gradient(&mut self, manifest: &Manifest, job: &LeafJob<'_>) -> &[f32] {
        Self::gradient(self, manifest, job)
    }

    fn spent(&self) -> LeafTimes {
        Self::spent(self)
    }

    fn self_test(&mut self) -> Result<(), Misuse> {
        Self::self_test(self)
    }

    fn describe(&self) -> String {
        format!("kernels {}", self.path().name())
    }
}
