//! How much memory a model takes, known before any is asked for.

use muster_core::manifest::{Albert, Decoder, Family, Mixture, Model, Training, Variant};

use crate::backend::{Device, Precision};
use crate::kernel::BUFFER;
use crate::passes::{COLUMNS, PACKED_AT_ONCE};
use crate::plan::{PACKED_BYTES, joined};
use crate::turns::ROWS;

/// Bytes of the buffers that [`crate::Exact`] keeps once it has computed a leaf on `threads` threads: the gradient, of which a
/// leaf of one window has only the embedding's; the packed matrices of both directions, unless they are large; the activations
/// of the windows that each thread has at a time; and each thread's strip of a left factor. State and grid integers are the
/// caller's.
///
/// Saturates: the sizes may come from a stranger's manifest.
pub fn buffers(model: &Model, training: &Training, threads: usize) -> u64 {
    let windows = WideCount::from(training.leaf_windows);
    let joined = joined(model, training.leaf_windows.into(), threads as u64).into();
    let threads = threads.max(1) as WideCount;
    // As `Engine` does: a thread without a window has no activations.
    let tasks = windows.div_ceil(joined);
    let busy = tasks.min(threads);
    let layers = if training.recompute { 1 } else { WideCount::from(model.layers) };
    let parameters = WideCount::from(model.parameters());
    let sizes = Sizes::of(model);
    let (window, matrices, each) = match &model.family {
        Family::Decoder(decoder) | Family::Variant(Variant { decoder, .. }) => {
            sizes.decoder(decoder, layers, sizes.dense())
        }
        Family::Albert(albert) => sizes.albert(albert, layers, parameters),
        Family::Mixture(mixture) => sizes.decoder(&mixture.decoder, layers, sizes.mixture(mixture)),
    };
    let gradient = if tasks > 1 { parameters } else { sizes.late() + sizes.pieces() };
    let is_packed = (tasks > 1 || threads > 1) && 8 * matrices <= PACKED_BYTES.into();
    let packed = if is_packed { 2 * matrices } else { busy * sizes.packed_at_once() };
    // The gradient; matrices packed for both directions; windows; what the embedding waits for; strips.
    let values = gradient
        + packed
        + busy * (joined * window + sizes.attention())
        + windows * each
        + threads * BUFFER as WideCount;
    u64::try_from(4 * values).unwrap_or(u64::MAX)
}

/// Bytes of the library itself, once it computes.
const LIBTORCH: u64 = 200 << 20;

/// Bytes of main memory that computing leaves in libtorch takes, the library included: two gradients, one of which goes
/// on the grid, and the parameters; on the processor also their gradients by tensor, and what autograd keeps of all
/// windows at once. A graphics processor has its own memory for these.
///
/// Saturates: the sizes may come from a stranger's manifest.
pub fn torch_buffers(model: &Model, training: &Training, device: Device, precision: Precision) -> u64 {
    let vector = 4 * WideCount::from(model.parameters());
    // Two gradients and the parameters.
    let vectors = match device {
        // Libtorch hands out memory that such a device reaches in powers of two.
        Device::Cuda(_) => 3 * vector.next_power_of_two(),
        Device::Cpu => 3 * vector + Sizes::of(model).differentiated(training, precision),
    };
    u64::try_from(vectors).unwrap_or(u64::MAX).saturating_add(LIBTORCH)
}

/// What a graphics processor's libraries take for themselves, and what lies idle between vectors.
const IDLE: u64 = 512 << 20;

/// Bytes of a graphics processor's own memory that computing leaves there takes, about: the parameters, two gradients, one
/// of which is copied to main memory, and what autograd keeps.
///
/// Saturates: the sizes may come from a stranger's manifest.
pub fn graphics_buffers(model: &Model, training: &Training, precision: Precision) -> u64 {
    let vectors = 12 * WideCount::from(model.parameters());
    let kept = Sizes::of(model).differentiated(training, precision);
    u64::try_from(vectors + kept).unwrap_or(u64::MAX).saturating_add(IDLE)
}

