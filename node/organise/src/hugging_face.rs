//! Names and shapes of checkpoints as `transformers` has them.

use muster_core::ids::Row;
use muster_core::layout::Tensor;

/// Weights of a checkpoint.
pub const WEIGHTS: &str = "model.safetensors";

/// What the weights are.
pub const CONFIG: &str = "config.json";

/// Where a model that writes stops.
pub const GENERATION: &str = "generation_config.json";

/// What the tokeniser is.
pub const TOKENISER_CONFIG: &str = "tokenizer_config.json";

/// What says which folders an export of several rows of experts has, and how a text chooses among them.
pub const ROWS: &str = "rows.json";

/// The folder of a row's path in an export of several.
pub fn row_folder(row: Row) -> String {
    format!("row-{row}")
}

/// The name of the token types that an ALBERT of `transformers` has.
pub(super) const TOKEN_TYPES: &str = "albert.embeddings.token_type_embeddings.weight";

/// What an ALBERT of `transformers` has, too, and a run leaves out.
pub(super) const KEY_BIAS: &str = "albert.encoder.albert_layer_groups.0.albert_layers.0.attention.key.bias";

/// The shape that a tensor is saved in: vectors as vectors.
pub(super) fn saved_shape(tensor: &Tensor) -> Vec<usize> {
    let [rows, columns] = tensor.shape;
    if is_vector(&tensor.name) { vec![columns] } else { vec![rows, columns] }
}

fn is_vector(name: &str) -> bool {
    name.ends_with(".bias")
        || ["norm.weight", "layernorm.weight", "LayerNorm.weight"].iter().any(|end| name.ends_with(end))
}
