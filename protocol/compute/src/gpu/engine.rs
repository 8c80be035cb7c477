//! Leaves on a device: what is uploaded, in which portions windows pass, what comes back.

use std::ops::Range;

use muster_core::error::Misuse;
use muster_core::grid::{Dither, fixed_loss, power_of_two};
use muster_core::ids::{Digest, Leaf};
use muster_core::manifest::{Family, Model};
use muster_core::state::LeafJob;

use super::albert::AlbertLeaf;
use super::buffers::{Buffers, FamilyBuffers};
use super::decoder::DecoderLeaf;
use super::decoder::mixture::Chosen;
use super::driver::{Driver, Fault, Outcome, Place, Slot};
use super::host::Host;
use super::queue::Queue;
use crate::function;
use crate::grid::Grid;
use crate::leaf::{Batch, Setting, check};
use crate::path::Kernels;
use crate::plan::{FamilyPlan, NetworkPlan};
use crate::self_test::Computes;
use crate::sums::copy_leaf;

/// A device with a model on it.
pub(crate) struct Engine {
    queue: Queue,
    host: Host,
    /// What experts tokens choose, by layer.
    chosen: Vec<Chosen>,
    /// Where the last leaf's result went.
    slot: Slot,
    open: Option<Open>,
}

/// A model, and its memory on a device.
struct Open {
    plan: NetworkPlan,
    buffers: Buffers,
    /// Whether parameters were copied to that memory.
    filled: bool,
}

/// A leaf that is under way on the device.
pub(crate) struct Begun {
    windows: usize,
    /// Whether the device puts it on the grid.
    on_grid: bool,
    slot: Slot,
}

/// What a leaf's loss is made of, for each predicted token: the sum of the exponentials, and the target's logit less the
/// largest.
pub(crate) struct LossParts {
    sums: Vec<f32>,
    chosen: Vec<f32>,
    /// Tokens of a window.
    predicted: usize,
}

impl LossParts {
    /// The mean loss (ARITH-45). The logarithm is here, in f64: a device need not have one (ARITH-40).
    pub(crate) fn mean(&self) -> f64 {
        let loss = |(sum, chosen): (&f32, &f32)| function::ln(f64::from(*sum)) - f64::from(*chosen);
        let windows = self.sums.chunks(self.predicted).zip(self.chosen.chunks(self.predicted));
        let of_window = |(sums, chosen): (&[f32], &[f32])| {
            sums.iter().zip(chosen).map(loss).fold(0.0, |sum, loss| sum + loss)
        };
        windows.map(of_window).fold(0.0, |sum, loss| sum + loss) / self.sums.len() as f64
    }
}

impl Engine {
    pub(crate) fn new(driver: Box<dyn Driver>, kernels: Kernels, threads: usize) -> Self {
        let (queue, host) = (Queue { driver, large: None }, Host { kernels, threads });
        Self { queue, host, chosen: Vec::new(), slot: Slot::default(), open: None }
    }

    /// The device, with nothing on it.
    pub(crate) fn into_driver(self) -> Box<dyn Driver> {
        let Self { mut queue, open, .. } = self;
        if let Some(open) = open {
            open.buffers.give_back(&mut *queue.driver);
        }
        queue.driver
    }

    pub(super) fn queue(&mut self) -> &mut Queue {
        &mut self.queue
    }

    /// From now on all products have large tiles, or small ones; with none, their size decides.
    pub(crate) fn force_tiles(&mut self, large: Option<bool>) {
        self.queue.large = large;
    }

    /// A model with its memory taken, for leaves of so many windows; the caller puts it back. What was there before is gone.
    fn open(&mut self, model: &Model, windows: usize) -> Outcome<Open> {
        match self.open.take() {
            Some(open) if open.plan.model == *model && open.buffers.windows >= windows => return Ok(open),
            Some(other) => other.buffers.give_back(&mut *self.queue.driver),
            None => {}
        }
        let plan = NetworkPlan::new(model);
        let buffers = Buffers::take(&mut *self.queue.driver, &plan, windows)?;
        Ok(Open { plan, buffers, filled: false })
    }

