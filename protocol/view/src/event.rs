//! The events of a steward's `log.jsonl`: one type for the steward that writes them, and for pages and rehearsals that read
//! them.
//!
//! The log is for people and their programs. Nothing in it is signed.

use std::collections::BTreeMap;

use muster_core::ids::{Digest, MemberId};
use serde::{Deserialize, Serialize};

use crate::story::DutyLine;

/// The file of events, in the run's folder.
pub const LOG: &str = "log.jsonl";

/// One event: one line of JSON, with the names of its fields in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum LogEvent {
    /// A member was admitted.
    Admit {
        /// Who.
        #[serde(with = "hex")]
        member: MemberId,
        /// Its role, in a word.
        role: String,
    },
    /// A round is over.
    Round(Box<RoundEvent>),
    /// Nobody counted in a round.
    Barren {
        /// The round.
        round: u32,
        /// In words.
        why: String,
        /// Seconds for which the next round is held back, if it is.
        pause: Option<u64>,
    },
    /// A member was expelled.
    Ban {
        /// Who.
        #[serde(with = "hex")]
        member: MemberId,
        /// The round of its offence.
        round: u32,
        /// The first round without it.
        effective: u32,
        /// What was found, in words.
        finding: String,
        /// The digest of the evidence.
        #[serde(with = "hex")]
        evidence: Digest,
        /// The verifier that accused it.
        #[serde(with = "hex")]
        accuser: MemberId,
    },
    /// A verifier began an audit.
    Audit {
        /// Whose contribution.
        #[serde(with = "hex")]
        member: MemberId,
        /// Its round.
        round: u32,
        /// Who audits.
        #[serde(with = "hex")]
        verifier: MemberId,
        /// The digest of the request.
        #[serde(with = "hex")]
        request: Digest,
    },
    /// A verifier ended an audit.
    Verdict {
        /// The digest of the request.
        #[serde(with = "hex")]
        request: Digest,
        /// How many leaves were recomputed.
        leaves: u64,
        /// What is wrong, in words; none where nothing is.
        finding: Option<String>,
    },
    /// A verifier has recomputed the contribution of a member that did not answer.
    Recomputed {
        /// Whose contribution.
        #[serde(with = "hex")]
        member: MemberId,
        /// Its round.
        round: u32,
        /// Who recomputed it.
        #[serde(with = "hex")]
        verifier: MemberId,
        /// What is wrong, in words; none where nothing is.
        finding: Option<String>,
    },
    /// The next round waits for an audit.
    Held {
        /// The round that is over.
        round: u32,
        /// The round that is audited.
        case: u32,
        /// Whose contribution; none where a verifier has yet to show its coin.
        #[serde(with = "hex_or_none")]
        member: Option<MemberId>,
    },
    /// A round waits for something before it is spent.
    Waits {
        /// The round.
        round: u32,
        /// For what, in words.
        why: String,
    },
    /// A verifier did not do its duty in time.
    Idle {
        /// The verifier.
        #[serde(with = "hex")]
        member: MemberId,
        /// The round of its duty.
        round: u32,
    },
    /// The organiser has closed a tree of invitations.
    CloseTree {
        /// The member at its root.
        #[serde(with = "hex")]
        member: MemberId,
    },
    /// What a convict had contributed and reduced before was recomputed.
    Retro {
        /// The convict.
        #[serde(with = "hex")]
        member: MemberId,
        /// Round by round.
        rounds: Vec<PastEvent>,
    },
    /// The state went back.
    Rewind {
        /// To that before this round.
        to: u32,
        /// The first round after it.
        next: u32,
        /// The root of the state.
        #[serde(with = "hex")]
        root: Digest,
        /// The digest of the evidence.
        #[serde(with = "hex")]
        evidence: Digest,
    },
    /// An accusation was dismissed.
    Dismissed {
        /// The round that was open.
        round: u32,
        /// The accused.
        #[serde(with = "hex")]
        member: MemberId,
        /// Who accused it.
        #[serde(with = "hex")]
        accuser: MemberId,
        /// In words.
        why: String,
    },
    /// A part to which contributors objected was reduced again.
    Inspected {
        /// The round.
        round: u32,
        /// The part.
        part: u16,
        /// Whether it is right.
        right: bool,
    },
    /// The held-out loss of a state was measured.
    HeldOut {
        /// The round of the state.
        round: u32,
        /// In nats per token.
        loss: f64,
    },
    /// What the model wrote.
    Sample {
        /// The round of the state.
        round: u32,
        /// What it was given; empty where it began a text.
        prompt: String,
        /// How it went on.
        text: String,
    },
    /// The steward's program was started.
    Started {
        /// The round that is next.
        round: u32,
    },
    /// The run is over.
    Close {
        /// The root of the final state.
        #[serde(with = "hex")]
        root: Digest,
        /// The duties of the verifiers, by their ids.
        #[serde(default)]
        duties: BTreeMap<String, DutyLine>,
    },
    /// A member came, went, or fell silent: the event is called as people are told of it.
    #[serde(untagged)]
    Moved {
        /// In words.
        #[serde(rename = "event")]
        how: String,
        /// Who.
        #[serde(with = "hex")]
        member: MemberId,
    },
}

