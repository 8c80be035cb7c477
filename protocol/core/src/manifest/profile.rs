//! How leaf gradients are computed, and how far two honest ones may be apart.

use crate::codec::{List, Real};
use crate::{choice, limits, wire};

choice! {
    /// How leaf gradients are computed and compared.
    pub enum Profile {
        /// Defined bits on any processor; audits are equalities.
        Exact,
        /// f32 throughout, in any order; audits have a tolerance.
        F32,
        /// Factors of products rounded to 10 bits of mantissa where the device has units for that, as the next one.
        Tf32,
        /// Factors and results of products, attention and the feed-forward's inner values in bf16; parameters, residual
        /// stream, norms and sums in f32.
        Bf16,
    }
}

impl Profile {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
        }
    }

    /// Whether every machine computes the same leaves; where not, two honest ones may be a tolerance apart.
    pub fn has_defined_bits(self) -> bool {
        self == Self::Exact
    }

    /// Whether all leaves of a contribution, recomputed, stand for its integers, so that nobody escapes by keeping these back
    /// (AUDIT-10, AUDIT-25). Where not, they are asked for each time (TOL-6, TOL-12).
    pub fn leaves_stand_for_integers(self) -> bool {
        self.has_defined_bits()
    }

    /// TOL-9: whether what one machine recomputes bans nobody before drawn jurors have recomputed it.
    pub fn needs_jury(self) -> bool {
        !self.has_defined_bits()
    }

    /// TOL-8: whether two code paths of a sound machine may differ about who is guilty, between what each allows.
    pub fn may_split_opinions(self) -> bool {
        !self.has_defined_bits()
    }

    /// AUDIT-2: whether the rows of a table are the same whoever asks, so that they can be made beforehand.
    pub fn has_one_table(self) -> bool {
        self.has_defined_bits()
    }

    /// TOL-11: whether a finished run can be replayed to the last bit, for which what counted of convicts is kept.
    pub fn is_replayable(self) -> bool {
        self.has_defined_bits()
    }
}

wire! {
    /// What a calibration found of honest leaves of one job (TOL-4): bounds that one in a thousand exceeds.
    pub struct Tolerance {
        /// Largest deviation of each tensor group, the last value for all that follow; none in profile exact.
        pub groups: List<Real, { limits::GROUPS }>,
        /// Largest difference of the mean loss, in nats per token; 0 in profile exact.
        pub loss: Real,
    }
}

impl Tolerance {
    /// Of profile exact.
    pub fn none() -> Self {
        Self { groups: List::default(), loss: Real::ZERO }
    }
}
