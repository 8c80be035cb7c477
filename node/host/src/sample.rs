//! What the model writes, now and then, for those who watch a run.

use std::path::Path;
use std::sync::Arc;

use muster_compute::Exact;
use muster_core::ids::Round;
use muster_core::manifest::{DataFile, Manifest, Tokeniser};
use muster_organise::generate::{Sampling, Words, Writer, read_of};
use muster_replica::HeldOutState;
use muster_view::event::LogEvent;

use super::court::Court;

/// Tokens of a sample.
const TOKENS: usize = 160;
/// Samples of a run, about.
const SAMPLES: u32 = 16;
/// Characters of the held-out text that are continued.
const PROMPT: usize = 40;
/// Parameters of a model that writes beside a run: a larger one would take too long for a thread.
const WRITING: u64 = 20_000_000;

/// Has the model write.
pub(super) struct Sampler {
    manifest: Arc<Manifest>,
    words: Words,
    prompt: String,
    /// The round from which on the next sample is due.
    due: u32,
}

impl Sampler {
    /// Of a run; none where the model does not continue texts, or is too large or too scattered to do so on the side.
    pub(super) fn of(court: &Court, folder: &Path) -> Option<Self> {
        let manifest = court.manifest.clone();
        let small = manifest.model.parameters() <= WRITING && manifest.model.rows() == 1;
        manifest.model.decoder().filter(|_| small)?;
        let words = Words::of(&manifest, folder, None);
        let words = words.inspect_err(|error| tracing::warn!("pages show no samples: {error}")).ok()?;
        // A character has 4 bytes at most.
        let held_out = court.dataset.read(DataFile::HeldOut, 0..4 * PROMPT as u64).ok()?;
        let prompt = match manifest.data.tokeniser {
            Tokeniser::Bytes => String::from_utf8_lossy(&held_out).chars().take(PROMPT).collect(),
            Tokeniser::File(_) => String::new(),
        };
        Some(Self { manifest, words, prompt, due: 0 })
    }

    /// What a model writes, if a sample is due: now and then, and at the end.
    pub(super) fn write(&mut self, state: &HeldOutState) -> Option<LogEvent> {
        let round = state.round;
        if round.0 < self.due && round.0 != self.manifest.training.rounds {
            return None;
        }
        self.due = self.next(round);
        let mut exact = Exact::new(1, None).ok()?;
        let mut reader = exact.reader(&self.manifest, state.parameters());
        let mut after = |text: &[u32]| Ok(reader.after(read_of(&self.manifest, text)));
        let mut text = String::new();
        let mut show = |piece: &str| {
            text.push_str(piece);
            true
        };
        let writer = Writer::new(&self.manifest, &self.words, Sampling::default());
        let written = writer.and_then(|mut writer| {
            writer.read(&self.prompt)?;
            writer.write(TOKENS, &mut after, &mut show)
        });
        written.inspect_err(|error| tracing::warn!("no sample: {error}")).ok()?;
        Some(LogEvent::Sample { round: round.0, prompt: self.prompt.clone(), text })
    }

    fn next(&self, round: Round) -> u32 {
        (round.0 + 1).next_multiple_of((self.manifest.training.rounds / SAMPLES).max(1))
    }
}