/// Wide enough for products of all sizes that a manifest may name.
type WideCount = u128;

/// Values of a decoder's feed-forward.
struct FeedSizes {
    /// Of a layer's matrices.
    matrices: WideCount,
    /// Of the activations of a layer, for each token.
    kept: WideCount,
    /// Of what goes back through a layer, for each token.
    gradients: WideCount,
    /// Width inside the widest expert.
    widest: WideCount,
}

/// Sizes of a model.
struct Sizes {
    model: Model,
    tokens: WideCount,
    width: WideCount,
    hidden: WideCount,
    vocabulary: WideCount,
    layers: WideCount,
    heads: WideCount,
    /// Width of a head.
    head: WideCount,
}

impl Sizes {
    fn of(model: &Model) -> Self {
        let [tokens, width, hidden, vocabulary, layers, heads] =
            [model.sequence, model.width, model.hidden, model.vocabulary, model.layers, model.heads]
                .map(WideCount::from);
        let head = model.head_width().into();
        Self { model: model.clone(), tokens, width, hidden, vocabulary, layers, heads, head }
    }

    /// Values of one window with the activations of `kept` layers, of the packed matrices, and of each window of a leaf.
    fn decoder(
        &self,
        decoder: &Decoder,
        kept: WideCount,
        feed: FeedSizes,
    ) -> (WideCount, WideCount, WideCount) {
        let Self { tokens, width, vocabulary, layers, heads, .. } = *self;
        let (mixed, key_value) = (self.head * heads, self.head * WideCount::from(decoder.key_value_heads));
        let joint = mixed + 2 * key_value;
        let normed =
            if self.model.has_head_norms() { (mixed + key_value) / self.head * (self.head + 1) } else { 0 };
        let layer = tokens * (width + mixed + 2 + joint + normed + feed.kept) + self.scores() * heads;
        let stream = tokens * ((layers + 2) * width + 1 + vocabulary);
        let gradients =
            tokens * (2 * width + mixed + joint + feed.gradients) + tokens * width.max(feed.widest);
        let matrices = layers * (width * joint + mixed * width + feed.matrices) + vocabulary * width;
        (kept * layer + stream + gradients, matrices, tokens * width)
    }

    fn dense(&self) -> FeedSizes {
        let Self { width, hidden, .. } = *self;
        FeedSizes { matrices: 3 * width * hidden, kept: 3 * hidden, gradients: 4 * hidden, widest: hidden }
    }

    fn mixture(&self, mixture: &Mixture) -> FeedSizes {
        let Self { width, hidden, .. } = *self;
        let [columns, active] = [mixture.columns, mixture.active].map(WideCount::from);
        let shared = WideCount::from(mixture.shared_hidden);
        let widest = shared.max(hidden);
        FeedSizes {
            matrices: 3 * width * shared + width + columns * (width + 3 * width * hidden),
            // Of a choice: expert, weight, and its place among those of the expert.
            kept: 3 * shared + 1 + columns + active * (3 * hidden + 4),
            // All tokens may choose one expert, whose rows are gathered twice.
            gradients: 4 * widest + 1 + columns + active + 2 * width,
            widest,
        }
    }

    fn albert(
        &self,
        albert: &Albert,
        kept: WideCount,
        parameters: WideCount,
    ) -> (WideCount, WideCount, WideCount) {
        let Self { tokens, width, hidden, vocabulary, layers, heads, .. } = *self;
        let narrow = WideCount::from(albert.embedding);
        let predicted = WideCount::from(albert.masked(self.model.sequence));
        let layer = tokens * (7 * width + 4 + 2 * hidden) + self.scores() * heads;
        let stream = tokens * ((layers + 1) * width + 2 * narrow + 2);
        let head = predicted * (width + 3 * narrow + 2 + vocabulary);
        let gradients = tokens * (5 * width + hidden + narrow) + tokens * width.max(hidden) + parameters;
        let matrices = 4 * width * width + 2 * width * hidden + 2 * narrow * width + vocabulary * narrow;
        (kept * layer + stream + head + gradients, matrices, 0)
    }

