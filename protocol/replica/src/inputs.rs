//! The inputs of a part, fetched from whoever may have them: to reduce it again.

use std::collections::BTreeMap;

use muster_core::ids::{Block, Digest, MemberId, Part};
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::round::PartResult;
use muster_core::messages::wire::BlockData;
use tokio::task::JoinSet;

use crate::peers::{CommittedContribution, Contact, PeerError, Peers, contact};

/// Blocks of contributions with their proofs, which were checked: as they travel, a fourth of what their integers would take.
pub type InputBlocks = BTreeMap<(MemberId, Block), BlockData>;

/// Whom inputs are asked of beside their senders and keepers, and in which order.
#[derive(Clone, Copy)]
pub struct InputSources<'a> {
    /// The steward, asked last.
    pub steward: Option<&'a Contact>,
    /// The aggregator is suspected: a sender is asked before its keepers.
    pub suspected: bool,
}

/// A sealed part, its blocks, and who may hold each sender's.
#[derive(Clone)]
pub struct PartInputs {
    /// The round.
    pub view: RoundView,
    /// The part.
    pub part: Part,
    /// Its blocks.
    pub blocks: Vec<Block>,
    senders: Vec<Sender>,
}

#[derive(Clone)]
struct Sender {
    member: MemberId,
    root: Digest,
    author: Option<Contact>,
    /// Aggregators that took its part in, unless that is the author.
    keepers: Vec<Contact>,
}

impl PartInputs {
    /// Of a result whose round is remembered; `None` when it names no part of that.
    pub fn of(ledger: &Ledger, result: &PartResult) -> Option<Self> {
        Self::held_by(ledger.round(result.round)?, result, |member| contact(ledger, member))
    }

    /// Of a result of this round, with contacts that are known already.
    pub fn held_by(
        view: &RoundView,
        result: &PartResult,
        contact: impl Fn(&MemberId) -> Option<Contact>,
    ) -> Option<Self> {
        let blocks = view.parts().get(result.part.index())?.blocks.clone();
        let aggregators: Vec<MemberId> =
            // Whoever reduces the part now has what its predecessors may never have got.
            (0..=result.attempt).rev().flat_map(|attempt| view.reducers(result.part, attempt)).collect();
        let sender = |slot| {
            let commitment = view.commitment(slot)?;
            let member = commitment.author;
            let keepers = aggregators.iter().filter(|keeper| **keeper != member);
            Some(Sender {
                member,
                root: commitment.commit.root,
                author: contact(&member),
                keepers: keepers.filter_map(&contact).collect(),
            })
        };
        // All or nothing: a sum over fewer inputs would differ from an honest one.
        let senders = result.inputs.slots().map(sender).collect::<Option<_>>()?;
        Some(Self { view: view.clone(), part: result.part, blocks, senders })
    }

    /// Fetches these blocks of every sender, each proved against its commitment, from the first that has them of its
    /// keepers, itself, and the steward, as `sources` says. What `kept` has is not asked for.
    ///
    /// # Errors
    /// Whose inputs are unavailable, and why.
    pub async fn fetch(
        &self,
        peers: &Peers,
        layout: &Layout,
        blocks: &[Block],
        sources: InputSources<'_>,
        kept: InputBlocks,
    ) -> Result<InputBlocks, String> {
        let InputSources { steward, suspected } = sources;
        let mut found = kept;
        let mut tasks = JoinSet::new();
        for sender in &self.senders {
            let lacking: Vec<Block> = blocks
                .iter()
                .filter(|block| !found.contains_key(&(sender.member, **block)))
                .copied()
                .collect();
            if lacking.is_empty() {
                continue;
            }
            let mut holders = sender.keepers.clone();
            // A suspected aggregator would rather not show what proves it wrong.
            let position = if suspected { 0 } else { holders.len() };
            sender.author.iter().for_each(|author| holders.insert(position, author.clone()));
            holders.extend(steward.cloned());
            let (peers, layout, member) = (peers.clone(), layout.clone(), sender.member);
            let name = CommittedContribution { round: self.view.round(), member, root: sender.root };
            tasks
                .spawn(async move { (member, peers.contribution(&holders, &layout, &name, &lacking).await) });
        }
        while let Some(done) = tasks.join_next().await {
            let (member, answer): (MemberId, Result<_, PeerError>) =
                done.map_err(|error| error.to_string())?;
            let answer =
                answer.map_err(|error| format!("the inputs of {member} are unavailable: {error}"))?;
            found.extend(answer.into_iter().map(|data| ((member, data.block), data)));
        }
        Ok(found)
    }

    /// Who counts in the part, with the root of what each committed to.
    pub fn senders(&self) -> impl Iterator<Item = (MemberId, Digest)> + '_ {
        self.senders.iter().map(|sender| (sender.member, sender.root))
    }
}
