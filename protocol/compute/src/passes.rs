//! What the passes of every network over a window share: parameters, packed weights, products.

use std::sync::Mutex;

use muster_core::layout::split;
use muster_core::lock::lock;

use crate::kernel::matrix::{Panels, Product, multiply};
use crate::kernel::rows::add_rows;
use crate::kernel::strided::Strided;
use crate::matrix::Matrix;
use crate::parallel::each;
use crate::path::Kernels;
use crate::plan::NetworkPlan;
use crate::turns::WindowTurns;

/// Fewest multiplications of a product that are worth another thread.
const SHARED_PRODUCT: usize = 1 << 23;
/// Weights that are packed together where not all of them are kept packed: they stay in a cache while they are multiplied by.
pub(crate) const PACKED_AT_ONCE: usize = 1 << 18;
/// Columns of a right factor that are packed together are whole tiles of every path.
pub(crate) const COLUMNS: usize = 64;

/// Packs `W` transposed, as the forward pass multiplies by it.
pub(crate) fn pack_forward(kernels: Kernels, panels: &mut Panels, parameters: &[f32], matrix: Matrix) {
    let weights = Strided::transposed(&parameters[matrix.range()], matrix.inputs);
    panels.pack(kernels, weights, matrix.inputs, matrix.outputs);
}

/// Packs `W`, as the backward pass multiplies by it.
pub(crate) fn pack_backward(kernels: Kernels, panels: &mut Panels, parameters: &[f32], matrix: Matrix) {
    let weights = Strided::rows(&parameters[matrix.range()], matrix.inputs);
    panels.pack(kernels, weights, matrix.outputs, matrix.inputs);
}

/// The weights of a network as products read them.
#[derive(Clone, Copy)]
pub(crate) enum Weights<'a> {
    /// By number of matrix, packed for each direction.
    Packed { forward: &'a [Panels], backward: &'a [Panels] },
    /// Packed when they are multiplied by, a little at a time, into buffers that products share.
    Unpacked(&'a Mutex<Vec<Panels>>),
}

/// The side from which a product takes a matrix.
#[derive(Clone, Copy)]
enum Side {
    /// `W` transposed.
    Forward,
    /// `W`.
    Backward,
}

/// What the passes over a window read.
#[derive(Clone, Copy)]
pub(crate) struct Passes<'a> {
    pub kernels: Kernels,
    pub plan: &'a NetworkPlan,
    pub parameters: &'a [f32],
    pub weights: Weights<'a>,
    /// One over the predicted tokens of the leaf: scale of the loss gradient.
    pub share: f32,
    /// Whether the forward pass keeps one layer's activations only.
    pub recompute: bool,
    /// Threads for each window, or for windows that are taken together.
    pub helpers: usize,
}

/// Some rows of a matrix's gradient.
struct GradientRows<'a> {
    /// Number of the first.
    first: usize,
    values: &'a mut [f32],
    /// Whether their gradient is added to what they hold.
    add: bool,
}

