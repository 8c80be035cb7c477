//! The experts of a layer that tokens choose among, on a device: the passes of `crate::decoder::row`.
//!
//! The choice is the processor's: scores are copied to it, and which rows are whose comes back, for a few bytes a token. The
//! rows themselves stay: one a choice, by expert, so that an expert's lie together.

use std::ops::Range;

use super::Pass;
use crate::decoder::choice::{Choice, Router};
use crate::decoder::ranges::{Expert, Row};
use crate::gpu::driver::{Outcome, Place};

/// What the processor keeps of one layer's choice.
#[derive(Default)]
pub(crate) struct Chosen {
    choice: Choice,
    /// Softmax of a token's scores, over all experts.
    probabilities: Vec<f32>,
}

/// Rows of an expert's.
struct Part<'a> {
    expert: &'a Expert,
    rows: Range<usize>,
}

impl Pass<'_> {
    /// ARITH-70 and ARITH-71, from normed tokens; with `output`, the experts add to what is there, else their activations are
    /// made once more, of the choice that was made.
    pub(crate) fn experts_forward(
        &mut self,
        number: usize,
        normed: Place,
        output: Option<Place>,
    ) -> Outcome<()> {
        let Some(row) = self.ranges.rows.get(number) else { return Ok(()) };
        if output.is_some() {
            self.choose(number, row, normed)?;
        }
        let (layer, buffers, width) = (self.layer(number), self.buffers, self.plan.width);
        let (experts, all, hidden) = (&buffers.experts, self.rows() * row.active, row.hidden());
        let [tokens, weights] = experts.choices[number];
        self.queue.gather([all, width], [tokens, normed, experts.normed])?;
        for Part { expert, rows } in self.parts(number, row) {
            let [x, out] = [
                experts.normed.after(rows.start * width),
                layer.passed_gate_up.after(2 * hidden * rows.start),
            ];
            self.multiply_rows(expert.gate_up, rows.len(), x, None, out)?;
        }
        self.queue.swiglu([all, hidden], [layer.passed_gate_up, layer.passed_sigmoid, experts.product])?;
        let Some(output) = output else { return Ok(()) };
        self.queue.weigh_rows([all, hidden], weights, experts.product)?;
        // One after the other: an output's chain goes on from expert to expert.
        for Part { expert, rows } in self.parts(number, row) {
            let (size, own) = ([rows.len(), width], experts.stream.after(rows.start * width));
            let tokens = tokens.after(rows.start);
            self.queue.gather(size, [tokens, output, own])?;
            let x = experts.product.after(hidden * rows.start);
            self.multiply_rows(expert.down, rows.len(), x, Some(own), own)?;
            self.queue.scatter(size, [tokens, own, output])?;
        }
        Ok(())
    }

    /// ARITH-72 to ARITH-74, from the gradient of the layer's output: adds to that of the normed tokens, and to those of the
    /// matrices.
    pub(crate) fn experts_backward(&mut self, number: usize, gradient: Place) -> Outcome<()> {
        let Some(row) = self.ranges.rows.get(number) else { return Ok(()) };
        let (layer, buffers, width) = (self.layer(number), self.buffers, self.plan.width);
        let (experts, all, hidden) = (&buffers.experts, self.rows() * row.active, row.hidden());
        let [tokens, weights] = experts.choices[number];
        self.queue.gather([all, width], [tokens, gradient, experts.stream])?;
        self.queue.gather([all, width], [tokens, buffers.feed_normed, experts.normed])?;
        for Part { expert, rows } in self.parts(number, row) {
            let [d, out] =
                [experts.stream.after(width * rows.start), experts.product.after(hidden * rows.start)];
            self.multiply_rows_back(expert.down, rows.len(), d, None, out)?;
        }
        let places = [
            layer.passed_gate_up,
            layer.passed_sigmoid,
            weights,
            experts.product,
            experts.d_gate_up,
            experts.d_weights,
        ];
        self.queue.weighted_swiglu_back([all, hidden], places)?;
        for part in self.parts(number, row) {
            self.expert_backward(tokens, &part)?;
        }
        self.route_backward(number, row)?;
        // The chain over what reads a normed token ends with the router (ARITH-74).
        let (rows, d_normed) = (self.rows(), buffers.d_normed);
        self.multiply_rows_back(row.router, rows, experts.scores, Some(d_normed), d_normed)?;
        self.weigh(&[(row.router, experts.scores, buffers.feed_normed)])
    }

    /// From the gradient of an expert's gate and up on.
    fn expert_backward(&mut self, tokens: Place, Part { expert, rows }: &Part<'_>) -> Outcome<()> {
        let (buffers, width, hidden) = (self.buffers, self.plan.width, expert.hidden);
        let experts = &buffers.experts;
        let [stream, normed] = [experts.stream, experts.normed].map(|at| at.after(width * rows.start));
        let product = experts.product.after(hidden * rows.start);
        let d_gate_up = experts.d_gate_up.after(2 * hidden * rows.start);
        let weights = [(expert.down, stream, product), (expert.gate_up, d_gate_up, normed)];
        self.weigh_over(rows.len(), &weights)?;
        let (size, tokens) = ([rows.len(), width], tokens.after(rows.start));
        self.queue.gather(size, [tokens, buffers.d_normed, stream])?;
        self.multiply_rows_back(expert.gate_up, rows.len(), d_gate_up, Some(stream), stream)?;
        self.queue.scatter(size, [tokens, stream, buffers.d_normed])
    }

    /// Lets the processor choose.
    fn choose(&mut self, number: usize, row: &Row, normed: Place) -> Outcome<()> {
        let (rows, columns, experts) = (self.rows(), row.experts.len(), &self.buffers.experts);
        self.multiply_rows(row.router, rows, normed, None, experts.scores)?;
        let router = self.router(row);
        let Chosen { choice, probabilities } = &mut self.chosen[number];
        probabilities.resize(rows * columns, 0.0);
        self.queue.driver.download(experts.scores, bytemuck::cast_slice_mut(probabilities))?;
        choice.size(rows, row);
        router.choose(probabilities, choice);
        let tokens: Vec<i32> = choice.by_expert.iter().map(|place| (place / row.active) as i32).collect();
        let weights: Vec<f32> = choice.by_expert.iter().map(|place| choice.weights[*place]).collect();
        let [to_tokens, to_weights] = experts.choices[number];
        self.queue.driver.upload(to_tokens, bytemuck::cast_slice(&tokens))?;
        self.queue.driver.upload(to_weights, bytemuck::cast_slice(&weights))
    }

    /// Lets the processor go back from the gradients of the weights to that of the scores.
    fn route_backward(&mut self, number: usize, row: &Row) -> Outcome<()> {
        let (rows, experts, router) = (self.rows(), &self.buffers.experts, self.router(row));
        let Chosen { choice, probabilities } = &self.chosen[number];
        let mut by_expert = vec![0f32; rows * row.active];
        self.queue.driver.download(experts.d_weights, bytemuck::cast_slice_mut(&mut by_expert))?;
        let mut d_weights = vec![0.0; by_expert.len()];
        for (place, d_weight) in choice.by_expert.iter().zip(by_expert) {
            d_weights[*place] = d_weight;
        }
        let mut d_scores = vec![0f32; rows * row.experts.len()];
        router.back(choice, probabilities, &d_weights, &mut d_scores);
        self.queue.driver.upload(experts.scores, bytemuck::cast_slice(&d_scores))
    }

    fn router<'r>(&self, row: &'r Row) -> Router<'r> {
        let Self { host, plan, share, .. } = *self;
        Router { kernels: host.kernels, row, tokens: plan.tokens, share, threads: host.threads }
    }

    /// The experts, each with its rows.
    fn parts<'r>(&self, number: usize, row: &'r Row) -> Vec<Part<'r>> {
        let choice = &self.chosen[number].choice;
        row.experts.iter().enumerate().map(|(own, expert)| Part { expert, rows: choice.of(own) }).collect()
    }
}
