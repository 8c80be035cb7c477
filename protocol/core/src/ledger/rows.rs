//! Rows: who holds which, and which states have several.

mod waiting;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::chain::{ChainTip, Stage};
use super::member::{Holding, Member, Standing};
use super::roster::Roster;
use super::rounds::Rounds;
use super::terms::Terms;
use super::view::{RoundView, RowPlan, WeightedCommit};
use crate::bug::OrBug;
use crate::error::{Reject, require};
use crate::hash::{Domain, Hasher, below};
use crate::ids::{Digest, MemberId, Round, Row, ShardId};
use crate::messages::enrol::Ready;
use crate::messages::record::Outcome;
use crate::regime::RowRules;
use crate::sign::{Signed, Verified};
use crate::state::{ShardRoots, StateRoots};
use waiting::WaitingUpdates;

/// Whether rows were dealt, and which updates of rows wait. Which row a member holds stands in the roster.
#[derive(Clone)]
pub(super) struct Rows {
    terms: Arc<Terms>,
    /// Whether rows were dealt to members.
    dealt: bool,
    waiting: WaitingUpdates,
}

impl Rows {
    pub(super) fn new(terms: &Arc<Terms>) -> Self {
        Self { terms: Arc::clone(terms), dealt: false, waiting: WaitingUpdates::default() }
    }

    /// Whether rows were dealt to members.
    pub(super) fn has_dealt(&self) -> bool {
        self.dealt
    }

    /// Whether the update of some row of a round waits.
    pub(super) fn waits(&self, round: Round) -> bool {
        self.waiting.waits(round)
    }

    /// What the commitments of the open round settle about its rows, and what they make of the rates of audits.
    pub(super) fn plan(
        &self,
        view: &RoundView,
        commits: &mut [Option<WeightedCommit>],
        roster: &Roster,
        rounds: &Rounds,
    ) -> RowPlan {
        let plan = |rules| self.waiting.plan(rules, view, commits, roster, rounds);
        self.terms.regime().row_rules().map_or_else(RowPlan::default, plan)
    }

    /// Checks what an outcome makes of the rows, as far as the ledger tells (LEDGER-10).
    pub(super) fn check_outcome(
        &self,
        chain: &ChainTip,
        view: &RoundView,
        outcome: &Outcome,
    ) -> Result<(), Reject> {
        // The root needs arithmetic and is checked by the replica (STATE-5); the step does not.
        let follows = self.follows(chain, view, &outcome.state);
        require(follows, "an outcome applies one update to the trunk and to the rows that it names")?;
        // ROW-6: settled by the Freeze, so that nobody chooses what is applied.
        let steps = *outcome.steps == *view.row_steps();
        require(steps, "an outcome names the rows that take a step")
    }

    /// The round of this view is over.
    pub(super) fn apply_outcome(&mut self, view: &RoundView) {
        self.waiting.apply_outcome(view, self.terms.manifest().model.lag());
    }

    /// Whether roots follow from the newest state, as far as roots tell (LEDGER-10).
    fn follows(&self, chain: &ChainTip, view: &RoundView, state: &StateRoots) -> bool {
        let rows = chain.next_rows();
        let all = self.terms.layout().all_shards(rows);
        let steps = view.shard_steps();
        let branches = rows > chain.rows();
        // STATE-9: the trunk takes a step, and so do the rows that the Freeze has settled. Any other keeps everything.
        let stepped = |id: ShardId, shard: &ShardRoots| {
            // STATE-8: when an Outcome makes the b-th update, its rows are copies of the row that the update gives.
            let before = chain.state().shard(if branches { ShardId(id.0.min(1)) } else { id });
            match before {
                Some(before) if branches || steps.iter().any(|step| step.shard == id) => {
                    shard.step == before.step.saturating_add(1)
                }
                Some(before) => shard == before,
                None => false,
            }
        };
        state.shards.len() == all.clone().count()
            && all.zip(&state.shards).all(|(id, shard)| stepped(id, shard))
            && (!branches || state.shards.iter().skip(1).is_sorted_by(|a, b| a == b))
    }

    /// Whom a record deals which row when it opens the first round on a state with so many rows. Nobody where rows were
    /// dealt before, or there is one.
    pub(super) fn dealt(&self, chain: &ChainTip, roster: &Roster, rows: u16) -> BTreeMap<MemberId, Row> {
        // ROW-1: rows are dealt by the first Begin or Outcome that opens a round on a state with several rows, since the
        // run began or went back to a state with one.
        if rows == 1 || self.dealt {
            return BTreeMap::new();
        }
        let nodes = roster.nodes_still();
        deal_rows(&chain.head(), nodes.map(|member| member.id), rows)
    }

