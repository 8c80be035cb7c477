//! What is trained: a transformer of one of four families.

use crate::codec::Real;
use crate::{choice, wire};

wire! {
    /// A transformer: what all families share, and which it is.
    pub struct Model {
        /// Token kinds.
        pub vocabulary: u32,
        /// Width of the residual stream.
        pub width: u32,
        /// Layers.
        pub layers: u32,
        /// Query heads; divides `width`, but in a variant.
        pub heads: u32,
        /// Width inside the feed-forward; of a mixture, inside each expert of a row.
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
        /// Predicts the next token; tokens choose among experts.
        Mixture(Mixture),
        /// Predicts the next token, with another attention than [`Decoder`]'s.
        Variant(Variant),
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
    /// A decoder whose attention differs from the plain one's in one thing at least, as those of Llama 3.1 and later, of Mistral
    /// Nemo, of Qwen2 and of Qwen3.
    pub struct Variant {
        /// What it has like the plain one.
        pub decoder: Decoder,
        /// Width of a head: all heads together need not be as wide as the stream.
        pub head_width: u32,
        /// What queries, keys and values have beside their matrices.
        pub projection: Projection,
        /// How the frequencies of positions are scaled.
        pub scaling: Option<Scaling>,
    }
}

choice! {
    /// What queries, keys and values have beside their matrices. No published model has both biases and norms.
    pub enum Projection {
        /// Nothing.
        Plain,
        /// Biases of all three, as in Qwen2 (ARITH-76).
        Biased,
        /// A norm of each head of queries and keys, as in Qwen3 (ARITH-77).
        Normed,
    }
}

wire! {
    /// Rotary frequencies that serve longer windows than those that they were trained with, as in Llama 3.1 (ARITH-75).
    pub struct Scaling {
        /// What the frequencies of slow turns are divided by.
        pub factor: Real,
        /// A frequency is slow if it turns fewer times than this within `original` tokens.
        pub low: Real,
        /// It keeps its value if it turns more often than this.
        pub high: Real,
        /// Tokens of the windows that came before.
        pub original: u32,
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

wire! {
    /// A decoder whose feed-forward is a mixture of experts, as in Qwen2-MoE: one *shared* expert that every token passes,
    /// and a *row* of experts, of which each token passes those that a router scores best.
    pub struct Mixture {
        /// Attention and head.
        pub decoder: Decoder,
        /// Experts of a layer's row.
        pub columns: u16,
        /// Experts of the row that a token passes.
        pub active: u16,
        /// Width inside the shared expert.
        pub shared_hidden: u32,
        /// Weight of the loss that spreads a window's tokens over the row; 0 turns it off.
        pub balance: Real,
        /// Most root mean square of an aggregate of a row's block, in units of twice the grid's own (AGG-22).
        pub trust: Real,
        /// Rows of the run. A member holds one of them, beside the trunk.
        pub rows: u16,
        /// Updates after which the one row that the run begins with is copied to all rows; 0: the run begins with all.
        pub branch: u32,
        /// A row to which fewer contributions with weight are frozen is *thin*: each of them is audited (STAND-10).
        pub few: u16,
        /// A row to which so many at most are frozen is *held*: its update waits until they have passed (ROW-5).
        pub held: u16,
        /// For how many rounds an update may wait (ROW-6).
        pub lag: u32,
    }
}

impl Model {
    /// What decoders have, with or without experts.
    pub fn decoder(&self) -> Option<&Decoder> {
        match &self.family {
            Family::Decoder(decoder) => Some(decoder),
            Family::Mixture(mixture) => Some(&mixture.decoder),
            Family::Variant(variant) => Some(&variant.decoder),
            Family::Albert(_) => None,
        }
    }

    /// What a variant has.
    pub fn variant(&self) -> Option<&Variant> {
        if let Family::Variant(variant) = &self.family { Some(variant) } else { None }
    }

    /// Width of a head; 0 where a model that is not checked has no heads.
    pub fn head_width(&self) -> u32 {
        self.variant().map_or_else(|| self.width.checked_div(self.heads).unwrap_or(0), |own| own.head_width)
    }

    /// Whether queries, keys and values have biases; those of an ALBERT are its own.
    pub fn has_biases(&self) -> bool {
        self.variant().is_some_and(|variant| variant.projection == Projection::Biased)
    }

    /// Whether each head of queries and keys has a norm.
    pub fn has_head_norms(&self) -> bool {
        self.variant().is_some_and(|variant| variant.projection == Projection::Normed)
    }

    /// Rows of a run of this model, once its state has all of them; 1 where there are no experts.
    pub fn rows(&self) -> u16 {
        match &self.family {
            Family::Mixture(mixture) => mixture.rows,
            Family::Decoder(_) | Family::Variant(_) | Family::Albert(_) => 1,
        }
    }

    /// Rows of a state after so many updates.
    // STATE-8: a state whose trunk has fewer than `branch` updates has one row, and any other has `rows`.
    pub fn rows_after(&self, step: u32) -> u16 {
        match &self.family {
            Family::Mixture(mixture) if step >= mixture.branch => mixture.rows,
            _ => 1,
        }
    }

    /// For how many rounds the update of a row may wait; 0 where there are no rows.
    pub fn lag(&self) -> u32 {
        match &self.family {
            Family::Mixture(mixture) if mixture.rows > 1 => mixture.lag,
            _ => 0,
        }
    }

    /// Parameters of a path: of what a member holds.
    pub fn parameters(&self) -> u64 {
        let [vocabulary, width, hidden] = [self.vocabulary, self.width, self.hidden].map(u64::from);
        match &self.family {
            Family::Decoder(decoder) | Family::Variant(Variant { decoder, .. }) => {
                self.around(decoder).saturating_add(u64::from(self.layers) * 3 * width * hidden)
            }
            Family::Mixture(mixture) => {
                let trunk = 3 * width * u64::from(mixture.shared_hidden) + width;
                self.around(&mixture.decoder) + u64::from(self.layers) * trunk + self.row_parameters()
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

    /// Parameters of a run, of all its rows.
    pub fn all_parameters(&self) -> u64 {
        let more = u64::from(self.rows().saturating_sub(1));
        self.parameters().saturating_add(more.saturating_mul(self.row_parameters()))
    }

    /// Parameters of a row; 0 where there are no experts.
    fn row_parameters(&self) -> u64 {
        let Family::Mixture(mixture) = &self.family else { return 0 };
        let [width, hidden] = [self.width, self.hidden].map(u64::from);
        u64::from(self.layers) * u64::from(mixture.columns) * (width + 3 * width * hidden)
    }

    /// Parameters of a decoder but its feed-forward.
    fn around(&self, decoder: &Decoder) -> u64 {
        let [vocabulary, width] = [self.vocabulary, self.width].map(u64::from);
        // The model need not be checked yet: this is what checks its size.
        let [query, key_value] = [self.heads, decoder.key_value_heads]
            .map(|heads| u64::from(self.head_width()).saturating_mul(heads.into()));
        let joint = query.saturating_add(key_value.saturating_mul(2));
        let matrices = width.saturating_mul(joint.saturating_add(query));
        let vectors = match self.variant().map(|variant| variant.projection) {
            Some(Projection::Biased) => joint,
            Some(Projection::Normed) => 2 * u64::from(self.head_width()),
            Some(Projection::Plain) | None => 0,
        };
        let layer = matrices.saturating_add(2 * width).saturating_add(vectors);
        let embeddings = if decoder.tied { 1 } else { 2 };
        let layers = u64::from(self.layers).saturating_mul(layer);
        (vocabulary * width * embeddings + width).saturating_add(layers)
    }
}

impl Albert {
    /// Positions of a window that are predicted, at least one.
    pub fn masked(&self, sequence: u32) -> u32 {
        // At least one: a window without a masked token would have no loss.
        ((u64::from(sequence) * u64::from(self.masked_ppm) / 1_000_000) as u32).clamp(1, sequence.max(1))
    }
}
