//! Local updates on a device: it computes the gradient of each step, and the processor takes the step.

use std::time::{Duration, Instant};

use muster_core::grid::fixed_loss;
use muster_core::ieee::require_ieee;
use muster_core::manifest::{Local, Manifest};
use muster_core::state::LeafTask;

use super::Gpu;
use super::driver::Fault;
use crate::leaf::{Batch, Setting};
use crate::local::{Chain, Gradients};
use crate::path::Kernels;

impl Gpu {
    /// The segments of a member's contribution, in order.
    pub(super) fn segments<'a>(
        &mut self,
        manifest: &Manifest,
        local: &Local,
        tasks: &mut (dyn Iterator<Item = LeafTask<'a>> + Send),
        take: &mut dyn FnMut(Vec<i32>, i64),
    ) {
        require_ieee();
        let mut threads = vec![(); self.exact.threads()];
        let mut chain: Option<Chain<'a>> = None;
        for mut task in tasks {
            let chain = chain.get_or_insert_with(|| Chain::new(&task));
            let loss = chain.segment(self, &mut threads, manifest, local, &mut task);
            take(task.q, loss);
        }
    }

    /// The gradient of a step by the device, in `self.gradient`, and its loss; none where the processor must compute it.
    fn step(&mut self, manifest: &Manifest, parameters: &[f32], batch: Batch<'_>) -> Option<i64> {
        if batch.windows.is_empty() {
            return None;
        }
        let model = &manifest.model;
        let mut gradient = std::mem::take(&mut self.gradient);
        gradient.resize(parameters.len(), 0.0);
        let loss = self.ask(|engine| engine.gradient(model, parameters, batch, &mut gradient));
        self.gradient = gradient;
        let loss = fixed_loss(loss?);
        // COMMIT-7: as leaves are.
        if !self.lot.draw() {
            return Some(loss);
        }
        let mut again = vec![0.0; parameters.len()];
        let repeated = self.ask(|engine| engine.gradient(model, parameters, batch, &mut again))?;
        let equal = self.gradient.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits());
        if equal && fixed_loss(repeated) == loss {
            return Some(loss);
        }
        self.distrust(&Fault("it computed one step in two ways: its memory or its units fail".into()));
        None
    }
}

impl Gradients for Gpu {
    fn kernels(&self) -> Kernels {
        self.exact.kernels
    }

    fn gradient_and_loss(
        &mut self,
        manifest: &Manifest,
        parameters: &[f32],
        batch: Batch<'_>,
    ) -> (&[f32], i64) {
        let begun_at = Instant::now();
        match self.step(manifest, parameters, batch) {
            Some(loss) => {
                self.spent.gradient += begun_at.elapsed();
                (&self.gradient, loss)
            }
            None => self.exact.engine.gradient_and_loss(Setting::of(manifest), parameters, batch),
        }
    }

    fn note_grid(&mut self, spent: Duration) {
        self.spent.grid += spent;
    }
}
