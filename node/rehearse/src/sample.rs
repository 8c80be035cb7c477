//! A sample of what was trained.

use std::path::Path;

use muster_compute::Exact;
use muster_core::manifest::DataFile;
use muster_organise::checkpoint::Checkpoint;
use muster_organise::generate::{Sampling, Words, Writer, read_of};
use muster_replica::archive::Archive;
use muster_replica::exit::Outcome;

use super::rehearsal::Rehearsal;

/// What a model of Rust sources is asked to continue.
const RUST_PROMPT: &str = "    pub fn new(";
/// Characters of the held-out text that another model is asked to continue.
const SAMPLE_PROMPT: usize = 48;
const SAMPLE_TOKENS: usize = 320;

/// The model's continuation of a prompt; nothing if it does not predict the next token.
pub(super) fn sample(rehearsal: &Rehearsal, folder: &Path, archive: &Archive) -> Outcome<String> {
    if archive.manifest.model.decoder().is_none() {
        return Ok(String::new());
    }
    // A character has 4 bytes at most.
    let held_out = archive.dataset.read(DataFile::HeldOut, 0..4 * SAMPLE_PROMPT as u64)?;
    let first: String = String::from_utf8_lossy(&held_out).chars().take(SAMPLE_PROMPT).collect();
    let prompt = if rehearsal.text.is_empty() { RUST_PROMPT } else { &first };
    let mut exact = Exact::new(1, None)?;
    let checkpoint = Checkpoint::open(folder, None, &mut exact)?;
    let mut text = String::new();
    let mut show = |piece: &str| {
        text.push_str(piece);
        true
    };
    let words = Words::of(&checkpoint.manifest, &checkpoint.folder, None)?;
    let parameters = checkpoint.path(checkpoint.best_row(&words.prompt(prompt)?)?)?;
    let mut reader = exact.reader(&checkpoint.manifest, &parameters);
    let mut after = |text: &[u32]| Ok(reader.after(read_of(&checkpoint.manifest, text)));
    let mut writer = Writer::new(&checkpoint.manifest, &words, Sampling::default())?;
    writer.read(prompt)?;
    writer.write(SAMPLE_TOKENS, &mut after, &mut show)?;
    let shown = format!("{prompt}{text}");
    let lines: Vec<String> = shown.lines().map(|line| format!("  | {line}\n")).collect();
    Ok(format!("\nwhat the model continues {prompt:?} with:\n{}\n", lines.concat()))
}
