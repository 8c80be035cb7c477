//! The kinds of models that a run can train, by their `model_type`.

use muster_replica::exit::Outcome;
use serde_json::Value;
use toml::{Table, Value as Plain};

use super::entries::Entries;
use super::rotary::rotary;
use crate::given::known::Known;

/// What a config says of a kind of model.
pub(super) struct Found {
    /// Settings of the model.
    pub(super) fixed: Table,
    /// Of a mixture.
    pub(super) experts: Option<Known>,
    /// Most tokens of a window, where the config says.
    pub(super) context: Option<Context>,
}

/// Most tokens of a window.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub(super) tokens: u32,
    /// The entry that says so.
    pub(super) entry: &'static str,
    /// Whether windows have as many tokens and no fewer.
    pub(super) whole: bool,
}

/// Settings and entries that all families have.
const SIZES: &[(&str, &str)] = &[
    ("vocabulary", "vocab_size"),
    ("width", "hidden_size"),
    ("layers", "num_hidden_layers"),
    ("heads", "num_attention_heads"),
];

/// Tokens that a sliding window has where a config leaves them to `transformers`.
const SLIDING: u32 = 4096;

/// Width of the heads that a Qwen3's config leaves to `transformers`.
const QWEN3_HEAD: u32 = 128;

/// Reads the entries of a config. Where one is missing, `transformers`' own default holds.
pub(super) fn found(config: &Entries<'_>) -> Outcome<Found> {
    not_quantised(config)?;
    let mut found = Found { fixed: Table::new(), experts: None, context: context(config)? };
    let fixed = &mut found.fixed;
    match config.entry("model_type").and_then(Value::as_str) {
        Some("llama") => llama(config, fixed)?,
        Some("mistral") => {
            mistral(config, fixed)?;
            found.slide(sliding(config)?);
        }
        Some("qwen2") => {
            qwen2(config, fixed)?;
            found.slide(if config.flag("use_sliding_window", false)? { sliding(config)? } else { None });
        }
        Some("qwen3") => {
            qwen3(config, fixed)?;
            found.slide(if config.flag("use_sliding_window", false)? { sliding(config)? } else { None });
        }
        Some("qwen2_moe") => {
            mixture(config, fixed)?;
            found.experts = Some(row(config)?);
        }
        Some("albert") => {
            albert(config, fixed)?;
            // It has an embedding for each position; a decoder's positions are computed.
            found.context = found.context.map(|context| Context { whole: true, ..context });
        }
        other => {
            let trained =
                "a run trains \"llama\", \"mistral\", \"qwen2\", \"qwen3\", \"qwen2_moe\" or \"albert\"";
            return Err(config.wrong("model_type", &format!("is {}, {trained}", other.unwrap_or("none"))));
        }
    }
    for (setting, entry) in SIZES {
        found.fixed.insert((*setting).into(), config.number(entry)?.into());
    }
    Ok(found)
}

/// Refuses a checkpoint whose values are no longer the model's own.
fn not_quantised(config: &Entries<'_>) -> Outcome<()> {
    let name = "quantization_config";
    let Some(quantised) = config.within(name)? else { return Ok(()) };
    let how = quantised.text("quant_method")?.unwrap_or("a method that it does not name");
    let what = format!("says that the model is quantised by {how}; begin with the model that was quantised");
    Err(config.wrong(name, &what))
}

/// Tokens of a sliding window, if there is one.
fn sliding(config: &Entries<'_>) -> Outcome<Option<u32>> {
    let missing = (!config.says("sliding_window")).then_some(SLIDING);
    Ok(config.optional("sliding_window")?.or(missing))
}

fn context(config: &Entries<'_>) -> Outcome<Option<Context>> {
    let entry = "max_position_embeddings";
    Ok(config.optional(entry)?.map(|tokens| Context { tokens, entry, whole: false }))
}

impl Found {
    /// Attention to so many tokens: within as many it is attention to all.
    fn slide(&mut self, sliding: Option<u32>) {
        if let Some(tokens) = sliding
            && self.context.is_none_or(|context| tokens < context.tokens)
        {
            self.context = Some(Context { tokens, entry: "sliding_window", whole: false });
        }
    }
}

fn llama(config: &Entries<'_>, fixed: &mut Table) -> Outcome<()> {
    config.must("attention_bias", false.into())?;
    config.must("mlp_bias", false.into())?;
    attention(config, &["full_attention"])?;
    dense(config, None, fixed)
}

/// A Llama, but for the defaults and the sliding window.
fn mistral(config: &Entries<'_>, fixed: &mut Table) -> Outcome<()> {
    attention(config, &["full_attention", "sliding_attention"])?;
    dense(config, Some(8), fixed)
}

/// A Llama with biases of queries, keys and values.
fn qwen2(config: &Entries<'_>, fixed: &mut Table) -> Outcome<()> {
    slides(config)?;
    dense(config, Some(32), fixed)?;
    fixed.insert("attention_bias".into(), true.into());
    Ok(())
}

