//! The experts of a layer that tokens choose among, forward and backward (ARITH-70 to ARITH-74).
//!
//! Each expert works on rows of the tokens that chose it: they are gathered from the window, and put back.

use super::choice::{Choice, Router};
use super::ranges::{Expert, Row};
use super::tape::{ExpertRows, LayerGradients, RowActivations};
use crate::kernel::mixture::{weigh_rows, weighted_swiglu_backward};
use crate::kernel::rows::swiglu;
use crate::passes::Passes;
use crate::turns::WindowTurns;

/// A pass through the row of one layer.
pub(super) struct RowPass<'a> {
    pub passes: &'a Passes<'a>,
    pub row: &'a Row,
}

/// What the backward pass reads.
pub(super) struct RowInputs<'a> {
    pub activations: &'a RowActivations,
    /// Normed tokens.
    pub normed: &'a [f32],
    /// Gradient of the layer's output.
    pub gradient: &'a [f32],
}

impl RowPass<'_> {
    /// Chooses experts for each token, and adds what they give to `output`, where one is wanted. `product` has room for
    /// any expert's.
    pub(super) fn forward(
        &self,
        activations: &mut RowActivations,
        normed: &[f32],
        product: &mut [f32],
        rows: &mut ExpertRows,
        mut output: Option<&mut [f32]>,
    ) {
        let Self { passes, row } = *self;
        let kernels = passes.kernels;
        let RowActivations { choice, probabilities, passed } = activations;
        passes.forward(row.router.matrix, normed, probabilities, false);
        self.router().choose(probabilities, choice);
        for (number, Expert { hidden, gate_up: projection, down }) in row.experts.iter().enumerate() {
            let (choosers, range) = (self.choosers(choice, number), choice.of(number));
            if range.is_empty() {
                continue;
            }
            choosers.gather(normed, &mut rows.normed);
            let gate_up = &mut passed.gate_up[2 * hidden * range.start..2 * hidden * range.end];
            let sigmoid = &mut passed.sigmoid[hidden * range.start..hidden * range.end];
            let product = &mut product[..hidden * range.len()];
            passes.forward(projection.matrix, &rows.normed, gate_up, false);
            swiglu(kernels, gate_up, *hidden, sigmoid, product);
            // When activations are computed again, nobody needs what comes after them.
            let Some(output) = output.as_deref_mut() else { continue };
            choosers.gather_weights(&choice.weights, &mut rows.weights);
            weigh_rows(kernels, &rows.weights, product);
            choosers.gather(output, &mut rows.stream);
            passes.forward(down.matrix, product, &mut rows.stream, true);
            choosers.scatter(&rows.stream, output);
        }
    }

    /// Adds to the gradients of the matrices, and to that of the normed tokens.
    pub(super) fn backward(
        &self,
        from: &RowInputs<'_>,
        to: &mut LayerGradients,
        rows: &mut ExpertRows,
        turn: &WindowTurns<'_, '_>,
    ) {
        let Self { passes, row } = *self;
        for number in 0..row.experts.len() {
            self.expert_backward(number, from, to, rows, turn);
        }
        let RowActivations { choice, probabilities, .. } = from.activations;
        self.router().back(choice, probabilities, &to.weights, &mut to.scores);
        // The chain over what reads a normed token ends with the router (ARITH-74).
        passes.backward(row.router.matrix, &to.scores, &mut to.normed, true);
        let (part, matrix) = (row.router.part, row.router.matrix);
        passes.weigh_in_turn(turn, part, matrix, [&to.scores, from.normed], &mut rows.panels);
    }

    fn expert_backward(
        &self,
        number: usize,
        from: &RowInputs<'_>,
        to: &mut LayerGradients,
        rows: &mut ExpertRows,
        turn: &WindowTurns<'_, '_>,
    ) {
        let Self { passes, row } = *self;
        let RowActivations { choice, passed, .. } = from.activations;
        let Expert { hidden, gate_up: projection, down } = row.experts[number];
        let (choosers, range) = (self.choosers(choice, number), choice.of(number));
        choosers.gather(from.gradient, &mut rows.stream);
        choosers.gather(from.normed, &mut rows.normed);
        choosers.gather_weights(&choice.weights, &mut rows.weights);
        let (product, d_gate_up) =
            (&mut to.product[..hidden * range.len()], &mut to.gate_up[..2 * hidden * range.len()]);
        if !range.is_empty() {
            passes.backward(down.matrix, &rows.stream, product, false);
            rows.d_weights.resize(range.len(), 0.0);
            weighted_swiglu_backward(
                passes.kernels,
                [
                    &passed.gate_up[2 * hidden * range.start..2 * hidden * range.end],
                    &passed.sigmoid[hidden * range.start..hidden * range.end],
                    &rows.weights,
                ],
                product,
                d_gate_up,
                &mut rows.d_weights,
            );
            choosers.scatter_weights(&rows.d_weights, &mut to.weights);
        }
        // In turn, tokens or none: a window takes every part once.
        let ExpertRows { normed, stream, panels, .. } = rows;
        passes.weigh_in_turn(turn, down.part, down.matrix, [stream, product], panels);
        passes.weigh_in_turn(turn, projection.part, projection.matrix, [d_gate_up, normed], panels);
        if !range.is_empty() {
            choosers.gather(&to.normed, &mut rows.stream);
            passes.backward(projection.matrix, d_gate_up, &mut rows.stream, true);
            choosers.scatter(&rows.stream, &mut to.normed);
        }
    }

    fn router(&self) -> Router<'_> {
        let Passes { kernels, plan, share, .. } = *self.passes;
        // One thread: the others have windows of their own.
        Router { kernels, row: self.row, tokens: plan.tokens, share, threads: 1 }
    }

    fn choosers<'c>(&self, choice: &'c Choice, expert: usize) -> Choosers<'c> {
        Choosers {
            places: &choice.by_expert[choice.of(expert)],
            active: self.row.active,
            width: self.passes.plan.width,
        }
    }
}

/// The tokens that chose an expert, ascending.
struct Choosers<'a> {
    /// Their places in the choice.
    places: &'a [usize],
    /// Places of a token.
    active: usize,
    /// Width of the stream.
    width: usize,
}

impl Choosers<'_> {
    /// Copies their rows out.
    fn gather(&self, from: &[f32], to: &mut Vec<f32>) {
        to.clear();
        for place in self.places {
            to.extend_from_slice(&from[place / self.active * self.width..][..self.width]);
        }
    }

    /// Copies their rows back.
    fn scatter(&self, from: &[f32], to: &mut [f32]) {
        for (place, row) in self.places.iter().zip(from.chunks_exact(self.width)) {
            to[place / self.active * self.width..][..self.width].copy_from_slice(row);
        }
    }

    fn gather_weights(&self, from: &[f32], to: &mut Vec<f32>) {
        to.clear();
        to.extend(self.places.iter().map(|place| from[*place]));
    }

    fn scatter_weights(&self, from: &[f32], to: &mut [f32]) {
        for (place, weight) in self.places.iter().zip(from) {
            to[*place] = *weight;
        }
    }
}
