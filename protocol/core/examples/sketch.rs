//! Speed of the sketches of an audit: nanoseconds of one thread for a coefficient.
//!
//! `cargo run --release -p muster-core --example sketch -- [millions of coefficients]`; the best of all turns. Beside the
//! projections stand their parts: the words of signs alone, and the definition in 64-bit lanes.
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use muster_core::ids::Digest;
use muster_core::sketch::{fingerprint, points, projection::projections};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

const TURNS: usize = 7;

fn main() {
    let millions: usize = std::env::args().nth(1).and_then(|word| word.parse().ok()).unwrap_or(4);
    let d = millions.max(1) << 20;
    let q: Vec<i32> = (0..d as u32).map(|c| (c.wrapping_mul(2_654_435_761) as i32) >> 20).collect();
    let groups = [0..d / 2, d / 2..d];
    let seed = Digest([7; 32]);
    let mut best = [f64::INFINITY; 4];
    for _ in 0..TURNS {
        let cases: [&dyn Fn() -> Vec<i64>; 4] = [
            &|| projections(&seed, &groups, 0, &q),
            &|| vec![words(&seed, d) as i64],
            &|| plain(&seed, &q),
            &|| fingerprint(points(&seed), &q).map(u64::cast_signed).to_vec(),
        ];
        for (best, case) in best.iter_mut().zip(cases) {
            let begun = Instant::now();
            black_box(case());
            *best = best.min(begun.elapsed().as_secs_f64() / d as f64 * 1e9);
        }
    }
    for (name, ns) in
        ["64 projections", "their signs", "by the definition", "fingerprint"].into_iter().zip(best)
    {
        println!("{name:18} {ns:6.2} ns");
    }
    println!("ratio of the definition to the projections: {:.2}", best[2] / best[0]);
}

fn words(seed: &Digest, d: usize) -> u64 {
    let mut stream = ChaCha8Rng::from_seed(seed.0);
    let mut words = [0; 4096];
    (0..d / 512).fold(0, |sum, _| {
        stream.fill_bytes(&mut words);
        sum ^ u64::from(words[0])
    })
}

/// One group by the definition, in vector code of 64-bit lanes.
fn plain(seed: &Digest, q: &[i32]) -> Vec<i64> {
    let mut stream = ChaCha8Rng::from_seed(seed.0);
    let (mut words, mut sums) = ([0; 512], [0; 64]);
    for stretch in q.chunks(512) {
        words.iter_mut().for_each(|word| *word = stream.next_u64());
        pulp::Arch::new().dispatch(|| add(&words, stretch, &mut sums));
    }
    sums.to_vec()
}

#[inline(always)]
fn add(words: &[u64], stretch: &[i32], sums: &mut [i64; 64]) {
    for (word, q) in words.iter().zip(stretch) {
        let q = i64::from(*q);
        for (bit, sum) in sums.iter_mut().enumerate() {
            let negative = -((word >> bit & 1) as i64);
            *sum = sum.wrapping_add((q ^ negative).wrapping_sub(negative));
        }
    }
}
