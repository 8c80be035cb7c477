//! What the steward reports while a run goes on: the lines of `log.jsonl` as they come.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use muster_core::ids::MemberId;
use muster_replica::exit::{Failure, Outcome};
use muster_show::progress::ProgressDisplay;
use muster_view::event::{LOG, LogEvent, RoundEvent};
use muster_view::story::DutyLine;
use muster_view::words::counted;
use serde::{Deserialize, Serialize};

use super::cast::Player;

/// Lines that tell of rounds, about.
const LINES: u64 = 8;

/// A finished round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RoundFact {
    /// Its number.
    pub(super) round: u32,
    /// Mean loss of its leaves, in nats per token.
    pub(super) loss: f64,
    /// How long it took.
    pub(super) seconds: f64,
    /// Bytes of contributions and results that members exchanged.
    pub(super) bytes: u64,
}

/// The state went back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RewindFact {
    /// The first round that was taken back.
    pub(super) to: u32,
    /// The first one after it.
    pub(super) next: u32,
}

/// The reports so far.
pub(super) struct Live {
    /// Rounds that are over.
    pub(super) rounds: Vec<RoundFact>,
    /// Audits that were begun: of whose contribution to which round.
    pub(super) audits: Vec<(String, u32)>,
    /// Times that the state went back, in order.
    pub(super) rewinds: Vec<RewindFact>,
    /// How often verifiers were sealed as idle, by their ids.
    pub(super) idles: BTreeMap<String, u32>,
    /// Whether the run is over.
    pub(super) closed: bool,
    /// Duties of the verifiers by their ids, once the run is over.
    pub(super) duties: BTreeMap<String, DutyLine>,
    path: PathBuf,
    file: Option<BufReader<File>>,
    /// The beginning of a line that is still being written.
    line: String,
    total: u64,
    drawn: bool,
}

impl Live {
    /// Of the run in this folder.
    pub(super) fn new(folder: &Path, drawn: bool) -> Self {
        let manifest = muster_organise::invite::read_manifest(folder);
        Self {
            rounds: Vec::new(),
            audits: Vec::new(),
            rewinds: Vec::new(),
            idles: BTreeMap::new(),
            closed: false,
            duties: BTreeMap::new(),
            path: folder.join(LOG),
            file: None,
            line: String::new(),
            total: manifest.map_or(0, |manifest| u64::from(manifest.training.rounds)),
            drawn,
        }
    }

    /// Takes in one line and shows it; whether there was one.
    ///
    /// # Errors
    /// [`Failure`] when the file cannot be read.
    pub(super) fn read(&mut self, players: &[Player], progress: &ProgressDisplay) -> Outcome<bool> {
        let failed =
            |error| Failure::environment(format!("{}: cannot be read ({error})", self.path.display()));
        let file = match &mut self.file {
            Some(file) => file,
            None if !self.path.exists() => return Ok(false),
            none => none.insert(BufReader::new(File::open(&self.path).map_err(failed)?)),
        };
        file.read_line(&mut self.line).map_err(failed)?;
        if !self.line.ends_with('\n') {
            return Ok(false);
        }
        let line = std::mem::take(&mut self.line);
        let event = LogEvent::parse(line.as_bytes())
            .map_err(|error| Failure::environment(format!("{}: {error} in {line}", self.path.display())))?;
        self.take(event, players, progress);
        Ok(true)
    }

    fn take(&mut self, event: LogEvent, players: &[Player], progress: &ProgressDisplay) {
        match event {
            LogEvent::Round(event) => {
                let done = u64::from(event.round) + 1;
                if self.drawn || told(done, self.total) {
                    progress.round(done, self.total, &self.words(&event));
                }
                let RoundEvent { round, loss, seconds, bytes, .. } = *event;
                self.rounds.push(RoundFact { round, loss, seconds, bytes });
            }
            LogEvent::Ban { member, round, effective, finding, accuser, .. } => {
                let names = names(players);
                let name = |id: MemberId| {
                    let id = format!("{id:#}");
                    names.get(&id).cloned().unwrap_or(id)
                };
                progress.line(&format!(
                    "{} is banned from round {effective} on: {finding} in round {round}, found by {}",
                    name(member),
                    name(accuser)
                ));
            }
            LogEvent::Audit { member, round, .. } => self.audits.push((format!("{member:#}"), round)),
            LogEvent::Rewind { to, next, .. } => {
                progress
                    .line(&format!("the state goes back to that before round {to}; round {next} is next"));
                self.rewinds.push(RewindFact { to, next });
            }
            LogEvent::Idle { member, .. } => *self.idles.entry(format!("{member:#}")).or_default() += 1,
            LogEvent::Close { duties, .. } => {
                self.closed = true;
                self.duties = duties;
            }
            _ => {}
        }
    }

