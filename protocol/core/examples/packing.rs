//! Nanoseconds a coefficient of packing a chunk and of reading it, by the width: `cargo run --release -p muster-core
//! --example packing`.

use std::hint::black_box;
use std::time::Instant;

use muster_core::limits::CHUNK_COEFFICIENTS;
use muster_core::packing::{pack, unpack};
use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

const REPEATS: u32 = 400;

#[allow(clippy::print_stdout)]
fn main() {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    for width in [0, 1, 2, 3, 4, 6, 7, 8, 11, 12, 16, 20, 24, 32] {
        let draw = |word: u32| if width == 0 { 0 } else { word as i32 >> (32 - width) };
        let values: Vec<i32> = (0..CHUNK_COEFFICIENTS).map(|_| draw(random.next_u32())).collect();
        let bytes = pack(&values);
        let mut read = Vec::with_capacity(values.len());
        let packing = time(|| drop(black_box(pack(black_box(&values)))));
        let reading = time(|| {
            read.clear();
            unpack(black_box(&bytes), values.len(), &mut read).expect("what was packed");
            black_box(&read);
        });
        println!("{width} bits: {packing:.2} ns to pack, {reading:.2} ns to read");
    }
}

/// Nanoseconds a coefficient, the least of several turns.
fn time(mut work: impl FnMut()) -> f64 {
    let turn = |work: &mut dyn FnMut()| {
        let begun = Instant::now();
        (0..REPEATS).for_each(|_| work());
        begun.elapsed().as_nanos() as f64 / f64::from(REPEATS) / CHUNK_COEFFICIENTS as f64
    };
    (0..5).map(|_| turn(&mut work)).fold(f64::INFINITY, f64::min)
}
