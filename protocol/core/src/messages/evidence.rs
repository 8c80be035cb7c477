//! Evidence: what members and the steward have signed, put together so that anyone can judge it.

use crate::hash::{Domain, hash_of};
use crate::ids::{Digest, MemberId, Round, RunId, ShardId};
use crate::messages::audit::{AuditRequest, Recomputation, ResultsSeal, TableOpening, TableSeal, Verdict};
use crate::messages::call::{Answer, Ask};
use crate::messages::gossip::Head;
use crate::messages::record::{Body, Record};
use crate::messages::round::{Commit, CommitReceipt, Delivered, DeliveryReceipt, PartResult};
use crate::sign::Signed;
use crate::state::StateRoots;
use crate::wire;

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
        /// Roots of the state that the freeze names.
        pub before: StateRoots,
        /// The shard that is wrong after the round.
        pub shard: ShardId,
        /// Where the shard's step takes the results of an earlier round: what sealed these.
        pub earlier: Option<SealedRound>,
    }
}

wire! {
    /// What seals the results of a round.
    pub struct SealedRound {
        /// Its Freeze.
        pub freeze: Signed<Record>,
        /// Its Outcome.
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
    /// An answer that is not what the model gives: against whoever signed it.
    pub struct FalseAnswer {
        /// The question.
        pub ask: Signed<Ask>,
        /// What was answered to it.
        pub answer: Signed<Answer>,
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
        /// Decidable by one forward pass.
        Answer(FalseAnswer),
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

    /// The freeze of the round that it is about; none for what messages alone decide, and for answers.
    pub fn freeze(&self) -> Option<&Signed<Record>> {
        match self {
            Self::Misconduct(Misconduct::Root(wrong)) => Some(&wrong.freeze),
            Self::Equivocation(_) | Self::Misconduct(_) | Self::Results(_) | Self::Answer(_) => None,
            Self::Aggregation(part) => Some(&part.freeze),
            Self::Audit(transcript) => Some(&transcript.freeze),
            Self::Total(total) => Some(&total.freeze),
            Self::Verdict(verdict) => Some(&verdict.transcript.freeze),
            Self::Recomputation(false_one) => Some(&false_one.freeze),
        }
    }

    /// The state that it is judged by, as the message that names it says: the round that it is of, and its root. None for what
    /// is judged without one.
    pub fn state(&self, run: RunId) -> Option<(Round, Digest)> {
        if let Self::Answer(call) = self {
            return call.ask.verify(run).ok().map(|ask| (ask.round, ask.root));
        }
        // A reduction needs its inputs and no state.
        let freeze = self.freeze().filter(|_| !matches!(self, Self::Aggregation(_)))?;
        match &freeze.verify(run).ok()?.body {
            Body::Freeze(frozen) => {
                // ROUND-28: what leaves are computed on is in their commitments, which all name the same.
                let commit = frozen.commits.first().filter(|_| self.is_of_leaves());
                let base = commit.and_then(|commit| Some(commit.verify(run).ok()?.state));
                Some((frozen.round, base.unwrap_or(frozen.state)))
            }
            _ => None,
        }
    }
}
