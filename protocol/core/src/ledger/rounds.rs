//! The rounds that are remembered. Only this room takes a [`RoundView`] from one phase to the next.

mod audited;
mod outcome;
mod phases;
mod shares;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::chain::ChainTip;
use super::roster::{Aggregators, Roster};
use super::terms::Terms;
use super::view::{Opening, RoundView};
use crate::assign::{self, Seating};
use crate::bug::OrBug;
use crate::coins::drawn_leaves;
use crate::error::{Reject, require};
use crate::ids::{MemberId, Round, Row, ShardId};
use crate::messages::record::Seat;
use crate::messages::round::Route;
use crate::state::{ShardStep, StateRoots};

/// Rounds, oldest first. The last one is in progress, or was the last to be.
#[derive(Clone)]
pub(super) struct Rounds {
    terms: Arc<Terms>,
    views: VecDeque<RoundView>,
}

impl Rounds {
    pub(super) fn new(terms: &Arc<Terms>) -> Self {
        Self { terms: Arc::clone(terms), views: VecDeque::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    /// The round in progress, or the last one.
    pub(super) fn current(&self) -> Option<&RoundView> {
        self.views.back()
    }

    /// A round that is still remembered.
    pub(super) fn round(&self, round: Round) -> Option<&RoundView> {
        self.views.iter().rev().find(|view| view.round() == round)
    }

    /// Rounds still remembered, oldest first.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = &RoundView> {
        self.views.iter()
    }

    /// A round of which audits may have begun.
    pub(super) fn auditable(&self, round: Round) -> Result<&RoundView, Reject> {
        let view = self.round(round).ok_or(Reject::Stale("the audited round is not remembered"))?;
        // Coins wait for echoes: while nobody has signed R_t, the steward could read the coins and seal another
        // Freeze.
        require(view.auditable(), "audits begin when the round is over and its freeze was echoed")?;
        Ok(view)
    }

    /// Members that are late in the open round and were not in the one before it.
    pub(super) fn newly_late(&self) -> Vec<MemberId> {
        let mut newest = self.views.iter().rev();
        let (Some(view), before) = (newest.next(), newest.next()) else { return Vec::new() };
        let late = view.late().slots().filter_map(|slot| view.member_at(slot));
        let was = |member: &MemberId| {
            before.is_some_and(|view| view.slot_of(member).is_some_and(|slot| view.late().contains(slot)))
        };
        late.filter(|member| !was(member)).collect()
    }

    /// Whether a round's update of a shard was applied, as far as rounds are remembered.
    pub(super) fn was_applied(&self, round: Round, shard: ShardId) -> bool {
        let step = ShardStep { shard, round };
        let over = self.views.iter().filter(|view| view.results().is_some());
        over.flat_map(RoundView::shard_steps).any(|taken| taken == step)
    }

    /// Drawn leaves of the contributions that a convict has passed and that are open again, by member.
    pub(super) fn opened_leaves(
        &self,
        chain: &ChainTip,
        roster: &Roster,
        convict: &MemberId,
    ) -> BTreeMap<MemberId, u32> {
        let mut opened: BTreeMap<MemberId, u32> = BTreeMap::new();
        // What nobody keeps the state of is not examined again: void credit for it would be lost for good.
        for view in self.views.iter().filter(|view| chain.keeps_state(view.round())) {
            let of_convict = view.credited().filter(|(verifier, _)| verifier == convict);
            for (_, member) in of_convict {
                // What another verifier has passed as well stays passed.
                let Some(slot) =
                    view.slot_of(member).filter(|slot| view.is_open_again(*slot, |id| roster.is_banned(id)))
                else {
                    continue;
                };
                let leaves = view.commitment(slot).map_or(0, |commitment| commitment.commit.leaves);
                let drawn = drawn_leaves(leaves, self.terms.manifest().audit.leaves);
                let void = opened.entry(*member).or_insert(0);
                *void = void.saturating_add(drawn);
            }
        }
        opened
    }

    /// The round that a record opens with these seats.
    pub(super) fn opening(
        &self,
        chain: &ChainTip,
        roster: &Roster,
        round: Round,
        seats: &[Seat],
        base: StateRoots,
    ) -> RoundView {
        let seed = assign::round_seed(self.terms.run(), round, &base.root());
        // ASSIGN-1: the root of the newest state is in it, so that nobody knows who will reduce what before the seats are settled.
        let parts_seed = assign::round_seed(self.terms.run(), round, &chain.state().root());
        let Aggregators { slots: aggregators, stood_in } = roster.aggregators(seats);
        // ASSIGN-12: without classes all lines are alike.
        let classes = if self.terms.regime().weighs_lines() { roster.shares(seats) } else { Vec::new() };
        let rows: Vec<Row> = seats.iter().map(|seat| seat.row).collect();
        let open = rows.iter().copied().collect();
        let route = Route::of(chain.rows(), Row(0), open);
        let seating = Seating {
            layout: self.terms.layout(),
            planes: self.terms.manifest().planes_in(round),
            seed: &parts_seed,
            rows: &rows,
            route: route.as_ref(),
            aggregators: &aggregators,
            classes: &classes,
        };
        let parts = assign::parts(&seating);
        // ASSIGN-9: the second aggregators of a run that has two.
        let seconds = match self.terms.manifest().aggregation.replicas {
            2 => assign::seconds(&seating, &parts),
            _ => vec![None; parts.len()],
        };
        RoundView::new(Opening {
            round,
            steward: self.terms.manifest().steward,
            head: chain.head(),
            state: chain.state().clone(),
            base,
            seed,
            parts_seed,
            seats: seats.to_vec(),
            aggregators,
            stood_in,
            classes,
            parts,
            seconds,
        })
    }

    /// The round that the record at hand goes on with, which was looked at when the record was checked.
    #[track_caller]
    fn newest(&mut self) -> Option<&mut RoundView> {
        self.views.back_mut().or_bug("an open round")
    }

    /// Opens a round, and gives the oldest one that may be remembered from now on.
    pub(super) fn apply_opening(&mut self, view: RoundView) -> Round {
        // By number, not by count: a round is forgotten before the coin of DUTY-7 for it is shown, whatever was left
        // out.
        let kept = self.terms.manifest().retention.contributions.max(1);
        let oldest = Round(view.round().0.saturating_sub(kept));
        self.views.push_back(view);
        while self.views.front().is_some_and(|view| view.round() < oldest) {
            self.views.pop_front();
        }
        oldest
    }

    /// The open round is abandoned: nobody answers for what was said in it.
    pub(super) fn apply_abandon(&mut self) {
        self.views.pop_back();
    }
}
