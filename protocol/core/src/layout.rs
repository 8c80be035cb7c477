//! Where each parameter lives: one canonical order of tensors, blocks and chunks for all backends.
//!
//! Tensors follow each other in one flat vector of `d` coefficients. A **block** is a range of at most
//! [`limits::BLOCK_COEFFICIENTS`] within one tensor: the unit of robust aggregation. A **chunk** is a range of at
//! most [`limits::CHUNK_COEFFICIENTS`] within one block: a leaf of the Merkle tree of a contribution.
//!
//! A contribution has one *plane* of `d` coefficients, one for each parameter. In a run of local updates it has a second one
//! behind it, of the second moments, with blocks and chunks of its own.

use std::ops::Range;

use crate::ids::{Block, Row, ShardId};
use crate::limits;
use crate::manifest::{Albert, Decoder, Family, Manifest, Mixture, Model, Variant};
use crate::regime::Regime;

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
    /// Grid exponents: one for each tensor, or two (GRID-8).
    pub exponents: usize,
    /// Coefficients.
    pub coefficients: usize,
}

/// Where a shard is in a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRange {
    /// Its tensors, as indices into [`Layout::tensors`].
    pub tensors: Range<usize>,
    /// Its blocks, as indices into [`Layout::blocks`].
    pub blocks: Range<usize>,
    /// Its coefficients in the flat vector.
    pub coefficients: Range<usize>,
    /// Grid exponents that a state has of it: one for each tensor, or two (GRID-8).
    pub exponents: usize,
}

impl ShardRange {
    /// How much of the model it is.
    pub fn size(&self) -> ShardSize {
        ShardSize { exponents: self.exponents, coefficients: self.coefficients.len() }
    }
}