    fn words(&self, round: &RoundEvent) -> String {
        let RoundEvent { loss, seconds, tokens, nodes, verifiers, audits, passed, guilty, .. } = round;
        let speed = *tokens as f64 / seconds.max(1e-3);
        let apart = if self.drawn { "\n" } else { ", " };
        format!(
            "loss {loss:.3}, {speed:.0} tokens/s{apart}{}, {}, {}: {passed} passed, {guilty} guilty",
            counted(*nodes, "node"),
            counted(*verifiers, "verifier"),
            counted(*audits, "audit"),
        )
    }
}

/// Whether a line is worth it, where each stays: of a few rounds, the first and the last among them.
pub(super) fn told(done: u64, total: u64) -> bool {
    done <= 1 || done == total || done.is_multiple_of(total.div_ceil(LINES).max(1))
}

/// Names by id.
pub(super) fn names(players: &[Player]) -> BTreeMap<String, String> {
    let named =
        players.iter().filter_map(|player| Some((format!("{:#}", player.id()?), player.name.clone())));
    named.collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use muster_core::ids::Digest;

    use super::*;

    #[test]
    fn few_rounds_are_told_of() {
        let rounds = |total| (1..=total).filter(|done| told(*done, total)).collect::<Vec<_>>();
        assert_eq!(rounds(200), [1, 25, 50, 75, 100, 125, 150, 175, 200]);
        assert_eq!(rounds(14), [1, 2, 4, 6, 8, 10, 12, 14]);
        assert_eq!(rounds(3), [1, 2, 3]);
    }

    #[test]
    fn lines_are_read_as_they_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut live = Live::new(directory.path(), false);
        let progress = ProgressDisplay::new(false);
        assert!(!live.read(&[], &progress).unwrap());
        let mut log = File::create(directory.path().join(LOG)).unwrap();
        let mut write = |text: &str| log.write_all(text.as_bytes()).unwrap();
        let (member, verifier, digest) = (MemberId([0xcd; 32]), MemberId([0xef; 32]), Digest([0xab; 32]));
        write(&LogEvent::Admit { member, role: "node".into() }.line(Some(1.5)));
        let event =
            RoundEvent { round: 3, loss: 2.5, seconds: 0.5, bytes: 77, tokens: 9, ..Default::default() };
        let line = LogEvent::Round(Box::new(event)).line(None);
        let (first, rest) = line.split_at(30);
        write(first);
        assert!(live.read(&[], &progress).unwrap());
        assert!(!live.read(&[], &progress).unwrap());
        write(rest);
        write(&LogEvent::Moved { how: "left".into(), member }.line(None));
        assert!(live.read(&[], &progress).unwrap() && live.read(&[], &progress).unwrap());
        assert_eq!(live.rounds, [RoundFact { round: 3, loss: 2.5, seconds: 0.5, bytes: 77 }]);
        let duty = DutyLine { rounds: 3, coins: 2, due: 1, done: 1, overdue: 1, rechecks: 0 };
        let duties = [(format!("{verifier:#}"), duty)].into();
        for event in [
            LogEvent::Audit { member, round: 2, verifier, request: digest },
            LogEvent::Idle { member: verifier, round: 2 },
            LogEvent::Rewind { to: 2, next: 5, root: digest, evidence: digest },
            LogEvent::Close { root: digest, duties },
        ] {
            write(&event.line(None));
            assert!(live.read(&[], &progress).unwrap());
        }
        assert_eq!(live.audits, [(format!("{member:#}"), 2)]);
        assert_eq!(live.rewinds, [RewindFact { to: 2, next: 5 }]);
        assert_eq!(live.idles, BTreeMap::from([(format!("{verifier:#}"), 1)]));
        assert!(live.closed);
        assert_eq!(live.duties[&format!("{verifier:#}")], duty);
    }
}
