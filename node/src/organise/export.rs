//! `muster run export`: a checkpoint as safetensors with Hugging Face names.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use muster_core::hash::{Domain, Hasher};
use muster_core::layout::Layout;
use muster_core::manifest::{Albert, Decoder, Family, Mixture, Model, Tokeniser};
use muster_core::state::real_bytes;
use muster_store::dataset::TOKENISER;
use muster_store::reading;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::DATA;
use super::hugging_face::{CONFIG, KEY_BIAS, TOKEN_TYPES, WEIGHTS, saved_shape};
use crate::exit::{Failure, Outcome};
use crate::organise::checkpoint::Checkpoint;

/// Writes a checkpoint into a new folder.
///
/// # Errors
/// [`Failure`] naming the file, or the folder that holds something already.
pub fn export(checkpoint: &Checkpoint, out: &Path) -> Outcome<()> {
    super::create::vacant(out)?;
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |error: std::io::Error| {
            Failure::environment(format!("{}: cannot be written ({error})", path.display()))
        }
    };
    // Before the folder is made: an export that fails leaves nothing behind.
    let tokeniser = tokeniser(checkpoint)?;
    fs::create_dir_all(out).map_err(failed(out))?;
    let model = &checkpoint.manifest.model;
    let tensors = tensors(model, &checkpoint.parameters);
    let views: Result<Vec<_>, _> = tensors
        .iter()
        .map(|(name, (shape, bytes))| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect();
    let about = BTreeMap::from([("format".to_owned(), "pt".to_owned())]).into_iter().collect();
    let weights: Result<Vec<u8>, safetensors::SafeTensorError> =
        views.and_then(|views| safetensors::serialize(views, Some(about)));
    let weights = weights.map_err(|error| Failure::environment(format!("{}: {error}", out.display())))?;
    let config = serde_json::to_string_pretty(&config(model)).unwrap_or_default();
    let write = |name: &str, bytes: &[u8]| {
        let path = out.join(name);
        fs::write(&path, bytes).map_err(failed(&path))
    };
    if let Some(bytes) = tokeniser {
        write(TOKENISER, &bytes)?;
    }
    write(CONFIG, config.as_bytes())?;
    write(WEIGHTS, &weights)
}

/// The run's `tokenizer.json`; none for bytes.
fn tokeniser(checkpoint: &Checkpoint) -> Outcome<Option<Vec<u8>>> {
    let Tokeniser::File(wanted) = &checkpoint.manifest.data.tokeniser else { return Ok(None) };
    let path = checkpoint.folder.join(DATA).join(TOKENISER);
    let bytes = reading::file(&path)?;
    if Hasher::new(Domain::TOKENISER).part(&bytes).finish() != wanted.digest {
        return Err(Failure::environment(format!("{}: is not the tokeniser of this run", path.display())));
    }
    Ok(Some(bytes))
}

/// Shapes and bytes by Hugging Face name: the canonical layout, with vectors as vectors; for ALBERT also what the
/// canonical layout leaves out, as zeros.
fn tensors(model: &Model, parameters: &[f32]) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let layout = Layout::of(model);
    let mut tensors: BTreeMap<String, (Vec<usize>, Vec<u8>)> = layout
        .tensors()
        .iter()
        .map(|tensor| (tensor.name.clone(), (saved_shape(tensor), real_bytes(&parameters[tensor.range()]))))
        .collect();
    if let Family::Albert(albert) = &model.family {
        let (width, narrow) = (model.width as usize, albert.embedding as usize);
        // `transformers` expects these tensors; zeros change nothing.
        tensors.insert(TOKEN_TYPES.into(), (vec![TYPES, narrow], vec![0; 4 * TYPES * narrow]));
        tensors.insert(KEY_BIAS.into(), (vec![width], vec![0; 4 * width]));
    }
    tensors
}

/// Token types that an ALBERT of `transformers` has: their embeddings are zero.
const TYPES: usize = 2;

