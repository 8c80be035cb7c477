mod kinds;
mod shards;

use std::collections::BTreeMap;
use std::fs;

use muster_core::ids::{Digest, MemberId, Round, Row};
use muster_core::manifest::{Family, Manifest, Start};
use muster_core::state::{State, real_bytes};
use muster_replica::exit::Exit;
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::*;
use crate::checkpoint::Checkpoint;
use crate::config::Makers;
use crate::export::{Exported, export};
use crate::hugging_face::{TOKEN_TYPES, WEIGHTS};
use crate::tokenise::LoadedTokeniser;
use crate::tokenise::tests::WORDS;

const TIED: &str = "[model]\nwidth = 8\nlayers = 2\nheads = 2\nkey_value_heads = 1\nhidden = 12\nsequence = 16\n\
                    rope_base = 5e5\nnorm_epsilon = 1e-6\n";
const UNTIED: &str = "[model]\nwidth = 8\nlayers = 1\nheads = 2\nhidden = 12\nsequence = 16\ntied = false\n\
                      key_value_heads = 2\nvocabulary = 260\n";
/// Attention as in Llama 3.1, as in Mistral Nemo, as in Qwen2 and as in Qwen3, each once, and all of it at once.
const VARIANTS: [&str; 6] = [
    "[model]\nwidth = 8\nheads = 2\nkey_value_heads = 1\nhidden = 12\nsequence = 16\nrope_factor = 8.0\nrope_original = 64\n",
    "[model]\nwidth = 8\nheads = 2\nkey_value_heads = 1\nhidden = 12\nsequence = 16\nhead_width = 6\ntied = false\n",
    "[model]\nwidth = 8\nheads = 2\nkey_value_heads = 1\nhidden = 12\nsequence = 16\nattention_bias = true\n",
    "[model]\nwidth = 8\nheads = 2\nkey_value_heads = 1\nhidden = 12\nsequence = 16\nhead_norms = true\n",
    "[model]\nwidth = 9\nheads = 4\nkey_value_heads = 2\nhidden = 12\nsequence = 16\nhead_norms = true\nhead_width = 6\n\
     rope_factor = 32.0\ntied = false\n",
    "[model]\nwidth = 9\nheads = 4\nkey_value_heads = 2\nhidden = 12\nsequence = 16\nattention_bias = true\nhead_width = 2\n\
     rope_factor = 32.0\nrope_low = 0.5\nrope_high = 3.0\nrope_original = 8\n",
];
const ALBERT: &str = "[model]\nfamily = \"albert\"\nvocabulary = 257\nwidth = 8\nlayers = 3\nheads = 2\nhidden = 12\n\
                      sequence = 16\nembedding = 4\n";
const MIXTURE: &str = "[model]\nfamily = \"mixture\"\nwidth = 8\nlayers = 2\nheads = 2\nkey_value_heads = 1\nhidden = 6\n\
                       sequence = 16\nnorm_epsilon = 1e-6\n\
                       [experts]\ncolumns = 5\nactive = 3\nshared_hidden = 10\nbalance = 0.25\n";

fn bytes_of(values: &[f32]) -> Vec<u8> {
    real_bytes(values).into_owned()
}

fn manifest(settings: &str) -> Manifest {
    let nobody = MemberId([0; 32]);
    let makers = Makers { organiser: nobody, steward: nobody, nonce: [0; 16] };
    let root = Digest::default();
    let data = Data {
        root,
        bytes: 4096,
        held_out_root: root,
        held_out_bytes: 0,
        tokeniser: Tokeniser::Bytes,
        start: Start::Drawn,
        router: None,
    };
    Settings::parse(Path::new("run.toml"), settings).unwrap().manifest(&makers, data).unwrap()
}

/// Values with zeros of both signs and subnormals among them.
fn values(count: u64) -> Vec<f32> {
    let value = |index: u64| match index % 7 {
        0 => -0.0,
        1 => 0.0,
        2 => f32::from_bits(index as u32 + 1),
        _ => (index as f32 - 40.0) / 64.0,
    };
    (0..count).map(value).collect()
}

/// What `muster run export` makes of a model with these parameters.
fn exported(manifest: &Manifest, parameters: &[f32], out: &Path) {
    let folder = out.to_owned();
    let state = State::initial(&layout::Layout::of_run(manifest), parameters.to_vec());
    let checkpoint = Checkpoint { manifest: manifest.clone(), round: Round(0), state, folder };
    assert_eq!(export(&checkpoint, None, out).unwrap(), Exported::Path(Row(0)));
}

