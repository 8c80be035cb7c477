//! What an audit is about.

use muster_core::ids::{Block, Digest, MemberId, Part, Round, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::record::Record;
use muster_core::messages::round::Commit;
use muster_core::sign::Signed;

/// A frozen contribution, and where its integers can be had.
#[derive(Debug)]
pub struct Subject {
    /// The freeze that holds it.
    pub record: Signed<Record>,
    /// R_t.
    pub freeze: Digest,
    /// What was committed.
    pub commit: Commit,
    /// Its author.
    pub author: MemberId,
    /// All its blocks, by part.
    pub sources: Vec<Source>,
}

/// Where some blocks of a contribution can be had.
#[derive(Clone, Debug)]
pub struct Source {
    /// The part that they are.
    pub part: Part,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// Members that may hold them: the aggregators of their part, then the author. Whom nobody can dial is not among them, but
    /// for an author whom nobody stands in for.
    pub holders: Vec<MemberId>,
    /// Whether the part counts its author, so that its keepers have signed for the blocks (ROUND-5).
    pub signed: bool,
}

impl Source {
    /// AUDIT-29: whose fault it is that none of them shows the blocks: that of all who have signed for them and can be
    /// asked, else the author's.
    pub fn charged<'a>(&'a self, author: &'a MemberId) -> &'a [MemberId] {
        if self.signed { &self.holders } else { std::slice::from_ref(author) }
    }
}

impl Subject {
    /// The contribution of a slot; `None` when it has none, or nothing is frozen.
    pub fn of(ledger: &Ledger, view: &RoundView, slot: Slot) -> Option<Self> {
        let commitment = view.commitment(slot)?;
        let sources = view.parts_of(slot).map(|(part, plan)| {
            let keepers = |attempt| view.reducers(part, attempt);
            // Those of the reassignment first: they reduced the part. The author last: it may want to delay.
            let keepers = keepers(1).chain(keepers(0)).chain([commitment.author]);
            let can_be_dialled =
                |keeper: &MemberId| ledger.member(keeper).is_some_and(|member| !member.addresses.is_empty());
            let mut holders: Vec<MemberId> = keepers.filter(can_be_dialled).collect();
            holders.dedup();
            if holders.is_empty() {
                holders.push(commitment.author);
            }
            let signed = view.inputs().get(part.index()).is_some_and(|inputs| inputs.contains(slot));
            Source { part, blocks: plan.blocks.clone(), holders, signed }
        });
        Some(Self {
            record: view.freeze()?.clone(),
            freeze: view.freeze_digest()?,
            commit: commitment.commit.clone(),
            author: commitment.author,
            sources: sources.collect(),
        })
    }

    /// Round and slot: the order in which audits are worked on.
    pub fn key(&self) -> (Round, Slot) {
        (self.commit.round, self.commit.slot)
    }
}
