//! How contributions are combined.

use muster_core::manifest;
use serde::Deserialize;

use super::number::{millionths, real};
use super::section::section;

/// What a file calls each [`manifest::Rule`].
#[derive(Deserialize)]
#[serde(remote = "manifest::Rule", rename_all = "kebab-case")]
enum RuleName {
    CenteredClip,
    Mean,
    Median,
    TrimmedMean,
    GeometricMedian,
    Krum,
    MultiKrum,
    FixedRadiusClip,
}

section! {
    /// As [`manifest::Aggregation`].
    Aggregation as "aggregation" for manifest::Aggregation {
        /// The rule.
        #[serde(deserialize_with = "RuleName::deserialize")]
        rule: manifest::Rule = manifest::Rule::CenteredClip => rule,
        /// Clipping radius.
        radius: f32 = 1.25 => radius by real,
        /// Fixed-point iterations.
        iterations: u8 = 5 => iterations,
        /// Largest share of one member.
        cap: f64 = 0.2 => cap_ppm by millionths,
        /// Share that is taken for attackers.
        assumed: f64 = 0.2 => assumed_ppm by millionths,
        /// Whether inputs are mixed with those nearest to them.
        mixing: bool = false => mixing,
        /// Aggregators of a part, 1 or 2. Two must agree, and cost each member twice the upload.
        replicas: u8 = 1 => replicas,
        /// Negative log₂ of the step of a result, as a part of its usual size.
        result_bits: u8 = 4 => result_bits,
    }
}
