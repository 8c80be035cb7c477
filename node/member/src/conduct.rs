//! A member's conduct: everything that it does and says about its own work.

use std::sync::Arc;
use std::time::Duration;

use muster_core::ids::{Digest, MemberId, Part, Round, ShardId};
use muster_core::ledger::Ledger;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::Rows;
use muster_core::messages::call::Ask;
use muster_core::messages::offer::StateQuery;
use muster_core::messages::round::{Bitmap, Commit};
use muster_core::reduction::Reduced;
use muster_core::sign::Identity;
use muster_core::sketch::{Probe, Sketch};
use muster_core::state::Arithmetic;
use muster_replica::Contact;
use tokio::sync::watch;

use super::compute::{Assignment, Summed};
use super::own::LEAF_BYTES;

/// What a member says of its own work, in the order in which a round asks for it. Each default is the product's own
/// path, so that an attack of a rehearsal replaces what it lies about and nothing else. Whatever is public is an argument
/// or follows from one: any leaf of any member can be recomputed from [`Assignment`].
pub trait NodeConduct: Send + Sync + 'static {
    /// Sums leaves: a contribution of at least one and at most `quota` of them. It is asked again, for as many leaves,
    /// when the process was restarted after it committed.
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        work.sum_traced(arithmetic, LEAF_BYTES)
    }

    /// The commitments that it signs and sends, in order. The first is the one that it keeps to.
    fn commit(&self, commit: Commit) -> Vec<Commit> {
        vec![commit]
    }

    /// Which of these parts it brings to their keepers. None: it never says what it delivered either, and the round
    /// waits for it.
    fn deliver(&self, _round: Round, parts: Vec<(Part, MemberId)>) -> Option<Vec<(Part, MemberId)>> {
        Some(parts)
    }

    /// Whether it says which freeze of this round it has seen.
    fn echoes(&self, _round: Round) -> bool {
        true
    }

    /// Whether it serves its own contribution of this round to other members, or to the steward.
    fn serves(&self, _round: Round, _steward: bool) -> bool {
        true
    }

    /// How long it delays an answer.
    fn lingers(&self, _over: Delay, _manifest: &Manifest) -> Duration {
        Duration::ZERO
    }

    /// Whether it lets each step of an audit of this round wait for nearly as long as it can without being silent (AUDIT-8).
    fn dawdles(&self, _round: Round) -> bool {
        false
    }

    /// Whether it takes in what another member brings it as an aggregator.
    fn takes_in(&self, _round: Round, _sender: &MemberId) -> bool {
        true
    }

    /// Whether it shows what another member brought it as an aggregator in this round.
    fn shows(&self, _round: Round) -> bool {
        true
    }

    /// What it does beside its duties, from when a round's parts are to be delivered; nothing for an honest member.
    fn besides(&self, _round: Round, _outside: &Outside) {}

    /// The results of a part that it signs and shows, in order. None: it says nothing of the part.
    fn reduce(&self, part: &AggregatorView<'_>) -> Vec<Reduced> {
        part.reduce(part.sealed).into_iter().collect()
    }

    /// The table that it seals when asked, given the rows of its leaves. None: silence.
    fn seal(&self, _asked: &AuditedContribution<'_>, rows: Rows) -> Option<Rows> {
        Some(rows)
    }

    /// The table that it opens once the verifier's results are sealed, given the sealed one. None: silence.
    fn open(&self, _round: Round, rows: Rows) -> Option<Rows> {
        Some(rows)
    }

    /// The logits that it answers a call with, given the true ones. None: it never answers.
    fn answer(&self, _call: &AskedCall<'_>, logits: Vec<i32>) -> Option<Vec<i32>> {
        Some(logits)
    }

    /// The values of a piece of a state that it serves, given the true ones. None: it never answers.
    fn piece(&self, _query: &StateQuery, bytes: Vec<u8>) -> Option<Vec<u8>> {
        Some(bytes)
    }

    /// Whether it stays a member now that this round is over; else it leaves for good.
    fn stays(&self, _round: Round) -> bool {
        true
    }
}

/// An answer that may be delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// Its table, or the opening of it.
    Audit,
    /// Blocks of its own contribution.
    Blocks,
}

/// What a member needs to reach the steward over connections of its own.
#[derive(Clone)]
pub struct Outside {
    /// Its key.
    pub identity: Arc<Identity>,
    /// The steward.
    pub steward: Contact,
    /// The ledger as it follows it.
    pub ledger: watch::Receiver<Arc<Ledger>>,
}

/// A part, as its aggregator has it.
pub struct AggregatorView<'a> {
    /// The round.
    pub round: Round,
    /// The shard that the part is of.
    pub shard: ShardId,
    /// The inputs that were sealed.
    pub sealed: Bitmap,
    /// By the rule, over some of the inputs.
    pub rule: &'a dyn Fn(&Bitmap) -> Option<Reduced>,
}

impl AggregatorView<'_> {
    /// The rule's result over these inputs; `None` if one of them is unavailable.
    pub fn reduce(&self, inputs: Bitmap) -> Option<Reduced> {
        (self.rule)(&inputs)
    }
}

/// A call, as whoever answers it sees it.
pub struct AskedCall<'a> {
    /// The question.
    pub ask: &'a Ask,
    /// The logits by the oldest state that is kept.
    pub older: &'a dyn Fn() -> Option<Vec<i32>>,
}

/// The audit of a contribution, as its author sees it.
pub struct AuditedContribution<'a> {
    /// R_t.
    pub freeze: Digest,
    /// What the rows are made with.
    pub probe: &'a Probe,
    /// What was committed.
    pub commit: &'a Commit,
    /// The sketch of Q.
    pub sketch: &'a Sketch,
}

/// The honest conduct: every default of [`NodeConduct`].
pub struct HonestNode;

impl NodeConduct for HonestNode {}