/// Tensors of a file by name: type, shape and bytes.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn read(folder: &Path) -> Tensors {
    let bytes = fs::read(folder.join(WEIGHTS)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let copied = |view: TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    tensors.iter().map(|(name, view)| (name.to_owned(), copied(view))).collect()
}

fn write(folder: &Path, tensors: &Tensors) {
    write_file(&folder.join(WEIGHTS), tensors);
}

fn write_file(path: &Path, tensors: &Tensors) {
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

/// Settings without a word about the model, completed.
fn completed(folder: &Path, text: &str) -> Outcome<Settings> {
    let path = Path::new("run.toml");
    let mut settings = Settings::parse(path, text).unwrap();
    Given::open(folder, None)?.complete(&mut settings, path, text)?;
    Ok(settings)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn what_was_exported_comes_back_to_the_bit() {
    for text in [TIED, UNTIED, ALBERT, MIXTURE].into_iter().chain(VARIANTS) {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("model");
        let manifest = manifest(text);
        let parameters = values(manifest.model.parameters());
        exported(&manifest, &parameters, &folder);
        let given = Given::open(&folder, None).unwrap();
        assert_eq!(bits(&given.parameters(&manifest.model).unwrap()), bits(&parameters), "{text}");
        given.check_tokeniser(&manifest.data, &folder).unwrap();
        // The config says all of the model, and what settings say of it agrees.
        for settings in ["", "[model]\n", text, &given.template()] {
            let model = completed(&folder, settings).unwrap().checked_model().unwrap();
            assert_eq!(model, manifest.model, "{settings}");
        }
        let opened = given.template().lines().any(|line| line.starts_with("[experts]"));
        assert_eq!(opened, text == MIXTURE, "other families have no such section");
    }
}

#[test]
fn settings_that_contradict_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("model");
    let manifest = manifest(TIED);
    exported(&manifest, &values(manifest.model.parameters()), &folder);
    let refused = |text: &str, words: &str| {
        let failure = completed(&folder, text).unwrap_err();
        assert_eq!(failure.exit, Exit::Usage);
        assert!(failure.message.contains(words), "{failure}");
    };
    refused("[model]\nwidth = 16\n", "run.toml: model.width is 16, but ");
    refused(
        "[model]\nwidth = 16\n",
        "config.json says 8; delete the line, or name a new file of settings for this",
    );
    refused("[model]\nwidth = 16\n", "with --config");
    refused("[model]\nfamily = \"albert\"\n", "model.family is \"albert\"");
    refused("[model]\ntied = false\n", "model.tied is false");
    refused("[model]\nrope_base = 10000.0\n", "model.rope_base is 10000.0");
    refused("[model]\nsequence = 17\n", "model.sequence is 17, but ");
    // A shorter window fits a decoder, and how parameters would be drawn does not matter.
    let settings =
        completed(&folder, "[model]\nsequence = 5\ninitial_scale = 7.0\nrope_base = 500000\n").unwrap();
    assert_eq!((settings.model.sequence, settings.model.width), (5, 8));
    let text = "name = \"x\"\n[model]\nlayers = 2\n";
    let mut settings = Settings::parse(Path::new("run.toml"), text).unwrap();
    let given = Given::open(&folder, None).unwrap();
    let said = given.complete(&mut settings, Path::new("run.toml"), text).unwrap();
    assert!(said.starts_with(text) && said.contains("# width = 8\n") && !said.contains("# layers"), "{said}");
}

#[test]
fn a_mixture_brings_its_experts() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("model");
    let manifest = manifest(MIXTURE);
    exported(&manifest, &values(manifest.model.parameters()), &folder);
    let refused = |text: &str, words: &str| {
        let failure = completed(&folder, text).unwrap_err();
        assert!(failure.exit == Exit::Usage && failure.message.contains(words), "{failure}");
    };
    refused("[experts]\ncolumns = 8\n", "run.toml: experts.columns is 8, but ");
    refused("[experts]\nshared_hidden = 11\n", "config.json says 10");
    refused("[model]\nfamily = \"decoder\"\n", "model.family is \"decoder\"");
    // How it is balanced is training, not model.
    let text = "[experts]\nactive = 3\nbalance = 0.0\n";
    let mut settings = Settings::parse(Path::new("run.toml"), text).unwrap();
    let given = Given::open(&folder, None).unwrap();
    let said = given.complete(&mut settings, Path::new("run.toml"), text).unwrap();
    let Family::Mixture(mixture) = settings.checked_model().unwrap().family else { panic!("a mixture") };
    assert_eq!((mixture.columns, mixture.balance.value()), (5, 0.0));
    assert!(said.contains("# Of [experts], from ") && said.contains("# columns = 5\n"), "{said}");
    assert!(!said.contains("# balance") && !said.contains("# active"), "{said}");
    // Another model's settings have no place for experts.
    let other = directory.path().join("other");
    let plain = self::manifest(TIED);
    exported(&plain, &values(plain.model.parameters()), &other);
    let why = completed(&other, text).unwrap().checked_model().unwrap_err().to_string();
    assert!(why.contains("model.family must be \"mixture\""), "{why}");
}

