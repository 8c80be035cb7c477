//! `muster run export`: a checkpoint as safetensors with Hugging Face names, and the run's tokeniser beside it.

pub(super) mod words;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use muster_core::ids::Row;
use muster_core::layout::Layout;
use muster_core::manifest::{
    Albert, Decoder, Family, Mixture, Model, Projection, Scaling, Tokeniser, Variant,
};
use muster_core::router::{BUCKETS, NAT};
use muster_core::state::real_bytes;
use muster_replica::exit::{Failure, Outcome};
use muster_store::dataset::{ROUTER, Routing, TOKENISER};
use muster_store::patience::patiently;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::DATA;
use super::hugging_face::{
    CONFIG, GENERATION, KEY_BIAS, ROWS, TOKEN_TYPES, TOKENISER_CONFIG, WEIGHTS, row_folder, saved_shape,
};
use crate::checkpoint::Checkpoint;
use crate::ending::{Ending, ending};
use crate::ranking::router;
use crate::tokenise::LoadedTokeniser;

/// What an export has written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exported {
    /// One checkpoint: the path of this row.
    Path(Row),
    /// A folder with a checkpoint for each of these rows, and the router beside them.
    Rows(Vec<Row>),
}

/// Writes a checkpoint into a new folder: the path of one row, or of each row that there is, in a folder of its own.
///
/// # Errors
/// [`Failure`] naming the file, the row that is not there, or the folder that holds something already.
pub fn export(checkpoint: &Checkpoint, row: Option<Row>, out: &Path) -> Outcome<Exported> {
    super::create::vacant(out)?;
    let rows = row.map_or_else(|| checkpoint.rows(), |row| vec![row]);
    // Before the folder is made: an export that fails leaves nothing behind.
    let words = Vocabulary::of(checkpoint)?;
    if let [] | [_] = rows[..] {
        let row = rows.first().copied().unwrap_or_default();
        let parameters = checkpoint.path(row)?;
        write_path(checkpoint, &parameters, &words, out)?;
        return Ok(Exported::Path(row));
    }
    let router = router(&checkpoint.manifest, &checkpoint.folder)?;
    for row in &rows {
        let parameters = checkpoint.path(*row)?;
        write_path(checkpoint, &parameters, &words, &out.join(row_folder(*row)))?;
    }
    write(&out.join(ROUTER), router.file())?;
    // Last: a folder without it is no whole export.
    write_json(&out.join(ROWS), &about_rows(checkpoint, &rows, &router))?;
    Ok(Exported::Rows(rows))
}

/// What [`ROWS`] says: the folders, and how the router's table scores the rows for a text (DATA-8, DATA-9).
fn about_rows(checkpoint: &Checkpoint, rows: &[Row], router: &Routing) -> Value {
    let folders: serde_json::Map<String, Value> =
        rows.iter().map(|row| (row.to_string(), row_folder(*row).into())).collect();
    json!({
        "round": checkpoint.round.0,
        "rows": checkpoint.rows_of_run(),
        "folders": folders,
        "router": {
            "file": ROUTER,
            "tokens": router.tokens(),
            "buckets": BUCKETS,
            "units_of_a_nat": NAT,
        },
    })
}