    /// Notes what was dealt.
    pub(super) fn apply_deal(&mut self, dealt: &BTreeMap<MemberId, Row>) {
        self.dealt |= !dealt.is_empty();
    }

    /// Draws rows for nodes that came after they were dealt, by the newest head.
    pub(super) fn drawn(&self, chain: &ChainTip, roster: &Roster, rounds: &Rounds) -> Vec<(MemberId, Row)> {
        // ROW-2: a row is drawn for every such node without one, if rows were dealt.
        if !self.dealt {
            return Vec::new();
        }
        let holders =
            self.holders(chain, roster, rounds).into_iter().map(|holder| (holder.member, Some(holder.row)));
        let without = roster.nodes_still().filter(|member| member.holding.is_none());
        let nodes: Vec<(MemberId, Option<Row>)> =
            holders.chain(without.map(|member| (member.id, None))).collect();
        draw_rows(&chain.head(), &nodes, chain.rows())
    }

    /// The nodes that count as holders of their rows (ROW-2), in order of admission.
    pub(super) fn holders(&self, chain: &ChainTip, roster: &Roster, rounds: &Rounds) -> Vec<RowHolder> {
        // ROW-2: a node counts as holder while r + max(retention.contributions, 1) is not below the next round, for a round r
        // in which it had a seat in the row, or that was the next one when it got the row. Whoever has gone without a word
        // would otherwise count for ever.
        let window = self.terms.manifest().retention.contributions.max(1);
        let lately = |round: Round| round.0.saturating_add(window) >= chain.next_round().0;
        let seated = rounds.iter().filter(|view| lately(view.round()));
        let seats = seated.flat_map(|view| view.seats().iter().map(|seat| (seat.member, seat.row)));
        let seated: BTreeSet<(MemberId, Row)> = seats.collect();
        let nodes = roster.nodes_still();
        let holder = |member: &Member| {
            let Holding { row, ready, since } = member.holding?;
            let counts = lately(since) || seated.contains(&(member.id, row));
            let seatable = ready && member.standing == Standing::Active && member.trains();
            counts.then_some(RowHolder { member: member.id, row, seatable })
        };
        nodes.filter_map(holder).collect()
    }

    /// ROW-7: who moves to which row with the Outcome of the open round.
    pub(super) fn moved(
        &self,
        chain: &ChainTip,
        roster: &Roster,
        rounds: &Rounds,
    ) -> Option<(MemberId, Row)> {
        let RowRules { few, .. } = self.terms.regime().row_rules()?;
        // By the head before: whoever seals the record cannot try others until one suits.
        let weighs =
            |holder: &RowHolder| roster.member(&holder.member).is_some_and(|member| roster.weighs(member));
        // A key without weight opens no row, and costs nothing.
        let holders: Vec<RowHolder> =
            self.holders(chain, roster, rounds).into_iter().filter(weighs).collect();
        if self.dealt { move_holder(&chain.head(), &holders, chain.rows(), few) } else { None }
    }

    /// The state went back. Gives whether nobody holds a row any more.
    pub(super) fn apply_rewind(&mut self, chain: &ChainTip) -> bool {
        // ROW-6: what was computed on states that are abandoned is not applied to this one.
        self.waiting = WaitingUpdates::default();
        // ROW-4: a Rewind to a state with one row takes back who holds which row.
        let withdrawn = chain.rows() == 1;
        self.dealt &= !withdrawn;
        withdrawn
    }

    /// Checks what a node says of the row that was drawn for it (ROW-3).
    pub(super) fn check_ready(
        &self,
        chain: &ChainTip,
        roster: &Roster,
        rounds: &Rounds,
        signed: &Signed<Ready>,
    ) -> Result<Verified<Ready>, Reject> {
        // ROW-3: a Ready is good when its author is a node that has neither left nor been banned, `row` is the one that
        // was drawn for it, it has not been ready since, `round` is not before the round that was the next one then, and
        // `root` is the root of the state before `round`, which is the next round or one that is remembered.
        let ready = signed.verify(self.terms.run())?;
        let member =
            roster.member(&ready.author()).ok_or(Reject::NotEntitled("be ready: it is no member"))?;
        require(member.is_node_still(), "only a node that has not gone holds a row")?;
        let drawn = member.holding.ok_or(Reject::Stale("no row was drawn for this member yet"))?;
        require(drawn.row == ready.row, "a member is ready for the row that it was drawn for")?;
        // Every statement stays on everybody's disk.
        require(!drawn.ready, "a member says once that it is ready")?;
        let sealed = match rounds.round(ready.round) {
            Some(view) => Some(view.state()),
            None => (ready.round == chain.next_round()).then_some(chain.state()),
        };
        // Else an old word would stand for a row that was left since and drawn again.
        require(ready.round >= drawn.since, "a member is ready after it was drawn")?;
        // What it fetched is what was sealed: whoever got anything else finds out before it has a seat.
        let sealed = sealed.ok_or(Reject::Stale("the state of this round is not remembered"))?;
        require(sealed.root() == ready.root, "a member is ready with a sealed state")?;
        require(chain.stage() != Stage::Closed, "the run is over")?;
        Ok(ready)
    }
}

