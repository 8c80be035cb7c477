//! `muster run export --gguf`: a decoder as one file for llama.cpp and others.
//!
//! The format and its keys: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Its architecture `llama` is ours, with
//! queries and keys in another order, `qwen2` is ours with biases, and `qwen3` with norms of queries and keys. It has none for
//! our mixtures, which share out the weights of the chosen experts and have a shared one, and none for ALBERT.

pub(super) mod words;

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use ggus::{GGmlType, GGufFileHeader, GGufMetaDataValueType as Kind, GGufWriter};
use muster_compute::rotary_divisors;
use muster_core::layout::{Layout, Tensor};
use muster_core::manifest::{Decoder, Family, Model, Projection, Variant};
use muster_core::state::real_bytes;
use muster_replica::exit::{Failure, Outcome};
use muster_store::patience::patiently;

use self::words::{BYTE, GgufToken, NORMAL, UNUSED, WordFamily, words};
use super::checkpoint::Checkpoint;
use super::ending::Ending;
use super::export::{ending_of, tokeniser};
use super::hugging_face::saved_shape;

/// The version of the format.
const VERSION: u32 = 3;
/// Where tensors begin: at multiples of this, in bytes.
const ALIGNMENT: usize = 32;

/// What the format calls a model.
struct Form<'a> {
    model: &'a Model,
    decoder: &'a Decoder,
    name: &'static str,
    /// Whether positions turn neighbours, and not each row with the one half a head behind it.
    turns_neighbours: bool,
}

impl<'a> Form<'a> {
    fn of(model: &'a Model) -> Option<Self> {
        let form = |decoder, name| Self { model, decoder, name, turns_neighbours: name == "llama" };
        match &model.family {
            Family::Decoder(decoder)
            | Family::Variant(Variant { decoder, projection: Projection::Plain, .. }) => {
                Some(form(decoder, "llama"))
            }
            // Of neither of these the frequencies are divided; the heads of the first are as wide together as the stream.
            Family::Variant(Variant {
                decoder,
                projection: Projection::Biased,
                scaling: None,
                head_width,
            }) if head_width * model.heads == model.width => Some(form(decoder, "qwen2")),
            Family::Variant(Variant { decoder, projection: Projection::Normed, scaling: None, .. }) => {
                Some(form(decoder, "qwen3"))
            }
            Family::Variant(_) | Family::Albert(_) | Family::Mixture(_) => None,
        }
    }
}

/// Writes the model of a checkpoint into a new file.
///
/// # Errors
/// [`Failure`] where the model is no decoder, or naming the file that exists already or cannot be written.
pub fn export_gguf(checkpoint: &Checkpoint, out: &Path) -> Outcome<()> {
    let model = &checkpoint.manifest.model;
    let Some(form) = Form::of(model) else {
        let advice = "leave --gguf out and export safetensors with --out";
        return Err(Failure::usage(format!("GGUF has no architecture for this model; {advice}")));
    };
    let mut aside = out.as_os_str().to_owned();
    aside.push(".part");
    let aside = PathBuf::from(aside);
    if let Some(taken) = [out, &aside].into_iter().find(|path| path.exists()) {
        return Err(Failure::usage(format!("{}: exists already; name a new file", taken.display())));
    }
    let about = about(checkpoint, &form)?;
    let (parameters, divisors) = (checkpoint.path(Default::default())?, rotary_divisors(model));
    let layout = Layout::of(model);
    let parts = parts(&form, &layout, &parameters, &divisors);
    let written = write(&parts, &about, &aside).and_then(|()| fs::rename(&aside, out));
    written.map_err(|error| {
        // What is left of it is of no use, unless somebody else made it just now.
        if error.kind() != io::ErrorKind::AlreadyExists {
            let _ = fs::remove_file(&aside);
        }
        Failure::environment(format!("{}: cannot be written ({error})", out.display()))
    })
}

/// A tensor of the file.
struct Part<'a> {
    name: String,
    shape: Vec<usize>,
    values: &'a [f32],
    /// Heads whose rows get another order.
    heads: Option<usize>,
}

impl Part<'_> {
    fn bytes(&self) -> Cow<'_, [u8]> {
        match self.heads {
            Some(heads) => {
                let values = interleaved(self.values, heads, [self.shape[0], self.shape[1]]);
                Cow::Owned(real_bytes(&values).into_owned())
            }
            None => real_bytes(self.values),
        }
    }
}

