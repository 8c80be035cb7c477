//! What packing and opening a long text takes of the memory. A program of its own: the largest size is that of the process.
#![allow(clippy::unwrap_used)]
#![cfg(target_os = "linux")]

use std::fs;

use muster_core::manifest::DataFile;
use muster_store::dataset::{Dataset, SourceText, pack};
use muster_store::error::Result;

/// Texts, and bytes of each.
const TEXTS: u64 = 64;
const LENGTH: usize = 4 << 20;

/// The largest size of this process so far, in bytes.
fn largest() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn a_text_of_256_mib_is_packed_and_read_in_a_tenth_of_its_memory() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("corpus");
    let text = |number: u64| -> Result<SourceText> {
        let bytes = (0..LENGTH as u64).map(|place| b'a' + ((place + number) / 7 % 26) as u8).collect();
        Ok(SourceText { name: number.to_string(), bytes })
    };
    let data = pack((0..TEXTS).map(text), [text(TEXTS)], &out, &mut |_| ()).unwrap();
    let dataset = Dataset::open(&out, &data).unwrap();
    assert_eq!(data.bytes, TEXTS * (LENGTH as u64 + 1));
    for window in (0..data.bytes / 1024 - 1).step_by(977) {
        let tokens = dataset.window(window, 1024).unwrap();
        let bytes = dataset.read(DataFile::Training, window * 1024..window * 1024 + 1025).unwrap();
        assert!(tokens.iter().copied().eq(bytes.into_iter().map(u32::from)));
    }
    let taken = largest();
    println!("{} MiB at most", taken >> 20);
    assert!(taken < data.bytes / 10, "{taken} bytes of memory for a text of {}", data.bytes);
}
