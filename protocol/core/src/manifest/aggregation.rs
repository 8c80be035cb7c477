//! How contributions are combined.

use crate::codec::Real;
use crate::{choice, wire};

choice! {
    /// A rule that combines the members' vectors of one block.
    pub enum Rule {
        /// Huber's M-estimator on standardised residuals (AGG-3 to AGG-7).
        CenteredClip,
        /// Weighted mean: no robustness, for comparison.
        Mean,
        /// Weighted coordinate median, for comparison.
        Median,
        /// Weighted coordinate-wise trimmed mean, for comparison.
        TrimmedMean,
        /// Weighted geometric median, for comparison.
        GeometricMedian,
        /// The input nearest to its neighbours, for comparison.
        Krum,
        /// The mean of the inputs nearest to their neighbours, for comparison.
        MultiKrum,
        /// Centred clipping with one absolute radius, as published, for comparison.
        FixedRadiusClip,
    }
}

wire! {
    /// How contributions are combined.
    pub struct Aggregation {
        /// The rule.
        pub rule: Rule,
        /// c: clipping radius in units of the median standardised residual. In grid units a leaf: the radius of
        /// [`Rule::FixedRadiusClip`], the least distance that [`Rule::GeometricMedian`] tells from 0.
        pub radius: Real,
        /// Fixed-point iterations.
        pub iterations: u8,
        /// Largest share of the weight of one member, in parts per million.
        pub cap_ppm: u32,
        /// Share of the inputs (of the weight, for [`Rule::TrimmedMean`]) that is taken for attackers, in parts per
        /// million. [`Rule::CenteredClip`], [`Rule::Mean`] and [`Rule::Median`] ask only if inputs are mixed.
        pub assumed_ppm: u32,
        /// Whether each input is first replaced by the mean of those nearest to it; for comparison.
        pub mixing: bool,
        /// Aggregators of a part: 1, or 2 whose digests must agree.
        pub replicas: u8,
        /// Negative log₂ of the step of a result, as a part of its usual size; at most `grid_bits` (AGG-23).
        pub result_bits: u8,
    }
}
