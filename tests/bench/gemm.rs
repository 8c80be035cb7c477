//! Matrix products on demand, for `gemm.py`: each line of the input is a task, each line of the output its seconds.
//!
//! A task is `path threads rows columns depth left right repeats`, where left and right are `n` or `t` (stored
//! transposed). Threads take disjoint columns of the output and meet after every product, which packs both factors.

use std::io::BufRead;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use muster_compute::Path;
use muster_compute::measure::{MatrixBenchmark, Strided};

struct Task {
    path: Path,
    threads: usize,
    size: [usize; 3],
    transposed: [bool; 2],
    repeats: usize,
}

fn main() -> ExitCode {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Some(task) = parse(&line) else {
            return ExitCode::FAILURE;
        };
        answer(&task);
    }
    ExitCode::SUCCESS
}

fn parse(line: &str) -> Option<Task> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [path, threads, rows, columns, depth, left, right, repeats] = words[..] else { return None };
    let number = |word: &str| word.parse::<usize>().ok().filter(|number| *number > 0);
    Some(Task {
        path: Path::parse(path).ok()?,
        threads: number(threads)?,
        size: [number(rows)?, number(columns)?, number(depth)?],
        transposed: [left == "t", right == "t"],
        repeats: number(repeats)?,
    })
}

#[allow(clippy::print_stdout)]
fn answer(task: &Task) {
    let [rows, columns, depth] = task.size;
    let value = |place: usize| (place * 2_654_435_761 % 1021) as f32 / 510.0 - 1.0;
    let left: Vec<f32> = (0..rows * depth).map(value).collect();
    let right: Vec<f32> = (0..columns * depth).map(|place| value(place + 7)).collect();
    let arrived = AtomicUsize::new(0);
    let part = |thread: usize| work(task, &left, &right, thread, &arrived);
    let seconds = std::thread::scope(|scope| {
        for thread in 1..task.threads {
            let part = &part;
            scope.spawn(move || part(thread));
        }
        part(0)
    });
    println!("{seconds:e}");
}

/// One thread's share of a task; returns the seconds of all repeats.
fn work(task: &Task, left: &[f32], right: &[f32], thread: usize, arrived: &AtomicUsize) -> f64 {
    let [rows, columns, depth] = task.size;
    let (first, last) = (columns * thread / task.threads, columns * (thread + 1) / task.threads);
    let [left_transposed, right_transposed] = task.transposed;
    let left = if left_transposed { (left, 1, rows) } else { (left, depth, 1) };
    let right =
        if right_transposed { (&right[first * depth..], 1, depth) } else { (&right[first..], columns, 1) };
    let [left, right] = [left, right].map(|(data, row, column)| Strided { data, row, column });
    let mut out = vec![0.0; rows * (last - first)];
    let mut products = MatrixBenchmark::new(task.path).expect("a path of this processor");
    let mut run = || products.multiply(left, right, [rows, last - first, depth], &mut out);
    let meet = |round: usize| {
        arrived.fetch_add(1, Ordering::AcqRel);
        let mut turns = 0u32;
        while arrived.load(Ordering::Acquire) < round * task.threads {
            turns += 1;
            if turns > 10_000 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    };
    run();
    meet(1);
    let begun = Instant::now();
    for repeat in 0..task.repeats {
        run();
        meet(repeat + 2);
    }
    begun.elapsed().as_secs_f64()
}
