//! What only the steward's `log.jsonl` tells: times, bytes, duties, and what was found in a convict's past.
//!
//! The log is for people. Nothing in it is signed, so that a page names it as the source of what it takes from there.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use muster_core::ids::{MemberId, Round};
use muster_store::regular;

use crate::event::{FoundWord, LogEvent, PastEvent, RoundEvent};
use crate::story::{HarmLine, SampleLine, Story};

/// Bytes of one event that are believed.
const LINE: u64 = 4 << 20;
/// Bytes taken at once, as of [`EVENTS`].
const BYTES: u64 = 64 << 20;
/// Events taken at once: pages wait meanwhile.
const EVENTS: usize = 1_000;

/// The log, read as far as it goes.
pub(crate) struct LogReader {
    path: PathBuf,
    offset: u64,
    /// Within a line that is too long.
    skipping: bool,
    /// Events of rounds whose records were not read yet.
    early: Vec<RoundEvent>,
}

impl LogReader {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, skipping: false, early: Vec::new() }
    }

    /// Takes in what was written since, or a part of it; whether there was anything. Everything that the log speaks of has been
    /// read from records before.
    pub(crate) fn step(&mut self, story: &mut Story) -> bool {
        let mut moved = false;
        for event in std::mem::take(&mut self.early) {
            if is_there(story, event.round) { end_round(story, &event) } else { self.early.push(event) }
        }
        let Ok(mut file) = regular::open(&self.path, u64::MAX) else { return false };
        // A log that was begun anew is shorter.
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        if length < self.offset {
            (self.offset, self.skipping) = (0, false);
            story.forget_log();
        }
        if length == self.offset || file.seek(SeekFrom::Start(self.offset)).is_err() {
            return false;
        }
        let mut lines = BufReader::new(file);
        let (mut line, last) = (Vec::new(), self.offset.saturating_add(BYTES));
        for _ in 0..EVENTS {
            line.clear();
            // A longer line is no event of ours: it is passed over piece by piece, and never held.
            let read = (&mut lines).take(LINE).read_until(b'\n', &mut line).unwrap_or(0) as u64;
            let whole = line.ends_with(b"\n");
            // The end of a line that is being written comes later.
            if read == 0 || !whole && !self.skipping && read < LINE || self.offset >= last {
                return moved;
            }
            self.offset += read;
            moved |= self.skipping;
            if std::mem::replace(&mut self.skipping, !whole) || !whole {
                continue;
            }
            if let Ok(event) = LogEvent::parse(&line) {
                moved = true;
                self.take(event, story);
            }
        }
        moved
    }

    fn take(&mut self, event: LogEvent, story: &mut Story) {
        match event {
            LogEvent::Round(mut event) if !is_there(story, event.round) => {
                // Its record is read a moment later. Duties are many, and true by then.
                story.duties = std::mem::take(&mut event.duties);
                self.early.push(*event);
            }
            LogEvent::Round(mut event) => {
                story.duties = std::mem::take(&mut event.duties);
                end_round(story, &event);
            }
            LogEvent::Audit { member, round, verifier, request } => {
                story.audits.request(request, Round(round), member, verifier);
            }
            LogEvent::Verdict { request, leaves, finding } => {
                story.audits.logged(&request, leaves as u32, finding.as_deref());
            }
            LogEvent::Recomputed { member, round, verifier, finding } => {
                story.audits.recomputed(Round(round), member, verifier, finding.as_deref());
            }
            LogEvent::HeldOut { round, loss } => {
                story.held_out.insert(round, loss);
            }
            LogEvent::Sample { round, prompt, text } => story.sample(round, SampleLine { prompt, text }),
            LogEvent::Retro { member, rounds } => retro(story, member, &rounds),
            LogEvent::Dismissed { round, member, accuser, why } => {
                story.audits.acquit(member, accuser);
                let text = format!("an accusation by {accuser} was dismissed: {why}");
                story.happen(None, round, Some(&member), text);
            }
            LogEvent::Barren { round, why, .. } => {
                story.happen(None, round, None, format!("nobody counted: {why}"));
            }
            LogEvent::Waits { round, why } => {
                story.happen(None, round, None, format!("the round waited: {why}"));
            }
            LogEvent::Held { round, case, member } => {
                let of = if member.is_some() { "an audit of" } else { "a verifier's coin of" };
                let text = format!("the next round waited for {of} round {case}");
                story.happen(None, round, member.as_ref(), text);
            }
            LogEvent::Started { round } => story.restarted(round, None),
            LogEvent::Close { duties, .. } => story.duties = duties,
            // The records tell of these.
            LogEvent::Admit { .. }
            | LogEvent::Ban { .. }
            | LogEvent::Idle { .. }
            | LogEvent::CloseTree { .. }
            | LogEvent::Rewind { .. }
            | LogEvent::Inspected { .. }
            | LogEvent::Moved { .. } => {}
        }
    }
}

