//! The kernels by their names, with what they read and write. Shapes are in values; `Place`s begin where the matrix does.

use super::driver::{Argument, DEPTH, Driver, Fault, ITEMS, Outcome, Place};

/// Rows that a group of work-items sums at a time.
const ROWS: usize = 16;
/// Columns whose rows a group adds.
const COLUMNS: usize = 32;

/// A device, and the kernels on it.
pub(super) struct Queue {
    pub driver: Box<dyn Driver>,
    /// Whether products have large tiles, whatever their size; none where the size decides.
    pub large: Option<bool>,
}

/// A factor or the result of a product: where it begins, and values from row to row as it lies.
#[derive(Clone, Copy)]
pub(super) struct Lying {
    pub at: Place,
    pub stride: usize,
}

/// The gradient of a weight matrix: of its outputs' gradients and its inputs, a row each token.
#[derive(Clone, Copy)]
pub(super) struct Weighing {
    pub d_output: Place,
    pub input: Place,
    pub outputs: usize,
    pub inputs: usize,
    /// Where it lies in the gradient.
    pub offset: usize,
}

impl Weighing {
    fn factors(&self) -> [Lying; 2] {
        [Lying { at: self.d_output, stride: self.outputs }, Lying { at: self.input, stride: self.inputs }]
    }
}

/// Whether four values at a time are aligned in both factors, and whole slices of the depth.
fn fast(depth: usize, factors: [Lying; 2]) -> bool {
    depth.is_multiple_of(DEPTH)
        && factors.iter().all(|factor| factor.at.first % 4 == 0 && factor.stride % 4 == 0)
}

/// Which way a product's depth lies in its factors.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// a·bᵀ of rows: a layer forward.
    Forward,
    /// a·b: its gradient back.
    Backward,
    /// aᵀ·b: the gradient of its weights.
    Weigh,
}

/// Rows, columns and depth.
pub(super) type Shape = [usize; 3];

/// What blocks of tokens bound in a product of heads (ARITH-5).
#[derive(Clone, Copy)]
pub(super) enum Bound {
    /// Nothing.
    None = 0,
    /// A row's chain ends with its block.
    End = 1,
    /// A row's chain begins with its block.
    Begin = 2,
    /// Columns up to the end of a row's block are wanted.
    Columns = 3,
}

/// A matrix for each head of each window.
#[derive(Clone, Copy)]
pub(super) struct OfHeads {
    pub lying: Lying,
    /// Values from window to window, and from head to head.
    pub apart: [usize; 2],
}

/// How the products of heads go together.
#[derive(Clone, Copy)]
pub(super) struct Heads {
    pub windows: usize,
    /// Of the result.
    pub count: usize,
    /// Heads of the left factor that each of these adds up, in order.
    pub loops: usize,
    /// Heads of the left factor that share one of the right factor.
    pub sharing: usize,
    pub block: usize,
    pub bound: Bound,
}

/// Rows of scores: tokens of heads of windows.
#[derive(Clone, Copy)]
pub(super) struct Scores {
    pub windows: usize,
    pub heads: usize,
    pub tokens: usize,
    pub block: usize,
    pub causal: bool,
}

impl Scores {
    fn rows(&self) -> usize {
        self.windows * self.heads * self.tokens
    }
}

/// The rotation of some heads of every row.
pub(super) struct Turn {
    pub heads: usize,
    /// Pairs of a head.
    pub pairs: usize,
    pub stride: usize,
    pub tokens: usize,
    pub direction: f32,
    pub scale: f32,
    pub angles: [Place; 2],
}

/// Heads with which rows begin, of which each has a norm of its own.
#[derive(Clone, Copy)]
pub(super) struct HeadRows {
    pub rows: usize,
    pub heads: usize,
    /// Of a head.
    pub width: usize,
    /// Values from row to row.
    pub stride: usize,
}

impl HeadRows {
    fn count(&self) -> usize {
        self.rows * self.heads
    }

