//! Whether a run fits into this machine's memory, known before any is asked for.
//!
//! What is counted grows with the model and is certainly taken, parameters that were given included; the text, and what is under way for others, comes on
//! top. So nothing is refused that could have gone well, swap included.

use std::fs;

use muster_compute::{Machine, buffers};
use muster_core::error::Misuse;
use muster_core::manifest::{DataFile, Manifest};

use crate::results::ROUNDS;

/// Bytes that following a run takes: the state with its moments, the parameters of the states that are kept, results,
/// and the arithmetic on so many threads.
pub fn following(manifest: &Manifest, threads: usize) -> u64 {
    let Manifest { training, retention, data, .. } = manifest;
    // To go back to a state takes its moments, too.
    let whole = if manifest.rollback.is_on() { 3 } else { 1 };
    let kept = whole * u64::from(retention.states.min(training.rounds));
    let given = data.file_bytes(DataFile::Parameters);
    let results = (ROUNDS as u64).min(u64::from(training.rounds));
    // Parameters, two moments, the snapshot, and the update that is applied.
    vectors(manifest, 5 + kept + results).saturating_add(given).saturating_add(buffers(
        &manifest.model,
        training,
        threads,
    ))
}

/// Bytes that a node takes: following, contributions that are kept for audits, a leaf and the sum under way, and what
/// computes leaves.
pub fn contributing(manifest: &Manifest, machine: &Machine) -> u64 {
    let Manifest { training, retention, .. } = manifest;
    let threads = machine.threads;
    let kept = retention.states.min(retention.contributions).min(training.rounds);
    following(manifest, threads)
        .saturating_add(vectors(manifest, 2 + u64::from(kept)))
        .saturating_add(machine.buffers(manifest))
}

/// Bytes of so many vectors of the model's shape.
fn vectors(manifest: &Manifest, count: u64) -> u64 {
    manifest.model.parameters().saturating_mul(4).saturating_mul(count)
}

/// Refuses what this machine cannot give.
///
/// # Errors
/// [`Misuse`] naming both sizes.
pub fn check(needed: u64) -> Result<(), Misuse> {
    match available() {
        Some(available) if needed > available => Err(Misuse(format!(
            "this run takes at least {} of memory here, this machine has {} left; end other programs, use fewer \
             --threads, or take part with a larger machine",
            shown(needed),
            shown(available)
        ))),
        _ => Ok(()),
    }
}

/// Bytes in units that people read.
pub fn shown(bytes: u64) -> String {
    let (gibibyte, mebibyte) = (f64::from(1 << 30), f64::from(1 << 20));
    let bytes = bytes as f64;
    if bytes < gibibyte {
        format!("{:.0} MiB", bytes / mebibyte)
    } else {
        format!("{:.1} GiB", bytes / gibibyte)
    }
}

/// Bytes that this process can still get, swap included, where Linux tells.
pub fn available() -> Option<u64> {
    let free = free(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok();
    let limit = limit.and_then(|limit| limit.trim().parse().ok());
    Some(limit.map_or(free, |limit| free.min(limit)))
}

fn free(meminfo: &str) -> Option<u64> {
    let of = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.saturating_mul(1024))
    };
    Some(of("MemAvailable")?.saturating_add(of("SwapFree").unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_read() {
        let text = "MemTotal:       16000000 kB\nMemAvailable:    1000 kB\nSwapFree:   24 kB\n";
        assert_eq!(free(text), Some(1024 * 1024));
        assert_eq!(free("MemAvailable: 2 kB"), Some(2048));
        assert_eq!(free("MemAvailable: many"), None);
    }

    #[test]
    fn a_refusal_names_both_sizes() {
        check(0).unwrap();
        if let Some(available) = available() {
            let why = check(u64::MAX).unwrap_err().to_string();
            assert!(why.contains("GiB of memory") && available < u64::MAX, "{why}");
        }
    }
}