/// Writes a checkpoint of these parameters of one path into a new folder.
fn write_path(checkpoint: &Checkpoint, parameters: &[f32], words: &Vocabulary, out: &Path) -> Outcome<()> {
    let model = &checkpoint.manifest.model;
    let tensors = tensors(model, parameters);
    let views: Result<Vec<_>, _> = tensors
        .iter()
        .map(|(name, (shape, bytes))| Ok((name, TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect();
    let about = BTreeMap::from([("format".to_owned(), "pt".to_owned())]).into_iter().collect();
    let weights: Result<Vec<u8>, safetensors::SafeTensorError> =
        views.and_then(|views| safetensors::serialize(views, Some(about)));
    let weights = weights.map_err(|error| Failure::environment(format!("{}: {error}", out.display())))?;
    let Vocabulary { tokeniser, ending } = words;
    fs::create_dir_all(out).map_err(unwritten(out))?;
    write(&out.join(TOKENISER), tokeniser)?;
    write_json(&out.join(TOKENISER_CONFIG), &words::config(model, tokeniser, ending.as_ref()))?;
    if let Some(ending) = ending.as_ref().filter(|_| model.decoder().is_some()) {
        write_json(&out.join(GENERATION), &words::generation(ending))?;
    }
    write_json(&out.join(CONFIG), &config(model, ending.as_ref().map(|ending| ending.token)))?;
    write(&out.join(WEIGHTS), &weights)
}

/// What ends the texts of a checkpoint's run, where that is known.
///
/// # Errors
/// [`Failure`] naming the tokeniser or the text that cannot be read.
pub fn ending_of(checkpoint: &Checkpoint) -> Outcome<Option<Ending>> {
    Vocabulary::of(checkpoint).map(|words| words.ending)
}

/// The tokeniser of an export, and what ends a text.
struct Vocabulary {
    /// A `tokenizer.json`.
    tokeniser: Vec<u8>,
    ending: Option<Ending>,
}

impl Vocabulary {
    fn of(checkpoint: &Checkpoint) -> Outcome<Self> {
        let Checkpoint { manifest, folder, .. } = checkpoint;
        let rules = tokeniser(checkpoint)?;
        let ending = ending(folder, &manifest.data, rules.as_ref().map_or(&[], LoadedTokeniser::file))?;
        let tokeniser = match rules {
            None => words::of_bytes(&manifest.model).to_string().into_bytes(),
            Some(rules) => rules.as_read()?,
        };
        Ok(Self { tokeniser, ending })
    }
}

fn write_json(path: &Path, value: &Value) -> Outcome<()> {
    write(path, serde_json::to_string_pretty(value).unwrap_or_default().as_bytes())
}

fn write(path: &Path, bytes: &[u8]) -> Outcome<()> {
    patiently(|| fs::write(path, bytes)).map_err(unwritten(path))
}

fn unwritten(path: &Path) -> impl Fn(std::io::Error) -> Failure {
    let path = path.to_owned();
    move |error| Failure::environment(format!("{}: cannot be written ({error})", path.display()))
}

/// The run's tokeniser; none for bytes.
pub(super) fn tokeniser(checkpoint: &Checkpoint) -> Outcome<Option<LoadedTokeniser>> {
    let Tokeniser::File(wanted) = &checkpoint.manifest.data.tokeniser else { return Ok(None) };
    let path = checkpoint.folder.join(DATA).join(TOKENISER);
    let rules = LoadedTokeniser::open(&path)?;
    if rules.digest() != wanted.digest {
        return Err(Failure::environment(format!("{}: is not the tokeniser of this run", path.display())));
    }
    Ok(Some(rules))
}

/// Shapes and bytes by Hugging Face name: the canonical layout, with vectors as vectors; for ALBERT also what the
/// canonical layout leaves out, as zeros.
fn tensors<'a>(model: &Model, parameters: &'a [f32]) -> BTreeMap<String, (Vec<usize>, Cow<'a, [u8]>)> {
    let layout = Layout::of(model);
    let mut tensors: BTreeMap<String, (Vec<usize>, Cow<'a, [u8]>)> = layout
        .tensors()
        .iter()
        .map(|tensor| (tensor.name.clone(), (saved_shape(tensor), real_bytes(&parameters[tensor.range()]))))
        .collect();
    if let Family::Albert(albert) = &model.family {
        let (width, narrow) = (model.width as usize, albert.embedding as usize);
        // `transformers` expects these tensors; zeros change nothing.
        tensors.insert(TOKEN_TYPES.into(), (vec![TYPES, narrow], vec![0; 4 * TYPES * narrow].into()));
        tensors.insert(KEY_BIAS.into(), (vec![width], vec![0; 4 * width].into()));
    }
    tensors
}

/// Token types that an ALBERT of `transformers` has: their embeddings are zero.
const TYPES: usize = 2;

/// What `transformers` reads of a model; `end` ends a text, and the next one begins after it.
fn config(model: &Model, end: Option<u32>) -> Value {
    let of_family = match &model.family {
        Family::Decoder(decoder) => vec![of_decoder(model, decoder), of_llama(model)],
        Family::Variant(Variant { decoder, projection, .. }) => {
            let of_class = match projection {
                Projection::Plain => of_llama(model),
                Projection::Biased => of_qwen2(model),
                Projection::Normed => of_qwen3(model),
            };
            vec![of_decoder(model, decoder), of_class]
        }
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
        "bos_token_id": end,
        "eos_token_id": end,
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
        "head_dim": model.head_width(),
        "hidden_act": "silu",
        "rms_norm_eps": shown(model.norm_epsilon.value()),
        "rope_theta": shown(decoder.rope_base.value()),
        "rope_scaling": model.variant().and_then(|variant| variant.scaling.as_ref()).map(of_scaling),
        "attention_dropout": 0.0,
        "tie_word_embeddings": decoder.tied,
    })
}

/// Positions as in Llama 3.1.
fn of_scaling(scaling: &Scaling) -> Value {
    json!({
        "rope_type": "llama3",
        "factor": shown(scaling.factor.value()),
        "low_freq_factor": shown(scaling.low.value()),
        "high_freq_factor": shown(scaling.high.value()),
        "original_max_position_embeddings": scaling.original,
    })
}

/// A Llama with biases of queries, keys and values; those of `transformers` would have one of the output, too.
fn of_qwen2(model: &Model) -> Value {
    json!({
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "intermediate_size": model.hidden,
        "use_sliding_window": false,
    })
}

/// A Llama with norms of the heads of queries and keys.
fn of_qwen3(model: &Model) -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "intermediate_size": model.hidden,
        "attention_bias": false,
        "use_sliding_window": false,
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
    })
}

