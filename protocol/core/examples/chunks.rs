//! Nanoseconds a coefficient of the encoding of chunks (COMMIT-6), by width, beside a copy of the integers.
//!
//! `cargo run --release -p muster-core --example chunks`
#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use muster_core::contribution::{chunk_bytes, chunk_values};
use muster_core::limits::CHUNK_COEFFICIENTS;

/// The least of many turns: whatever else the machine does makes a turn longer.
fn nanoseconds(mut turn: impl FnMut()) -> f64 {
    let turns = (0..400).map(|_| {
        let begun = Instant::now();
        turn();
        begun.elapsed().as_nanos() as f64
    });
    turns.fold(f64::INFINITY, f64::min) / CHUNK_COEFFICIENTS as f64
}

fn main() {
    println!("{:>5} {:>8} {:>8} {:>8}", "bits", "write", "read", "copy");
    for width in (2..=32u32).step_by(2) {
        let most = 1i64 << (width - 1);
        let value = |place: usize| (place as i64 * 2_654_435_761 % (2 * most) - most) as i32;
        let values: Vec<i32> = (0..CHUNK_COEFFICIENTS).map(value).collect();
        let bytes = chunk_bytes(&values);
        assert_eq!(u32::from(bytes[0]), width, "as wide as it should be");
        let write = nanoseconds(|| drop(black_box(chunk_bytes(black_box(&values)))));
        let mut room = Vec::with_capacity(values.len());
        let read = nanoseconds(|| {
            room.clear();
            chunk_values(black_box(&bytes), values.len(), &mut room).expect("an encoding");
            black_box(&room);
        });
        let mut target = vec![0; values.len()];
        let copy = nanoseconds(|| black_box(&mut target).copy_from_slice(black_box(&values)));
        println!("{width:>5} {write:>8.2} {read:>8.2} {copy:>8.2}");
    }
}
