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
        /// Rows of the run; each node holds one of them.
        rows: u16 = 1,
        /// Share of the rounds that train one row, before it is copied to all; 0: all rows are drawn at the beginning.
        branch: f32 = 0.5,
        /// With fewer contributions in a row, each of them is audited.
        few: u16 = 5,
        /// With so many contributions in a row at most, nothing of them is applied before all have passed.
        held: u16 = 2,
        /// Rounds that the update of a row may wait for that.
        lag: u32 = 16,
    }
}

impl Experts {
    /// The mixture of these experts and a decoder, in a run of so many rounds.
    pub(super) fn checked(
        &self,
        decoder: manifest::Decoder,
        rounds: u32,
    ) -> Result<manifest::Mixture, Misuse> {
        // What is said of rows with few contributions says nothing of the one row that all train; two manifests that mean
        // the same would be two runs.
        let of_rows = u16::from(self.rows > 1);
        Ok(manifest::Mixture {
            decoder,
            columns: self.columns,
            active: self.active,
            shared_hidden: self.shared_hidden,
            balance: real("experts.balance", self.balance)?,
            trust: real("experts.trust", self.trust)?,
            rows: self.rows,
            branch: self.branch(rounds)?,
            few: of_rows * self.few,
            held: of_rows * self.held,
            lag: u32::from(of_rows) * self.lag,
        })
    }

    /// Updates after which the one row becomes all.
    fn branch(&self, rounds: u32) -> Result<u32, Misuse> {
        if !(0.0..1.0).contains(&self.branch) {
            let rule = "must lie in [0, 1): it is a share of training.rounds";
            return Err(Misuse(format!("experts.branch {rule}; it is {}", self.branch)));
        }
        // With one row there is nothing to become.
        let share = if self.rows > 1 { self.branch } else { 0.0 };
        Ok((f64::from(share) * f64::from(rounds)) as u32)
    }
}
