//! What goes into the steward's machine, and what comes out of it.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_core::audit::Judgement;
use muster_core::audit::docket::OpenCase;
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Part, Round};
use muster_core::ledger::Ledger;
use muster_core::messages::audit::{AuditRequest, Finding, Recomputation};
use muster_core::messages::enrol::Addresses;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Idle, Record, Rewind};
use muster_core::messages::round::{PartResult, Receipt};
use muster_core::messages::wire::{InputQuery, Notice, PutBlocks, Request, Response};
use muster_core::round::{Awaited, ClaimedDelivery, ShownDelivery};
use muster_core::sign::{Identity, Signed, Verified};
use muster_core::state::StateRoots;

use super::accusation::Allegation;
use super::exhibits::{OwedContribution, OwedPart, PartName};
use super::hearing::{Matter, Ruling};
use super::past::PastRound;
use crate::keeper::Wanted;

/// A request that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Question(pub u64);

/// The setup of a machine: a new run, or one that was interrupted.
pub struct StewardSetup {
    /// All records that were sealed.
    pub ledger: Ledger,
    /// The steward's key.
    pub identity: Arc<Identity>,
    /// The newest state.
    pub roots: StateRoots,
    /// States that a Rewind can go back to.
    pub states: BTreeSet<Digest>,
    /// ROLLBACK-4: bans of convicts whose past may still have to be looked into, with their evidence where
    /// that is at hand.
    pub bans: Vec<(Ban, Option<Evidence>)>,
    /// Requests that an earlier process took and that no record may hold yet, in their order.
    pub kept: Vec<Request>,
}

/// Inputs of the steward.
pub enum StewardInput {
    /// A member, or a stranger, has a connection now, or none any more.
    Connected(MemberId, bool),
    /// A request of a member or stranger.
    Asked {
        /// The name that its answer will carry.
        question: Question,
        /// The member or stranger that asks, as the handshake has shown.
        from: MemberId,
        /// The request.
        request: Box<Request>,
        /// Seconds since 1970.
        date: u64,
    },
    /// Blocks were stored, or why not; with the receipt to sign once their part is whole.
    Stored(Question, Result<Option<Receipt>, Reject>),
    /// A member or newcomer was found at each address that it names, or why not.
    DialledBack(Question, Result<(), String>),
    /// The signatures of a delivery's receipts were checked.
    DeliveryChecked(Question, Box<Result<ShownDelivery, Reject>>),
    /// Blocks were read and given, or could not be.
    Served(Question),
    /// The values of a prefetched result are here, or unavailable.
    Obtained(Box<PartResult>, bool),
    /// A round's results are applied, or the values of these parts are unavailable; and the states that a
    /// Rewind can go back to.
    Applied(Result<StateRoots, Vec<Part>>, BTreeSet<Digest>),
    /// The states that a Rewind can go back to, after one.
    States(BTreeSet<Digest>),
    /// An accusation was examined.
    Heard(Box<Allegation>, Box<Ruling>),
    /// A part that contributors object to was reduced again.
    Inspected(Box<Allegation>, Box<Judgement>),
    /// A contribution was fetched, or why not.
    Exhibited(OwedContribution, Result<(), String>),
    /// These parts were to be kept by value, and those among them could not be.
    PartsKept(Vec<OwedPart>, Vec<OwedPart>),
    /// The past of a convict was recomputed; empty where there is none.
    Measured(MemberId, Vec<PastRound>),
    /// Gossip brought evidence.
    Proved(Box<Evidence>),
    /// A person wants the steward to stop.
    Interrupt,
    /// This process did not run for a while, which its time leaves out. It heard nobody meanwhile.
    Resumed,
    /// Time has passed.
    Tick,
}

