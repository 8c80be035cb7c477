//! What the tokens of a mixture choose among.

use muster_core::error::Misuse;
use muster_core::manifest;

use super::number::real;
use super::section::section;

section! {
    /// As [`manifest::Mixture`], except for its decoder, which `[model]` describes.
    Experts {
        /// Experts of a layer's row.
        columns: u16 = 8,
        /// Experts of the row that a token passes.
        active: u16 = 2,
        /// Width inside the shared expert.
        shared_hidden: u32 = 172,
        /// Weight of the loss that spreads a window's tokens over the row.
        balance: f32 = 0.01,
        /// Bound on what a round may change in a block of experts, as [`manifest::Mixture::trust`].
        trust: f32 = 4.0,
    }
}

impl Experts {
    /// The mixture of these experts and a decoder.
    pub(super) fn checked(&self, decoder: manifest::Decoder) -> Result<manifest::Mixture, Misuse> {
        Ok(manifest::Mixture {
            decoder,
            columns: self.columns,
            active: self.active,
            shared_hidden: self.shared_hidden,
            balance: real("experts.balance", self.balance)?,
            trust: real("experts.trust", self.trust)?,
        })
    }
}
