//! Passes of aggregation, compiled once per path. They have no fused multiply-adds: the vectors only get wider.
#![allow(unsafe_code)]

use muster_core::aggregate::CoefficientPass;

use crate::path::{Kernels, Path};

/// Runs a pass with the vectors of a path.
pub(crate) fn run<P: CoefficientPass>(kernels: Kernels, pass: P) -> P::Output {
    match kernels.path() {
        // SAFETY: a `Kernels` exists only for a path that this processor has.
        #[cfg(target_arch = "x86_64")]
        Path::Avx512 => unsafe { avx512(pass) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Path::Avx2 => unsafe { avx2(pass) },
        _ => pass.run(),
    }
}

// Without "fma", unlike the other kernels: rules of aggregation have no fused multiply-add that it could serve.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
fn avx512<P: CoefficientPass>(pass: P) -> P::Output {
    pass.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2<P: CoefficientPass>(pass: P) -> P::Output {
    pass.run()
}