/// ROW-1: nodes in order of `H("place", head before the record, member)` take rows 0, 1, …, R − 1, 0, 1, … in turn.
pub fn deal_rows(
    head: &Digest,
    nodes: impl IntoIterator<Item = MemberId>,
    rows: u16,
) -> BTreeMap<MemberId, Row> {
    // By the head before: whoever seals the record cannot try orders until one suits.
    let mut order: Vec<(Digest, MemberId)> =
        nodes.into_iter().map(|id| (place(head, &id).finish(), id)).collect();
    order.sort_unstable();
    order.into_iter().zip((0..rows).cycle()).map(|((_, id), row)| (id, Row(row))).collect()
}

/// Of these nodes, in order of admission, those without a row, and the rows that are drawn for them.
///
/// ROW-2: the candidates are the ⌈R/2⌉ rows with the fewest holders, the lowest first among equals. The node's row is
/// candidate number `below(first8(H("place", head after the record, member)), ⌈R/2⌉)`. A node counts as holder of the row
/// that was drawn for it.
pub fn draw_rows(head: &Digest, nodes: &[(MemberId, Option<Row>)], rows: u16) -> Vec<(MemberId, Row)> {
    let mut holders = vec![0usize; rows.into()];
    let count = |holders: &mut Vec<usize>, row: Row| {
        holders.get_mut(row.index()).into_iter().for_each(|count| *count += 1);
    };
    nodes.iter().filter_map(|(_, row)| *row).for_each(|row| count(&mut holders, row));
    let mut drawn = Vec::new();
    for (id, _) in nodes.iter().filter(|(_, row)| row.is_none()) {
        let mut order: Vec<Row> = (0..rows).map(Row).collect();
        order.sort_by_key(|row| (holders.get(row.index()).copied(), *row));
        // Half of them: a newcomer that would rather have another row must come, and be audited, again.
        let choice = below(place(head, id).number(), u64::from(rows.div_ceil(2)));
        let row = order.get(choice as usize).copied().or_bug("a row to draw from");
        let Some(row) = row else { continue };
        count(&mut holders, row);
        drawn.push((*id, row));
    }
    drawn
}

/// A node that counts as holder of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowHolder {
    /// Who.
    pub member: MemberId,
    /// Of which row.
    pub row: Row,
    /// Whether it may have a seat there now: it is active, and has said that it holds the row.
    pub seatable: bool,
}

/// Which of these holders moves, and to which row: nobody where no row is short of holders.
///
/// ROW-7: let p be the row with the fewest holders and q the one with the most seatable ones, the lowest first among equals.
/// If p has fewer holders than `few`, and q has two more seatable ones than that at least, one of these moves to p: the one
/// whose `H("place", head before the record, member)` is the least.
pub fn move_holder(head: &Digest, holders: &[RowHolder], rows: u16, few: u16) -> Option<(MemberId, Row)> {
    let all = |row: Row| holders.iter().filter(move |holder| holder.row == row);
    let seatable = |row: Row| all(row).filter(|holder| holder.seatable);
    let rows = || (0..rows).map(Row);
    let (least, poorest) = rows().map(|row| (all(row).count(), row)).min()?;
    // Those that are away count where a row may be short of holders, not where it may have too many: whoever goes away for
    // a round would otherwise drive the others out.
    let (Reverse(most), richest) = rows().map(|row| (Reverse(seatable(row).count()), row)).min()?;
    // Two more: with one, the rows would only change places.
    if least >= usize::from(few) || most < least + 2 {
        return None;
    }
    let mover = seatable(richest).min_by_key(|holder| place(head, &holder.member).finish())?;
    Some((mover.member, poorest))
}

/// What a member's row is drawn by.
fn place(head: &Digest, member: &MemberId) -> Hasher {
    Hasher::new(Domain::PLACE).value(head).value(member)
}

#[cfg(test)]
mod tests;
