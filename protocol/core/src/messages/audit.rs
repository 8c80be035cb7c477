//! The audit of one contribution, in the order in which it is said, and the evidence that comes of it.
//!
//! Everything here is public. A request opens with a coin; the node seals its table; the verifier draws leaves,
//! recomputes them and seals its results; the node opens the table; the verifier opens coin and results.

use borsh::{BorshDeserialize, BorshSerialize};

use crate::codec::{List, encode};
use crate::coins::CoinOpening;
use crate::hash::{Domain, Hasher, hash_of};
use crate::ids::{Digest, MemberId, Round, RunId};
use crate::messages::gossip::Head;
use crate::messages::record::Record;
use crate::messages::round::{Commit, CommitReceipt, Delivered, DeliveryReceipt, PartResult};
use crate::sign::{Message, Signed};
pub use crate::sketch::{Row, Sketch};
use crate::{limits, wire};

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
pub type Rows = List<Row, { limits::QUOTA as usize }>;

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
        pub row: Row,
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

/// The closed list of what a member can be expelled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, BorshSerialize, BorshDeserialize)]
#[cfg_attr(feature = "arbitrary", derive(arbitrary::Arbitrary))]
#[borsh(use_discriminant = false)]
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
}

impl FindingKind {
    /// Whether it takes a jury where there is a tolerance: what messages and exact sums decide does not (TOL-9).
    pub fn needs_jury(self) -> bool {
        matches!(
            self,
            Self::LeafMismatch | Self::TotalMismatch | Self::FalseAccusation | Self::FalseAcquittal
        )
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
        }
    }
}

wire! {
    /// The signed steps of one audit.
    pub struct Transcript {
        /// The frozen round.
        pub freeze: Signed<Record>,
        /// The request.
        pub request: Signed<AuditRequest>,
        /// The member's seal.
        pub table: Signed<TableSeal>,
        /// The verifier's seal.
        pub results: Signed<ResultsSeal>,
        /// The member's opening.
        pub opening: Signed<TableOpening>,
        /// The verifier's opening.
        pub verdict: Signed<Verdict>,
    }
}

wire! {
    /// Two commitments of one member in one round.
    pub struct Equivocation {
        /// One.
        pub first: Signed<Commit>,
        /// The other.
        pub second: Signed<Commit>,
    }
}

wire! {
    /// A frozen contribution whose leaves, all recomputed, do not give the committed root.
    pub struct Total {
        /// The frozen round.
        pub freeze: Signed<Record>,
        /// Whose contribution.
        pub culprit: MemberId,
    }
}

wire! {
    /// A commitment that the steward has a receipt out for, and the freeze of its round without it.
    pub struct OmittedCommit {
        /// The commitment.
        pub commit: Signed<Commit>,
        /// Its receipt.
        pub receipt: Signed<CommitReceipt>,
        /// The freeze.
        pub freeze: Signed<Record>,
    }
}

wire! {
    /// A delivery that the steward has a receipt out for, and sealed inputs that leave its author out of a part.
    pub struct OmittedDelivery {
        /// The delivery.
        pub delivered: Signed<Delivered>,
        /// Its receipt.
        pub receipt: Signed<DeliveryReceipt>,
        /// The freeze, which tells the author's slot.
        pub freeze: Signed<Record>,
        /// For a second attempt: which parts were reassigned.
        pub reassign: Option<Signed<Record>>,
        /// The sealed inputs of the attempt.
        pub inputs: Signed<Record>,
    }
}

wire! {
    /// A part that is not what the rule gives on its sealed inputs. The aggregator signed all three: the inputs, the
    /// freeze that they are proved against, and what it made of them.
    pub struct Reduction {
        /// The frozen round.
        pub freeze: Signed<Record>,
        /// The sealed inputs of the attempt.
        pub inputs: Signed<Record>,
        /// What the aggregator made of them.
        pub result: Signed<PartResult>,
    }
}

wire! {
    /// The steward's signature on a head of its ledger.
    pub enum Seal {
        /// On a record: its head, and the one before.
        Record(Signed<Record>),
        /// On a head alone.
        Head(Signed<Head>),
    }
}

wire! {
    /// Two heads of one height.
    pub struct TwoSeals {
        /// One.
        pub first: Seal,
        /// The other.
        pub second: Seal,
    }
}

wire! {
    /// A sealed state that the sealed results do not give.
    pub struct WrongRoot {
        /// The freeze, which names the state before the round.
        pub freeze: Signed<Record>,
        /// The outcome, which has the results and the state after the round.
        pub outcome: Signed<Record>,
    }
}

