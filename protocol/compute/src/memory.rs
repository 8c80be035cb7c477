//! How much memory a model takes, known before any is asked for.

use muster_core::manifest::{Albert, Decoder, Family, Model, Training};

use crate::kernel::BUFFER;

/// Bytes of the buffers that [`crate::Exact`] keeps once it has computed a leaf on so many threads: the gradient, the
/// packed matrices of both directions, the activations of one window for each thread that has one, and each thread's
/// strip of a left factor. State and grid integers are the caller's.
///
/// Saturates: the sizes may be anybody's.
pub fn buffers(model: &Model, training: &Training, threads: usize) -> u64 {
    let windows = Count::from(training.leaf_windows);
    let threads = threads.max(1) as Count;
    let busy = windows.min(threads);
    let layers = if training.recompute { 1 } else { Count::from(model.layers) };
    let parameters = Count::from(model.parameters());
    let sizes = Sizes::of(model);
    let (window, matrices, each) = match &model.family {
        Family::Decoder(decoder) => sizes.decoder(decoder, layers),
        Family::Albert(albert) => sizes.albert(albert, layers, parameters),
    };
    let values = parameters
        + 2 * matrices
        + busy * (window + sizes.attention())
        + windows * each
        + threads * BUFFER as Count;
    u64::try_from(4 * values).unwrap_or(u64::MAX)
}

/// Wide enough for products of all sizes that a manifest may name.
type Count = u128;

/// Sizes of a model.
struct Sizes {
    model: Model,
    tokens: Count,
    width: Count,
    hidden: Count,
    vocabulary: Count,
    layers: Count,
    heads: Count,
}

impl Sizes {
    fn of(model: &Model) -> Self {
        let [tokens, width, hidden, vocabulary, layers, heads] =
            [model.sequence, model.width, model.hidden, model.vocabulary, model.layers, model.heads]
                .map(Count::from);
        Self { model: model.clone(), tokens, width, hidden, vocabulary, layers, heads }
    }

    /// Values of one window, of the packed matrices, and of each window of a leaf, with the activations of so many
    /// layers.
    fn decoder(&self, decoder: &Decoder, kept: Count) -> (Count, Count, Count) {
        let Self { tokens, width, hidden, vocabulary, layers, heads, .. } = *self;
        let joint = width + 2 * (width / heads.max(1) * Count::from(decoder.key_value_heads));
        let layer = tokens * (2 * width + 2 + joint + 3 * hidden) + self.scores() * heads;
        let stream = tokens * ((layers + 2) * width + 1 + vocabulary);
        let gradients = tokens * (3 * width + joint + 4 * hidden) + tokens * width.max(hidden);
        let matrices = layers * (width * joint + width * width + 3 * width * hidden) + vocabulary * width;
        (kept * layer + stream + gradients, matrices, tokens * width)
    }

    fn albert(&self, albert: &Albert, kept: Count, parameters: Count) -> (Count, Count, Count) {
        let Self { tokens, width, hidden, vocabulary, layers, heads, .. } = *self;
        let narrow = Count::from(albert.embedding);
        let predicted = Count::from(albert.masked(self.model.sequence));
        let layer = tokens * (7 * width + 4 + 2 * hidden) + self.scores() * heads;
        let stream = tokens * ((layers + 1) * width + 2 * narrow + 2);
        let head = predicted * (width + 3 * narrow + 2 + vocabulary);
        let gradients = tokens * (5 * width + hidden + narrow) + tokens * width.max(hidden) + parameters;
        let matrices = 4 * width * width + 2 * width * hidden + 2 * narrow * width + vocabulary * narrow;
        (kept * layer + stream + head + gradients, matrices, 0)
    }

    /// Values of the scores of one head.
    fn scores(&self) -> Count {
        self.tokens * (self.tokens.next_multiple_of(16) + 16)
    }

    /// Values that attention itself keeps.
    fn attention(&self) -> Count {
        self.scores() + 2 * self.tokens * (self.width / self.heads.max(1))
    }
}
