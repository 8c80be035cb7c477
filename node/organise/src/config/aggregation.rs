//! How contributions are combined.

use muster_core::error::Misuse;
use muster_core::manifest;
use serde::Deserialize;

use super::number::{millionths, real};
use super::section::section;

/// As [`manifest::Rule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleSetting {
    /// The robust rule.
    CenteredClip,
    /// Weighted mean.
    Mean,
    /// Weighted coordinate median.
    Median,
    /// Weighted coordinate-wise trimmed mean.
    TrimmedMean,
    /// Weighted geometric median.
    GeometricMedian,
    /// The input nearest to its neighbours.
    Krum,
    /// The mean of the inputs nearest to their neighbours.
    MultiKrum,
    /// Centred clipping with an absolute radius.
    FixedRadiusClip,
}

section! {
    /// As [`manifest::Aggregation`].
    Aggregation {
        /// The rule.
        rule: RuleSetting = RuleSetting::CenteredClip,
        /// Clipping radius.
        radius: f32 = 1.25,
        /// Fixed-point iterations.
        iterations: u8 = 5,
        /// Largest share of one member.
        cap: f64 = 0.2,
        /// Share that is taken for attackers.
        assumed: f64 = 0.2,
        /// Whether inputs are mixed with those nearest to them.
        mixing: bool = false,
        /// Aggregators of a part, 1 or 2. Two must agree, and cost each member twice the upload.
        replicas: u8 = 1,
        /// Negative log₂ of the step of a result, as a part of its usual size.
        result_bits: u8 = 4,
    }
}

impl Aggregation {
    pub(super) fn checked(&self) -> Result<manifest::Aggregation, Misuse> {
        Ok(manifest::Aggregation {
            rule: match self.rule {
                RuleSetting::CenteredClip => manifest::Rule::CenteredClip,
                RuleSetting::Mean => manifest::Rule::Mean,
                RuleSetting::Median => manifest::Rule::Median,
                RuleSetting::TrimmedMean => manifest::Rule::TrimmedMean,
                RuleSetting::GeometricMedian => manifest::Rule::GeometricMedian,
                RuleSetting::Krum => manifest::Rule::Krum,
                RuleSetting::MultiKrum => manifest::Rule::MultiKrum,
                RuleSetting::FixedRadiusClip => manifest::Rule::FixedRadiusClip,
            },
            radius: real("aggregation.radius", self.radius)?,
            iterations: self.iterations,
            cap_ppm: millionths("aggregation.cap", self.cap)?,
            assumed_ppm: millionths("aggregation.assumed", self.assumed)?,
            mixing: self.mixing,
            replicas: self.replicas,
            result_bits: self.result_bits,
        })
    }
}
