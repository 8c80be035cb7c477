//! What is trained.

use muster_core::error::Misuse;
use muster_core::manifest::{self, Projection};
use serde::Deserialize;

use super::experts::Experts;
use super::number::{millionths, real};
use super::section::section;

/// As [`manifest::Family`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FamilySetting {
    /// Predicts the next token.
    Decoder,
    /// Predicts masked tokens.
    Albert,
    /// Predicts the next token; tokens choose among experts.
    Mixture,
}

section! {
    /// As [`manifest::Model`].
    Model {
        /// What kind of transformer.
        family: FamilySetting = FamilySetting::Decoder,
        /// Token kinds.
        vocabulary: u32 = 256,
        /// Width of the residual stream.
        width: u32 = 64,
        /// Layers.
        layers: u32 = 2,
        /// Query heads.
        heads: u32 = 4,
        /// Key and value heads.
        key_value_heads: u32 = 4,
        /// Width inside the feed-forward; of a mixture, inside each expert of a row.
        hidden: u32 = 172,
        /// Tokens of a window.
        sequence: u32 = 128,
        /// Whether the head shares the embedding.
        tied: bool = true,
        /// Base of the rotary frequencies.
        rope_base: f32 = 10_000.0,
        /// Decoder: width of a head; 0: `width` / `heads`.
        head_width: u32 = 0,
        /// Decoder: whether queries, keys and values have biases.
        attention_bias: bool = false,
        /// Decoder: whether each head of queries and keys has a norm.
        head_norms: bool = false,
        /// Decoder: what slow rotary frequencies are divided by; 1: nothing is scaled.
        rope_factor: f32 = 1.0,
        /// Decoder: turns within `rope_original` tokens below which a frequency is slow.
        rope_low: f32 = 1.0,
        /// Decoder: turns above which a frequency keeps its value.
        rope_high: f32 = 4.0,
        /// Decoder: tokens of the windows that frequencies were trained with before they were scaled.
        rope_original: u32 = 8192,
        /// ALBERT: width of the embedding.
        embedding: u32 = 32,
        /// ALBERT: share of the tokens to be predicted.
        masked: f64 = 0.15,
        /// ALBERT: the token that stands for a masked one.
        mask_token: u32 = 256,
        /// ε of the norms.
        norm_epsilon: f32 = 1e-5,
        /// Standard deviation of the initial matrices.
        initial_scale: f32 = 0.1,
    }
}

impl Model {
    pub(super) fn checked(&self, experts: Option<&Experts>, rounds: u32) -> Result<manifest::Model, Misuse> {
        if experts.is_some() && self.family != FamilySetting::Mixture {
            return Err(Misuse(
                "model.family must be \"mixture\" where there is a section [experts]: set it, or delete the section".into(),
            ));
        }
        // Also where the family does not have it: what is no number is a mistake of whoever wrote it.
        let (masked_ppm, decoder) = (millionths("model.masked", self.masked)?, self.decoder()?);
        let variant = self.variant(&decoder)?;
        if self.family != FamilySetting::Decoder
            && let Some(variant) = &variant
        {
            return Err(Misuse(self.only_of_decoders(variant)));
        }
        Ok(manifest::Model {
            vocabulary: self.vocabulary,
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            hidden: self.hidden,
            sequence: self.sequence,
            norm_epsilon: real("model.norm_epsilon", self.norm_epsilon)?,
            initial_scale: real("model.initial_scale", self.initial_scale)?,
            family: match self.family {
                FamilySetting::Decoder => {
                    variant.map_or(manifest::Family::Decoder(decoder), manifest::Family::Variant)
                }
                FamilySetting::Mixture => {
                    let experts = experts.cloned().unwrap_or_default();
                    manifest::Family::Mixture(experts.checked(decoder, rounds)?)
                }
                FamilySetting::Albert => manifest::Family::Albert(manifest::Albert {
                    embedding: self.embedding,
                    masked_ppm,
                    mask_token: self.mask_token,
                }),
            },
        })
    }

    /// What settings say of attention, if it is another than that of a plain decoder.
    fn variant(&self, decoder: &manifest::Decoder) -> Result<Option<manifest::Variant>, Misuse> {
        let [factor, low, high] = [
            ("model.rope_factor", self.rope_factor),
            ("model.rope_low", self.rope_low),
            ("model.rope_high", self.rope_high),
        ]
        .map(|(name, value)| real(name, value));
        let (factor, low, high, original) = (factor?, low?, high?, self.rope_original);
        let scaling = (factor.value() != 1.0).then_some(manifest::Scaling { factor, low, high, original });
        let (own, projection) = (self.head_width, self.projection()?);
        let plain = own == 0 || own.checked_mul(self.heads) == Some(self.width);
        if plain && projection == Projection::Plain && scaling.is_none() {
            return Ok(None);
        }
        let divided = self.width.is_multiple_of(self.heads);
        if own == 0 && !divided {
            let (heads, width) = (self.heads, self.width);
            return Err(Misuse(format!(
                "model.heads must divide model.width, {width}; it is {heads} (or say model.head_width)"
            )));
        }
        let head_width = if own == 0 { self.width / self.heads.max(1) } else { own };
        Ok(Some(manifest::Variant { decoder: decoder.clone(), head_width, projection, scaling }))
    }

    fn projection(&self) -> Result<Projection, Misuse> {
        match (self.attention_bias, self.head_norms) {
            (false, false) => Ok(Projection::Plain),
            (true, false) => Ok(Projection::Biased),
            (false, true) => Ok(Projection::Normed),
            (true, true) => Err(Misuse(
                "model.attention_bias and model.head_norms are both true: no run has both; set one of them to false".into(),
            )),
        }
    }

    /// The refusal of an attention that only decoders may have.
    fn only_of_decoders(&self, variant: &manifest::Variant) -> String {
        let (setting, remedy) = match variant {
            manifest::Variant { scaling: Some(_), .. } => ("rope_factor", "1.0"),
            manifest::Variant { projection: Projection::Biased, .. } => ("attention_bias", "false"),
            manifest::Variant { projection: Projection::Normed, .. } => ("head_norms", "false"),
            manifest::Variant { .. } => ("head_width", "0"),
        };
        let family = format!("{:?}", self.family).to_lowercase();
        format!(
            "model.{setting} is for decoders; set it to {remedy} in a run whose model.family is \"{family}\""
        )
    }

    fn decoder(&self) -> Result<manifest::Decoder, Misuse> {
        Ok(manifest::Decoder {
            key_value_heads: self.key_value_heads,
            tied: self.tied,
            rope_base: real("model.rope_base", self.rope_base)?,
        })
    }
}