impl Passes<'_> {
    /// `output = input · Wᵀ` of a matrix, or added to `output`: chains that start from it (ARITH-2). Rows are tokens.
    pub(crate) fn forward(&self, matrix: usize, input: &[f32], output: &mut [f32], add: bool) {
        self.product(Side::Forward, matrix, input, output, add);
    }

    /// `d_input = d_output · W` of a matrix, or added to `d_input`; rows are tokens.
    pub(crate) fn backward(&self, matrix: usize, d_output: &[f32], d_input: &mut [f32], add: bool) {
        self.product(Side::Backward, matrix, d_output, d_input, add);
    }

    fn product(&self, side: Side, matrix: usize, left: &[f32], out: &mut [f32], add: bool) {
        if left.is_empty() {
            // An expert that nobody chose.
            return;
        }
        let buffers = match self.weights {
            Weights::Packed { forward, backward } => {
                let right = if let Side::Forward = side { forward } else { backward };
                return self.multiply(left, &right[matrix], 0, out, add);
            }
            Weights::Unpacked(buffers) => buffers,
        };
        let matrix = self.plan.matrices[matrix];
        let weights = &self.parameters[matrix.range()];
        let (depth, columns) = match side {
            Side::Forward => (matrix.inputs, matrix.outputs),
            Side::Backward => (matrix.outputs, matrix.inputs),
        };
        let mut panels = lock(buffers).pop().unwrap_or_default();
        // Chains run over the depth, which is whole here: where columns are cut changes no bit.
        for range in split(0..columns, (PACKED_AT_ONCE / depth).next_multiple_of(COLUMNS).max(COLUMNS)) {
            let right = match side {
                Side::Forward => Strided::transposed(&weights[range.start * depth..], depth),
                Side::Backward => Strided::rows(&weights[range.start..], columns),
            };
            panels.pack(self.kernels, right, depth, range.len());
            self.multiply(left, &panels, range.start, out, add);
        }
        lock(buffers).push(panels);
    }

    /// A product by some columns of a right factor, from `first` on.
    fn multiply(&self, left: &[f32], right: &Panels, first: usize, out: &mut [f32], add: bool) {
        let (depth, columns) = (right.depth(), right.columns());
        let rows = left.len() / depth;
        let stride = out.len() / rows.max(1);
        self.share_rows(rows, depth * columns, out, stride, |row, rows, out| {
            let left = Strided::rows(&left[row * depth..], depth);
            multiply(
                self.kernels,
                &Product { add, ..Product::full(left, right, rows) },
                &mut out[first..],
                stride,
            );
        });
    }

    /// Adds `Σ d_output ⊗ input` over all rows to the gradient of a matrix.
    pub(crate) fn weigh(
        &self,
        matrix: usize,
        [d_output, input]: [&[f32]; 2],
        panels: &mut Panels,
        out: &mut [f32],
    ) {
        self.pack_input(matrix, input, panels);
        self.outer(matrix, d_output, panels, GradientRows { first: 0, values: out, add: true });
    }

    /// The same in a window's turn, to a part of the leaf's gradient.
    pub(crate) fn weigh_in_turn(
        &self,
        turn: &WindowTurns<'_, '_>,
        part: usize,
        matrix: usize,
        [d_output, input]: [&[f32]; 2],
        panels: &mut Panels,
    ) {
        if input.is_empty() {
            // A chain without a term: +0, or what the windows before left (ARITH-74).
            return turn.take(part, |_, values, holds| {
                if !holds {
                    values.fill(0.0);
                }
            });
        }
        self.pack_input(matrix, input, panels);
        turn.take(part, |first, values, add| {
            self.outer(matrix, d_output, panels, GradientRows { first, values, add });
        });
    }

    /// Packs a matrix's input as the right factor of its gradient.
    fn pack_input(&self, matrix: usize, input: &[f32], panels: &mut Panels) {
        let inputs = self.plan.matrices[matrix].inputs;
        panels.pack(self.kernels, Strided::rows(input, inputs), input.len() / inputs, inputs);
    }

    /// Computes some rows of a matrix's gradient.
    ///
    /// A weight's gradient is one chain over all tokens (ARITH-4), `dW[o][i] = ⟨d output[o], input[i]⟩`: a window's part of
    /// it goes on where the windows before ended.
    fn outer(&self, matrix: usize, d_output: &[f32], input: &Panels, rows: GradientRows<'_>) {
        let GradientRows { first: row, values: out, add } = rows;
        let Matrix { outputs, inputs, .. } = self.plan.matrices[matrix];
        let work = d_output.len() / outputs * inputs;
        self.share_rows(out.len() / inputs, work, out, inputs, |first, rows, out| {
            let left = Strided::transposed(&d_output[row + first..], outputs);
            multiply(self.kernels, &Product { add, ..Product::full(left, input, rows) }, out, inputs);
        });
    }

    /// Runs a product over runs of rows of its output, one for each of the window's threads where it is large enough.
    fn share_rows(
        &self,
        rows: usize,
        work_of_row: usize,
        out: &mut [f32],
        stride: usize,
        run: impl Fn(usize, usize, &mut [f32]) + Sync,
    ) {
        // Divided by rows of the output, never within a chain: the number of threads changes no bit.
        let threads = self.helpers.min(rows * work_of_row / SHARED_PRODUCT).max(1);
        let share = rows.div_ceil(threads).next_multiple_of(8);
        let tasks = out.chunks_mut((share * stride).max(1)).enumerate();
        each(&mut vec![(); threads], tasks, |(), (index, out)| {
            run(index * share, share.min(rows - index * share), out);
        });
    }

    /// In a window's turn, adds rows to a part of the gradient, in order.
    pub(crate) fn add_rows(&self, turn: &WindowTurns<'_, '_>, part: usize, rows: &[f32]) {
        turn.take(part, |_, sums, holds| {
            // ARITH-43 adds from +0; the buffer still has the leaf before.
            if !holds {
                sums.fill(0.0);
            }
            add_rows(self.kernels, rows, sums);
        });
    }
}