#[test]
fn biases_that_a_mixture_may_have_are_taken_where_they_are_zero() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("model");
    let manifest = manifest(MIXTURE);
    let parameters = values(manifest.model.parameters());
    exported(&manifest, &parameters, &folder);
    let mut tensors = read(&folder);
    for (name, rows) in [("q", 8), ("k", 4), ("v", 4)] {
        let zeros = bytes_of(&vec![-0.0; rows]);
        tensors.insert(format!("model.layers.1.self_attn.{name}_proj.bias"), (Dtype::F32, vec![rows], zeros));
    }
    let given = Given::open(&folder, None).unwrap();
    write(&folder, &tensors);
    assert_eq!(bits(&given.parameters(&manifest.model).unwrap()), bits(&parameters));
    let refused = |name: &str, tensor: (Dtype, Vec<usize>, Vec<u8>), words: &str| {
        let mut tensors = tensors.clone();
        tensors.insert(name.into(), tensor);
        write(&folder, &tensors);
        let failure = given.parameters(&manifest.model).unwrap_err();
        assert!(failure.message.contains(words), "{failure}");
    };
    let bias = |values: &[f32]| (Dtype::F32, vec![values.len()], bytes_of(values));
    let name = "model.layers.0.self_attn.v_proj.bias";
    refused(name, bias(&[0.0, 0.0, 1e-9, 0.0]), "v_proj.bias is not zero");
    refused(name, bias(&[0.0; 8]), "v_proj.bias has shape [8], this model has [4]");
    refused(
        "model.layers.0.self_attn.o_proj.bias",
        bias(&[0.0; 8]),
        "holds model.layers.0.self_attn.o_proj.bias",
    );
    refused(
        "model.layers.0.mlp.experts.5.up_proj.weight",
        bias(&[0.0; 8]),
        "holds model.layers.0.mlp.experts.5",
    );
}