/// Effects, to be performed in their order.
pub enum StewardEffect {
    /// Write the record behind the last one; then show it to everybody.
    Seal(Box<Signed<Record>>, Box<Verified<Record>>),
    /// Show this on the board.
    Post(Notice),
    /// Answer.
    Answer(Question, Response),
    /// Keep a request that was taken in a round, until a record holds it. Later effects wait until it is
    /// kept.
    Keep(Round, Box<Request>),
    /// Store blocks of their author, and say [`StewardInput::Stored`].
    Store(Question, MemberId, Box<PutBlocks>),
    /// Look for somebody where it says that it is, beside everything else, and say [`StewardInput::DialledBack`].
    DialBack(Question, Dial),
    /// Check the signatures of these receipts, beside everything else, and say
    /// [`StewardInput::DeliveryChecked`].
    CheckDelivery(Question, Box<ClaimedDelivery>),
    /// Answer with blocks of a contribution, those of [`Wanted::Now`] first, and say
    /// [`StewardInput::Served`].
    Read(Question, InputQuery, Wanted),
    /// Fetch the values of these results and apply them: [`StewardInput::Applied`].
    Apply(Vec<Option<Signed<PartResult>>>),
    /// Fetch the values of this result for as long as ROUND-7 allows: [`StewardInput::Obtained`].
    Prefetch(Box<PartResult>, MemberId),
    /// Examine: [`StewardInput::Heard`].
    Hear(Box<Allegation>, Box<Matter>),
    /// Reduce a part again before its timer is over: [`StewardInput::Inspected`].
    Inspect(Box<Allegation>, Box<Matter>),
    /// Keep the evidence of a ban for good, with the contribution that it is about where that was at hand.
    KeepEvidence(Box<Evidence>, Option<KeptContribution>),
    /// Fetch a contribution: [`StewardInput::Exhibited`].
    Exhibit(OwedContribution),
    /// Keep the values of these parts: [`StewardInput::PartsKept`]. Where `at_once`, before the next effect.
    KeepParts {
        /// The parts, with their rounds and blocks.
        parts: Vec<OwedPart>,
        /// Whether the next record makes their rounds forgotten.
        at_once: bool,
    },
    /// Drop the values of these parts, which replay does not need after all.
    DropParts(Vec<PartName>),
    /// Recompute the convict's contributions to the rounds that are remembered, and the parts that it signed:
    /// [`StewardInput::Measured`].
    Measure(MemberId),
    /// Bring the state back to the one that the ledger names.
    GoBack(Box<Rewind>),
    /// Drop requests and contributions from before this round, and write down the remains of the last one.
    Prune(Round),
    /// Write all records into one file: the run is over.
    Archive,
    /// For people.
    Tell(Box<Bulletin>),
    /// The steward cannot go on.
    Halt(String),
}

/// Addresses that the ledger does not have yet, of somebody that may come or come back (CHAN-24).
#[derive(Clone, Debug)]
pub struct Dial {
    /// Who must answer there.
    pub author: MemberId,
    /// Where.
    pub addresses: Addresses,
    /// Whose share these dials are of.
    pub payer: Payer,
}

/// Whose share dials are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Payer {
    /// A member's own.
    Member(MemberId),
    /// That of all who come with the organiser's invitation of this key, or with any of this member; of one that the manifest lists;
    /// or, with the steward's key, that of all who come to an open run without an invitation.
    Newcomers(MemberId),
}

/// A contribution that stays for good.
pub struct KeptContribution {
    /// The round that it was contributed to.
    pub round: Round,
    /// Its author.
    pub member: MemberId,
    /// Its integers.
    pub q: Vec<i32>,
}

/// News for people.
#[derive(Debug)]
pub enum Bulletin {
    /// A member was admitted.
    Admitted(MemberId),
    /// The first round begins.
    Began,
    /// A round is over; for how many milliseconds the next one is held back.
    Ended(Round, Option<u64>),
    /// The next round waits for an audit.
    Held(Round, OpenCase),
    /// The Freeze of this round waits for something.
    Awaits(Round, Awaited),
    /// A member was expelled.
    Banned(Ban),
    /// A verifier did not do its duty in time.
    Idle(Idle),
    /// A member came, went, or fell silent.
    Moved(MemberId, &'static str),
    /// The organiser has closed a member's tree of invitations.
    TreeClosed(MemberId),
    /// The state went back; the round with which the run goes on.
    WentBack(Rewind, Round),
    /// A verifier audits a member; the digest names the signed request.
    Requested(Digest, AuditRequest, MemberId),
    /// The audit of this request has its verdict: the number of recomputed leaves, and the finding.
    Judged(Digest, usize, Finding),
    /// A verifier has recomputed all leaves of a member that did not answer.
    Recomputed(Recomputation, MemberId),
    /// An accusation came to nothing.
    Dismissed {
        /// The member that accused.
        accuser: MemberId,
        /// The member that was accused.
        culprit: MemberId,
        /// Why the accusation does not stand.
        why: String,
    },
    /// Contributors objected to a part, and nobody was convicted.
    Inspected(PartResult, bool, Judgement),
    /// The earlier contributions and parts of a convict were computed again.
    Past(MemberId, Vec<PastRound>),
    /// A contribution that replay needs is unavailable, and why.
    Lost(Round, MemberId, String),
    /// The harm of a convict is beyond the limit of rollback, and no Rewind reaches any round of it.
    OutOfReach(MemberId),
    /// This process did not run for a while; the phase has begun anew.
    Resumed,
    /// The steward stops after this round.
    Stopping,
    /// The run is over.
    Closed(Digest),
}

/// How hosting ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostingEnd {
    /// The run is over.
    Closed,
    /// Interrupted: between two rounds, or in one that everybody has left.
    Stopped,
}
