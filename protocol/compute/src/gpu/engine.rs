//! Leaves on a device: what is uploaded, in which portions windows pass, what comes back.

use muster_core::error::Misuse;
use muster_core::grid::{Dither, fixed_loss, power_of_two};
use muster_core::state::LeafJob;

use super::buffers::Buffers;
use super::decoder::Pass;
use super::driver::{Driver, Fault, Outcome};
use super::queue::Queue;
use crate::decoder::ranges::DecoderRanges;
use crate::function;
use crate::leaf::{Batch, Setting, check};
use crate::plan::{FamilyPlan, NetworkPlan};
use crate::self_test::Computes;

/// A device with a model on it.
pub(super) struct Engine {
    queue: Queue,
    model: Option<Model>,
}

/// A model, and its memory on a device.
struct Model {
    plan: NetworkPlan,
    buffers: Buffers,
}

/// What a leaf's gradient becomes.
pub(super) enum Wanted<'a> {
    /// Itself, `d` values.
    Reals(&'a mut [f32]),
    /// Its grid integers.
    Integers(&'a LeafJob<'a>, &'a mut [i32]),
}

impl Engine {
    pub(super) fn new(driver: Box<dyn Driver>) -> Self {
        Self { queue: Queue { driver }, model: None }
    }

    /// The device, with nothing on it.
    pub(super) fn into_driver(self) -> Box<dyn Driver> {
        let Self { mut queue, model } = self;
        if let Some(model) = model {
            model.buffers.give_back(&mut *queue.driver);
        }
        queue.driver
    }

    /// Whether a model's passes are kernels here.
    pub(super) fn has(model: &muster_core::manifest::Model) -> bool {
        matches!(model.family, muster_core::manifest::Family::Decoder(_))
    }

    /// Takes a model's memory, for leaves of so many windows.
    fn open(&mut self, model: &muster_core::manifest::Model, windows: usize) -> Outcome<Model> {
        match self.model.take() {
            Some(open) if open.plan.model == *model && open.buffers.windows >= windows => return Ok(open),
            Some(other) => other.buffers.give_back(&mut *self.queue.driver),
            None => {}
        }
        let plan = NetworkPlan::new(model);
        let buffers = Buffers::take(&mut *self.queue.driver, &plan, windows)?;
        Ok(Model { plan, buffers })
    }

    /// Copies the parameters of a model to the device, and gives the mean loss and the gradient of some windows.
    pub(super) fn leaf(
        &mut self,
        model: &muster_core::manifest::Model,
        parameters: &[f32],
        batch: Batch<'_>,
        wanted: Wanted<'_>,
    ) -> Outcome<f64> {
        let open = self.open(model, batch.windows.len())?;
        let loss = self.leaf_of(&open, parameters, batch, wanted);
        self.model = Some(open);
        loss
    }

    fn leaf_of(&mut self, open: &Model, parameters: &[f32], batch: Batch<'_>, wanted: Wanted<'_>) -> Outcome<f64> {
        let Model { plan, buffers } = open;
        let ranges = decoder(plan)?;
        self.queue.driver.upload(buffers.parameters, bytemuck::cast_slice(parameters))?;
        let loss = self.windows(open, batch, true)?;
        let driver = &mut self.queue.driver;
        if !ranges.tied {
            driver.clear(buffers.gradient.after(ranges.embedding.offset), ranges.embedding.range().len())?;
        }
        self.embed_back(open, batch)?;
        let driver = &mut self.queue.driver;
        match wanted {
            Wanted::Reals(gradient) => {
                driver.download(buffers.gradient, bytemuck::cast_slice_mut(gradient))?;
            }
            Wanted::Integers(job, q) => {
                let key = Dither::key(&job.round_seed, job.leaf);
                driver.upload(buffers.key, &key.0)?;
                for (tensor, exponent) in plan.layout.tensors().iter().zip(&job.state.exponents) {
                    let (range, step) = (tensor.range(), power_of_two(-i32::from(*exponent)));
                    let places = [buffers.key, buffers.gradient, buffers.q];
                    self.queue.grid(range.start, range.len(), step, places)?;
                }
                self.queue.driver.download(buffers.q, bytemuck::cast_slice_mut(q))?;
            }
        }
        Ok(loss)
    }

    /// Mean loss of some windows.
    pub(super) fn evaluate(
        &mut self,
        model: &muster_core::manifest::Model,
        parameters: &[f32],
        batch: Batch<'_>,
    ) -> Outcome<f64> {
        let open = self.open(model, batch.windows.len())?;
        self.queue.driver.upload(open.buffers.parameters, bytemuck::cast_slice(parameters))?;
        let loss = self.windows(&open, batch, false);
        self.model = Some(open);
        loss.map(|loss| if loss.is_finite() { loss } else { f64::NAN })
    }

    /// Forward and, with `back`, backward over all windows, a portion at a time. The mean of the losses (ARITH-45).
    fn windows(&mut self, open: &Model, batch: Batch<'_>, back: bool) -> Outcome<f64> {
        let Model { plan, buffers } = open;
        check(plan, batch.windows);
        let ranges = decoder(plan)?;
        let token = |token: &u32| plan.token(*token) as i32;
        let inputs: Vec<i32> = batch.windows.iter().flat_map(|window| window[..plan.tokens].iter().map(token)).collect();
        self.queue.driver.upload(buffers.inputs, bytemuck::cast_slice(&inputs))?;
        let predicted = batch.windows.len() * plan.predicted;
        let share = if back { (1.0 / predicted as f64) as f32 } else { 1.0 };
        let mut losses = Vec::with_capacity(batch.windows.len());
        for (number, windows) in batch.windows.chunks(buffers.portion.windows).enumerate() {
            let targets: Vec<i32> = windows.iter().flat_map(|window| window[1..].iter().map(token)).collect();
            self.queue.driver.upload(buffers.targets, bytemuck::cast_slice(&targets))?;
            let first = number * buffers.portion.windows;
            let mut pass =
                Pass { queue: &mut self.queue, plan, ranges, buffers, first, windows: windows.len(), share };
            pass.forward(true)?;
            if back {
                pass.backward()?;
            }
            let [mut sums, mut chosen] = [(); 2].map(|()| vec![0f32; targets.len()]);
            self.queue.driver.download(buffers.sums, bytemuck::cast_slice_mut(&mut sums))?;
            self.queue.driver.download(buffers.chosen, bytemuck::cast_slice_mut(&mut chosen))?;
            // ARITH-40: the logarithm is here, in f64; a device need not have one.
            let tokens = sums.iter().zip(&chosen).map(|(sum, chosen)| function::ln(f64::from(*sum)) - f64::from(*chosen));
            let tokens: Vec<f64> = tokens.collect();
            losses.extend(tokens.chunks(plan.predicted).map(|window| window.iter().fold(0.0, |sum, loss| sum + loss)));
        }
        Ok(losses.iter().fold(0.0, |sum, loss| sum + loss) / predicted as f64)
    }

    /// Adds the rows of all windows to the embedding's gradient.
    fn embed_back(&mut self, open: &Model, batch: Batch<'_>) -> Outcome<()> {
        let Model { plan, buffers } = open;
        let ranges = decoder(plan)?;
        let tokens: Vec<usize> = batch
            .windows
            .iter()
            .flat_map(|window| window[..plan.tokens].iter().map(|token| plan.token(*token)))
            .collect();
        // By token, and each token's in order.
        let mut order: Vec<i32> = (0..tokens.len() as i32).collect();
        order.sort_by_key(|position| tokens[*position as usize]);
        let (mut names, mut starts): (Vec<i32>, Vec<i32>) = (Vec::new(), Vec::new());
        for (index, position) in order.iter().enumerate() {
            let token = tokens[*position as usize] as i32;
            if names.last() != Some(&token) {
                names.push(token);
                starts.push(index as i32);
            }
        }
        starts.push(order.len() as i32);
        let [by_token, begin, name] = buffers.order;
        for (place, values) in [(by_token, &order), (begin, &starts), (name, &names)] {
            self.queue.driver.upload(place, bytemuck::cast_slice(values))?;
        }
        let out = buffers.gradient.after(ranges.embedding.offset);
        self.queue.embed_back([names.len(), plan.width], [name, begin, by_token, buffers.embedded, out])
    }
}

impl Computes for Engine {
    fn leaf(&mut self, setting: Setting<'_>, job: &LeafJob<'_>, q: &mut [i32]) -> Result<i64, Misuse> {
        let batch = Batch { windows: job.windows, seed: job.round_seed, leaf: job.leaf };
        let loss = Self::leaf(self, setting.model, &job.state.parameters, batch, Wanted::Integers(job, q));
        loss.map(fixed_loss).map_err(|fault| Misuse(fault.0))
    }

    fn evaluate(
        &mut self,
        model: &muster_core::manifest::Model,
        parameters: &[f32],
        batch: Batch<'_>,
    ) -> Result<f64, Misuse> {
        Self::evaluate(self, model, parameters, batch).map_err(|fault| Misuse(fault.0))
    }
}

fn decoder(plan: &NetworkPlan) -> Outcome<&DecoderRanges> {
    match &plan.network {
        FamilyPlan::Decoder(ranges) => Ok(ranges),
        FamilyPlan::Albert(_) => Err(Fault("only decoders are computed on it".into())),
    }
}