/// The tensors of a model, and before them what its frequencies are divided by, if anything.
fn parts<'a>(form: &Form<'_>, layout: &Layout, parameters: &'a [f32], divisors: &'a [f32]) -> Vec<Part<'a>> {
    let frequencies = (!divisors.is_empty()).then(|| Part {
        name: "rope_freqs.weight".into(),
        shape: vec![divisors.len()],
        values: divisors,
        heads: None,
    });
    let part = |tensor: &Tensor| Part {
        name: name(&tensor.name),
        shape: saved_shape(tensor),
        values: &parameters[tensor.range()],
        heads: match &tensor.name {
            name if name.ends_with("q_proj.weight") => Some(form.model.heads),
            name if name.ends_with("k_proj.weight") => Some(form.decoder.key_value_heads),
            _ => None,
        }
        .filter(|_| form.turns_neighbours)
        .map(|heads| heads as usize),
    };
    frequencies.into_iter().chain(layout.tensors().iter().map(part)).collect()
}

/// Writes the file: what is said of the model, what each tensor is, the tensors.
fn write(parts: &[Part<'_>], about: &About, path: &Path) -> io::Result<()> {
    let mut head = Vec::new();
    {
        // Into memory, since this writer says nothing of bytes that it could not write last.
        let mut writer = GGufWriter::new(&mut head);
        writer.write_header(GGufFileHeader::new(VERSION, parts.len() as u64, about.0.len() as u64))?;
        for (key, kind, value) in &about.0 {
            writer.write_meta_kv(key, *kind, value)?;
        }
        let mut offset = 0;
        for Part { name, shape, values, .. } in parts {
            // The first number is the length of what lies together.
            let shape: Vec<u64> = shape.iter().rev().map(|length| *length as u64).collect();
            writer.write_tensor_info(name, &shape, GGmlType::F32, offset as u64)?;
            offset = (offset + 4 * values.len()).next_multiple_of(ALIGNMENT);
        }
        writer.write_padding(ALIGNMENT)?;
    }
    let mut file = BufWriter::new(patiently(|| File::create_new(path))?);
    file.write_all(&head)?;
    for part in parts {
        let bytes = part.bytes();
        file.write_all(&bytes)?;
        file.write_all(&[0; ALIGNMENT][..bytes.len().next_multiple_of(ALIGNMENT) - bytes.len()])?;
    }
    // Before the rename, which could otherwise outlive a power failure that the bytes do not.
    file.into_inner()?.sync_all()
}

/// What is said of a model, in order.
#[derive(Default)]
struct About(Vec<(String, Kind, Vec<u8>)>);

impl About {
    fn number(&mut self, key: &str, value: u32) {
        self.0.push((key.to_owned(), Kind::U32, value.to_le_bytes().into()));
    }

    fn real(&mut self, key: &str, value: f32) {
        self.0.push((key.to_owned(), Kind::F32, value.to_le_bytes().into()));
    }

    fn flag(&mut self, key: &str, value: bool) {
        self.0.push((key.to_owned(), Kind::Bool, vec![value.into()]));
    }

    fn text(&mut self, key: &str, value: &str) {
        self.0.push((key.to_owned(), Kind::String, text(value)));
    }

    fn list(&mut self, key: &str, kind: Kind, values: impl ExactSizeIterator<Item = Vec<u8>>) {
        let head = [&(kind as u32).to_le_bytes()[..], &(values.len() as u64).to_le_bytes()].concat();
        self.0.push((key.to_owned(), Kind::Array, std::iter::once(head).chain(values).flatten().collect()));
    }
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes()[..], value.as_bytes()].concat()
}

fn about(checkpoint: &Checkpoint, form: &Form<'_>) -> Outcome<About> {
    let Form { model, decoder, name, .. } = *form;
    let mut about = About::default();
    about.text("general.architecture", name);
    about.text("general.name", &checkpoint.manifest.name);
    // All tensors have f32.
    about.number("general.file_type", 0);
    let sizes = [
        ("vocab_size", model.vocabulary),
        ("context_length", model.sequence),
        ("embedding_length", model.width),
        ("block_count", model.layers),
        ("feed_forward_length", model.hidden),
        ("attention.head_count", model.heads),
        ("attention.head_count_kv", decoder.key_value_heads),
        ("rope.dimension_count", model.head_width()),
        ("attention.key_length", model.head_width()),
        ("attention.value_length", model.head_width()),
    ];
    for (key, size) in sizes {
        about.number(&format!("{name}.{key}"), size);
    }
    about.real(&format!("{name}.attention.layer_norm_rms_epsilon"), model.norm_epsilon.value());
    about.real(&format!("{name}.rope.freq_base"), decoder.rope_base.value());
    match tokeniser(checkpoint)? {
        None => tokens_are_bytes(model.vocabulary, &mut about),
        Some(rules) => {
            let file = rules.file();
            tokens_are_words(file, model.vocabulary, ending_of(checkpoint)?.as_ref(), &mut about)?;
            about.text("tokenizer.huggingface.json", &String::from_utf8_lossy(file));
        }
    }
    Ok(about)
}

