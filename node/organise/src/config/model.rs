//! What is trained.

use muster_core::error::Misuse;
use muster_core::manifest;
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
                FamilySetting::Decoder => manifest::Family::Decoder(decoder),
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
    fn decoder(&self) -> Result<manifest::Decoder, Misuse> {
        Ok(manifest::Decoder {
            key_value_heads: self.key_value_heads,
            tied: self.tied,
            rope_base: real("model.rope_base", self.rope_base)?,
        })
    }
}