    fn arguments(&self) -> Outcome<Vec<Argument>> {
        Ok(vec![Argument::Long(self.count() as u64), int(self.heads)?, int(self.width)?, int(self.stride)?])
    }
}

/// A number of a kernel's, which are of 32 bits.
fn int(value: usize) -> Outcome<Argument> {
    i32::try_from(value)
        .map(Argument::Int)
        .map_err(|error| Fault::new(&format!("{value} for a kernel"), error))
}

/// So many groups that each value has a work-item.
fn groups(values: usize) -> u64 {
    (values as u64).div_ceil(ITEMS)
}

impl Queue {
    /// Whether so many large tiles reach every unit of the device.
    fn is_large(&self, tiles: u64) -> bool {
        self.large.unwrap_or(tiles >= u64::from(self.driver.description().units))
    }

    /// c = a·b as `kind` has them, from +0, or from what lies at `start` in rows like those of c. ARITH-28: whichever tiles it has.
    pub(super) fn product(
        &mut self,
        kind: Kind,
        shape: Shape,
        [a, b]: [Lying; 2],
        start: Option<Place>,
        c: Lying,
    ) -> Outcome<()> {
        let [m, n, k] = shape;
        let tiles = |tile: usize| (m.div_ceil(tile) * n.div_ceil(tile)) as u64;
        // Large tiles read each factor less often, small ones reach every unit of the device.
        let large = self.is_large(tiles(128));
        let kernel = match (kind, large) {
            (Kind::Forward, true) if fast(k, [a, b]) => "forward_fast",
            (Kind::Backward, true) if fast(k, [a, b]) => "backward_fast",
            (Kind::Weigh, true) if fast(k, [a, b]) => "weigh_fast",
            (Kind::Forward, true) => "forward_large",
            (Kind::Forward, false) => "forward_small",
            (Kind::Backward, true) => "backward_large",
            (Kind::Backward, false) => "backward_small",
            (Kind::Weigh, true) => "weigh_large",
            (Kind::Weigh, false) => "weigh_small",
        };
        let arguments = [
            int(m)?,
            int(n)?,
            int(k)?,
            Argument::At(a.at),
            int(a.stride)?,
            Argument::At(b.at),
            int(b.stride)?,
            Argument::At(start.unwrap_or(c.at)),
            Argument::Int(start.is_some().into()),
            Argument::At(c.at),
            int(c.stride)?,
        ];
        self.driver.launch(kernel, tiles(if large { 128 } else { 64 }), &arguments)
    }

    /// Gradients of some weights over the same rows, in matrices that lie in `gradient`; `more` goes on with what is there.
    pub(super) fn weigh(
        &mut self,
        rows: usize,
        all: &[Weighing],
        more: bool,
        gradient: Place,
    ) -> Outcome<()> {
        if rows == 0 {
            // Chains without a term: +0, or what the windows before left (ARITH-74).
            return all.iter().filter(|_| !more).try_for_each(|each| {
                self.driver.clear(gradient.after(each.offset), each.outputs * each.inputs)
            });
        }
        let tiles: usize =
            all.iter().map(|each| each.outputs.div_ceil(128) * each.inputs.div_ceil(128)).sum();
        let aligned = all.iter().all(|each| fast(rows, each.factors()));
        if !aligned || all.len() > 4 || !self.is_large(tiles as u64) {
            for each in all {
                let out = Lying { at: gradient.after(each.offset), stride: each.inputs };
                let shape = [each.outputs, each.inputs, rows];
                self.product(Kind::Weigh, shape, each.factors(), more.then_some(out.at), out)?;
            }
            return Ok(());
        }
        let mut arguments = vec![int(rows)?, Argument::Int(more.into()), Argument::At(gradient)];
        for number in 0..4 {
            let Some(each) = all.get(number).or(all.first()) else { return Ok(()) };
            // What is missing has no tiles.
            let there = number < all.len();
            arguments.extend([int(if there { each.outputs } else { 0 })?, int(each.inputs)?]);
            for factor in each.factors() {
                arguments.extend([Argument::At(factor.at), int(factor.stride)?]);
            }
            arguments.push(Argument::Long(each.offset as u64));
        }
        self.driver.launch("weigh_group", tiles as u64, &arguments)
    }

