//! The manifest: everything that members of a run agree on before it starts. Its hash is the run id.

mod admission;
mod aggregation;
mod data;
#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
mod local;
mod model;
mod profile;
mod rules;
mod training;

pub use admission::{Admission, Listed, Mode};
pub use aggregation::{Aggregation, Rule};
pub use data::{CommittedFile, Data, DataFile, Router, Start, Tokeniser, TokeniserFile};
pub use local::{Exchange, Local};
pub use model::{Albert, Decoder, Family, Mixture, Model, Projection, Scaling, Variant};
pub use profile::{Profile, Tolerance};
pub use training::{Method, Optimiser, Schedule, Training};

use crate::codec::{Real, Text, encode};
use crate::hash::{Domain, hash_of};
use crate::ids::{MemberId, Round, RunId};
use crate::limits;
use crate::wire;

/// Version of the protocol that this crate speaks.
pub const VERSION: u16 = 1;

wire! {
    /// The agreement of one run.
    pub struct Manifest {
        /// Protocol version: [`VERSION`].
        pub version: u16,
        /// A name for people.
        pub name: Text<64>,
        /// Who signs invitations.
        pub organiser: MemberId,
        /// Who seals records.
        pub steward: MemberId,
        /// Makes two runs of equal settings differ.
        pub nonce: [u8; 16],
        /// What is trained.
        pub model: Model,
        /// How a leaf gradient is computed.
        pub profile: Profile,
        /// How far two honest ones may be apart.
        pub tolerance: Tolerance,
        /// What it is trained on.
        pub data: Data,
        /// How much, in what pieces.
        pub training: Training,
        /// How an aggregate changes the state.
        pub optimiser: Optimiser,
        /// How contributions are combined.
        pub aggregation: Aggregation,
        /// How they are inspected.
        pub audit: Audit,
        /// Who may come, and when it starts.
        pub admission: Admission,
        /// How long the steward waits.
        pub timers: Timers,
        /// How long things are kept.
        pub retention: Retention,
        /// When the state goes back after a conviction.
        pub rollback: Rollback,
        /// Rounds between the state that leaves are computed on and the one that they change: 0, or 1 (ROUND-28).
        pub delay: u8,
        /// What members exchange in a round.
        pub exchange: Exchange,
        /// Reserved: groups of members. 0, one group.
        pub groups: u8,
    }
}

wire! {
    /// How contributions are inspected.
    pub struct Audit {
        /// Probability that a contribution is audited, in parts per million.
        pub share_ppm: u32,
        /// Leaves drawn in one audit, at most all.
        pub leaves: u8,
        /// A coin tree serves rounds this many after its registration, and later ones.
        pub coin_lead: u32,
        /// Last rounds of the run in which every contribution is audited.
        pub final_rounds: u32,
        /// Share of the passing verdicts that another verifier re-executes, in parts per million.
        pub recheck_ppm: u32,
        /// Probability that a block of a round is reduced again by a verifier, in parts per million.
        pub blocks_ppm: u32,
    }
}

wire! {
    /// The steward's patience, in milliseconds since the sealed record that opened the phase.
    pub struct Timers {
        /// For commitments.
        pub commit: u32,
        /// For delivered parts.
        pub part: u32,
        /// For aggregated parts.
        pub result: u32,
        /// For an audited node's answers, and for what a verifier owes.
        pub audit: u32,
        /// For verdicts after the last round.
        pub final_audit: u32,
    }
}

wire! {
    /// How long things are kept, in rounds.
    pub struct Retention {
        /// Contributions with their aggregators and authors.
        pub contributions: u32,
        /// States for audits.
        pub states: u32,
    }
}

wire! {
    /// When and how far the state goes back after a conviction.
    pub struct Rollback {
        /// Harm beyond which it does: relative movement of aggregates, summed over rounds. 0: never.
        pub limit: Real,
        /// Rounds that it goes back at most.
        pub most_rounds: u32,
        /// Rounds between two times at least.
        pub spacing: u32,
    }
}

impl Rollback {
    /// The state never goes back.
    pub fn never() -> Self {
        Self { limit: Real::ZERO, most_rounds: 0, spacing: 0 }
    }

    /// Whether the run ever goes back.
    pub fn is_on(&self) -> bool {
        self.limit.value() > 0.0
    }
}

impl Manifest {
    /// The run id.
    pub fn run(&self) -> RunId {
        RunId(hash_of(Domain::RUN, self))
    }

    /// The canonical bytes.
    pub fn bytes(&self) -> Vec<u8> {
        encode(self)
    }

    /// Windows that the training text offers (DATA-3): window `w` holds the tokens `w·sequence ..= (w+1)·sequence`.
    pub fn windows(&self) -> u64 {
        // The last token has no successor to predict (DATA-3).
        self.data.tokens().saturating_sub(1) / u64::from(self.model.sequence.max(1))
    }

    /// Local updates; none where gradients are exchanged.
    pub fn local(&self) -> Option<&Local> {
        self.exchange.local()
    }

    /// Windows of a leaf; of local updates, those of all leaves of a segment.
    pub fn windows_of_leaf(&self) -> u32 {
        self.training.leaf_windows * self.local().map_or(1, |local| local.segment)
    }

    /// Leaves of a seat when all of so many nodes have one and are fast enough; of local updates, segments.
    pub fn leaves_of_seat(&self, nodes: u32) -> u32 {
        let leaves = self.training.leaves;
        let share = if self.local().is_some() { leaves } else { leaves / nodes.max(1) };
        share.clamp(1, limits::QUOTA)
    }

    /// Whether kept states need their moments: to go back to one, or to compute the steps of a round again.
    pub fn keeps_moments(&self) -> bool {
        self.rollback.is_on() || self.local().is_some()
    }

    /// Planes of a contribution that are exchanged in a round: 1, or 2 where the second moments are renewed.
    pub fn planes_in(&self, round: Round) -> usize {
        if self.local().is_some_and(|local| local.renews_moments(round)) { 2 } else { 1 }
    }

    /// LOCAL-8: the positions of a contribution that have to be computed to have these, which are ascending: in a local run a
    /// segment begins where the one before it ends.
    pub fn computed_for(&self, positions: &[u32]) -> Vec<u32> {
        match (self.local(), positions.last()) {
            (Some(_), Some(last)) => (0..=*last).collect(),
            _ => positions.to_vec(),
        }
    }

    /// The window A of AUDIT-26: how many rounds before the next one everybody keeps the state of.
    pub fn audit_window(&self) -> u32 {
        let retention = &self.retention;
        // One of the kept states is the newest, which no finished round began with; with a delay the next one is of the round
        // that is under way.
        retention.contributions.min(retention.states.saturating_sub(1 + u32::from(self.delay))).max(1)
    }

    /// AUDIT-24: so many rounds after its own an audit lasts, and what is forgotten of its member is kept by value.
    pub fn lasting_rounds(&self) -> u32 {
        limits::LASTING_ROUNDS.min(self.audit_window() / 2).max(1)
    }

    /// Rounds after which the run ends, however many of them were lost to rollbacks.
    pub fn most_rounds(&self) -> u32 {
        let rounds = self.training.rounds;
        // Rounds that were taken back are trained again, under new numbers; the coins must reach that far.
        if self.rollback.is_on() { rounds.saturating_mul(2) } else { rounds }
    }
}
