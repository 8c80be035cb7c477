//! Where each parameter lives: one canonical order of tensors, blocks and chunks for all backends.
//!
//! Tensors follow each other in one flat vector of `d` coefficients. A **block** is a range of at most
//! [`limits::BLOCK_COEFFICIENTS`] within one tensor: the unit of robust aggregation. A **chunk** is a range of at
//! most [`limits::CHUNK_COEFFICIENTS`] within one block: a leaf of the Merkle tree of a contribution.

use std::ops::Range;

use crate::ids::Block;
use crate::limits;
use crate::manifest::{Albert, Decoder, Family, Mixture, Model};

/// One tensor of the model, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Hugging Face name.
    pub name: String,
    /// Rows and columns; a vector has one row.
    pub shape: [usize; 2],
    /// Index of its first coefficient.
    pub offset: usize,
}

impl Tensor {
    /// Coefficients.
    pub fn len(&self) -> usize {
        self.shape[0] * self.shape[1]
    }

    /// Never, in a checked model.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its coefficients in the flat vector.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len()
    }
}

/// How much of a model a shard is: whole tensors, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct ShardSize {
    /// Tensors.
    pub tensors: usize,
    /// Coefficients.
    pub coefficients: usize,
}

/// The layout of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    shards: Vec<ShardSize>,
    tensors: Vec<Tensor>,
    blocks: Vec<BlockRange>,
    chunks: Vec<Range<usize>>,
}

/// Where one block lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// Index of its tensor.
    pub tensor: usize,
    /// Its coefficients in the flat vector.
    pub range: Range<usize>,
    /// Its chunks, as indices into [`Layout::chunks`].
    pub chunks: Range<usize>,
}

impl Layout {
    /// The layout of a checked model.
    pub fn of(model: &Model) -> Self {
        let mut layout =
            Self { shards: Vec::new(), tensors: Vec::new(), blocks: Vec::new(), chunks: Vec::new() };
        match &model.family {
            Family::Decoder(decoder) => layout.push_decoder(model, decoder, |layout, layer| {
                layout.push_feed(&format!("model.layers.{layer}.mlp"), model.width, model.hidden);
            }),
            Family::Mixture(mixture) => layout.push_mixture(model, mixture),
            Family::Albert(albert) => layout.push_albert(model, albert),
        }
        layout.end_shard();
        layout
    }

    /// STATE-7: what was pushed since the shard before is one.
    fn end_shard(&mut self) {
        let (tensors, coefficients) = (self.tensors.len(), self.parameters());
        let sum = |of: fn(&ShardSize) -> usize| self.shards.iter().map(of).sum::<usize>();
        let before = [sum(|shard| shard.tensors), sum(|shard| shard.coefficients)];
        self.shards.push(ShardSize { tensors: tensors - before[0], coefficients: coefficients - before[1] });
    }

    /// Embedding, layers in order, each with its feed-forward last, final norm, head when untied.
    // LAYOUT-1: tensors follow each other without gaps, each row-major, rows of a matrix being its outputs.
    fn push_decoder(&mut self, model: &Model, decoder: &Decoder, feed: impl Fn(&mut Self, u32)) {
        let [vocabulary, width] = [model.vocabulary, model.width].map(|n| n as usize);
        let key_value = width / model.heads as usize * decoder.key_value_heads as usize;
        self.push("model.embed_tokens.weight".into(), [vocabulary, width]);
        for layer in 0..model.layers {
            let mut push =
                |name: &str, shape| self.push(format!("model.layers.{layer}.{name}.weight"), shape);
            push("input_layernorm", [1, width]);
            push("self_attn.q_proj", [width, width]);
            push("self_attn.k_proj", [key_value, width]);
            push("self_attn.v_proj", [key_value, width]);
            push("self_attn.o_proj", [width, width]);
            push("post_attention_layernorm", [1, width]);
            feed(self, layer);
        }
        self.push("model.norm.weight".into(), [1, width]);
        if !decoder.tied {
            self.push("lm_head.weight".into(), [vocabulary, width]);
        }
    }

    /// The feed-forward of a layer, or an expert.
    fn push_feed(&mut self, name: &str, width: u32, hidden: u32) {
        let [width, hidden] = [width, hidden].map(|n| n as usize);
        self.push(format!("{name}.gate_proj.weight"), [hidden, width]);
        self.push(format!("{name}.up_proj.weight"), [hidden, width]);
        self.push(format!("{name}.down_proj.weight"), [width, hidden]);
    }

    /// The trunk, which is a decoder with shared experts; then the row of every layer.
    // LAYOUT-5: what tokens choose among stands behind all that every token passes.
    fn push_mixture(&mut self, model: &Model, mixture: &Mixture) {
        let Model { width, hidden, .. } = *model;
        self.push_decoder(model, &mixture.decoder, |layout, layer| {
            let name = format!("model.layers.{layer}.mlp.shared_expert");
            layout.push_feed(&name, width, mixture.shared_hidden);
            layout.push(format!("{name}_gate.weight"), [1, width as usize]);
        });
        self.end_shard();
        for layer in 0..model.layers {
            let name = format!("model.layers.{layer}.mlp");
            self.push(format!("{name}.gate.weight"), [mixture.columns.into(), width as usize]);
            for expert in 0..mixture.columns {
                self.push_feed(&format!("{name}.experts.{expert}"), width, hidden);
            }
        }
    }

