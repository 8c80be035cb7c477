//! Robust rules on demand, for `rules.py`: `bench-rules FILE INPUTS LENGTH THREADS LEAVES [PATH]`, then a task a line.
//!
//! FILE holds the inputs one after the other as little-endian 32-bit integers, each a sum of LEAVES. A task is
//! `rule mixing assumed_ppm radius iterations output`; `output` is a file for the f32 values, or `-`. The answer is a
//! line of JSON with the seconds that the rule took.

use std::io::BufRead;
use std::process::ExitCode;
use std::time::Instant;

use muster_compute::{Path, Workers};
use muster_core::aggregate::{Input, vector, weights};
use muster_core::codec::Real;
use muster_core::manifest::{Aggregation, Rule};

struct Setting {
    inputs: Vec<Vec<i32>>,
    leaves: u32,
    workers: Workers,
}

fn main() -> ExitCode {
    let Some(setting) = setting() else {
        return ExitCode::FAILURE;
    };
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some(()) = parse(&words).and_then(|(settings, output)| answer(&setting, &settings, output))
        else {
            return ExitCode::FAILURE;
        };
    }
    ExitCode::SUCCESS
}

fn setting() -> Option<Setting> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [file, count, length, threads, leaves, path @ ..] = &words[..] else { return None };
    let (count, length) = (count.parse::<usize>().ok()?, length.parse::<usize>().ok()?);
    let mut workers = Workers::new(threads.parse().ok()?);
    if let Some(path) = path.first() {
        workers = workers.along(Path::parse(path).ok()?).ok()?;
    }
    let bytes = std::fs::read(file).ok().filter(|bytes| bytes.len() == 4 * count * length)?;
    let integers =
        |row: &[u8]| row.as_chunks::<4>().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
    let inputs = bytes.chunks_exact(4 * length.max(1)).map(integers).collect();
    Some(Setting { inputs, leaves: leaves.parse().ok()?, workers })
}

fn parse<'a>(words: &[&'a str]) -> Option<(Aggregation, &'a str)> {
    let [rule, mixing, assumed, radius, iterations, output] = words[..] else { return None };
    let rule = match rule {
        "centered-clip" => Rule::CenteredClip,
        "mean" => Rule::Mean,
        "median" => Rule::Median,
        "trimmed-mean" => Rule::TrimmedMean,
        "geometric-median" => Rule::GeometricMedian,
        "krum" => Rule::Krum,
        "multi-krum" => Rule::MultiKrum,
        "fixed-radius-clip" => Rule::FixedRadiusClip,
        _ => return None,
    };
    let settings = Aggregation {
        rule,
        radius: Real::new(radius.parse().ok()?).ok()?,
        iterations: iterations.parse().ok()?,
        cap_ppm: 1_000_000,
        assumed_ppm: assumed.parse().ok()?,
        mixing: mixing == "1",
        replicas: 1,
        result_bits: 4,
    };
    Some((settings, output))
}

#[allow(clippy::print_stdout)]
fn answer(setting: &Setting, settings: &Aggregation, output: &str) -> Option<()> {
    let m = vec![setting.leaves; setting.inputs.len()];
    let shares = setting.inputs.iter().zip(weights(&m, settings.cap_ppm));
    let inputs: Vec<Input<'_>> = shares.map(|(q, weight)| Input { q, m: setting.leaves, weight }).collect();
    let begun = Instant::now();
    let aggregate = vector(&setting.workers, settings, &inputs)?;
    let seconds = begun.elapsed().as_secs_f64();
    if output != "-" {
        let bytes: Vec<u8> = aggregate.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        std::fs::write(output, bytes).ok()?;
    }
    println!("{{\"seconds\": {seconds:e}}}");
    Some(())
}