    /// The same for heads, from +0.
    pub(super) fn heads(
        &mut self,
        kind: Kind,
        shape: Shape,
        [a, b]: [OfHeads; 2],
        c: OfHeads,
        of: Heads,
    ) -> Outcome<()> {
        let [m, n, k] = shape;
        let kernel = match kind {
            Kind::Forward => "heads_forward",
            Kind::Backward => "heads_backward",
            Kind::Weigh => "heads_weigh",
        };
        let mut arguments = vec![int(m)?, int(n)?, int(k)?];
        for each in [a, b] {
            arguments.extend([Argument::At(each.lying.at), int(each.lying.stride)?]);
        }
        let c_lying =
            [Argument::At(c.lying.at), Argument::Int(0), Argument::At(c.lying.at), int(c.lying.stride)?];
        arguments.extend(c_lying);
        arguments
            .extend([a, b, c].iter().flat_map(|each| each.apart).map(|values| Argument::Long(values as u64)));
        arguments.extend([int(of.count)?, int(of.loops)?, int(of.sharing)?, int(of.block)?]);
        arguments.push(Argument::Int(of.bound as i32));
        let tiles = m.div_ceil(64) * n.div_ceil(64) * of.windows * of.count;
        self.driver.launch(kernel, tiles as u64, &arguments)
    }

    /// ARITH-31 of `[rows, width]`; with `again`, by the scales that are there.
    pub(super) fn norm(
        &mut self,
        [rows, width]: [usize; 2],
        epsilon: f32,
        again: bool,
        [x, gain, y, scales]: [Place; 4],
    ) -> Outcome<()> {
        let mut arguments =
            vec![int(rows)?, int(width)?, Argument::Real(epsilon), Argument::Int(again.into())];
        arguments.extend([x, gain, y, scales].map(Argument::At));
        self.driver.launch("rms_norm", rows.div_ceil(ROWS) as u64, &arguments)
    }

    /// ARITH-32: from the stream's gradient to the next; `d` becomes each row's share of the gain's gradient.
    pub(super) fn norm_back(
        &mut self,
        [rows, width]: [usize; 2],
        [x, gain, scales, d]: [Place; 4],
        [stream, next]: [Place; 2],
    ) -> Outcome<()> {
        let mut arguments = vec![int(rows)?, int(width)?];
        arguments.extend([x, gain, scales, d, stream, next].map(Argument::At));
        self.driver.launch("rms_norm_back", rows.div_ceil(ROWS) as u64, &arguments)
    }

    /// ARITH-77 of the heads of `values`, in place: what they were, and their scales, are kept.
    pub(super) fn norm_heads(
        &mut self,
        of: HeadRows,
        epsilon: f32,
        [values, gain, before, scales]: [Place; 4],
    ) -> Outcome<()> {
        let mut arguments = of.arguments()?;
        arguments.push(Argument::Real(epsilon));
        arguments.extend([values, gain, before, scales].map(Argument::At));
        self.driver.launch("norm_heads", of.count().div_ceil(ROWS) as u64, &arguments)
    }

    /// Back through it: `d` becomes the heads' gradient, `before` each head's share of the gain's.
    pub(super) fn norm_heads_back(
        &mut self,
        of: HeadRows,
        [d, gain, before, scales]: [Place; 4],
    ) -> Outcome<()> {
        let mut arguments = of.arguments()?;
        arguments.extend([d, gain, before, scales].map(Argument::At));
        self.driver.launch("norm_heads_back", of.count().div_ceil(ROWS) as u64, &arguments)
    }

    /// ARITH-43, from +0, or with `more` from what is there.
    pub(super) fn add_rows(
        &mut self,
        [rows, width]: [usize; 2],
        more: bool,
        x: Place,
        sums: Place,
    ) -> Outcome<()> {
        self.add_columns([rows, width], width, more, x, sums)
    }