fn is_there(story: &Story, round: u32) -> bool {
    story.rounds.last().is_some_and(|last| last.round >= round)
}

fn end_round(story: &mut Story, event: &RoundEvent) {
    let Some(line) = story.rounds.iter_mut().rev().find(|line| line.round == event.round) else { return };
    line.bytes = Some(event.bytes);
    let stage = |name: &str| event.stages.get(name).copied();
    let phases = &mut line.phases;
    // The steward knows these best; it was there from the beginning.
    phases.seconds = Some(event.seconds);
    phases.freeze = stage("freeze").or(phases.freeze);
    phases.inputs = stage("inputs").or(phases.inputs);
    phases.results = stage("results").or(phases.results);
}

fn retro(story: &mut Story, member: MemberId, rounds: &[PastEvent]) {
    for past in rounds {
        let wrong_parts = past.parts.iter().filter(|part| part.found == FoundWord::False);
        let mut wrong: Vec<String> = wrong_parts.map(|part| format!("part {}", part.part)).collect();
        if past.found == Some(FoundWord::False) {
            wrong.insert(0, "its contribution".into());
        }
        if !wrong.is_empty() {
            story.harm.push(HarmLine {
                member: format!("{member:#}"),
                round: past.round,
                wrong: wrong.join(", "),
                moved: past.harm,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;

    use super::*;
    use crate::event::LOG;

    /// The most memory that this process has had, in bytes.
    #[cfg(target_os = "linux")]
    fn peak() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    #[test]
    fn samples_and_starts_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(LOG);
        let sample =
            |round| LogEvent::Sample { round, prompt: "Once".into(), text: format!(" upon a {round}") };
        let lines: String = (0..100).map(|round| sample(round).line(None)).collect();
        fs::write(&path, lines + &LogEvent::Started { round: 7 }.line(None)).unwrap();
        let (mut reader, mut story) = (LogReader::new(path), Story::default());
        while reader.step(&mut story) {}
        assert_eq!(story.restarts, [(7, None)]);
        let rounds: Vec<u32> = story.samples.keys().copied().collect();
        assert_eq!((rounds.len(), rounds[0], story.samples[&99].text.as_str()), (64, 36, " upon a 99"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_line_without_end_takes_no_memory_and_hides_no_event_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(LOG);
        let event = b"{\"event\": \"held-out\", \"round\": 7, \"loss\": 2.5}\n";
        fs::write(&path, event).unwrap();
        let mut file = File::options().append(true).open(&path).unwrap();
        // A hole: it takes no room where it lies.
        file.set_len(1 << 30).unwrap();
        file.write_all(&[b"\n", &event[..]].concat()).unwrap();
        let (mut reader, mut story, before) = (LogReader::new(path), Story::default(), peak());
        let (mut steps, mut seen) = (0, 0);
        while reader.step(&mut story) {
            steps += 1;
            seen += usize::from(story.held_out.remove(&7).is_some());
        }
        assert_eq!(seen, 2, "the event before the line, and the one behind it");
        assert!(steps > 4, "pages wait for no more than a part of it: {steps}");
        assert_eq!(reader.offset, (1 << 30) + 1 + event.len() as u64, "all of it was read");
        assert!(peak() - before < 64 << 20, "{} bytes", peak() - before);
    }
}