/// The layout of a *path*: of what one member holds and a leaf is computed on. It is the trunk and one row, or all of a
/// model without experts. All rows of a run have one shape, so that one layout serves for every path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    shards: Vec<ShardRange>,
    rows: u16,
    planes: usize,
    most: [i32; 2],
    result_exponents: [u8; 2],
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
    /// The layout of a checked model, without what the settings of a run add ([`Self::of_run`]).
    pub fn of(model: &Model) -> Self {
        let mut layout = Self {
            shards: Vec::new(),
            rows: model.rows(),
            planes: 1,
            most: [i32::MAX; 2],
            result_exponents: [0; 2],
            tensors: Vec::new(),
            blocks: Vec::new(),
            chunks: Vec::new(),
        };
        match &model.family {
            Family::Decoder(decoder) | Family::Variant(Variant { decoder, .. }) => {
                layout.push_decoder(model, decoder, |layout, layer| {
                    layout.push_feed(&format!("model.layers.{layer}.mlp"), model.width, model.hidden);
                });
            }
            Family::Mixture(mixture) => layout.push_mixture(model, mixture),
            Family::Albert(albert) => layout.push_albert(model, albert),
        }
        layout.end_shard();
        layout
    }

    /// The layout of a run's contributions: of its model, with a plane for each number that is contributed of a parameter.
    pub fn of_run(manifest: &Manifest) -> Self {
        // AGG-23. MANIFEST-9 keeps the second within the first.
        let step = manifest.training.grid_bits.saturating_sub(manifest.aggregation.result_bits);
        let mut layout = Self { result_exponents: [step, 0], ..Self::of(&manifest.model) };
        let regime = Regime::of(manifest);
        layout.shards.iter_mut().for_each(|shard| shard.exponents *= regime.exponents_of_tensor());
        if !regime.exchanges_moments() {
            return layout;
        }
        // GRID-7: what saturates the grid of a chain, and what there are numbers for second moments.
        let most = [(1 << (manifest.training.grid_bits + limits::LOCAL_BITS)) - 1, 255];
        Self { most, ..layout.with_moments() }
    }

    /// LAYOUT-7: blocks and chunks of a second plane follow those of the first.
    #[must_use]
    pub fn with_moments(mut self) -> Self {
        let (parameters, chunks) = (self.parameters(), self.chunks.len());
        let behind = |range: &Range<usize>, by: usize| range.start + by..range.end + by;
        let second = self.blocks.iter().map(|block| BlockRange {
            tensor: block.tensor,
            range: behind(&block.range, parameters),
            chunks: behind(&block.chunks, chunks),
        });
        let second: Vec<BlockRange> = second.collect();
        self.blocks.extend(second);
        self.chunks.extend(self.chunks.iter().map(|chunk| behind(chunk, parameters)).collect::<Vec<_>>());
        self.planes = 2;
        self
    }

    /// STATE-7: what was pushed since the shard before is one.
    fn end_shard(&mut self) {
        let last = self.shards.last();
        let [tensors, blocks, coefficients] = last
            .map_or([0; 3], |last| [&last.tensors, &last.blocks, &last.coefficients].map(|range| range.end));
        self.shards.push(ShardRange {
            exponents: self.tensors.len() - tensors,
            tensors: tensors..self.tensors.len(),
            blocks: blocks..self.blocks.len(),
            coefficients: coefficients..self.parameters(),
        });
    }

    /// Embedding, layers in order, each with its feed-forward last, final norm, head when untied.
    // LAYOUT-1: tensors follow each other without gaps, each row-major, rows of a matrix being its outputs.
    fn push_decoder(&mut self, model: &Model, decoder: &Decoder, feed: impl Fn(&mut Self, u32)) {
        let [vocabulary, width] = [model.vocabulary, model.width].map(|n| n as usize);
        // LAYOUT-8: heads of a variant have a width of their own, and biases, or the norms of heads, follow the values'
        // matrix.
        let [query, key_value] =
            [model.heads, decoder.key_value_heads].map(|heads| (model.head_width() * heads) as usize);
        self.push("model.embed_tokens.weight".into(), [vocabulary, width]);
        for layer in 0..model.layers {
            let mut push = |name: &str, shape| self.push(format!("model.layers.{layer}.{name}"), shape);
            let joint = [("q", query), ("k", key_value), ("v", key_value)];
            push("input_layernorm.weight", [1, width]);
            for (of, rows) in joint {
                push(&format!("self_attn.{of}_proj.weight"), [rows, width]);
            }
            for (of, rows) in joint.into_iter().filter(|_| model.has_biases()) {
                push(&format!("self_attn.{of}_proj.bias"), [1, rows]);
            }
            for of in ["q", "k"].into_iter().filter(|_| model.has_head_norms()) {
                push(&format!("self_attn.{of}_norm.weight"), [1, model.head_width() as usize]);
            }
            push("self_attn.o_proj.weight", [width, query]);
            push("post_attention_layernorm.weight", [1, width]);
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

    /// Parameters of a path: `d`.
    pub fn parameters(&self) -> usize {
        self.tensors.last().map_or(0, |last| last.range().end)
    }

    /// Planes of a contribution: 1, or 2 in a run of local updates.
    pub fn planes(&self) -> usize {
        self.planes
    }

    /// The largest size of an integer of a contribution in a plane.
    pub fn most(&self, plane: usize) -> i32 {
        self.most.get(plane).copied().unwrap_or(0)
    }

    /// log₂ of the step of a block's result, in grid units (AGG-23).
    pub fn result_exponent(&self, block: Block) -> u8 {
        let [of_parameters, of_moments] = self.result_exponents;
        if self.is_of_moments(block) { of_moments } else { of_parameters }
    }

    /// Coefficients of a contribution: `d` for each plane.
    pub fn coefficients(&self) -> usize {
        self.planes * self.parameters()
    }

    /// Shards of a path in order: one, or of a mixture the trunk and the row.
    pub fn shards(&self) -> &[ShardRange] {
        &self.shards
    }

    /// Rows of a run whose state has all of them; 1 where there are no experts.
    pub fn rows(&self) -> u16 {
        self.rows
    }

    /// Where a shard of the run is in its path, if there is such a shard.
    pub fn shard(&self, id: ShardId) -> Option<&ShardRange> {
        let row = id.row().map_or(0, Row::index);
        self.shards.get(id.index().min(1)).filter(|_| row < usize::from(self.rows))
    }

    /// The shards of a path.
    pub fn path(&self, row: Row) -> impl Iterator<Item = ShardId> + Clone {
        [ShardId::TRUNK, ShardId::of(row)].into_iter().take(self.shards.len())
    }

    /// All shards of a state with so many rows.
    pub fn all_shards(&self, rows: u16) -> impl Iterator<Item = ShardId> + Clone {
        // The trunk, and as many rows as there are; a model without experts is one shard.
        let shards = if self.shards.len() > 1 { 1 + rows } else { 1 };
        (0..shards).map(ShardId)
    }

    /// Tensors in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Blocks of a path in order, plane by plane.
    pub fn blocks(&self) -> &[BlockRange] {
        &self.blocks
    }

    /// One block, if it exists: where it is in its path.
    pub fn block(&self, block: Block) -> Option<&BlockRange> {
        self.blocks.get(self.position(block)?)
    }

    /// Where a block of the run is among [`Layout::blocks`].
    // LAYOUT-6: of its plane, block n is block n of the trunk where n < B. Else it is of row ⌊(n − B)/b⌋, if there is such a
    // row, and in a path of that row it stands where block B + (n − B) mod b of row 0 does.
    pub fn position(&self, block: Block) -> Option<usize> {
        let (plane, number) = self.in_plane(block)?;
        let (trunk, row) = (self.shards.first()?.blocks.len(), self.row_blocks());
        let position = number.checked_sub(trunk).map_or(number, |behind| trunk + behind % row.max(1));
        Some(plane * (trunk + row) + position)
    }

    /// The shard that a block belongs to.
    pub fn shard_of(&self, block: Block) -> Option<ShardId> {
        let (_, number) = self.in_plane(block)?;
        let behind = number.checked_sub(self.shards.first()?.blocks.len());
        Some(behind.map_or(ShardId::TRUNK, |behind| ShardId::of(Row((behind / self.row_blocks()) as u16))))
    }

    /// The plane of a block, and its number there.
    fn in_plane(&self, block: Block) -> Option<(usize, usize)> {
        let all = self.plane_blocks();
        let plane = block.index() / all.max(1);
        (plane < self.planes).then_some((plane, block.index() - plane * all))
    }

    /// Blocks of a plane, of all rows of the run.
    fn plane_blocks(&self) -> usize {
        let trunk = self.shards.first().map_or(0, |trunk| trunk.blocks.len());
        trunk + usize::from(self.rows) * self.row_blocks()
    }

    /// Whether a block is of the second plane, of second moments.
    pub fn is_of_moments(&self, block: Block) -> bool {
        self.in_plane(block).is_some_and(|(plane, _)| plane > 0)
    }

    /// The blocks of a shard in the first plane, in order.
    pub fn blocks_of(&self, id: ShardId) -> impl Iterator<Item = Block> + Clone + use<> {
        self.blocks_in(id, 0)
    }

    /// The blocks of a shard in a plane, in order.
    pub fn blocks_in(&self, id: ShardId, plane: usize) -> impl Iterator<Item = Block> + Clone + use<> {
        let before = id.row().map_or(0, Row::index) * self.row_blocks() + plane * self.plane_blocks();
        let range = self.shard(id).filter(|_| plane < self.planes).map_or(0..0, |shard| shard.blocks.clone());
        range.map(move |position| Block((before + position) as u32))
    }

    /// The blocks of a path, in order of [`Layout::blocks`].
    pub fn path_blocks(&self, row: Row) -> impl Iterator<Item = Block> + Clone + '_ {
        (0..self.planes)
            .flat_map(move |plane| self.path(row).flat_map(move |shard| self.blocks_in(shard, plane)))
    }

    /// The blocks of what a shard is updated by: plane after plane.
    pub fn update_blocks(&self, id: ShardId) -> impl Iterator<Item = Block> + Clone + '_ {
        (0..self.planes).flat_map(move |plane| self.blocks_in(id, plane))
    }

    /// The place of a block among those.
    pub fn place_in_update(&self, block: Block) -> Option<usize> {
        let (plane, _) = self.in_plane(block)?;
        let shard = self.shard(self.shard_of(block)?)?;
        let first = plane * (self.blocks.len() / self.planes - shard.blocks.len()) + shard.blocks.start;
        Some(self.position(block)? - first)
    }

    /// Blocks of a row; none where there are no experts.
    fn row_blocks(&self) -> usize {
        self.shards.get(1).map_or(0, |row| row.blocks.len())
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