    /// The same of the first `width` columns of rows that are `stride` apart.
    pub(super) fn add_columns(
        &mut self,
        [rows, width]: [usize; 2],
        stride: usize,
        more: bool,
        x: Place,
        sums: Place,
    ) -> Outcome<()> {
        let mut arguments = vec![int(rows)?, int(width)?, int(stride)?, Argument::Int(more.into())];
        arguments.extend([x, sums].map(Argument::At));
        self.driver.launch("add_rows", width.div_ceil(COLUMNS) as u64, &arguments)
    }

    /// ARITH-34.
    pub(super) fn rotate(&mut self, rows: usize, turn: &Turn, values: Place) -> Outcome<()> {
        let Turn { heads, pairs, stride, tokens, direction, scale, angles } = *turn;
        let mut arguments = vec![int(rows)?, int(heads)?, int(pairs)?, int(stride)?, int(tokens)?];
        arguments.extend([Argument::Real(direction), Argument::Real(scale), Argument::At(values)]);
        arguments.extend(angles.map(Argument::At));
        self.driver.launch("rotate_heads", groups(rows * heads * pairs), &arguments)
    }

    /// ARITH-35, in place.
    pub(super) fn softmax(&mut self, of: Scores, p: Place) -> Outcome<()> {
        let arguments = [
            Argument::Long(of.rows() as u64),
            int(of.tokens)?,
            int(of.block)?,
            Argument::Int(of.causal.into()),
            Argument::At(p),
        ];
        self.driver.launch("softmax", of.rows().div_ceil(ROWS) as u64, &arguments)
    }

    /// ARITH-36: `d`, the gradient of probabilities `p`, becomes that of the scores. Heads are `width` wide.
    pub(super) fn softmax_back(
        &mut self,
        of: Scores,
        width: usize,
        [p, d, output, d_output]: [Place; 4],
    ) -> Outcome<()> {
        let mut arguments = vec![Argument::Long(of.rows() as u64), int(of.tokens)?, int(of.block)?];
        arguments.extend([Argument::Int(of.causal.into()), int(of.heads)?, int(width)?]);
        arguments.extend([p, d, output, d_output].map(Argument::At));
        self.driver.launch("softmax_back", of.rows().div_ceil(ROWS) as u64, &arguments)
    }

    /// ARITH-38 of `[rows, 2·hidden]`.
    pub(super) fn swiglu(
        &mut self,
        [rows, hidden]: [usize; 2],
        [gate_up, sigmoid, product]: [Place; 3],
    ) -> Outcome<()> {
        let mut arguments = vec![Argument::Long((rows * hidden) as u64), int(hidden)?];
        arguments.extend([gate_up, sigmoid, product].map(Argument::At));
        self.driver.launch("swiglu", groups(rows * hidden), &arguments)
    }

    /// ARITH-39: `product`, its gradient before, is the product itself afterwards.
    pub(super) fn swiglu_back(
        &mut self,
        [rows, hidden]: [usize; 2],
        [gate_up, sigmoid, product, d_gate_up]: [Place; 4],
    ) -> Outcome<()> {
        let mut arguments = vec![Argument::Long((rows * hidden) as u64), int(hidden)?];
        arguments.extend([gate_up, sigmoid, product, d_gate_up].map(Argument::At));
        self.driver.launch("swiglu_back", groups(rows * hidden), &arguments)
    }

    /// ARITH-40 but for the logarithm: each row's sum, and its target less its largest.
    pub(super) fn cross_entropy(
        &mut self,
        [rows, vocabulary]: [usize; 2],
        share: f32,
        [targets, logits, sums, chosen]: [Place; 4],
    ) -> Outcome<()> {
        let mut arguments = vec![int(rows)?, int(vocabulary)?, Argument::Real(share)];
        arguments.extend([targets, logits].map(Argument::At));
        let common = arguments.clone();
        arguments.extend([sums, chosen].map(Argument::At));
        self.driver.launch("cross_entropy", rows.div_ceil(ROWS) as u64, &arguments)?;
        self.driver.launch("subtract_targets", groups(rows), &common)
    }

