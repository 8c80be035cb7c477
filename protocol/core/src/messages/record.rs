//! The ledger's records: what the steward seals, each bound to the one before.

use crate::codec::List;
use crate::hash::{Domain, hash_of};
use crate::ids::{Digest, Height, MemberId, Part, Round, Row, ShardId, ShareClass, Slot};
use crate::messages::audit::{AuditRequest, FindingKind, Jury};
use crate::messages::enrol::{CloseTree, Enrol, Leave, Ready, Return};
use crate::messages::round::{Bitmap, Commit, Echo, PartResult};
use crate::sign::{Message, Signed};
use crate::state::{ShardStep, StateRoots};
use crate::{limits, wire};

wire! {
    /// One sealed record.
    pub struct Record {
        /// Its place.
        pub height: Height,
        /// Head of the ledger before it: the hash of the record before, or the run id's digest at height 0.
        pub previous: Digest,
        /// What it says.
        pub body: Body,
    }
}

impl Message for Record {
    const TAG: &'static str = "record";
}

impl Record {
    /// Head of the ledger after it, without the signature (LEDGER-2). R_t is the head after the freeze of round t.
    pub fn head(&self) -> Digest {
        hash_of(Domain::LEDGER, self)
    }
}

wire! {
    /// What a record says.
    pub enum Body {
        /// The run opens with this initial state.
        Open(StateRoots),
        /// A member is admitted.
        Admit(Signed<Enrol>),
        /// Enough members came: the seats of round 0.
        Begin(Seats),
        /// The commitments of a round are final.
        Freeze(Freeze),
        /// Which contributions each part counts.
        Inputs(Inputs),
        /// Parts whose aggregator failed go to another one.
        Reassign(Reassign),
        /// A round is over.
        Outcome(Outcome),
        /// An audited member did not answer in time.
        Silence(Signed<AuditRequest>),
        /// It answered at last; the digest names the request.
        Answered(Digest),
        /// A member is expelled.
        Ban(Ban),
        /// A member is back.
        Return(Signed<Return>),
        /// A member went.
        Leave(Signed<Leave>),
        /// The state goes back to that before an earlier round; round numbers go on.
        Rewind(Rewind),
        /// The run is over.
        Close(Digest),
        /// A verifier did not do its duty in time.
        Idle(Idle),
        /// The organiser closes a member's tree of invitations.
        CloseTree(Signed<CloseTree>),
        /// A node holds the row that it was drawn for.
        Ready(Signed<Ready>),
        /// What some members commit to in the round being computed counts nowhere.
        Late(Late),
        /// Some aggregators of the round being reduced have other share classes from now on.
        Shares(Shares),
    }
}

wire! {
    /// A place in a round.
    pub struct Seat {
        /// Who.
        pub member: MemberId,
        /// Leaves it may sum.
        pub quota: u32,
        /// The row that it computes on, beside the trunk; 0 where there is one.
        pub row: Row,
    }
}

/// The seats of a round, in order of slots.
pub type Seats = List<Seat, { limits::SEATS }>;

wire! {
    /// The commitments of a round, in order of slots.
    pub struct Freeze {
        /// The round.
        pub round: Round,
        /// Root of the state of the round.
        pub state: Digest,
        /// Commitments.
        pub commits: List<Signed<Commit>, { limits::SEATS }>,
    }
}

wire! {
    /// Seats for whose members audits have waited (AUDIT-27).
    pub struct Late {
        /// The round.
        pub round: Round,
        /// Their slots.
        pub slots: Bitmap,
    }
}

wire! {
    /// How fast aggregators showed what they reduced, beside each other (LEDGER-25).
    pub struct Shares {
        /// The round.
        pub round: Round,
        /// Whose classes change, in order of slots.
        pub moves: List<ShareMove, { limits::SEATS }>,
    }
}

wire! {
    /// One aggregator's new share class.
    pub struct ShareMove {
        /// Its slot.
        pub slot: Slot,
        /// From the next record on.
        pub class: ShareClass,
    }
}

