//! The outcome of a simulated run.

use muster_core::ids::{Digest, Round};
use muster_core::messages::audit::FindingKind;
use muster_core::messages::round::PartResult;

use super::law::Longest;

/// A ban.
#[derive(Clone, Debug, PartialEq)]
pub struct Conviction {
    /// Number of the node.
    pub node: usize,
    /// Whether it was out to cheat.
    pub deserved: bool,
    /// Round of the offence.
    pub round: Round,
    /// First round without it.
    pub effective: Round,
    /// For what.
    pub finding: FindingKind,
    /// Rounds of its that audits had begun of until then.
    pub audited: Vec<Round>,
}

/// A bad contribution that counted.
#[derive(Clone, Debug, PartialEq)]
pub struct Left {
    /// When.
    pub round: Round,
    /// Number of the node.
    pub node: usize,
    /// Leaves of it that were not what they should be; all of them when only the sum was false.
    pub leaves: u32,
    /// The share that the rule left it, as a mean over coefficients; 1 is untouched.
    pub factor: f64,
}

/// An applied part that is not what the rule gives.
#[derive(Clone, Debug, PartialEq)]
pub struct WrongPart {
    /// When.
    pub round: Round,
    /// Number of the node that signed it.
    pub node: usize,
    /// Its blocks that differ.
    pub blocks: usize,
}

/// What happened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Loss on the held-out text after each round, in nats per token.
    pub losses: Vec<f64>,
    /// Bans of nodes in order.
    pub convictions: Vec<Conviction>,
    /// Bad contributions that counted, in order of rounds.
    pub left: Vec<Left>,
    /// Audits begun.
    pub audits: usize,
    /// Verdicts that found all equal.
    pub verdicts: u64,
    /// Accusations that the judge did not follow.
    pub dismissed: usize,
    /// Words of jurors that bans were sealed with.
    pub opinions: usize,
    /// Silences sealed.
    pub silences: usize,
    /// Times that the steward's process was killed and started again.
    pub restarts: usize,
    /// Times that a node's process was killed and started again.
    pub node_restarts: usize,
    /// Times that the state went back.
    pub rewinds: usize,
    /// Times that a node said that it holds the row that was drawn for it.
    pub ready: usize,
    /// Steps of rows that have waited.
    pub late_steps: usize,
    /// Bans of verifiers that were in league with the cheats, and of others.
    pub verifiers_banned: (usize, usize),
    /// Times that a verifier was sealed as idle.
    pub idles: usize,
    /// Verdicts that another verifier re-executed, and that stood.
    pub rechecks: u64,
    /// Parts that were reduced again because contributors objected or the aggregator had signed two results, and
    /// whether they were right.
    pub inspections: Vec<(PartResult, bool)>,
    /// Parts that were applied and are not what the rule gives.
    pub wrong_parts: Vec<WrongPart>,
    /// Parts that count something false, were forgotten before the ban of its author, and are kept by value.
    pub kept_by_value: usize,
    /// How long audits took.
    pub longest: Longest,
    /// Honest verifiers that were sealed as idle.
    pub idled: Vec<usize>,
    /// The last state root.
    pub root: Digest,
    /// Digest of all that was sealed, with its times.
    pub trace: Digest,
}

impl Report {
    /// Bans of members that did not cheat.
    pub fn false_bans(&self) -> usize {
        let nodes = self.convictions.iter().filter(|conviction| !conviction.deserved).count();
        nodes + self.verifiers_banned.1
    }

    /// The last loss.
    pub fn last_loss(&self) -> f64 {
        self.losses.last().copied().unwrap_or(f64::NAN)
    }

    /// Mean share that the rule left of bad contributions, and their bad leaves.
    pub fn what_was_left(&self) -> Option<(f64, u64)> {
        let sum: f64 = self.left.iter().map(|left| left.factor).sum();
        let leaves = self.left.iter().map(|left| u64::from(left.leaves)).sum();
        (!self.left.is_empty()).then(|| (sum / self.left.len() as f64, leaves))
    }
}