#[test]
fn configs_of_other_models_are_refused_by_entry() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join(CONFIG);
    let decoder = r#"{"model_type": "llama", "vocab_size": 256, "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 12"#;
    let albert = r#"{"model_type": "albert", "vocab_size": 257, "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 12, "embedding_size": 4, "max_position_embeddings": 9"#;
    let open = |text: &str| {
        fs::write(&path, text).unwrap();
        Given::open(directory.path(), None)
    };
    let model = |text: &str| {
        open(text).unwrap();
        completed(directory.path(), "").unwrap().model
    };
    // What transformers leaves out is at its default.
    let plain = model(&format!("{decoder}, \"rope_scaling\": null }}"));
    assert_eq!(
        (plain.key_value_heads, plain.tied, plain.rope_base, plain.norm_epsilon),
        (2, false, 1e4, 1e-6)
    );
    let newer = model(&format!(
        r#"{decoder}, "rope_parameters": {{"rope_theta": 5e5, "rope_type": "default"}}, "dtype": "bfloat16" }}"#
    ));
    assert_eq!(newer.rope_base, 5e5);
    let masked = model(&format!("{albert} }}"));
    assert_eq!((masked.sequence, masked.embedding, masked.norm_epsilon), (9, 4, 1e-12));
    let refused = |text: String, words: &str| {
        let failure = open(&text).err().unwrap();
        assert!(failure.message.contains("config.json") && failure.message.contains(words), "{failure}");
    };
    refused("[1]".into(), "is not a config");
    refused("{".into(), "is not a config");
    refused(r#"{"model_type": "gpt2"}"#.into(), "model_type is gpt2");
    refused("{}".into(), "model_type is none");
    refused(decoder.replace("\"hidden_size\": 8, ", "") + "}", "hidden_size is missing");
    refused(decoder.replace("\"hidden_size\": 8", "\"hidden_size\": -8") + "}", "hidden_size is -8");
    refused(
        decoder.replace("\"hidden_size\": 8", "\"hidden_size\": 4294967304") + "}",
        "hidden_size is 4294967304",
    );
    refused(format!(r#"{decoder}, "hidden_act": "gelu" }}"#), "hidden_act is \"gelu\"");
    refused(format!(r#"{decoder}, "attention_bias": true }}"#), "attention_bias is true");
    refused(
        format!(r#"{decoder}, "rope_scaling": {{"type": "linear", "factor": 2}} }}"#),
        "rope_scaling scales",
    );
    refused(format!(r#"{decoder}, "rope_parameters": {{"rope_type": "yarn"}} }}"#), "rope_parameters scales");
    refused(format!(r#"{albert}, "num_hidden_groups": 2 }}"#), "num_hidden_groups is 2");
    refused(format!(r#"{albert}, "hidden_act": "gelu" }}"#), "hidden_act is");
    refused(" ".repeat(CONFIG_BYTES as usize + 1), "a file of this kind has at most");
    fs::remove_file(&path).unwrap();
    assert!(
        Given::open(directory.path(), None).err().unwrap().message.contains("config.json: cannot be read")
    );
}

#[test]
fn configs_of_other_mixtures_are_refused_by_entry() {
    let directory = tempfile::tempdir().unwrap();
    let mixture = r#"{"model_type": "qwen2_moe", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 16, "moe_intermediate_size": 6, "shared_expert_intermediate_size": 10,
        "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": true"#;
    let open = |text: &str| {
        fs::write(directory.path().join(CONFIG), text).unwrap();
        completed(directory.path(), "")
    };
    // What transformers leaves out is at its default.
    let plain = format!(r#"{mixture}, "mlp_only_layers": [], "layer_types": ["full_attention"] }}"#);
    let Settings { model, experts, .. } = open(&plain).unwrap();
    assert_eq!((model.hidden, model.key_value_heads, model.norm_epsilon), (6, 16, 1e-6));
    assert_eq!(experts.unwrap().balance, 0.001);
    let refused = |text: String, words: &str| {
        let failure = open(&text).err().unwrap();
        assert!(failure.message.contains("config.json") && failure.message.contains(words), "{failure}");
    };
    refused(format!(r#"{mixture}, "mlp_only_layers": [0] }}"#), "mlp_only_layers is [0]");
    refused(format!(r#"{mixture}, "decoder_sparse_step": 2 }}"#), "decoder_sparse_step is 2");
    refused(format!(r#"{mixture}, "use_sliding_window": true }}"#), "use_sliding_window is true");
    refused(format!(r#"{mixture}, "layer_types": ["sliding_attention"] }}"#), "layer_types names others");
    refused(format!(r#"{mixture}, "rope_scaling": {{"rope_type": "yarn"}} }}"#), "rope_scaling scales");
    refused(
        format!(r#"{mixture}, "head_dim": 4 }}"#),
        "head_dim is what only decoders without experts may have",
    );
    refused(mixture.replace(": true", ": false") + "}", "norm_topk_prob is false or missing");
    refused(mixture.replace("norm_topk_prob", "x") + "}", "norm_topk_prob is false or missing");
    refused(mixture.replace("num_experts\"", "x\"") + "}", "num_experts is missing");
    refused(mixture.replace("\": 8,", "\": 70000,") + "}", "70000");
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("model");
    let manifest = manifest(TIED);
    exported(&manifest, &values(manifest.model.parameters()), &folder);
    let whole = read(&folder);
    let given = Given::open(&folder, None).unwrap();
    let refusal = || {
        let failure = given.parameters(&manifest.model).unwrap_err();
        assert!(failure.message.contains("model.safetensors: "), "{failure}");
        failure.message
    };
    let refused = |change: &dyn Fn(&mut Tensors), words: &str| {
        let mut tensors = whole.clone();
        change(&mut tensors);
        write(&folder, &tensors);
        let message = refusal();
        assert!(message.contains(words), "{message}");
    };
    let (gate, norm) = ("model.layers.1.mlp.gate_proj.weight", "model.norm.weight");
    refused(&|tensors| drop(tensors.remove(gate)), "lacks model.layers.1.mlp.gate_proj.weight");
    refused(&|tensors| tensors.retain(|name, _| name == norm), " more");
    let extra = (Dtype::F32, vec![1], vec![0; 4]);
    refused(
        &|tensors| drop(tensors.insert("score.weight".into(), extra.clone())),
        "holds score.weight, which",
    );
    refused(
        &|tensors| tensors.get_mut(gate).unwrap().1 = vec![8, 12],
        "has shape [8, 12], this model has [12, 8]",
    );
    refused(&|tensors| tensors.get_mut(norm).unwrap().1 = vec![1, 8], "model.norm.weight has shape [1, 8]");
    refused(&|tensors| tensors.get_mut(norm).unwrap().0 = Dtype::I32, "values of type I32");
    for (bad, shown) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let change = |tensors: &mut Tensors| {
            tensors.get_mut(gate).unwrap().2[20..24].copy_from_slice(&bad.to_le_bytes());
        };
        refused(&change, &format!("gate_proj.weight has {shown} at place 5"));
    }
    // A shared tensor may be saved twice, if it is one.
    let embedding = whole["model.embed_tokens.weight"].clone();
    let mut twice = whole.clone();
    twice.insert("lm_head.weight".into(), embedding);
    write(&folder, &twice);
    given.parameters(&manifest.model).unwrap();
    let other = |tensors: &mut Tensors| {
        *tensors = twice.clone();
        tensors.get_mut("lm_head.weight").unwrap().2[3] ^= 0x80;
    };
    refused(&other, "lm_head.weight differs from model.embed_tokens.weight");
}

#[test]
fn files_that_are_damaged_or_elsewhere_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("model");
    let manifest = manifest(TIED);
    exported(&manifest, &values(manifest.model.parameters()), &folder);
    let given = Given::open(&folder, None).unwrap();
    let refusal = || given.parameters(&manifest.model).unwrap_err().message;
    let bytes = fs::read(folder.join(WEIGHTS)).unwrap();
    for cut in [0, 7, 300, bytes.len() - 1] {
        fs::write(folder.join(WEIGHTS), &bytes[..cut]).unwrap();
        assert!(refusal().contains("is not a complete safetensors file"));
    }
    fs::write(folder.join(WEIGHTS), [bytes.as_slice(), b"\0"].concat()).unwrap();
    assert!(refusal().contains("is not a complete safetensors file"));
    // A header that promises more than any memory holds.
    fs::write(folder.join(WEIGHTS), [u64::MAX.to_le_bytes().as_slice(), b"{}"].concat()).unwrap();
    assert!(refusal().contains("is not a complete safetensors file"));
    let hole = fs::File::create(folder.join(WEIGHTS)).unwrap();
    hole.set_len(1 << 32).unwrap();
    assert!(refusal().contains("a file of this kind has at most"));
    fs::remove_file(folder.join(WEIGHTS)).unwrap();
    assert!(refusal().contains("cannot be read"));
}

#[test]
fn what_others_save_of_an_albert_is_taken() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("model");
    let manifest = manifest(ALBERT);
    let parameters = values(manifest.model.parameters());
    exported(&manifest, &parameters, &folder);
    let mut tensors = read(&folder);
    // As saved by a class that names the head's share of what is shared, with trained types and key biases.
    let bias = tensors.remove("predictions.bias").unwrap();
    tensors.insert("predictions.decoder.bias".into(), bias);
    let words = tensors["albert.embeddings.word_embeddings.weight"].clone();
    tensors.insert("predictions.decoder.weight".into(), words);
    let types = [0.5, -0.25, 0.0, 2.0, 9.0, 9.0, 9.0, 9.0];
    tensors.get_mut(TOKEN_TYPES).unwrap().2 = bytes_of(&types);
    let key = tensors.keys().find(|name| name.ends_with("key.bias")).unwrap().clone();
    tensors.get_mut(&key).unwrap().2 = bytes_of(&[1.0; 8]);
    write(&folder, &tensors);
    let given = Given::open(&folder, None).unwrap();
    let found = given.parameters(&manifest.model).unwrap();
    let layout = layout::Layout::of_run(&manifest);
    let positions = layout.tensors()[1].range();
    for (index, (found, exported)) in found.iter().zip(&parameters).enumerate() {
        let of_type = if positions.contains(&index) { types[(index - positions.start) % 4] } else { 0.0 };
        let expected = if of_type == 0.0 { *exported } else { exported + of_type };
        assert_eq!(found.to_bits(), expected.to_bits(), "{index}");
    }
    tensors.get_mut(TOKEN_TYPES).unwrap().2 = bytes_of(&[f32::MAX; 8]);
    let range = 4 * 3..4 * 4;
    let name = layout.tensors()[1].name.clone();
    tensors.get_mut(&name).unwrap().2[range].copy_from_slice(&f32::MAX.to_le_bytes());
    write(&folder, &tensors);
    assert!(given.parameters(&manifest.model).unwrap_err().message.contains("add up to inf"));
    tensors.remove(TOKEN_TYPES);
    write(&folder, &tensors);
    assert!(
        given.parameters(&manifest.model).unwrap_err().message.contains("lacks albert.embeddings.token_type")
    );
}

#[test]
fn narrow_types_are_widened() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("model");
    let manifest = manifest(UNTIED);
    let Family::Decoder(_) = manifest.model.family else { panic!("a decoder") };
    let count = manifest.model.parameters();
    // Multiples of 1/64 below 4 fit all types.
    let parameters: Vec<f32> = (0..count).map(|index| (index % 256) as f32 / 64.0 - 2.0).collect();
    exported(&manifest, &parameters, &folder);
    let mut tensors = read(&folder);
    for (index, (dtype, _, bytes)) in tensors.values_mut().enumerate() {
        let reals = muster_core::state::reals(bytes);
        let narrow =
            |bits: &dyn Fn(f32) -> u16| reals.iter().flat_map(|value| bits(*value).to_le_bytes()).collect();
        match index % 3 {
            0 => (*dtype, *bytes) = (Dtype::BF16, narrow(&|value| (value.to_bits() >> 16) as u16)),
            1 => (*dtype, *bytes) = (Dtype::F16, narrow(&half)),
            _ => {}
        }
    }
    write(&folder, &tensors);
    let found = Given::open(&folder, None).unwrap().parameters(&manifest.model).unwrap();
    assert_eq!(bits(&found), bits(&parameters));
}

/// A value that binary16 has, as one.
fn half(value: f32) -> u16 {
    if value == 0.0 {
        return 0;
    }
    let bits = value.to_bits();
    let exponent = (bits >> 23 & 255) as i32 - 127 + 15;
    (bits >> 16 & 0x8000) as u16 | (exponent as u16) << 10 | (bits >> 13 & 1023) as u16
}

#[test]
fn another_tokeniser_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("model");
    let mut manifest = manifest(TIED);
    exported(&manifest, &values(manifest.model.parameters()), &folder);
    let corpus = directory.path().join("corpus");
    fs::create_dir(&corpus).unwrap();
    fs::write(folder.join(TOKENISER), b"{}").unwrap();
    let given = Given::open(&folder, None).unwrap();
    let refused = given.check_tokeniser(&manifest.data, &corpus).unwrap_err();
    assert!(refused.message.contains("tokenizer.json: is not the tokeniser of the text"), "{refused}");
    let digest = Hasher::new(Domain::TOKENISER).part(b"{}").finish();
    let named = |digest| muster_core::manifest::TokeniserFile { digest, bytes: 2, tokens: 256 };
    manifest.data.tokeniser = Tokeniser::File(named(digest));
    given.check_tokeniser(&manifest.data, &corpus).unwrap();
    manifest.data.tokeniser = Tokeniser::File(named(Digest::default()));
    // What an export leaves out of the text's own one.
    fs::write(folder.join(TOKENISER), b"{}").unwrap();
    fs::write(corpus.join(TOKENISER), WORDS).unwrap();
    given.check_tokeniser(&manifest.data, &corpus).unwrap_err();
    let read = LoadedTokeniser::open(&corpus.join(TOKENISER)).unwrap().as_read().unwrap();
    assert!(read != WORDS.as_bytes());
    fs::write(folder.join(TOKENISER), read).unwrap();
    given.check_tokeniser(&manifest.data, &corpus).unwrap();
}