wire! {
    /// Counted contributions.
    pub struct Inputs {
        /// The round.
        pub round: Round,
        /// 0: of every part in order. 1: of the reassigned parts in order.
        pub attempt: u8,
        /// Bitmaps; an empty one leaves the part out.
        pub parts: List<Bitmap, { limits::PARTS }>,
    }
}

wire! {
    /// New aggregators.
    pub struct Reassign {
        /// The round.
        pub round: Round,
        /// Which parts go to which slots.
        pub parts: List<Reassigned, { limits::PARTS }>,
    }
}

wire! {
    /// A part that goes to another aggregator.
    pub struct Reassigned {
        /// The part.
        pub part: Part,
        /// The new aggregator.
        pub aggregator: Slot,
    }
}

wire! {
    /// The end of a round and the seats of the next.
    pub struct Outcome {
        /// The round.
        pub round: Round,
        /// The result of each part; none for a part that was left out.
        pub results: List<Option<Signed<PartResult>>, { limits::PARTS }>,
        /// Who has seen the freeze.
        pub echoes: List<Signed<Echo>, { limits::SEATS }>,
        /// The next state.
        pub state: StateRoots,
        /// The seats of the next round; none after the last.
        pub seats: Seats,
        /// Leaves that verifiers found right since the last outcome.
        pub credits: List<Credit, { limits::CREDITS }>,
        /// Results of parts' other aggregators that say the same, in order of parts.
        pub seconds: List<Signed<PartResult>, { limits::PARTS }>,
        /// The rows that take a step, in order; none where the model has no rows.
        pub steps: List<RowStep, { limits::ROWS as usize }>,
    }
}

wire! {
    /// The step of a row.
    #[derive(Copy)]
    pub struct RowStep {
        /// Which row.
        pub row: Row,
        /// The round whose results it takes: the Outcome's own, or an earlier one whose update has waited (ROW-5).
        pub round: Round,
    }
}

impl Outcome {
    /// The shards that take a step.
    pub fn shard_steps(&self) -> Vec<ShardStep> {
        shard_steps(self.round, &self.steps)
    }
}

/// The shards that take a step with the Outcome of a round: the trunk, and these rows.
pub fn shard_steps(round: Round, rows: &[RowStep]) -> Vec<ShardStep> {
    let trunk = ShardStep { shard: ShardId::TRUNK, round };
    let rows = rows.iter().map(|step| ShardStep { shard: ShardId::of(step.row), round: step.round });
    std::iter::once(trunk).chain(rows).collect()
}

wire! {
    /// Recomputed leaves of a contribution that were right.
    pub struct Credit {
        /// Digest of the signed verdict.
        pub verdict: Digest,
        /// The round of the contribution.
        pub round: Round,
        /// Whose.
        pub member: MemberId,
        /// Who recomputed.
        pub verifier: MemberId,
        /// How many.
        pub leaves: u32,
    }
}

wire! {
    /// An expulsion.
    pub struct Ban {
        /// Who.
        pub culprit: MemberId,
        /// First round without it.
        pub effective: Round,
        /// Round of the offence.
        pub round: Round,
        /// What was found.
        pub finding: FindingKind,
        /// Name of the evidence.
        pub evidence: Digest,
        /// Who found it.
        pub accuser: MemberId,
        /// Jurors who find the same, where there is a tolerance.
        pub jury: Jury,
    }
}

wire! {
    /// A verifier that left undone what a round owed to it: its coin, or an audit that the coin made due.
    pub struct Idle {
        /// Who.
        pub verifier: MemberId,
        /// The oldest round in which it owes something.
        pub round: Round,
    }
}

wire! {
    /// A rollback.
    pub struct Rewind {
        /// The round before which the state was good.
        pub to: Round,
        /// That state.
        pub state: StateRoots,
        /// Name of the evidence that moved the aggregate beyond the limit.
        pub evidence: Digest,
    }
}
