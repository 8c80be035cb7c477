//! What only the steward's `log.jsonl` tells: times, bytes, duties, and what was found in a convict's past.
//!
//! The log is for people. Nothing in it is signed, so that a page names it as the source of what it takes from there.

use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;

use muster_core::ids::{Digest, MemberId, Round, unhex};
use muster_store::regular;
use serde_json::Value;

use crate::story::{HarmLine, Story};

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
    early: Vec<Value>,
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
            self.take(event, story);
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
            if let Ok(event) = serde_json::from_slice(&line) {
                moved = true;
                self.take(event, story);
            }
        }
        moved
    }

    fn take(&mut self, event: Value, story: &mut Story) {
        let number = |name: &str| event.get(name).and_then(Value::as_u64);
        let member = |name: &str| event.get(name).and_then(Value::as_str).and_then(unhex::<32>).map(MemberId);
        let round = number("round").unwrap_or(0) as u32;
        let words = |name: &str| event.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        match event.get("event").and_then(Value::as_str).unwrap_or_default() {
            "round" if !is_there(story, round) => {
                // Its record is read a moment later. Duties are many, and true by then.
                duties(story, &event);
                let kept = ["event", "round", "seconds", "stages", "bytes"];
                let kept =
                    kept.iter().filter_map(|name| Some(((*name).to_owned(), event.get(*name)?.clone())));
                self.early.push(Value::Object(kept.collect()));
            }
            "round" => end_round(story, round, &event),
            "audit" => {
                let request = words("request");
                let request = unhex::<32>(&request).map(Digest);
                if let (Some(request), Some(member), Some(verifier)) =
                    (request, member("member"), member("verifier"))
                {
                    story.audits.request(request, Round(round), member, verifier);
                }
            }
            "verdict" => {
                if let Some(request) = unhex::<32>(&words("request")).map(Digest) {
                    let leaves = number("leaves").unwrap_or(0) as u32;
                    story.audits.logged(&request, leaves, event.get("finding").and_then(Value::as_str));
                }
            }
            "recomputed" => {
                if let (Some(member), Some(verifier)) = (member("member"), member("verifier")) {
                    let finding = event.get("finding").and_then(Value::as_str);
                    story.audits.recomputed(Round(round), member, verifier, finding);
                }
            }
            "held-out" => {
                if let Some(loss) = event.get("loss").and_then(Value::as_f64) {
                    story.held_out.insert(round, loss);
                }
            }
            "retro" => retro(story, &event),
            "dismissed" => {
                let who = member("accuser").map_or_else(String::new, |accuser| format!(" by {accuser}"));
                let text = format!("an accusation{who} was dismissed: {}", words("why"));
                if let (Some(member), Some(accuser)) = (member("member"), member("accuser")) {
                    story.audits.acquit(member, accuser);
                }
                story.happen(None, round, member("member").as_ref(), text);
            }
            "barren" => story.happen(None, round, None, format!("nobody counted: {}", words("why"))),
            "waits" => story.happen(None, round, None, format!("the round waited: {}", words("why"))),
            "held" => {
                let target = member("member");
                let of = if target.is_some() { "an audit of" } else { "a verifier's coin of" };
                let text = format!("the next round waited for {of} round {}", number("case").unwrap_or(0));
                story.happen(None, round, target.as_ref(), text);
            }
            "close" => duties(story, &event),
            _ => {}
        }
    }
}

fn is_there(story: &Story, round: u32) -> bool {
    story.rounds.last().is_some_and(|last| last.round >= round)
}

fn end_round(story: &mut Story, round: u32, event: &Value) {
    duties(story, event);
    let Some(line) = story.rounds.iter_mut().rev().find(|line| line.round == round) else { return };
    line.bytes = event.get("bytes").and_then(Value::as_u64);
    let seconds = |value: Option<&Value>| value.and_then(Value::as_f64);
    let stage = |name: &str| seconds(event.get("stages").and_then(|stages| stages.get(name)));
    let phases = &mut line.phases;
    // The steward knows these best; it was there from the beginning.
    phases.seconds = seconds(event.get("seconds")).or(phases.seconds);
    phases.freeze = stage("freeze").or(phases.freeze);
    phases.inputs = stage("inputs").or(phases.inputs);
    phases.results = stage("results").or(phases.results);
}

fn duties(story: &mut Story, event: &Value) {
    let Some(duties) = event.get("duties") else { return };
    if let Ok(duties) = serde_json::from_value(duties.clone()) {
        story.duties = duties;
    }
}

fn retro(story: &mut Story, event: &Value) {
    let member = event.get("member").and_then(Value::as_str).unwrap_or_default();
    let Some(rounds) = event.get("rounds").and_then(Value::as_array) else { return };
    for past in rounds {
        let is_false = |value: Option<&Value>| value.and_then(Value::as_str) == Some("false");
        let parts = past.get("parts").and_then(Value::as_array).into_iter().flatten();
        let wrong_parts = parts.filter(|part| is_false(part.get("found")));
        let mut wrong: Vec<String> =
            wrong_parts.map(|part| format!("part {}", part.get("part").unwrap_or(&Value::Null))).collect();
        if is_false(past.get("found")) {
            wrong.insert(0, "its contribution".into());
        }
        if !wrong.is_empty() {
            story.harm.push(HarmLine {
                member: member.to_owned(),
                round: past.get("round").and_then(Value::as_u64).unwrap_or(0) as u32,
                wrong: wrong.join(", "),
                moved: past.get("harm").and_then(Value::as_f64),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Write;

    use super::*;

    /// The most memory that this process has had, in bytes.
    #[cfg(target_os = "linux")]
    fn peak() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_line_without_end_takes_no_memory_and_hides_no_event_behind_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.jsonl");
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
