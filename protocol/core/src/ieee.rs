//! The processor's floating-point mode: defined bits need the IEEE default.

use std::hint::black_box;

/// Whether this thread keeps subnormals and rounds to nearest even.
///
/// Another library of the process may have set flush-to-zero or denormals-are-zero. It is asked by arithmetic, so
/// that the answer holds for every processor.
pub fn environment_is_ieee() -> bool {
    // Through black_box: a compiler would fold the products in its own mode.
    let kept = black_box(f32::MIN_POSITIVE) * black_box(0.5) == f32::from_bits(1 << 22);
    let read = (black_box(f32::from_bits(1)) * black_box(16_777_216.0)).to_bits() == 2 << 23;
    let wide = black_box(f64::MIN_POSITIVE) * black_box(0.5) != 0.0;
    let (one, half) = (black_box(1.0f32), black_box(f32::EPSILON / 2.0));
    let to_even = one + half == 1.0 && -one - half == -1.0;
    let to_nearest = one + half * 1.5 == 1.0 + f32::EPSILON;
    kept && read && wide && to_even && to_nearest
}

/// Stops a thread whose results would not have the defined bits.
///
/// # Panics
/// When the processor's floating-point mode is not the IEEE default.
pub fn require_ieee() {
    assert!(
        environment_is_ieee(),
        "this thread flushes subnormals or does not round to nearest: something in this process has changed the \
         processor's floating-point mode, and results would differ from every other member's"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    // Other modes are tried where unsafe code is allowed: in muster_compute's kernels.
    #[test]
    fn a_thread_begins_in_the_default_mode() {
        assert!(environment_is_ieee());
        require_ieee();
    }
}