    /// ARITH-71: the sigmoid of each value, in place.
    pub(super) fn sigmoids(&mut self, count: usize, values: Place) -> Outcome<()> {
        let arguments = [Argument::Long(count as u64), Argument::At(values)];
        self.driver.launch("sigmoids", groups(count), &arguments)
    }

    /// ARITH-73: the gradient `d` of sigmoids becomes that of what they were made of.
    pub(super) fn sigmoids_back(&mut self, count: usize, [sigmoid, d]: [Place; 2]) -> Outcome<()> {
        let arguments = [Argument::Long(count as u64), Argument::At(sigmoid), Argument::At(d)];
        self.driver.launch("sigmoids_back", groups(count), &arguments)
    }

    /// ARITH-71: multiplies each row by its weight.
    pub(super) fn weigh_rows(
        &mut self,
        [rows, width]: [usize; 2],
        weights: Place,
        values: Place,
    ) -> Outcome<()> {
        let count = rows * width;
        let arguments =
            [Argument::Long(count as u64), int(width)?, Argument::At(weights), Argument::At(values)];
        self.driver.launch("weigh_rows", groups(count), &arguments)
    }

    /// ARITH-72: places are gate and up, σ(gate), weights, the gradient of the weighted product, which becomes that product,
    /// then the gradients of gate and up, and of the weights.
    pub(super) fn weighted_swiglu_back(
        &mut self,
        [rows, hidden]: [usize; 2],
        places: [Place; 6],
    ) -> Outcome<()> {
        let mut arguments = vec![int(rows)?, int(hidden)?];
        arguments.extend(places.map(Argument::At));
        self.driver.launch("weighted_swiglu_back", rows.div_ceil(ROWS) as u64, &arguments)
    }

    /// Copies rows of `from`, by number, to `to`.
    pub(super) fn gather(&mut self, size: [usize; 2], places: [Place; 3]) -> Outcome<()> {
        self.copy_rows(size, false, places)
    }

    /// Copies the rows of `from` to those of `to`, by number.
    pub(super) fn scatter(&mut self, size: [usize; 2], places: [Place; 3]) -> Outcome<()> {
        self.copy_rows(size, true, places)
    }

    fn copy_rows(
        &mut self,
        [rows, width]: [usize; 2],
        back: bool,
        [numbers, from, to]: [Place; 3],
    ) -> Outcome<()> {
        let mut arguments = vec![int(rows)?, int(width)?, Argument::Int(back.into())];
        arguments.extend([numbers, from, to].map(Argument::At));
        self.driver.launch("gather", groups(rows * width), &arguments)
    }

    /// ARITH-44, for so many tokens that occur.
    pub(super) fn embed_back(
        &mut self,
        [tokens, width]: [usize; 2],
        [names, starts, order, rows, out]: [Place; 5],
    ) -> Outcome<()> {
        let mut arguments = vec![int(width)?];
        arguments.extend([names, starts, order, rows, out].map(Argument::At));
        self.driver.launch("embed_back", groups(width) * tokens as u64, &arguments)
    }

    /// ARITH-61: from x to y by gain and bias; means and scales are kept.
    pub(super) fn layer_norm(
        &mut self,
        [rows, width]: [usize; 2],
        epsilon: f32,
        [x, y]: [Place; 2],
        [gain, bias]: [Place; 2],
        [means, scales]: [Place; 2],
    ) -> Outcome<()> {
        let mut arguments = vec![int(rows)?, int(width)?, Argument::Real(epsilon)];
        arguments.extend([x, gain, bias, y, means, scales].map(Argument::At));
        self.driver.launch("layer_norm", rows.div_ceil(ROWS) as u64, &arguments)
    }