/// The tokeniser of a run of bytes: one of SentencePiece that knows bytes alone. It writes a space as U+2581.
fn tokens_are_bytes(vocabulary: u32, about: &mut About) {
    let token = |number: u32| {
        let (name, kind) = match u8::try_from(number) {
            Ok(b' ') => ("\u{2581}".to_owned(), NORMAL),
            Ok(byte) => (format!("<0x{byte:02X}>"), BYTE),
            Err(_) => (format!("<unused {number}>"), UNUSED),
        };
        GgufToken { name, kind, score: 0.0 }
    };
    about.text("tokenizer.ggml.model", "llama");
    tokens(&(0..vocabulary).map(token).collect::<Vec<_>>(), about);
    // A zero ends every text that the run was trained on.
    ends(0, Some(0), false, about);
}

/// A tokeniser of a family that llama.cpp has.
fn tokens_are_words(file: &[u8], vocabulary: u32, ending: Option<&Ending>, about: &mut About) -> Outcome<()> {
    let refused = |why: String| {
        let what = "llama.cpp would read a text otherwise than this run";
        Failure::usage(format!("{what}: {why}; leave --gguf out and export safetensors with --out"))
    };
    let ending = ending.ok_or_else(|| refused("no token is known to end its texts".into()))?;
    let words = words(file, vocabulary).map_err(refused)?;
    let space_before = match &words.family {
        WordFamily::ByteLevel { rules, merges } => {
            about.text("tokenizer.ggml.model", "gpt2");
            about.text("tokenizer.ggml.pre", rules);
            about.list("tokenizer.ggml.merges", Kind::String, merges.iter().map(|merge| text(merge)));
            false
        }
        WordFamily::SentencePiece { space_before } => {
            about.text("tokenizer.ggml.model", "llama");
            *space_before
        }
    };
    tokens(&words.tokens, about);
    ends(ending.token, words.unknown, space_before, about);
    Ok(())
}

fn tokens(tokens: &[GgufToken], about: &mut About) {
    let scores = tokens.iter().map(|token| token.score.to_le_bytes().into());
    let kinds = tokens.iter().map(|token| token.kind.to_le_bytes().into());
    about.list("tokenizer.ggml.tokens", Kind::String, tokens.iter().map(|token| text(&token.name)));
    about.list("tokenizer.ggml.scores", Kind::F32, scores);
    about.list("tokenizer.ggml.token_type", Kind::I32, kinds);
}

/// A text of nothing begins after the end of another; nothing is added to any, but a space where the tokeniser does so.
fn ends(end: u32, unknown: Option<u32>, space_before: bool, about: &mut About) {
    about.number("tokenizer.ggml.bos_token_id", end);
    about.number("tokenizer.ggml.eos_token_id", end);
    if let Some(unknown) = unknown {
        about.number("tokenizer.ggml.unknown_token_id", unknown);
    }
    about.flag("tokenizer.ggml.add_bos_token", false);
    about.flag("tokenizer.ggml.add_eos_token", false);
    about.flag("tokenizer.ggml.add_space_prefix", space_before);
}

/// A tensor's name in GGUF.
fn name(name: &str) -> String {
    const NAMES: [(&str, &str); 14] = [
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ];
    NAMES.iter().fold(name.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs))
}

/// The rows of a head in the order of llama.cpp: it turns neighbours, we turn each with the one half a head behind it.
fn interleaved(values: &[f32], heads: usize, [rows, columns]: [usize; 2]) -> Vec<f32> {
    let of_head = rows / heads;
    let order = (0..rows).map(|row| {
        let (head, within) = (row / of_head, row % of_head);
        head * of_head + within / 2 + within % 2 * (of_head / 2)
    });
    order.flat_map(|row| &values[row * columns..(row + 1) * columns]).copied().collect()
}

#[cfg(test)]
mod tests {
    use muster_core::codec::Real;
    use muster_core::manifest::Scaling;

    use super::*;

