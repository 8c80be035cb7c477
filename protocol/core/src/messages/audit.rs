//! The audit of one contribution, in the order in which it is said.
//!
//! Everything here is public. A request opens with a coin; the node seals its table; the verifier draws leaves,
//! recomputes them and seals its results; the node opens the table; the verifier opens coin and results.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::codec::schema::{Described, Schema, Shape};
use crate::codec::{List, encode};
use crate::coins::CoinOpening;
use crate::hash::{Domain, Hasher};
use crate::ids::{Digest, MemberId, Round};
use crate::sign::{Message, Signed};
pub use crate::sketch::{Sketch, TableRow};
use crate::{choice, limits, wire};

wire! {
    /// A verifier asks a member about its contribution of a round.
    pub struct AuditRequest {
        /// The round.
        pub round: Round,
        /// R_t.
        pub freeze: Digest,
        /// Who is asked.
        pub target: MemberId,
        /// The verifier's node coin of the round; none in the final audit, where everyone is asked.
        pub coin: Option<CoinOpening>,
    }
}

wire! {
    /// A verifier shows its node coin of a round, whomever it selects: from it everyone knows which audits are due.
    pub struct Duty {
        /// The round.
        pub round: Round,
        /// R_t.
        pub freeze: Digest,
        /// The verifier's node coin of the round.
        pub coin: CoinOpening,
    }
}

impl Message for Duty {
    const TAG: &'static str = "duty";
}

impl Message for AuditRequest {
    const TAG: &'static str = "audit-request";
}

wire! {
    /// The member fixes its table before it knows which leaves are drawn.
    pub struct TableSeal {
        /// Digest of the signed request.
        pub request: Digest,
        /// The round.
        pub round: Round,
        /// R_t; what sketches are made with follows from it and, where there is a tolerance, from the request.
        pub freeze: Digest,
        /// Root of the audited commitment.
        pub root: Digest,
        /// `H(TABLE, salt, rows)`.
        pub seal: Digest,
    }
}

impl Message for TableSeal {
    const TAG: &'static str = "table-seal";
}

wire! {
    /// The verifier fixes its results before it sees the table.
    pub struct ResultsSeal {
        /// Digest of the signed request.
        pub request: Digest,
        /// Digest of the signed table seal.
        pub table: Digest,
        /// `H(RESULTS, salt, results)`.
        pub seal: Digest,
    }
}

impl Message for ResultsSeal {
    const TAG: &'static str = "results-seal";
}

/// The rows of a contribution, in order of its leaves.
pub type Rows = List<TableRow, { limits::QUOTA as usize }>;

wire! {
    /// The member opens its table.
    pub struct TableOpening {
        /// Digest of the signed request.
        pub request: Digest,
        /// Digest of the signed results seal.
        pub results: Digest,
        /// The salt of the seal.
        pub salt: [u8; 32],
        /// The table.
        pub rows: Rows,
    }
}

impl Message for TableOpening {
    const TAG: &'static str = "table-opening";
}

wire! {
    /// A recomputed leaf.
    pub struct LeafResult {
        /// Its position in the contribution: leaf `slot + position·seats`.
        pub position: u32,
        /// What it should be.
        pub row: TableRow,
    }
}

/// Recomputed leaves in order.
pub type Results = List<LeafResult, { limits::AUDIT_LEAVES }>;

wire! {
    /// The verifier's word, with everything that was hidden.
    pub struct Verdict {
        /// Digest of the signed request.
        pub request: Digest,
        /// Digest of the signed opening.
        pub opening: Digest,
        /// The leaf coin of the audited slot.
        pub coin: CoinOpening,
        /// The salt of the results.
        pub salt: [u8; 32],
        /// The results.
        pub results: Results,
        /// The sketch of Q, from chunks proved against the commitment.
        pub total: Sketch,
        /// What follows.
        pub finding: Finding,
    }
}

impl Message for Verdict {
    const TAG: &'static str = "verdict";
}

wire! {
    /// A verifier has recomputed every leaf of a contribution whose author did not answer, or has left.
    // Signed and shown: an audit that ends in nothing looks like one that nobody did.
    pub struct Recomputation {
        /// The round.
        pub round: Round,
        /// R_t.
        pub freeze: Digest,
        /// Whose contribution.
        pub target: MemberId,
        /// Whether the leaves give what was committed; else a total mismatch.
        pub finding: Finding,
    }
}