    /// Bytes that libtorch takes where it differentiates: gradients by tensor, and what autograd keeps of all windows at once.
    fn differentiated(&self, training: &Training, precision: Precision) -> WideCount {
        let windows = WideCount::from(training.leaf_windows);
        let layers = if training.recompute { 1 } else { self.layers };
        // Logits, of one window at a time where little is to be kept.
        let heads = if training.recompute { 1 } else { windows };
        let streams = if training.recompute { 4 * (self.layers + 1) * self.width } else { 0 };
        let (layer, matrices, head) = self.autograd(precision);
        4 * WideCount::from(self.model.parameters())
            + matrices
            + windows * self.tokens * (layers * layer + streams)
            + heads * head
    }

    /// Bytes that autograd keeps of one token and layer, of matrices, and of one window after the last layer.
    ///
    /// Each is a sum over what a backward pass reads again: the inputs of norms, products and activations. Factors that
    /// are rounded to bf16 are kept rounded, and so are the matrices.
    fn autograd(&self, precision: Precision) -> (WideCount, WideCount, WideCount) {
        let Self { tokens, width, hidden, vocabulary, heads, head, .. } = *self;
        let factor: WideCount = if precision == Precision::Bf16 { 2 } else { 4 };
        let (layer, rows) = match &self.model.family {
            // A mixture never comes here: its profile is exact.
            Family::Decoder(decoder)
            | Family::Mixture(Mixture { decoder, .. })
            | Family::Variant(Variant { decoder, .. }) => {
                let (mixed, key_value) = (head * heads, head * WideCount::from(decoder.key_value_heads));
                // Two streams and two normed ones in f32; inputs of the products, queries, keys, values, SwiGLU.
                // Keys and values of shared heads are copied out to every query head.
                let shared = if key_value == mixed { 0 } else { 2 * mixed };
                let factors = 2 * width + 2 * mixed + 3 * key_value + 2 * mixed + shared + 4 * hidden;
                // The heads that are normed, and those that are then rotated, in f32.
                let normed = if self.model.has_head_norms() { 8 * (mixed + key_value) } else { 0 };
                (16 * width + normed + factor * factors, tokens)
            }
            Family::Albert(albert) => {
                let predicted = WideCount::from(albert.masked(self.model.sequence));
                (16 * width + factor * (6 * width + 2 * hidden), predicted)
            }
        };
        let matrices =
            if precision == Precision::Bf16 { 2 * WideCount::from(self.model.parameters()) } else { 0 };
        // Logits, their logarithms, and the gradient of both.
        let logits: WideCount = if precision == Precision::Bf16 { 16 } else { 12 };
        (layer, matrices, rows * vocabulary * logits)
    }

    /// Values of the gradient that are whole only after the last window.
    fn late(&self) -> WideCount {
        let is_decoder = !matches!(self.model.family, Family::Albert(_));
        if is_decoder { self.vocabulary * self.width } else { 0 }
    }

    /// Values of the gradient of one window on their way to the grid: a piece of each width that matrices have.
    fn pieces(&self) -> WideCount {
        let mixed = self.head * self.heads;
        ROWS as WideCount * (self.width + self.hidden + if mixed == self.width { 0 } else { mixed })
    }

    /// Values of matrices that are packed together, at most: whole tiles of the deepest one.
    fn packed_at_once(&self) -> WideCount {
        let deepest = self.vocabulary.max(self.hidden).max(self.width).max(self.head * self.heads);
        PACKED_AT_ONCE as WideCount + COLUMNS as WideCount * deepest
    }

    /// Values of the scores of one head, padded as `Heads::score_stride` pads them.
    fn scores(&self) -> WideCount {
        self.tokens * (self.tokens.next_multiple_of(16) + 16)
    }

    /// Values that attention itself keeps.
    fn attention(&self) -> WideCount {
        self.scores() + 2 * self.tokens * self.head
    }
}