    /// A decoder with heads of this width, which are as wide together as the stream where it is 4.
    fn variant(head_width: u32, projection: Projection, factor: Option<f32>) -> Model {
        let real = |value| Real::new(value).unwrap();
        let decoder = Decoder { key_value_heads: 1, tied: true, rope_base: real(10_000.0) };
        let scaling = factor.map(|factor| Scaling {
            factor: real(factor),
            low: real(1.0),
            high: real(4.0),
            original: 32,
        });
        Model {
            vocabulary: 5,
            width: 8,
            layers: 1,
            heads: 2,
            hidden: 6,
            sequence: 16,
            norm_epsilon: real(1e-5),
            initial_scale: real(0.1),
            family: Family::Variant(Variant { decoder, head_width, projection, scaling }),
        }
    }

    /// The architecture; names of the tensors, and of those whose rows get another order.
    fn written(model: &Model) -> Option<(&'static str, Vec<String>, Vec<String>)> {
        let (form, layout, divisors) = (Form::of(model)?, Layout::of(model), rotary_divisors(model));
        let parameters = vec![0.0; layout.parameters()];
        let parts = parts(&form, &layout, &parameters, &divisors);
        let turned = parts.iter().filter(|part| part.heads.is_some());
        let [all, turned] = [parts.iter().collect::<Vec<_>>(), turned.collect()]
            .map(|parts: Vec<&Part<'_>>| parts.into_iter().map(|part| part.name.clone()).collect::<Vec<_>>());
        Some((form.name, all, turned))
    }

    #[test]
    fn biases_make_a_qwen2_and_divisors_lie_in_a_llama() {
        let (architecture, names, turned) = written(&variant(4, Projection::Biased, None)).unwrap();
        assert_eq!(architecture, "qwen2");
        let has = |names: &[String], name: &str| names.iter().any(|one| one == name);
        assert!(["q", "k", "v"].iter().all(|of| has(&names, &format!("blk.0.attn_{of}.bias"))));
        assert!(turned.is_empty() && !has(&names, "rope_freqs.weight"));
        let (architecture, names, turned) = written(&variant(6, Projection::Plain, Some(8.0))).unwrap();
        assert_eq!((architecture, names[0].as_str()), ("llama", "rope_freqs.weight"));
        assert_eq!(turned, ["blk.0.attn_q.weight", "blk.0.attn_k.weight"]);
        // 5.1 turns of the first pair, 0.2 and less of the others.
        assert_eq!(rotary_divisors(&variant(6, Projection::Plain, Some(8.0))), [1.0, 8.0, 8.0]);
        // Neither architecture has both.
        for (head_width, factor) in [(4, Some(8.0)), (6, None)] {
            assert!(written(&variant(head_width, Projection::Biased, factor)).is_none());
        }
    }

    #[test]
    fn norms_of_queries_and_keys_make_a_qwen3() {
        let (architecture, names, turned) = written(&variant(6, Projection::Normed, None)).unwrap();
        assert_eq!(architecture, "qwen3");
        for norm in ["blk.0.attn_q_norm.weight", "blk.0.attn_k_norm.weight"] {
            assert!(names.iter().any(|name| name == norm), "{names:?}");
        }
        assert!(turned.is_empty());
        // Its frequencies cannot be divided.
        assert!(written(&variant(6, Projection::Normed, Some(8.0))).is_none());
    }

    #[test]
    fn names_are_those_of_the_format() {
        let names = [
            ("model.embed_tokens.weight", "token_embd.weight"),
            ("model.layers.11.input_layernorm.weight", "blk.11.attn_norm.weight"),
            ("model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight"),
            ("model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight"),
            ("model.layers.3.post_attention_layernorm.weight", "blk.3.ffn_norm.weight"),
            ("model.layers.3.mlp.gate_proj.weight", "blk.3.ffn_gate.weight"),
            ("model.norm.weight", "output_norm.weight"),
            ("lm_head.weight", "output.weight"),
        ];
        for (ours, theirs) in names {
            assert_eq!(name(ours), theirs);
        }
    }

    #[test]
    fn the_halves_of_a_head_are_interleaved() {
        // Two heads of four rows, one column.
        let rows: Vec<f32> = (0..8).map(|row| row as f32).collect();
        assert_eq!(interleaved(&rows, 2, [8, 1]), [0.0, 2.0, 1.0, 3.0, 4.0, 6.0, 5.0, 7.0]);
        let pairs: Vec<f32> = (0..8).map(|place| place as f32).collect();
        assert_eq!(interleaved(&pairs, 1, [4, 2]), [0.0, 1.0, 4.0, 5.0, 2.0, 3.0, 6.0, 7.0]);
    }
}