impl Message for Recomputation {
    const TAG: &'static str = "recomputation";
}

wire! {
    /// A verifier has re-executed another one's passing verdict or recomputation, and it stands.
    pub struct Recheck {
        /// Digest of the signed verdict or recomputation.
        pub verdict: Digest,
    }
}

impl Message for Recheck {
    const TAG: &'static str = "recheck";
}

wire! {
    /// A verifier cannot have the integers of the contribution that it audits (TOL-12).
    pub struct Withheld {
        /// Digest of the signed request.
        pub request: Digest,
    }
}

impl Message for Withheld {
    const TAG: &'static str = "withheld";
}

wire! {
    /// A juror's word on evidence, by its own recomputation.
    pub struct Opinion {
        /// Name of the evidence.
        pub evidence: Digest,
        /// Whether it convicts.
        pub guilty: bool,
    }
}

impl Message for Opinion {
    const TAG: &'static str = "opinion";
}

/// Jurors' words on one case.
pub type Jury = List<Signed<Opinion>, { limits::JURY }>;

/// What an audit found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
#[borsh(use_discriminant = false)]
pub enum Finding {
    /// All equal.
    Pass,
    /// This is wrong.
    Guilty(FindingKind),
}

impl Described for Finding {
    fn shape(schema: &mut Schema) -> Shape {
        Shape::Tagged(vec![("Pass", None), ("Guilty", Some(FindingKind::shape(schema)))])
    }
}

choice! {
    /// The closed list of what a member can be expelled for.
    #[derive(PartialOrd, Ord)]
    pub enum FindingKind {
        /// Two commitments in one round.
        Equivocation,
        /// The table does not add up to the committed total or loss.
        SumMismatch,
        /// A drawn leaf is not what the state and the data give.
        LeafMismatch,
        /// The committed total is not the sum of the recomputed leaves.
        TotalMismatch,
        /// The steward's own signatures contradict each other or the rules.
        StewardMisconduct,
        /// A verifier found guilty what re-execution finds right.
        FalseAccusation,
        /// A verifier let pass what re-execution finds wrong, or did not recompute what it says that it did.
        FalseAcquittal,
        /// A signed part is not what the rule gives on its sealed inputs.
        AggregationMismatch,
        /// The signed logits of a call are not what the model gives.
        FalseAnswer,
    }
}

impl FindingKind {
    /// Whether it takes a jury where there is a tolerance: what messages and exact sums decide does not (TOL-9).
    pub fn needs_jury(self) -> bool {
        matches!(
            self,
            Self::LeafMismatch | Self::TotalMismatch | Self::FalseAccusation | Self::FalseAcquittal
        )
    }

    /// Whether it rests on what a machine has computed from the state: one that computes wrongly must not ban (AUDIT-12).
    pub fn is_recomputed(self) -> bool {
        self.needs_jury() || self == Self::FalseAnswer
    }

    /// The words for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Equivocation => "equivocation",
            Self::SumMismatch => "sum mismatch",
            Self::LeafMismatch => "leaf mismatch",
            Self::TotalMismatch => "total mismatch",
            Self::StewardMisconduct => "steward misconduct",
            Self::FalseAccusation => "false accusation",
            Self::FalseAcquittal => "false acquittal",
            Self::AggregationMismatch => "aggregation mismatch",
            Self::FalseAnswer => "false answer",
        }
    }
}

/// `H(TABLE, salt, rows)`: binds the rows, hides them until the salt is known.
pub fn table_seal(salt: &[u8; 32], rows: &Rows) -> Digest {
    // The salt hides rows that could be guessed: an honest table is known to whoever computes the leaves.
    Hasher::new(Domain::TABLE).part(salt).part(&encode(rows)).finish()
}

/// `H(RESULTS, salt, results)`.
pub fn results_seal(salt: &[u8; 32], results: &Results) -> Digest {
    Hasher::new(Domain::RESULTS).part(salt).part(&encode(results)).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tol_9_jurors_decide_what_recomputed_leaves_decide_and_nothing_else() {
        use FindingKind::*;
        for kind in [LeafMismatch, TotalMismatch, FalseAccusation, FalseAcquittal] {
            assert!(kind.needs_jury(), "{}", kind.words());
        }
        for kind in [Equivocation, SumMismatch, StewardMisconduct, AggregationMismatch, FalseAnswer] {
            assert!(!kind.needs_jury(), "{}", kind.words());
        }
    }
}
