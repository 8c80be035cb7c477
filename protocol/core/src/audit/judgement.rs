//! What a judge gives, and what it is given.

use std::sync::Arc;

use crate::contribution::PackedContribution;
use crate::ids::{Block, Digest, Height, MemberId, Round, Row, RowSet, ShardId};
use crate::ledger::{Ledger, RoundView};
use crate::messages::audit::FindingKind;
use crate::messages::wire::BlockData;
use crate::state::{State, Update};

/// What re-executing evidence gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Proved.
    Guilty {
        /// Who.
        culprit: MemberId,
        /// When.
        round: Round,
        /// Of what.
        finding: FindingKind,
        /// The figures, for people.
        detail: String,
    },
    /// Re-executed: the accused was right.
    NotGuilty(String),
    /// Something that the judgement needs is unavailable; the text names it. Never a ban.
    Undecided(String),
    /// Not evidence of anything.
    Malformed(String),
}

/// Where a judge finds what evidence refers to. Implementations give only what they have checked.
pub trait Witness {
    /// Parameters and exponents of these shards of the state with this root, and of no others; moments may be empty, but
    /// where a step is taken again.
    fn state(&mut self, root: &Digest, shards: &[ShardId]) -> Option<State>;
    /// Windows of the training text.
    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>>;
    /// The row that a window belongs to, of those with a seat (ASSIGN-10); only runs with several rows need it.
    fn row(&mut self, _window: u64, _open: RowSet) -> Option<Row> {
        None
    }
    /// All of a committed contribution. The judge checks it against the commitment.
    // Whoever serves it may lie: only its root ties it to what was committed (AUDIT-7).
    fn contribution(&mut self, round: Round, member: &MemberId) -> Option<Arc<PackedContribution>>;
    /// A round as the judge's own ledger has it: its parts, and who had to reduce them.
    fn round(&mut self, round: Round) -> Option<RoundView>;
    /// One block of a committed contribution with its proofs. The judge checks them against the commitment.
    fn block(&mut self, round: Round, member: &MemberId, block: Block) -> Option<BlockData>;
    /// The ledger before the record of this height; only evidence against the steward needs it.
    fn ledger(&mut self, _height: Height) -> Option<Ledger> {
        None
    }
    /// The aggregate of a round; only evidence against the steward needs it. The judge checks it against the sealed
    /// digests.
    fn update(&mut self, _round: Round) -> Option<Update> {
        None
    }
}
