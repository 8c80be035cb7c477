//! What runs the passes of aggregation: this processor's vectors, and some threads.

use muster_core::aggregate::{CoefficientPass, Runner};
use muster_core::error::Misuse;
use muster_core::ieee::require_ieee;

use crate::kernel::pass;
use crate::parallel;
use crate::path::{Kernels, Path};

/// Some threads along one path. The bits are those of [`muster_core::aggregate::Plain`].
///
/// A pass panics when the processor's floating-point mode is not the IEEE default: wrong bits would be signed.
#[derive(Clone, Copy, Debug)]
pub struct Workers {
    kernels: Kernels,
    threads: usize,
}

impl Workers {
    /// Works on this many threads (at least one) along the fastest path of this processor.
    pub fn new(threads: usize) -> Self {
        Self { kernels: Kernels::detect(), threads: threads.max(1) }
    }

    /// Works along another path.
    ///
    /// # Errors
    /// [`Misuse`] when the processor lacks it.
    pub fn along(self, path: Path) -> Result<Self, Misuse> {
        Ok(Self { kernels: Kernels::new(path)?, ..self })
    }
}

impl Runner for Workers {
    fn pass<P: CoefficientPass>(&self, pass: P) -> P::Output {
        require_ieee();
        pass::run(self.kernels, pass)
    }

    fn each<T: Send>(&self, count: usize, task: impl Fn(usize) -> T + Sync) -> Vec<T> {
        let mut results: Vec<Option<T>> = (0..count).map(|_| None).collect();
        let mut workers = vec![(); self.threads.min(count)];
        parallel::each(&mut workers, results.iter_mut().enumerate(), |(), (index, result)| {
            *result = Some(task(index));
        });
        results.into_iter().flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use muster_core::aggregate::{Input, block, vector, weights};
    use muster_core::codec::Real;
    use muster_core::manifest::{Aggregation, Rule};

    use super::*;
    use crate::path::paths;

    const RULES: [Rule; 8] = [
        Rule::CenteredClip,
        Rule::Mean,
        Rule::Median,
        Rule::TrimmedMean,
        Rule::GeometricMedian,
        Rule::Krum,
        Rule::MultiKrum,
        Rule::FixedRadiusClip,
    ];

    fn vectors(count: u64, length: u64) -> Vec<Vec<i32>> {
        let value = |i: u64, c: u64| {
            let z = (i << 40 | c).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let z = (z ^ (z >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            ((z >> 32) as u32).cast_signed() >> (8 + i % 9)
        };
        (0..count).map(|i| (0..length).map(|c| value(i, c)).collect()).collect()
    }

    #[test]
    fn every_path_and_number_of_threads_gives_the_bits_of_the_plain_runner() {
        for (count, length, equal) in [(1, 40, true), (7, 1003, false), (9, 300, true), (18, 70_001, false)] {
            let q = vectors(count, length);
            let m: Vec<u32> = (0..count as u32).map(|i| if equal { 6 } else { 1 + i * 5 % 7 }).collect();
            let inputs: Vec<Input<'_>> = q
                .iter()
                .zip(&m)
                .zip(weights(&m, 200_000))
                .map(|((q, m), weight)| Input { q, m: *m, weight })
                .collect();
            for (rule, mixing) in RULES.into_iter().flat_map(|rule| [(rule, false), (rule, true)]) {
                let radius = if rule == Rule::FixedRadiusClip { 1e4 } else { 1.25 };
                let radius = Real::new(radius).unwrap();
                let settings = Aggregation {
                    rule,
                    radius,
                    iterations: 3,
                    cap_ppm: 200_000,
                    assumed_ppm: 300_000,
                    mixing,
                    replicas: 1,
                    result_bits: 4,
                };
                let expected = block(&settings, &inputs).unwrap();
                for path in paths() {
                    for threads in [1, 2] {
                        let workers = Workers::new(threads).along(path).unwrap();
                        let found = vector(&workers, &settings, &inputs).unwrap();
                        assert!(
                            found == expected,
                            "{rule:?}, mixing {mixing}, {count} inputs, {path:?}, {threads} threads"
                        );
                    }
                }
            }
        }
    }
}