    /// Begins a leaf whose integers are wanted. With `parameters_there`, those of the leaf before are its own.
    pub(crate) fn begin(
        &mut self,
        model: &Model,
        job: &LeafJob<'_>,
        parameters_there: bool,
    ) -> Outcome<Begun> {
        let mut open = self.open(model, job.windows.len())?;
        let key = Dither::key(&job.round_seed, job.leaf);
        // Before any kernel: a copy to the device waits for those before it.
        self.queue.driver.upload(open.buffers.leaf.key, &key.0)?;
        // A leaf of more windows than those before has memory of its own, with no parameters there.
        let there = parameters_there && open.filled;
        self.differentiate(&open, (!there).then_some(&*job.state.parameters), batch(job))?;
        open.filled = true;
        let (plan, leaf) = (&open.plan, open.buffers.leaf);
        let on_grid = self.queue.driver.description().wide;
        if on_grid {
            for (tensor, exponent) in plan.layout.tensors().iter().zip(&job.state.exponents) {
                let (range, step) = (tensor.range(), power_of_two(-i32::from(*exponent)));
                let places = [leaf.key, leaf.gradient, leaf.q];
                self.queue.grid(range.start, range.len(), step, places)?;
            }
        }
        let result = if on_grid { leaf.q } else { leaf.gradient };
        self.slot = self.slot.other();
        self.queue.driver.stage(self.slot, result, 4 * plan.layout.parameters())?;
        self.open = Some(open);
        Ok(Begun { windows: job.windows.len(), on_grid, slot: self.slot })
    }

    /// Waits for the leaf that was begun last, and gives what its loss is made of.
    pub(crate) fn loss(&mut self, begun: &Begun) -> Outcome<LossParts> {
        let Self { queue, open, .. } = self;
        let Some(open) = open else { return Err(Fault("no leaf is under way".into())) };
        loss_parts(queue, open, begun.windows)
    }

    /// The integers of a leaf whose loss was asked for. The next one may have been begun, but no other.
    pub(crate) fn integers(&mut self, begun: &Begun, job: &LeafJob<'_>, q: &mut [i32]) -> Outcome<()> {
        let Self { queue, host: Host { kernels, threads }, open, .. } = self;
        let Some(open) = open else { return Err(Fault("no leaf is under way".into())) };
        let staged = queue.driver.staged(begun.slot)?;
        if begun.on_grid {
            copy_leaf(*threads, q, bytemuck::cast_slice(staged));
        } else {
            let grid = Grid::new(*kernels, &open.plan.layout, job);
            grid.place_all(&mut vec![(); *threads], bytemuck::cast_slice(staged), q);
        }
        Ok(())
    }

    /// Whether a leaf, whose loss was asked for, has these integers.
    pub(super) fn has_integers(&mut self, begun: &Begun, job: &LeafJob<'_>, q: &[i32]) -> Outcome<bool> {
        if begun.on_grid {
            return Ok(bytemuck::cast_slice::<u8, i32>(self.queue.driver.staged(begun.slot)?) == q);
        }
        let mut own = vec![0; q.len()];
        self.integers(begun, job, &mut own)?;
        Ok(own == q)
    }

    /// The mean loss and the gradient of some windows.
    pub(crate) fn gradient(
        &mut self,
        model: &Model,
        parameters: &[f32],
        batch: Batch<'_>,
        gradient: &mut [f32],
    ) -> Outcome<f64> {
        let open = self.open(model, batch.windows.len())?;
        self.differentiate(&open, Some(parameters), batch)?;
        self.queue.driver.download(open.buffers.leaf.gradient, bytemuck::cast_slice_mut(gradient))?;
        let parts = loss_parts(&mut self.queue, &open, batch.windows.len());
        self.open = Some(open);
        Ok(parts?.mean())
    }

    /// The mean loss of some windows; NaN where that is not finite.
    pub(crate) fn evaluate(&mut self, model: &Model, parameters: &[f32], batch: Batch<'_>) -> Outcome<f64> {
        let open = self.open(model, batch.windows.len())?;
        self.upload(open.buffers.leaf.parameters, parameters)?;
        self.pass(&open, batch, false)?;
        let parts = loss_parts(&mut self.queue, &open, batch.windows.len());
        self.open = Some(open);
        let mean = parts?.mean();
        Ok(if mean.is_finite() { mean } else { f64::NAN })
    }

