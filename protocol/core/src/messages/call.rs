//! Calls: a holder of the model is asked what follows a text, and its signed answer binds it.
//!
//! Whoever has both messages can compute the logits again at the root that the question names (CALL-5).

use crate::codec::List;
use crate::error::{Reject, require};
use crate::hash::{Domain, Hasher};
use crate::ids::{Digest, Round, Row};
use crate::manifest::Manifest;
use crate::regime::Regime;
use crate::sign::Message;
use crate::state::integer_bytes;
use crate::{limits, wire};

wire! {
    /// What follows this text, by the model as it was before a round?
    pub struct Ask {
        /// The round.
        pub round: Round,
        /// X_t, its state root.
        pub root: Digest,
        /// The row of experts that it is read with.
        pub row: Row,
        /// The text.
        pub tokens: List<u32, { limits::SEQUENCE as usize }>,
        /// After how many of the last tokens the logits are wanted.
        pub positions: u16,
    }
}

impl Message for Ask {
    const TAG: &'static str = "ask";
}

wire! {
    /// What a holder has computed.
    pub struct Answer {
        /// Digest of the signed question.
        pub ask: Digest,
        /// [`logits_digest`] of the logits.
        pub logits: Digest,
    }
}

impl Message for Answer {
    const TAG: &'static str = "answer";
}

impl Ask {
    /// CALL-1: whether the model can be asked this.
    ///
    /// # Errors
    /// [`Reject::Rule`] naming what is wrong with it.
    pub fn check(&self, manifest: &Manifest) -> Result<(), Reject> {
        let model = &manifest.model;
        // Elsewhere two honest machines would sign different digests, and one of them be banned.
        require(Regime::of(manifest).binds_answers(), "calls are of runs with profile exact")?;
        require(model.decoder().is_some(), "calls are of models that predict the next token")?;
        require(self.row.0 < model.rows(), "a call names a row of the model")?;
        let length = 1..=model.sequence as usize;
        require(length.contains(&self.tokens.len()), "a call has 1 to `sequence` tokens")?;
        // The embedding has no more rows.
        let known = self.tokens.iter().all(|token| *token < model.vocabulary);
        require(known, "each token of a call is one of the model's")?;
        let positions = usize::from(self.positions);
        require(
            (1..=self.tokens.len()).contains(&positions),
            "a call wants logits after 1 token at least, and all at most",
        )?;
        let fits = self.logits(manifest) <= limits::CALL_LOGITS;
        require(fits, "the logits of a call fit into one answer")
    }

    /// How many logits the answer has.
    pub fn logits(&self, manifest: &Manifest) -> usize {
        usize::from(self.positions).saturating_mul(manifest.model.vocabulary as usize)
    }
}

/// CALL-2: a logit in units of 2⁻¹⁶, to the nearest, ties to even; ±(2³¹ − 1) beyond that, −2³¹ for what is no number.
pub fn fixed(logit: f32) -> i32 {
    if logit.is_nan() {
        return i32::MIN;
    }
    // Exact: a power of two, and f64 has room for every f32 times it.
    let units = (f64::from(logit) * 65_536.0).round_ties_even();
    units.clamp(-f64::from(i32::MAX), f64::from(i32::MAX)) as i32
}

/// A logit of its integer; NaN for what was none.
pub fn real(units: i32) -> f32 {
    if units == i32::MIN { f32::NAN } else { (f64::from(units) / 65_536.0) as f32 }
}

/// CALL-3: `H("answer", logits)`, little-endian.
pub fn logits_digest(logits: &[i32]) -> Digest {
    Hasher::new(Domain::ANSWER).part(&integer_bytes(logits)).finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MemberId;
    use crate::manifest::fixture::tiny;
    use crate::manifest::{Albert, Family, Profile};

    fn ask(tokens: Vec<u32>, positions: u16) -> Ask {
        let tokens = List::new(tokens).unwrap();
        Ask { round: Round(3), root: Digest([7; 32]), row: Row(0), tokens, positions }
    }

    #[test]
    fn call_1_a_call_is_one_that_the_model_can_be_asked() {
        let manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 1, 1);
        let (sequence, kinds) = (manifest.model.sequence, manifest.model.vocabulary);
        let all = vec![kinds - 1; sequence as usize];
        for good in [ask(vec![0], 1), ask(all.clone(), 1), ask(all.clone(), sequence as u16)] {
            assert_eq!(good.check(&manifest), Ok(()));
        }
        let too_long = [all.clone(), vec![0]].concat();
        let row = Ask { row: Row(1), ..ask(vec![0], 1) };
        let bad = [
            ask(vec![], 0),
            ask(vec![], 1),
            ask(vec![0], 0),
            ask(vec![0], 2),
            ask(too_long, 1),
            ask(vec![0, kinds], 1),
            ask(vec![u32::MAX], 1),
            row,
        ];
        for bad in bad {
            assert!(matches!(bad.check(&manifest), Err(Reject::Rule(_))), "{bad:?}");
        }
    }

    #[test]
    fn call_1_a_call_is_of_a_decoder_in_exact_whose_logits_fit() {
        let manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 1, 1);
        let mut wide = manifest.clone();
        wide.model.vocabulary = limits::CALL_LOGITS as u32;
        assert_eq!(ask(vec![0, 0], 1).check(&wide), Ok(()));
        assert!(ask(vec![0, 0], 2).check(&wide).is_err(), "over the bound of an answer");
        let mut masked = manifest.clone();
        masked.model.family = Family::Albert(Albert { embedding: 8, masked_ppm: 150_000, mask_token: 0 });
        assert!(ask(vec![0], 1).check(&masked).is_err());
        let mut tolerant = manifest;
        tolerant.profile = Profile::F32;
        assert!(ask(vec![0], 1).check(&tolerant).is_err());
    }

    #[test]
    fn call_2_logits_are_rounded_to_even_and_saturate() {
        let unit = 1.0 / 65_536.0;
        for (units, expected) in [(0.5, 0), (1.5, 2), (2.5, 2), (-0.5, 0), (-1.5, -2), (0.75, 1), (-2.25, -2)]
        {
            assert_eq!(fixed(units * unit), expected, "{units}");
        }
        let most = i32::MAX;
        for (logit, expected) in [
            (f32::INFINITY, most),
            (32_768.0, most),
            (-32_768.0, -most),
            (f32::NEG_INFINITY, -most),
            (f32::MIN, -most),
        ] {
            assert_eq!(fixed(logit), expected, "{logit}");
        }
        assert_eq!((fixed(f32::NAN), fixed(-f32::NAN)), (i32::MIN, i32::MIN));
        assert!(real(i32::MIN).is_nan());
        for units in [0, 1, -1, 65_536, -98_304] {
            assert_eq!(fixed(real(units)), units);
        }
    }

    #[test]
    fn call_3_a_digest_is_of_all_logits_in_order() {
        let digest = logits_digest(&[1, -2]);
        assert_eq!(digest, Hasher::new(Domain::ANSWER).part(&[1, 0, 0, 0, 254, 255, 255, 255]).finish());
        for other in [&[-2, 1][..], &[1], &[1, -2, 0]] {
            assert_ne!(logits_digest(other), digest);
        }
    }
}
