//! Speed of every kernel but the products, along every path of this processor, beside a plain copy.
//!
//! `cargo run --release -p muster-compute --example elementwise -- [rows] [width]`. Paths take turns; each figure is
//! the best of all turns.
#![allow(clippy::print_stdout)]

use std::time::Instant;

use muster_compute::measure::elementwise;
use muster_compute::paths;

const TURNS: usize = 15;

fn main() {
    let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let (rows, width) =
        (numbers.first().copied().unwrap_or(256).max(1), numbers.get(1).copied().unwrap_or(1024).max(64));
    let paths = paths();
    let of_path = |path| elementwise(path, rows, width).expect("a path of this processor");
    let mut cases: Vec<_> = paths.iter().map(|path| of_path(*path)).collect();
    println!("{rows} rows of {width}; ns/element and GB/s");
    print!("{:22}", "");
    paths.iter().for_each(|path| print!("{:>20}", path.name()));
    println!();
    for index in 0..cases[0].len() {
        let mut best = vec![f64::INFINITY; paths.len()];
        for _ in 0..TURNS {
            for (best, cases) in best.iter_mut().zip(&mut cases) {
                let begun = Instant::now();
                (cases[index].run)();
                *best = best.min(begun.elapsed().as_secs_f64());
            }
        }
        print!("{:22}", cases[0][index].name);
        for seconds in best {
            let each = seconds / (rows * width) as f64;
            print!("{:>12.3}{:>8.1}", each * 1e9, cases[0][index].bytes as f64 / each / 1e9);
        }
        println!();
    }
}