/// A round that is over.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoundEvent {
    /// Its number.
    pub round: u32,
    /// Mean loss of its leaves, in nats per token.
    pub loss: f64,
    /// How long it took.
    pub seconds: f64,
    /// Bytes of contributions and results that members exchanged.
    pub bytes: u64,
    /// Tokens of its leaves.
    pub tokens: u64,
    /// Seconds until each of its stages: `freeze`, `inputs`, `results`.
    pub stages: BTreeMap<String, f64>,
    /// Nodes at work.
    pub nodes: u64,
    /// Verifiers at work.
    pub verifiers: u64,
    /// Audits that were begun since this steward started.
    pub audits: u64,
    /// Audits that found nothing wrong.
    pub passed: u64,
    /// Audits that found something wrong.
    pub guilty: u64,
    /// The duties of the verifiers, by their ids.
    #[serde(default)]
    pub duties: BTreeMap<String, DutyLine>,
    /// The root of the state after it.
    #[serde(with = "hex")]
    pub root: Digest,
}

/// What was found in one round of a convict's past.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PastEvent {
    /// The round.
    pub round: u32,
    /// Of its contribution, if that counted.
    pub found: Option<FoundWord>,
    /// Of the parts that it reduced.
    pub parts: Vec<PartEvent>,
    /// By how much what was false moved the aggregate, where that was measured.
    pub harm: Option<f64>,
}

/// What was found of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartEvent {
    /// The part.
    pub part: u16,
    /// What it is.
    pub found: FoundWord,
}

/// What something turned out to be when it was computed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FoundWord {
    /// As it was said.
    Right,
    /// Something else than was said.
    False,
    /// It could not be computed again.
    Unknown,
}

impl LogEvent {
    /// The line of the log, with its end; `time` is in seconds since 1970.
    pub fn line(&self, time: Option<f64>) -> String {
        // By way of a value, which has its fields in order.
        let mut value = serde_json::to_value(self).expect("an event has names for its fields");
        if let (Some(fields), Some(time)) = (value.as_object_mut(), time) {
            fields.insert("time".into(), time.into());
        }
        format!("{value}\n")
    }

    /// The event of a line.
    ///
    /// # Errors
    /// The line is no event, or of a program that writes others.
    pub fn parse(line: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(line)
    }
}

/// What is written as 64 hexadecimal digits.
trait Named: core::fmt::Display + Sized {
    fn of(bytes: [u8; 32]) -> Self;
}