/// What `transformers` reads of a model.
fn config(model: &Model) -> Value {
    let of_family = match &model.family {
        Family::Decoder(decoder) => vec![of_decoder(model, decoder), of_llama(model)],
        Family::Albert(albert) => vec![of_albert(model, albert)],
        Family::Mixture(mixture) => vec![of_decoder(model, &mixture.decoder), of_mixture(model, mixture)],
    };
    let common = json!({
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "vocab_size": model.vocabulary,
        "max_position_embeddings": model.sequence,
        "initializer_range": shown(model.initial_scale.value()),
        "torch_dtype": "float32",
    });
    let parts = of_family.into_iter().chain([common]);
    // Each of them is an object.
    parts
        .filter_map(|part| if let Value::Object(entries) = part { Some(entries) } else { None })
        .flatten()
        .collect()
}

/// What decoders have, with or without experts.
fn of_decoder(model: &Model, decoder: &Decoder) -> Value {
    json!({
        "num_key_value_heads": decoder.key_value_heads,
        "head_dim": model.width / model.heads,
        "hidden_act": "silu",
        "rms_norm_eps": shown(model.norm_epsilon.value()),
        "rope_theta": shown(decoder.rope_base.value()),
        "rope_scaling": null,
        "attention_dropout": 0.0,
        "tie_word_embeddings": decoder.tied,
        "bos_token_id": null,
        "eos_token_id": null,
    })
}

fn of_llama(model: &Model) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "intermediate_size": model.hidden,
        "attention_bias": false,
        "mlp_bias": false,
    })
}

/// Every layer has experts. `transformers` from 5 on keeps those of a layer in two tensors; it makes these from the
/// checkpoint's one tensor for each matrix of each expert, and saves them like that again.
fn of_mixture(model: &Model, mixture: &Mixture) -> Value {
    json!({
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        // Of layers without experts, of which there are none.
        "intermediate_size": mixture.shared_hidden,
        "moe_intermediate_size": model.hidden,
        "shared_expert_intermediate_size": mixture.shared_hidden,
        "num_experts": mixture.columns,
        "num_experts_per_tok": mixture.active,
        "norm_topk_prob": true,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "qkv_bias": false,
        "use_sliding_window": false,
        // For whoever trains on; its loss takes all layers together, and a token counts once for each expert it passes.
        "router_aux_loss_coef": shown(mixture.balance.value()),
        "output_router_logits": false,
    })
}

fn of_albert(model: &Model, albert: &Albert) -> Value {
    json!({
        "architectures": ["AlbertForMaskedLM"],
        "model_type": "albert",
        "intermediate_size": model.hidden,
        "embedding_size": albert.embedding,
        "num_hidden_groups": 1,
        "inner_group_num": 1,
        "hidden_act": "gelu_new",
        "layer_norm_eps": shown(model.norm_epsilon.value()),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.0,
        "type_vocab_size": TYPES,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": true,
        "pad_token_id": null,
        "bos_token_id": null,
        "eos_token_id": null,
    })
}

