//! Peer that has the steward read old blocks without end, and brings half of its own parts to the steward alone.
//!
//! Its work is honest. What it asks for it may have; whoever reads beside it must not wait for that, least of all the
//! aggregators of the open round, which need the parts that it left with the steward (ROUND-24).

use std::sync::OnceLock;

use muster_core::codec::{List, encode};
use muster_core::ids::{Block, MemberId, Part, Round};
use muster_core::ledger::Ledger;
use muster_core::messages::wire::{InputQuery, Request};
use muster_core::state::Arithmetic;
use muster_member::{Assignment, NodeConduct, Outside, Summed};

use super::flood::flood;

/// Rounds back to the first one that it asks for, and how many it asks for in turn.
const BACK: (u32, u32) = (5, 8);
/// How often a request names its block, on every second connection.
const NAMES: usize = 1024;

#[derive(Default)]
pub(super) struct Thrash {
    steward: OnceLock<MemberId>,
    begun: OnceLock<()>,
}

impl NodeConduct for Thrash {
    fn contribute(&self, work: &Assignment, arithmetic: &mut dyn Arithmetic) -> Summed {
        self.steward.get_or_init(|| work.manifest.steward);
        work.sum(arithmetic)
    }

    fn deliver(&self, _: Round, mut parts: Vec<(Part, MemberId)>) -> Option<Vec<(Part, MemberId)>> {
        // As many as the steward takes of one sender (ROUND-24).
        let half = parts.len() / 2;
        if let Some(steward) = self.steward.get() {
            parts.iter_mut().take(half).for_each(|(_, keeper)| *keeper = *steward);
        }
        Some(parts)
    }

    fn serves(&self, _: Round, steward: bool) -> bool {
        steward
    }

    fn besides(&self, _: Round, outside: &Outside) {
        let (me, ledger) = (outside.identity.id(), outside.ledger.clone());
        let query = move |connection, count| old_blocks(&ledger.borrow(), me, connection, count);
        self.begun.get_or_init(|| flood(outside, query));
    }
}

/// Asks for blocks of its own part of an old round, which the steward keeps (ROUND-15): one block again and again, or as many
/// as fit into an answer.
fn old_blocks(ledger: &Ledger, me: MemberId, connection: u32, count: u32) -> Option<Vec<u8>> {
    let (first, rounds) = BACK;
    let back = first + connection.wrapping_add(count) % rounds;
    let view = ledger.round(Round(ledger.next_round().0.checked_sub(back)?))?;
    view.commitment(view.slot_of(&me)?)?;
    let mut parts = (0..).map(Part).zip(view.parts());
    let (_, plan) = parts.find(|(part, _)| view.aggregating(*part).any(|member| member == me))?;
    let blocks: Vec<Block> = if connection.is_multiple_of(2) {
        let length = |block: &&Block| ledger.layout().block(**block).map(|block| block.range.len());
        vec![*plan.blocks.iter().min_by_key(length)?; NAMES]
    } else {
        muster_replica::groups(ledger.layout(), &plan.blocks).into_iter().next()?
    };
    let query = InputQuery { round: view.round(), member: me, blocks: List::new(blocks).ok()? };
    Some(encode(&Request::InputBlocks(query)))
}
