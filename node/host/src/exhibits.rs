//! Exhibits: fetched, proved and kept.

use std::collections::BTreeMap;

use muster_core::contribution::open_block;
use muster_core::ids::{Block, MemberId, Part, Round};
use muster_core::messages::wire::BlockData;
use muster_replica::{CommittedContribution, HeldBlocks, PeerError, WantedContribution, patience};
use muster_roles::steward::exhibits::{Counted, OwedPart};
use muster_store::error::StoreError;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::court::Court;

/// How many holders' patience one try may take.
const HOLDERS: u32 = 2;

impl Court {
    /// Keeps the values of these parts for replay; returns the parts that could not be kept.
    pub(super) fn exhibit_parts(&self, owed: Vec<OwedPart>) -> Vec<OwedPart> {
        let mut rounds: BTreeMap<Round, Vec<(Part, Vec<Block>)>> = BTreeMap::new();
        owed.into_iter().for_each(|(round, part, blocks)| {
            rounds.entry(round).or_default().push((part, blocks));
        });
        let mut lost = Vec::new();
        for (round, parts) in rounds {
            if let Err(error) = self.exhibit_round(round, &parts) {
                tracing::error!("parts of round {round} could not be kept for replay: {error}");
                lost.extend(parts.into_iter().map(|(part, blocks)| (round, part, blocks)));
            }
        }
        lost
    }

    /// Keeps the inputs of a wrong part for good, by sender.
    pub(super) fn exhibit_inputs(
        &self,
        round: Round,
        part: Part,
        blocks: BTreeMap<(MemberId, Block), BlockData>,
    ) -> Result<(), StoreError> {
        let mut senders: BTreeMap<MemberId, Vec<BlockData>> = BTreeMap::new();
        blocks.into_iter().for_each(|((member, _), data)| senders.entry(member).or_default().push(data));
        // Two aggregators may be convicted of one part.
        let new = |member: &MemberId| !self.home.has_exhibited_blocks(round, member, part);
        let mut senders = senders.into_iter().filter(|(member, _)| new(member));
        senders
            .try_for_each(|(member, blocks)| self.home.save_exhibited_blocks(round, &member, part, &blocks))
    }

    /// Keeps the proved blocks of the parts in which a contribution counted, until the round is forgotten or, if `lasting`,
    /// for good. Blocks that are not here are fetched from their holders.
    ///
    /// # Errors
    /// Which parts that count are unavailable, and why, in words. All others are kept.
    pub(super) async fn exhibit_blocks(
        &self,
        wanted: &WantedContribution,
        counted: &Counted,
        lasting: bool,
    ) -> Result<(), String> {
        let name = wanted.name;
        let CommittedContribution { round, member, .. } = name;
        // It is never closed; without it, only memory is at stake.
        let _few = self.showing.acquire().await.ok();
        let mut tasks = JoinSet::new();
        for part in counted.parts.iter().chain(&counted.others).copied() {
            // What is kept for good stays as it is.
            if lasting && self.home.has_exhibited_blocks(round, &member, part) {
                continue;
            }
            let held = wanted.parts.iter().find(|held| held.part == part).cloned();
            let Some(HeldBlocks { blocks, holders, .. }) = held else { continue };
            let kept = self.shelved(wanted, part, &blocks);
            let (peers, layout) = (self.peers.clone(), self.layout.clone());
            tasks.spawn(async move {
                let found = match kept {
                    Some(kept) => Ok(kept),
                    None => {
                        let asked = peers.contribution(&holders, &layout, &name, &blocks);
                        // The first holder may be a friend of the convict: time for another one remains.
                        let limit = HOLDERS * patience(&layout, &blocks);
                        timeout(limit, asked).await.unwrap_or(Err(PeerError::Late))
                    }
                };
                (part, found)
            });
        }
        let mut missing = Vec::new();
        while let Some(done) = tasks.join_next().await {
            let (part, found): (Part, Result<Vec<BlockData>, _>) = done.map_err(|error| error.to_string())?;
            let kept = match &found {
                Ok(blocks) => {
                    self.keep_blocks(wanted, part, blocks, lasting).map_err(|error| error.to_string())
                }
                Err(why) => Err(why.to_string()),
            };
            match kept {
                // Only what counted is owed: a convict could otherwise keep back a part that counted nowhere,
                // and make the archive unreplayable.
                Err(why) if counted.parts.contains(&part) => missing.push(format!("part {part}: {why}")),
                _ => {}
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(missing.join("; ")) }
    }

    /// The blocks of a part, if all of them are here and prove themselves.
    fn shelved(&self, wanted: &WantedContribution, part: Part, blocks: &[Block]) -> Option<Vec<BlockData>> {
        let CommittedContribution { round, member, root } = wanted.name;
        let kept = self.home.load_part(round, &member, part.0).ok()??;
        // All of them, in order: what is on the shelf was not synced, and may be in pieces.
        let same = kept.iter().map(|data| data.block).eq(blocks.iter().copied());
        let proved = |data: &BlockData| open_block(&self.layout, &root, data).is_ok();
        (same && kept.iter().all(proved)).then_some(kept)
    }

    fn keep_blocks(
        &self,
        wanted: &WantedContribution,
        part: Part,
        blocks: &[BlockData],
        lasting: bool,
    ) -> Result<(), StoreError> {
        let CommittedContribution { round, member, .. } = wanted.name;
        if lasting {
            return self.home.save_exhibited_blocks(round, &member, part, blocks);
        }
        self.shelf.save(round, &member, part.0, blocks.iter())
    }
}