/// A Llama with norms of the heads of queries and keys.
fn qwen3(config: &Entries<'_>, fixed: &mut Table) -> Outcome<()> {
    config.must("attention_bias", false.into())?;
    slides(config)?;
    dense(config, Some(32), fixed)?;
    fixed.insert("head_norms".into(), true.into());
    if !config.says("head_dim") {
        fixed.insert("head_width".into(), QWEN3_HEAD.into());
    }
    Ok(())
}

/// Layers may slide where the config says that any does.
fn slides(config: &Entries<'_>) -> Outcome<()> {
    let sliding = config.flag("use_sliding_window", false)?;
    attention(config, &["full_attention", "sliding_attention"][..if sliding { 2 } else { 1 }])
}

/// A decoder whose feed-forward every token passes; `shared` key and value heads where the config has no such entry, and as
/// many as queries where that is null.
fn dense(config: &Entries<'_>, shared: Option<u32>, fixed: &mut Table) -> Outcome<()> {
    let shared = shared.filter(|_| !config.says("num_key_value_heads"));
    let shared = shared.map_or_else(|| config.number("num_attention_heads"), Ok)?;
    fixed.insert("family".into(), "decoder".into());
    fixed.insert("hidden".into(), config.number("intermediate_size")?.into());
    decoder(config, shared, fixed)
}

fn mixture(config: &Entries<'_>, fixed: &mut Table) -> Outcome<()> {
    // Its `qkv_bias` says nothing of the values, which are looked at.
    config.must("decoder_sparse_step", 1.into())?;
    config.must("mlp_only_layers", Value::Array(Vec::new()))?;
    config.must("use_sliding_window", false.into())?;
    attention(config, &["full_attention"])?;
    if !config.flag("norm_topk_prob", false)? {
        return Err(config.wrong("norm_topk_prob", "is false or missing, a run's mixtures have true"));
    }
    fixed.insert("family".into(), "mixture".into());
    fixed.insert("hidden".into(), config.number("moe_intermediate_size")?.into());
    decoder(config, 16, fixed)?;
    let plain = [("head_width", "head_dim", 0.into()), ("rope_factor", "rope_scaling", Plain::Float(1.0))];
    match plain.into_iter().find(|(setting, _, plain)| fixed.get(*setting) != Some(plain)) {
        Some((_, entry, _)) => {
            Err(config.wrong(entry, "is what only decoders without experts may have in a run"))
        }
        None => Ok(()),
    }
}

/// The experts of a mixture. What balances them is not of the model, but of its training.
fn row(config: &Entries<'_>) -> Outcome<Known> {
    let mut experts = Known::new(config.path, "experts");
    for (setting, entry) in [
        ("columns", "num_experts"),
        ("active", "num_experts_per_tok"),
        ("shared_hidden", "shared_expert_intermediate_size"),
    ] {
        experts.fixed.insert(setting.into(), config.number(entry)?.into());
    }
    experts.free.insert("balance".into(), config.real("router_aux_loss_coef", 0.001)?.into());
    Ok(experts)
}

/// Refuses layers with other kinds of attention.
fn attention(config: &Entries<'_>, kinds: &[&str]) -> Outcome<()> {
    let layers = config.entry("layer_types").and_then(Value::as_array);
    if layers.is_some_and(|layers| layers.iter().any(|layer| kinds.iter().all(|kind| layer != kind))) {
        let what = format!("names others than {}, a run has no others", kinds.join(" and "));
        return Err(config.wrong("layer_types", &what));
    }
    Ok(())
}

/// What decoders have, with or without experts; `shared` key and value heads where the config does not say.
fn decoder(config: &Entries<'_>, shared: u32, fixed: &mut Table) -> Outcome<()> {
    config.must("hidden_act", "silu".into())?;
    let (width, heads) = (config.number("hidden_size")?, config.number("num_attention_heads")?);
    let head = config.optional("head_dim")?.filter(|head| head.checked_mul(heads) != Some(width));
    fixed.insert("head_width".into(), head.unwrap_or(0).into());
    fixed.insert("attention_bias".into(), false.into());
    fixed.insert("head_norms".into(), false.into());
    rotary(config, fixed)?;
    let key_value_heads = config.optional("num_key_value_heads")?.unwrap_or(shared);
    fixed.insert("key_value_heads".into(), key_value_heads.into());
    fixed.insert("tied".into(), config.flag("tie_word_embeddings", false)?.into());
    fixed.insert("norm_epsilon".into(), config.real("rms_norm_eps", 1e-6)?.into());
    Ok(())
}

fn albert(config: &Entries<'_>, fixed: &mut Table) -> Outcome<()> {
    config.must("hidden_act", "gelu_new".into())?;
    config.must("num_hidden_groups", 1.into())?;
    config.must("inner_group_num", 1.into())?;
    config.must("position_embedding_type", "absolute".into())?;
    config.must("tie_word_embeddings", true.into())?;
    fixed.insert("family".into(), "albert".into());
    fixed.insert("hidden".into(), config.number("intermediate_size")?.into());
    fixed.insert("embedding".into(), config.number("embedding_size")?.into());
    fixed.insert("norm_epsilon".into(), config.real("layer_norm_eps", 1e-12)?.into());
    Ok(())
}