    /// ARITH-62: `d`, the gradient of the output, becomes that of the input `x`, and adds to those of gain and bias.
    pub(super) fn layer_norm_back(
        &mut self,
        [rows, width]: [usize; 2],
        [x, gain, d]: [Place; 3],
        [means, scales]: [Place; 2],
        sums: [Place; 2],
    ) -> Outcome<()> {
        let mut arguments = vec![int(rows)?, int(width)?];
        arguments.extend([x, means, scales, d].map(Argument::At));
        let last = arguments.clone();
        arguments.extend(sums.map(Argument::At));
        self.driver.launch("layer_norm_sums", groups(width), &arguments)?;
        let count = rows * width;
        let by_gain = [Argument::Long(count as u64), int(width)?, Argument::At(gain), Argument::At(d)];
        self.driver.launch("multiply_columns", groups(count), &by_gain)?;
        self.driver.launch("layer_norm_back", rows.div_ceil(ROWS) as u64, &last)
    }

    /// What products with a bias start from: in rows `stride` apart the bias, or `x` plus the bias.
    pub(super) fn bias_rows(
        &mut self,
        [rows, width]: [usize; 2],
        stride: usize,
        x: Option<Place>,
        bias: Place,
        out: Place,
    ) -> Outcome<()> {
        let count = rows * width;
        let mut arguments = vec![Argument::Long(count as u64), int(width)?, int(stride)?];
        arguments.push(Argument::Int(x.is_some().into()));
        arguments.extend([x.unwrap_or(bias), bias, out].map(Argument::At));
        self.driver.launch("bias_rows", groups(count), &arguments)
    }

    /// Multiplies the first `width` columns of rows that are `stride` apart.
    pub(super) fn scale_columns(
        &mut self,
        [rows, width]: [usize; 2],
        stride: usize,
        scale: f32,
        values: Place,
    ) -> Outcome<()> {
        let count = rows * width;
        let arguments = [
            Argument::Long(count as u64),
            int(width)?,
            int(stride)?,
            Argument::Real(scale),
            Argument::At(values),
        ];
        self.driver.launch("scale_columns", groups(count), &arguments)
    }

    /// The sum of two vectors, in a third one or in one of them.
    pub(super) fn add_vectors(&mut self, count: usize, [x, y, out]: [Place; 3]) -> Outcome<()> {
        let arguments = [Argument::Long(count as u64), Argument::At(x), Argument::At(y), Argument::At(out)];
        self.driver.launch("add_vectors", groups(count), &arguments)
    }

    /// ARITH-63.
    pub(super) fn gelu(&mut self, count: usize, [x, y]: [Place; 2]) -> Outcome<()> {
        let arguments = [Argument::Long(count as u64), Argument::At(x), Argument::At(y)];
        self.driver.launch("gelu", groups(count), &arguments)
    }

    /// ARITH-64, in place of the gradient.
    pub(super) fn gelu_back(&mut self, count: usize, [x, d]: [Place; 2]) -> Outcome<()> {
        let arguments = [Argument::Long(count as u64), Argument::At(x), Argument::At(d)];
        self.driver.launch("gelu_back", groups(count), &arguments)
    }

    /// What a proof asks of so many numbers, and pairs of them: five rows.
    pub(super) fn functions(&mut self, count: usize, [x, y, out]: [Place; 3]) -> Outcome<()> {
        let arguments = [int(count)?, Argument::At(x), Argument::At(y), Argument::At(out)];
        self.driver.launch("functions", groups(count), &arguments)
    }

    /// GRID-2 of so many coefficients from `first` on.
    pub(super) fn grid(
        &mut self,
        first: usize,
        count: usize,
        inverse_step: f64,
        [key, gradient, q]: [Place; 3],
    ) -> Outcome<()> {
        let mut arguments =
            vec![Argument::Long(first as u64), Argument::Long(count as u64), Argument::Wide(inverse_step)];
        arguments.extend([key, gradient, q].map(Argument::At));
        let blocks = (first + count).div_ceil(16) - first / 16;
        self.driver.launch("grid", groups(blocks), &arguments)
    }
}
