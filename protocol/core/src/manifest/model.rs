//! What is trained: a transformer of one of two families.

use crate::codec::Real;
use crate::wire;

wire! {
    /// A transformer: what both families share, and which it is.
    pub struct Model {
        /// Token kinds.
        pub vocabulary: u32,
        /// Width of the residual stream.
        pub width: u32,
        /// Layers.
        pub layers: u32,
        /// Query heads; divides `width`.
        pub heads: u32,
        /// Width inside the feed-forward.
        pub hidden: u32,
        /// Tokens of a window.
        pub sequence: u32,
        /// ε of the norms.
        pub norm_epsilon: Real,
        /// Standard deviation of the initial matrices.
        pub initial_scale: Real,
        /// What kind of transformer.
        pub family: Family,
    }
}

wire! {
    /// The kinds of transformers.
    pub enum Family {
        /// Predicts the next token.
        Decoder(Decoder),
        /// Predicts masked tokens.
        Albert(Albert),
    }
}

wire! {
    /// A Llama-style decoder: RMSNorm, rotary positions, grouped-query causal attention, SwiGLU; no biases.
    pub struct Decoder {
        /// Key and value heads; divides `heads`.
        pub key_value_heads: u32,
        /// Whether the head shares the embedding.
        pub tied: bool,
        /// Base of the rotary frequencies.
        pub rope_base: Real,
    }
}

wire! {
    /// ALBERT (Lan et al. 2020), masked-language-modelling head only: one layer's parameters serve all layers,
    /// factorised embedding, learned positions, LayerNorm after each sum, attention in both directions, GELU.
    ///
    /// Key biases and token types are left out: the first have no gradient, the second repeat the positions.
    pub struct Albert {
        /// Width of the embedding.
        pub embedding: u32,
        /// Positions of a window whose tokens are to be predicted, in parts per million of `sequence`.
        pub masked_ppm: u32,
        /// The token that stands for a masked one.
        pub mask_token: u32,
    }
}

impl Model {
    /// Parameters in all.
    pub fn parameters(&self) -> u64 {
        let [vocabulary, width, hidden] = [self.vocabulary, self.width, self.hidden].map(u64::from);
        match &self.family {
            Family::Decoder(decoder) => {
                // The model need not be checked yet: this is what checks its size.
                let key_value = width / u64::from(self.heads.max(1)) * u64::from(decoder.key_value_heads);
                let layer = 2 * width + 2 * width * width + 2 * width * key_value + 3 * width * hidden;
                let embeddings = if decoder.tied { 1 } else { 2 };
                vocabulary * width * embeddings + u64::from(self.layers) * layer + width
            }
            Family::Albert(albert) => {
                let embedding = u64::from(albert.embedding);
                let embedded = (vocabulary + u64::from(self.sequence) + 2) * embedding;
                let mapped = width * embedding + width;
                let attention = 4 * width * width + 3 * width + 2 * width;
                let feed_forward = 2 * width * hidden + hidden + width + 2 * width;
                let predicted = width * embedding + 3 * embedding + vocabulary;
                embedded + mapped + attention + feed_forward + predicted
            }
        }
    }
}

impl Albert {
    /// Positions of a window that are predicted, at least one.
    pub fn masked(&self, sequence: u32) -> u32 {
        // At least one: a window without a masked token would have no loss.
        ((u64::from(sequence) * u64::from(self.masked_ppm) / 1_000_000) as u32).clamp(1, sequence.max(1))
    }
}
