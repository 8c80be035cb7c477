//! Converts numbers as people write them to those of the manifest.

use muster_core::codec::Real;
use muster_core::error::Misuse;

/// A finite number.
pub(super) fn real(field: &str, value: f32) -> Result<Real, Misuse> {
    Real::new(value).map_err(|misuse| Misuse(format!("{field}: {misuse}")))
}

/// A share from 0 to 1, in millionths.
pub(super) fn millionths(field: &str, share: f64) -> Result<u32, Misuse> {
    if !(0.0..=1.0).contains(&share) {
        return Err(Misuse(format!("{field} must lie between 0 and 1")));
    }
    Ok((share * 1e6).round() as u32)
}

/// A time in seconds, in milliseconds; from one millisecond to eleven days, so that no timer is zero or overflows.
pub(super) fn milliseconds(field: &str, seconds: f64) -> Result<u32, Misuse> {
    if !(0.001..=1e6).contains(&seconds) {
        return Err(Misuse(format!("{field} must lie between 0.001 and 1000000 seconds")));
    }
    Ok((seconds * 1e3).round() as u32)
}