    /// A decoder's logits of a window, in these rows. With no `parameters`, those of the call before are its own.
    pub(super) fn logits(
        &mut self,
        model: &Model,
        parameters: Option<&[f32]>,
        window: &[u32],
        rows: Range<usize>,
    ) -> Outcome<Vec<f32>> {
        let mut open = self.open(model, 1)?;
        match parameters {
            Some(parameters) => self.upload(open.buffers.leaf.parameters, parameters)?,
            None if !open.filled => return Err(Fault("no parameters are there".into())),
            None => {}
        }
        open.filled = true;
        let Self { queue, host, chosen, .. } = self;
        let (Open { plan, buffers, .. }, host) = (&open, *host);
        let (FamilyPlan::Decoder(ranges), FamilyBuffers::Decoder(decoder)) = (&plan.network, &buffers.family)
        else {
            return Err(Fault("what has logits is a decoder".into()));
        };
        let windows = &[window.to_vec()];
        check(plan, windows);
        let batch = Batch { windows, seed: Digest::default(), leaf: Leaf(0) };
        let leaf = buffers.leaf;
        DecoderLeaf { queue, host, plan, ranges, leaf, buffers: decoder, chosen, batch }.read()?;
        let mut logits = vec![0f32; rows.len() * plan.vocabulary];
        let from = decoder.logits.after(rows.start * plan.vocabulary);
        queue.driver.download(from, bytemuck::cast_slice_mut(&mut logits))?;
        self.open = Some(open);
        Ok(logits)
    }

    fn upload(&mut self, to: Place, values: &[f32]) -> Outcome<()> {
        self.queue.driver.upload(to, bytemuck::cast_slice(values))
    }

    /// Leaves the gradient of some windows on the device, and what their losses are made of.
    fn differentiate(&mut self, open: &Open, parameters: Option<&[f32]>, batch: Batch<'_>) -> Outcome<()> {
        if let Some(parameters) = parameters {
            self.upload(open.buffers.leaf.parameters, parameters)?;
        }
        self.pass(open, batch, true)
    }

    /// Leaves on the device what the losses of some windows are made of, and with `back` their gradient.
    fn pass(&mut self, open: &Open, batch: Batch<'_>, back: bool) -> Outcome<()> {
        let Open { plan, buffers, .. } = open;
        let Self { queue, host, chosen, .. } = self;
        check(plan, batch.windows);
        let (host, leaf) = (*host, buffers.leaf);
        match (&plan.network, &buffers.family) {
            (FamilyPlan::Decoder(ranges), FamilyBuffers::Decoder(buffers)) => {
                let mut leaf = DecoderLeaf { queue, host, plan, ranges, leaf, buffers, chosen, batch };
                if back { leaf.differentiate() } else { leaf.windows(false) }
            }
            (FamilyPlan::Albert(ranges), FamilyBuffers::Albert(buffers)) => {
                let Family::Albert(albert) = &plan.model.family else { unreachable!("an ALBERT's plan") };
                AlbertLeaf { queue, plan, albert, ranges, leaf, buffers, batch }.windows(back)
            }
            _ => Err(Fault("its memory is another family's".into())),
        }
    }
}

impl Computes for Engine {
    fn leaf(&mut self, setting: Setting<'_>, job: &LeafJob<'_>, q: &mut [i32]) -> Result<i64, Misuse> {
        let computed = self.begin(setting.model, job, false).and_then(|begun| {
            let loss = self.loss(&begun)?.mean();
            self.integers(&begun, job, q)?;
            Ok(fixed_loss(loss))
        });
        computed.map_err(|fault| Misuse(fault.0))
    }

    fn evaluate(&mut self, model: &Model, parameters: &[f32], batch: Batch<'_>) -> Result<f64, Misuse> {
        Self::evaluate(self, model, parameters, batch).map_err(|fault| Misuse(fault.0))
    }
}

/// What a leaf is computed of.
pub(crate) fn batch<'a>(job: &LeafJob<'a>) -> Batch<'a> {
    Batch { windows: job.windows, seed: job.round_seed, leaf: job.leaf }
}

/// What the losses of the windows that passed last are made of.
fn loss_parts(queue: &mut Queue, open: &Open, windows: usize) -> Outcome<LossParts> {
    let (leaf, predicted) = (open.buffers.leaf, open.plan.predicted);
    let [mut sums, mut chosen] = [(); 2].map(|()| vec![0f32; windows * predicted]);
    queue.driver.download(leaf.sums, bytemuck::cast_slice_mut(&mut sums))?;
    queue.driver.download(leaf.chosen, bytemuck::cast_slice_mut(&mut chosen))?;
    Ok(LossParts { sums, chosen, predicted })
}