    /// Embeddings, the one layer, prediction head; a matrix, then its bias.
    // LAYOUT-4: a bias is 1×rows and follows its matrix; a norm is a 1×n weight, then a 1×n bias. There is no key
    // bias, and there are no token types.
    fn push_albert(&mut self, model: &Model, albert: &Albert) {
        let [vocabulary, width, hidden] = [model.vocabulary, model.width, model.hidden].map(|n| n as usize);
        let (narrow, sequence) = (albert.embedding as usize, model.sequence as usize);
        let layer = "albert.encoder.albert_layer_groups.0.albert_layers.0";
        let mut push = |name: &str, rows, columns| self.push(name.to_owned(), [rows, columns]);
        push("albert.embeddings.word_embeddings.weight", vocabulary, narrow);
        push("albert.embeddings.position_embeddings.weight", sequence, narrow);
        push("albert.embeddings.LayerNorm.weight", 1, narrow);
        push("albert.embeddings.LayerNorm.bias", 1, narrow);
        push("albert.encoder.embedding_hidden_mapping_in.weight", width, narrow);
        push("albert.encoder.embedding_hidden_mapping_in.bias", 1, width);
        let mut within = |name: &str, rows, columns| push(&format!("{layer}.{name}"), rows, columns);
        within("attention.query.weight", width, width);
        within("attention.key.weight", width, width);
        within("attention.value.weight", width, width);
        within("attention.query.bias", 1, width);
        within("attention.value.bias", 1, width);
        within("attention.dense.weight", width, width);
        within("attention.dense.bias", 1, width);
        within("attention.LayerNorm.weight", 1, width);
        within("attention.LayerNorm.bias", 1, width);
        within("ffn.weight", hidden, width);
        within("ffn.bias", 1, hidden);
        within("ffn_output.weight", width, hidden);
        within("ffn_output.bias", 1, width);
        within("full_layer_layer_norm.weight", 1, width);
        within("full_layer_layer_norm.bias", 1, width);
        push("predictions.dense.weight", narrow, width);
        push("predictions.dense.bias", 1, narrow);
        push("predictions.LayerNorm.weight", 1, narrow);
        push("predictions.LayerNorm.bias", 1, narrow);
        push("predictions.bias", 1, vocabulary);
    }

    fn push(&mut self, name: String, shape: [usize; 2]) {
        let offset = self.parameters();
        let tensor = Tensor { name, shape, offset };
        // LAYOUT-2: a block is a run of 65,536 coefficients of a tensor, counted from its start; the last one is
        // shorter.
        for range in split(tensor.range(), limits::BLOCK_COEFFICIENTS) {
            let first = self.chunks.len();
            // LAYOUT-3: a chunk is a run of 16,384 coefficients of a block, counted from its start; the last one is
            // shorter.
            self.chunks.extend(split(range.clone(), limits::CHUNK_COEFFICIENTS));
            self.blocks.push(BlockRange {
                tensor: self.tensors.len(),
                range,
                chunks: first..self.chunks.len(),
            });
        }
        self.tensors.push(tensor);
    }

    /// Coefficients in all: `d`.
    pub fn parameters(&self) -> usize {
        self.tensors.last().map_or(0, |last| last.range().end)
    }

    /// Shards in order: one, or of a mixture the trunk and the row.
    pub fn shards(&self) -> &[ShardSize] {
        &self.shards
    }

    /// Tensors in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Blocks in order.
    pub fn blocks(&self) -> &[BlockRange] {
        &self.blocks
    }

    /// One block, if it exists.
    pub fn block(&self, block: Block) -> Option<&BlockRange> {
        self.blocks.get(block.index())
    }

    /// Whether a block is of the experts that tokens choose among: of a shard behind the trunk.
    pub fn is_of_row(&self, block: Block) -> bool {
        let trunk = self.shards.first().map_or(0, |trunk| trunk.tensors);
        self.block(block).is_some_and(|block| block.tensor >= trunk)
    }

    /// Tensor groups in order, as ranges of the flat vector (TOL-1): tensors in order, until there are a sixteenth of
    /// all coefficients and at least [`limits::GROUP_COEFFICIENTS`]; what is left over at the end joins the last
    /// group.
    pub fn groups(&self) -> Vec<Range<usize>> {
        let least = self.parameters().div_ceil(limits::GROUPS).max(limits::GROUP_COEFFICIENTS);
        let (mut groups, mut start) = (Vec::<Range<usize>>::new(), 0);
        for end in self.tensors.iter().map(|tensor| tensor.range().end) {
            if end - start >= least {
                groups.push(start..end);
                start = end;
            }
        }
        match groups.last_mut() {
            Some(last) => last.end = self.parameters(),
            None => groups.push(0..self.parameters()),
        }
        groups
    }

    /// Chunks in order, as ranges of the flat vector.
    pub fn chunks(&self) -> &[Range<usize>] {
        &self.chunks
    }
}

/// Cuts a range into pieces of `most`, the last one shorter.
pub fn split(range: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(most.max(1)).map(move |start| start..end.min(start + most))
}