/// An f32 as the shortest decimal that means it.
fn shown(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use muster_core::codec::Real;
    use muster_core::manifest::TokeniserFile;

    use super::*;
    use crate::organise::config::{Makers, Settings};

    #[test]
    fn a_foreign_tokeniser_is_not_exported() {
        let directory = tempfile::tempdir().unwrap();
        let nobody = muster_core::ids::MemberId([0; 32]);
        let makers = Makers { organiser: nobody, steward: nobody, nonce: [0; 16] };
        let root = muster_core::ids::Digest::default();
        let digest = Hasher::new(Domain::TOKENISER).part(b"{1}").finish();
        let data = muster_core::manifest::Data {
            root,
            bytes: 4096,
            held_out_root: root,
            held_out_bytes: 0,
            tokeniser: Tokeniser::File(TokeniserFile { digest, bytes: 3, tokens: 256 }),
            start: muster_core::manifest::Start::Drawn,
            router: None,
        };
        let manifest = Settings::default().manifest(&makers, data).unwrap();
        let parameters = vec![0.5; manifest.model.parameters() as usize];
        let (folder, out) = (directory.path().join("run"), directory.path().join("model"));
        fs::create_dir_all(folder.join(DATA)).unwrap();
        let checkpoint =
            Checkpoint { manifest, round: muster_core::ids::Round(0), parameters, folder: folder.clone() };
        let path = folder.join(DATA).join(TOKENISER);
        let refused = |words: &str| {
            let failure = export(&checkpoint, &out).unwrap_err();
            assert!(
                failure.message.contains("tokenizer.json") && failure.message.contains(words),
                "{failure}"
            );
            assert!(!out.exists(), "nothing is written");
        };
        refused("does not exist");
        fs::write(&path, b"{2}").unwrap();
        refused("is not the tokeniser of this run");
        fs::write(&path, b"{1}").unwrap();
        export(&checkpoint, &out).unwrap();
        assert_eq!(fs::read(out.join(TOKENISER)).unwrap(), b"{1}");
    }

    #[test]
    fn every_tensor_has_its_name_and_shape() {
        let real = |value| Real::new(value).unwrap();
        let model = |family| Model {
            vocabulary: 300,
            width: 8,
            layers: 2,
            heads: 4,
            hidden: 12,
            sequence: 16,
            norm_epsilon: real(1e-5),
            initial_scale: real(0.02),
            family,
        };
        let decoder =
            model(Family::Decoder(Decoder { key_value_heads: 2, tied: false, rope_base: real(10_000.0) }));
        let parameters: Vec<f32> = (0..decoder.parameters()).map(|c| c as f32).collect();
        let found = tensors(&decoder, &parameters);
        assert_eq!(found["model.layers.1.self_attn.k_proj.weight"].0, [4, 8]);
        assert_eq!(found["model.layers.0.post_attention_layernorm.weight"].0, [8]);
        assert_eq!(found["model.norm.weight"].0, [8]);
        assert_eq!(found["lm_head.weight"].1[..4], (decoder.parameters() as f32 - 2400.0).to_le_bytes());
        let config = config(&decoder);
        assert_eq!(config["rms_norm_eps"], json!(1e-5));
        assert_eq!(config["vocab_size"], json!(300));
        let decoder = Decoder { key_value_heads: 2, tied: true, rope_base: real(10_000.0) };
        let (columns, active, shared_hidden) = (3, 2, 20);
        let mixture = Mixture {
            decoder,
            columns,
            active,
            shared_hidden,
            balance: real(0.01),
            trust: real(4.0),
            rows: 1,
            branch: 0,
            few: 0,
            held: 0,
            lag: 0,
        };
        let mixture = model(Family::Mixture(mixture));
        let found = tensors(&mixture, &vec![1.0; mixture.parameters() as usize]);
        assert_eq!(found["model.layers.1.mlp.experts.2.down_proj.weight"].0, [8, 12]);
        assert_eq!(found["model.layers.0.mlp.shared_expert.up_proj.weight"].0, [20, 8]);
        assert_eq!(found["model.layers.0.mlp.shared_expert_gate.weight"].0, [1, 8], "a matrix of one row");
        assert_eq!(found["model.layers.1.mlp.gate.weight"].0, [3, 8]);
        assert_eq!(found["model.layers.1.post_attention_layernorm.weight"].0, [8]);
        let config = super::config(&mixture);
        assert_eq!(
            (&config["moe_intermediate_size"], &config["num_experts_per_tok"]),
            (&json!(12), &json!(2))
        );
        assert_eq!((&config["rms_norm_eps"], &config["router_aux_loss_coef"]), (&json!(1e-5), &json!(0.01)));
        let albert = model(Family::Albert(Albert { embedding: 4, masked_ppm: 150_000, mask_token: 299 }));
        let found = tensors(&albert, &vec![1.0; albert.parameters() as usize]);
        assert_eq!(found["albert.embeddings.token_type_embeddings.weight"].1, [0; 32]);
        assert_eq!(found["albert.embeddings.LayerNorm.weight"].0, [4]);
        assert_eq!(found["predictions.bias"].0, [300]);
        let biases = found.keys().filter(|name| name.ends_with(".bias"));
        assert!(biases.clone().all(|name| found[name].0.len() == 1) && biases.count() == 13);
    }
}