wire! {
    /// What convicts the steward. Whoever follows the run halts.
    pub enum Misconduct {
        /// A commitment with a receipt was left out.
        Commit(OmittedCommit),
        /// A delivery with a receipt was left out.
        Delivery(OmittedDelivery),
        /// There are two ledgers.
        Split(TwoSeals),
        /// This record breaks a rule of the ledger before it.
        Record(Signed<Record>),
        /// A sealed state does not follow. Decidable by taking the round's step again.
        Root(WrongRoot),
    }
}

wire! {
    /// An audit whose verdict is wrong: against the verifier that gave it.
    pub struct FalseVerdict {
        /// The record that admitted the verifier, with its coins.
        pub admit: Signed<Record>,
        /// The audit.
        pub transcript: Transcript,
    }
}

wire! {
    /// A recomputation whose finding is wrong: against the verifier that signed it.
    pub struct FalseRecomputation {
        /// The frozen round.
        pub freeze: Signed<Record>,
        /// What the verifier says of a contribution in it.
        pub recomputation: Signed<Recomputation>,
    }
}

wire! {
    /// Two different results of one member for one part, over the same inputs.
    pub struct TwoResults {
        /// One.
        pub first: Signed<PartResult>,
        /// The other.
        pub second: Signed<PartResult>,
    }
}

wire! {
    /// What convicts, decidable from messages or by re-execution (AUDIT-9).
    pub enum Evidence {
        /// Decidable from messages.
        Equivocation(Equivocation),
        /// Decidable by recomputing a leaf, or by adding the table up.
        Audit(Transcript),
        /// Decidable by recomputing every leaf.
        Total(Total),
        /// The steward's own signatures, and for a wrong root one step of the optimiser.
        Misconduct(Misconduct),
        /// Decidable by recomputing the drawn leaves or, for an accusation, every leaf.
        Verdict(FalseVerdict),
        /// Decidable by reducing the part again.
        Aggregation(Reduction),
        /// Decidable from messages.
        Results(TwoResults),
        /// Decidable by recomputing every leaf.
        Recomputation(FalseRecomputation),
    }
}

impl Evidence {
    /// Its name.
    pub fn digest(&self) -> Digest {
        hash_of(Domain::EVIDENCE, self)
    }

    /// Whether leaves are recomputed to judge it.
    pub fn is_of_leaves(&self) -> bool {
        matches!(self, Self::Audit(_) | Self::Total(_) | Self::Verdict(_) | Self::Recomputation(_))
    }

    /// The evidence against whom it shows that a verifier let pass; none where it is about no verifier.
    pub fn against_the_acquitted(&self, run: RunId) -> Option<Self> {
        match self {
            Self::Verdict(verdict) => Some(Self::Audit(verdict.transcript.clone())),
            Self::Recomputation(false_one) => {
                let culprit = false_one.recomputation.verify(run).ok()?.target;
                Some(Self::Total(Total { freeze: false_one.freeze.clone(), culprit }))
            }
            _ => None,
        }
    }

    /// The audit that it is about.
    pub fn transcript(&self) -> Option<&Transcript> {
        match self {
            Self::Audit(transcript) | Self::Verdict(FalseVerdict { transcript, .. }) => Some(transcript),
            _ => None,
        }
    }

    /// The freeze of the round that it is about; none for what messages alone decide.
    pub fn freeze(&self) -> Option<&Signed<Record>> {
        match self {
            Self::Misconduct(Misconduct::Root(wrong)) => Some(&wrong.freeze),
            Self::Equivocation(_) | Self::Misconduct(_) | Self::Results(_) => None,
            Self::Aggregation(part) => Some(&part.freeze),
            Self::Audit(transcript) => Some(&transcript.freeze),
            Self::Total(total) => Some(&total.freeze),
            Self::Verdict(verdict) => Some(&verdict.transcript.freeze),
            Self::Recomputation(false_one) => Some(&false_one.freeze),
        }
    }
}

/// `H(TABLE, salt, rows)`: binds the rows, hides them until the salt is known.
pub fn table_seal(salt: &[u8; 32], rows: &Rows) -> Digest {
    Hasher::new(Domain::TABLE).part(salt).part(&encode(rows)).finish()
}

/// `H(RESULTS, salt, results)`.
pub fn results_seal(salt: &[u8; 32], results: &Results) -> Digest {
    Hasher::new(Domain::RESULTS).part(salt).part(&encode(results)).finish()
}