impl Named for MemberId {
    fn of(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl Named for Digest {
    fn of(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

mod hex {
    use muster_core::ids::unhex;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::Named;

    pub(super) fn serialize<T: Named, S: Serializer>(name: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{name:#}"))
    }

    pub(super) fn deserialize<'de, T: Named, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        named(&String::deserialize(deserializer)?)
    }

    pub(super) fn named<T: Named, E: Error>(text: &str) -> Result<T, E> {
        unhex(text).map(T::of).ok_or_else(|| E::custom("64 hexadecimal digits are expected"))
    }
}

mod hex_or_none {
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{Named, hex};

    pub(super) fn serialize<T: Named, S: Serializer>(
        name: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match name {
            Some(name) => hex::serialize(name, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, T: Named, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        Option::<String>::deserialize(deserializer)?.map(|text| hex::named(&text)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines as the steward writes them, and their events.
    #[test]
    fn every_event_is_read_as_it_is_written() {
        let (member, other) = (MemberId([0xab; 32]), MemberId([0xcd; 32]));
        let (one, two) = ("ab".repeat(32), "cd".repeat(32));
        let held = |member| LogEvent::Held { round: 4, case: 2, member };
        let duty = DutyLine { rounds: 3, coins: 2, due: 1, done: 1, overdue: 0, rechecks: 0 };
        let past = PastEvent {
            round: 1,
            found: None,
            parts: vec![PartEvent { part: 5, found: FoundWord::Unknown }],
            harm: Some(0.25),
        };
        let cases = [
            (
                LogEvent::Moved { how: "is back".into(), member },
                format!("{{\"event\":\"is back\",\"member\":\"{one}\"}}\n"),
            ),
            (LogEvent::CloseTree { member }, format!("{{\"event\":\"close-tree\",\"member\":\"{one}\"}}\n")),
            (LogEvent::Started { round: 3 }, "{\"event\":\"started\",\"round\":3}\n".into()),
            (held(None), "{\"case\":2,\"event\":\"held\",\"member\":null,\"round\":4}\n".into()),
            (
                held(Some(other)),
                format!("{{\"case\":2,\"event\":\"held\",\"member\":\"{two}\",\"round\":4}}\n"),
            ),
            (
                LogEvent::Retro { member, rounds: vec![past] },
                format!(
                    "{{\"event\":\"retro\",\"member\":\"{one}\",\"rounds\":[{{\"found\":null,\"harm\":0.25,\"parts\":\
                     [{{\"found\":\"unknown\",\"part\":5}}],\"round\":1}}]}}\n"
                ),
            ),
            (
                LogEvent::Close { root: Digest([0xcd; 32]), duties: [(one.clone(), duty)].into() },
                format!(
                    "{{\"duties\":{{\"{one}\":{{\"coins\":2,\"done\":1,\"due\":1,\"overdue\":0,\"rechecks\":0,\
                     \"rounds\":3}}}},\"event\":\"close\",\"root\":\"{two}\"}}\n"
                ),
            ),
            (
                LogEvent::Round(Box::new(RoundEvent {
                    round: 7,
                    loss: 2.5,
                    stages: [("freeze".into(), 0.5)].into(),
                    root: Digest([0xab; 32]),
                    ..RoundEvent::default()
                })),
                format!(
                    "{{\"audits\":0,\"bytes\":0,\"duties\":{{}},\"event\":\"round\",\"guilty\":0,\"loss\":2.5,\"nodes\":0,\
                     \"passed\":0,\"root\":\"{one}\",\"round\":7,\"seconds\":0.0,\"stages\":{{\"freeze\":0.5}},\"tokens\":0,\
                     \"verifiers\":0}}\n"
                ),
            ),
        ];
        for (event, line) in cases {
            assert_eq!(event.line(None), line);
            assert_eq!(LogEvent::parse(line.as_bytes()).unwrap(), event);
            assert_eq!(LogEvent::parse(event.line(Some(1.5)).as_bytes()).unwrap(), event, "with its time");
        }
        assert!(LogEvent::parse(b"{\"event\":\"other\"}").is_err());
    }
}