/// An f32 as the shortest decimal that means it.
fn shown(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

#[cfg(test)]
mod tests {
    use muster_compute::Exact;
    use muster_core::codec::Real;
    use muster_core::hash::{Domain, Hasher};
    use muster_core::ids::{Round, ShardId};
    use muster_core::manifest::TokeniserFile;
    use muster_core::state::{State, Vector};
    use muster_store::dataset::{Numbering, RouterSize, pack_tokens, token_numbers};
    use muster_store::home::Home;

    use super::*;
    use crate::MANIFEST;
    use crate::config::{Makers, Settings};
    use crate::create::{CreateOptions, create};
    use crate::gguf::export_gguf;
    use crate::gguf::words::tests::byte_level;
    use crate::given::Given;
    use crate::pack::{PackOptions, pack};
    use crate::tokenise::tests::{PAIRS, WORDS};

    #[test]
    fn a_foreign_tokeniser_is_not_exported() {
        let directory = tempfile::tempdir().unwrap();
        let nobody = muster_core::ids::MemberId([0; 32]);
        let makers = Makers { organiser: nobody, steward: nobody, nonce: [0; 16] };
        let root = muster_core::ids::Digest::default();
        let wrong = PAIRS.replace("abab", "abba").replace(r#", "ab ab""#, "");
        let digest = Hasher::new(Domain::TOKENISER).part(PAIRS.as_bytes()).finish();
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
        let state = State::initial(&Layout::of_run(&manifest), parameters);
        let (folder, out) = (directory.path().join("run"), directory.path().join("model"));
        fs::create_dir_all(folder.join(DATA)).unwrap();
        let checkpoint = Checkpoint { manifest, round: Round(0), state, folder: folder.clone() };
        let path = folder.join(DATA).join(TOKENISER);
        let refused = |words: &str| {
            let failure = export(&checkpoint, None, &out).unwrap_err();
            assert!(
                failure.message.contains("tokenizer.json") && failure.message.contains(words),
                "{failure}"
            );
            assert!(!out.exists(), "nothing is written");
        };
        refused("does not exist");
        fs::write(&path, wrong).unwrap();
        refused("is not the tokeniser of this run");
        fs::write(&path, PAIRS).unwrap();
        export(&checkpoint, None, &out).unwrap();
        let read = fs::read_to_string(out.join(TOKENISER)).unwrap();
        assert!(read.contains("abab") && !read.contains("0.5"), "nothing is drawn at random: {read}");
    }

    #[test]
    fn a_gguf_file_has_the_tokeniser_where_llama_cpp_has_its_family() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("model.gguf");
        let endless = of_words(&directory.path().join("endless"), PAIRS, None);
        refused(export_gguf(&endless, &file), "no token is known to end its texts; leave --gguf out");
        let foreign = of_words(&directory.path().join("foreign"), WORDS, Some(300));
        refused(
            export_gguf(&foreign, &file),
            "llama.cpp would read a text otherwise than this run: its model is no",
        );
        assert!(!file.exists());
        let checkpoint = of_words(&directory.path().join("usual"), &byte_level(), Some(260));
        export_gguf(&checkpoint, &file).unwrap();
        let written = fs::read(&file).unwrap();
        let has = |words: &str| written.windows(words.len()).any(|window| window == words.as_bytes());
        assert!(written.starts_with(b"GGUF\x03") && has("tokenizer.ggml.merges") && has("trillion"));
        refused(export_gguf(&checkpoint, &file), "exists already");
    }

    /// A run that begins with three rows of experts, and the folder that it is in.
    fn three_rows(directory: &Path) -> Checkpoint {
        let at = |name: &str| directory.join(name);
        fs::write(at("text.txt"), "All happy families are alike. ".repeat(200)).unwrap();
        let router = Some(RouterSize { rows: 3, tokens: 8 });
        let (text, data) = (vec![at("text.txt")], at("corpus"));
        pack(&PackOptions { text, router, out: data.clone(), ..PackOptions::default() }, &mut |_, _| ())
            .unwrap();
        let settings = "[model]\nfamily = \"mixture\"\nwidth = 8\nlayers = 1\nheads = 2\nkey_value_heads = 1\n\
                        hidden = 6\nsequence = 16\n[experts]\ncolumns = 4\nshared_hidden = 8\nrows = 3\nbranch = 0.0\n";
        fs::write(at("run.toml"), settings).unwrap();
        let (config, out) = (at("run.toml"), at("run"));
        let options = CreateOptions { config, data, calibration: None, init: None, organiser_key: None, out };
        create(&options).unwrap();
        Checkpoint::open(&at("run"), None, &mut Exact::new(1, None).unwrap()).unwrap()
    }

    fn weights(folder: &Path) -> Vec<u8> {
        fs::read(folder.join(WEIGHTS)).unwrap()
    }

    fn refused<T>(outcome: Outcome<T>, words: &str) {
        let failure = outcome.err().expect("a failure");
        assert!(failure.message.contains(words), "{failure}");
    }

    #[test]
    fn each_row_becomes_a_checkpoint_and_the_router_lies_beside_them() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let checkpoint = three_rows(directory.path());
        let rows: Vec<Row> = (0..3).map(Row).collect();
        assert_eq!(export(&checkpoint, None, &at("all")).unwrap(), Exported::Rows(rows.clone()));
        for row in &rows {
            let (one, all) = (at(&format!("one-{row}")), at("all").join(row_folder(*row)));
            assert_eq!(export(&checkpoint, Some(*row), &one).unwrap(), Exported::Path(*row));
            assert!(
                weights(&one) == weights(&all) && one.join(CONFIG).exists() && !one.join(ROUTER).exists()
            );
            let bytes = weights(&all);
            let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let name = "model.layers.0.mlp.gate.weight";
            let own = checkpoint.state.shard(ShardId::of(*row)).unwrap();
            assert!(
                real_bytes(own.vectors[0]).starts_with(tensors.tensor(name).unwrap().data()),
                "its router"
            );
        }
        assert!(weights(&at("one-0")) != weights(&at("one-1")), "rows that were drawn apart");
        let about: Value = serde_json::from_slice(&fs::read(at("all").join(ROWS)).unwrap()).unwrap();
        assert_eq!(
            (&about["rows"], &about["folders"]["2"], &about["router"]["tokens"]),
            (&json!(3), &json!("row-2"), &json!(8))
        );
        let table = fs::read(at("all").join(about["router"]["file"].as_str().unwrap())).unwrap();
        assert!(table == fs::read(at("run/data/router.bin")).unwrap());
        refused(export(&checkpoint, None, &at("all")), "already holds something");
        refused(
            export(&checkpoint, Some(Row(3)), &at("four")),
            "has no row 3 before round 0; the model has rows 0 to 2",
        );
        assert!(!at("four").exists());
        refused(export_gguf(&checkpoint, &at("four")), "GGUF has no architecture for this model");
        // A new run begins with one of them.
        refused(Given::open(&at("all"), None), "--init ");
        let manifest = &checkpoint.manifest;
        let given = Given::open(&at("all/row-1"), None).unwrap().parameters(&manifest.model).unwrap();
        assert!(given == *checkpoint.path(Row(1)).unwrap());
    }

    /// A run that begins with a small decoder, on words of a tokeniser whose texts end with this token.
    fn of_words(directory: &Path, file: &str, end: Option<u32>) -> Checkpoint {
        fs::create_dir_all(directory).unwrap();
        let at = |name: &str| directory.join(name);
        let tokens = token_numbers(file.as_bytes()).unwrap();
        let numbering = Numbering { file: file.as_bytes(), tokens, end };
        let text = || [Ok::<_, Failure>(("text".to_owned(), [1, 2, 4].repeat(400)))];
        pack_tokens(text(), text(), &at("corpus"), &numbering, None).unwrap();
        let settings = format!(
            "[model]\nvocabulary = {tokens}\nwidth = 8\nlayers = 1\nheads = 2\nkey_value_heads = 1\nhidden = 6\n\
             sequence = 16\n"
        );
        fs::write(at("run.toml"), settings).unwrap();
        let (config, data, out) = (at("run.toml"), at("corpus"), at("run"));
        create(&CreateOptions { config, data, calibration: None, init: None, organiser_key: None, out })
            .unwrap();
        Checkpoint::open(&at("run"), None, &mut Exact::new(1, None).unwrap()).unwrap()
    }

    #[test]
    fn an_export_says_where_a_text_ends() {
        let read = |folder: &Path, name: &str| -> Value {
            serde_json::from_slice(&fs::read(folder.join(name)).unwrap()).unwrap()
        };
        let exported = |directory: &Path, checkpoint: &Checkpoint| {
            let out = directory.join("model");
            export(checkpoint, None, &out).unwrap();
            out
        };
        let directory = tempfile::tempdir().unwrap();
        let words = exported(directory.path(), &of_words(directory.path(), WORDS, Some(300)));
        assert_eq!(read(&words, CONFIG)["eos_token_id"], json!(300));
        assert_eq!(read(&words, GENERATION), json!({"bos_token_id": 300, "eos_token_id": 300}));
        let about = read(&words, TOKENISER_CONFIG);
        assert_eq!(
            (&about["tokenizer_class"], &about["eos_token"], &about["model_max_length"]),
            (&json!("PreTrainedTokenizerFast"), &json!("</s>"), &json!(16))
        );
        assert_eq!(read(&words, TOKENISER)["post_processor"], Value::Null, "it would end each prompt");
        // Texts that end with no token of their own say nothing of where to stop.
        let directory = tempfile::tempdir().unwrap();
        let endless = exported(directory.path(), &of_words(directory.path(), PAIRS, None));
        assert_eq!(read(&endless, CONFIG)["eos_token_id"], Value::Null);
        assert!(
            !endless.join(GENERATION).exists() && read(&endless, TOKENISER_CONFIG)["eos_token"].is_null()
        );
        let directory = tempfile::tempdir().unwrap();
        let bytes = exported(directory.path(), &three_rows(directory.path())).join("row-0");
        assert_eq!(
            (&read(&bytes, CONFIG)["eos_token_id"], &read(&bytes, GENERATION)["eos_token_id"]),
            (&json!(0), &json!(0))
        );
        assert_eq!(read(&bytes, TOKENISER_CONFIG)["eos_token"], json!("\0"));
        assert!(words::is_of_bytes(&fs::read(bytes.join(TOKENISER)).unwrap()));
    }

    #[test]
    fn the_best_row_is_the_one_that_the_router_ranks_first_of_those_that_are_here() {
        let directory = tempfile::tempdir().unwrap();
        let mut checkpoint = three_rows(directory.path());
        let router = router(&checkpoint.manifest, &checkpoint.folder).unwrap();
        let text: Vec<u32> = b"happy".map(u32::from).to_vec();
        let order = router.ranked(&text);
        assert_eq!(checkpoint.best_row(&text).unwrap(), order[0]);
        let held = [ShardId::TRUNK, ShardId::of(order[1]), ShardId::of(order[2])];
        checkpoint.state = checkpoint.state.select(held);
        assert_eq!(checkpoint.best_row(&text).unwrap(), order[1]);
        fs::remove_file(checkpoint.folder.join(DATA).join(ROUTER)).unwrap();
        refused(checkpoint.best_row(&text), "router.bin");
        refused(export(&checkpoint, None, &directory.path().join("out")), "router.bin");
        assert!(!directory.path().join("out").exists());
    }

    #[test]
    fn a_node_exports_the_row_that_it_holds_and_one_without_a_row_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let whole = three_rows(directory.path());
        let opened = |name: &str, shards: &[u16]| {
            let mut state = whole.state.select(shards.iter().map(|shard| ShardId(*shard)));
            let zeros = Vector::from(vec![0.0; state.parameters.len()]);
            (state.first, state.second) = (zeros.clone(), zeros);
            let home = Home::open(&at(name)).unwrap();
            home.write_file(MANIFEST, &whole.manifest.bytes()).unwrap();
            home.save_state(Round(7), &state, &whole.state.roots().with(&state)).unwrap();
            Checkpoint::open(&at(name), None, &mut Exact::new(1, None).unwrap()).unwrap()
        };
        let node = opened("node", &[0, 3]);
        assert_eq!(
            (node.rows(), node.rows_of_run(), node.best_row(&[1]).unwrap()),
            (vec![Row(2)], 3, Row(2))
        );
        assert_eq!(export(&node, None, &at("own")).unwrap(), Exported::Path(Row(2)));
        assert_eq!(export(&whole, Some(Row(2)), &at("two")).unwrap(), Exported::Path(Row(2)));
        assert!(weights(&at("own")) == weights(&at("two")));
        refused(
            export(&node, Some(Row(0)), &at("none")),
            "rows 0 to 2, of which a node holds its own: here is row 2",
        );
        let newcomer = opened("newcomer", &[0]);
        refused(export(&newcomer, None, &at("none")), "the trunk alone is here: this member holds no row");
        refused(newcomer.best_row(&[1]), "holds no row");
        assert!(!at("none").exists());
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
        let config = config(&decoder, Some(0));
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
        let parameters = vec![1.0; mixture.parameters() as usize];
        let found = tensors(&mixture, &parameters);
        assert_eq!(found["model.layers.1.mlp.experts.2.down_proj.weight"].0, [8, 12]);
        assert_eq!(found["model.layers.0.mlp.shared_expert.up_proj.weight"].0, [20, 8]);
        assert_eq!(found["model.layers.0.mlp.shared_expert_gate.weight"].0, [1, 8], "a matrix of one row");
        assert_eq!(found["model.layers.1.mlp.gate.weight"].0, [3, 8]);
        assert_eq!(found["model.layers.1.post_attention_layernorm.weight"].0, [8]);
        let config = super::config(&mixture, None);
        assert_eq!(
            (&config["moe_intermediate_size"], &config["num_experts_per_tok"]),
            (&json!(12), &json!(2))
        );
        assert_eq!((&config["rms_norm_eps"], &config["router_aux_loss_coef"]), (&json!(1e-5), &json!(0.01)));
        let albert = model(Family::Albert(Albert { embedding: 4, masked_ppm: 150_000, mask_token: 299 }));
        let parameters = vec![1.0; albert.parameters() as usize];
        let found = tensors(&albert, &parameters);
        assert_eq!(found["albert.embeddings.token_type_embeddings.weight"].1[..], [0; 32]);
        assert_eq!(found["albert.embeddings.LayerNorm.weight"].0, [4]);
        assert_eq!(found["predictions.bias"].0, [300]);
        let biases = found.keys().filter(|name| name.ends_with(".bias"));
        assert!(biases.clone().all(|name| found[name].0.len() == 1) && biases.count() == 13);
    }
}
