//! LEDGER-25: how much of a round each member reduces, by what is sealed of the rounds before.

use std::collections::BTreeSet;

use super::Rounds;
use crate::bug::OrBug;
use crate::error::{Reject, require};
use crate::ids::{MemberId, ShareClass, Slot};
use crate::ledger::chain::{ChainTip, Stage};
use crate::ledger::member::Member;
use crate::ledger::roster::Roster;
use crate::ledger::view::RoundView;
use crate::limits;
use crate::messages::record::{ShareMove, Shares};

/// A member's class from the next record on.
pub(in crate::ledger) type NewShare = (MemberId, ShareClass);

/// Whether a member's class may become this one by the steward's word.
fn may_become(member: &Member, class: ShareClass) -> bool {
    let (before, fallen) = (member.share, fallen(member.share));
    // One up and two down: the steward takes a role away within rounds, and gives one only over many of them.
    class != before && (fallen..=before.next()).contains(&class) && class.0 <= limits::SHARE_CLASS
}

fn fallen(class: ShareClass) -> ShareClass {
    ShareClass(class.0.saturating_sub(limits::SHARE_FALL))
}

impl Rounds {
    /// Checks what the steward says of the aggregators' rates: their clock is its own, and this bounds what it can say.
    pub(in crate::ledger) fn check_shares(
        &self,
        chain: &ChainTip,
        roster: &Roster,
        shares: &Shares,
    ) -> Result<Vec<NewShare>, Reject> {
        require(chain.stage() == Stage::Reducing, "shares change in a round that is reduced")?;
        let view = self.current().ok_or(Reject::Rule("shares change in an open round"))?;
        require(shares.round == view.round(), "shares name their round")?;
        require(view.weighs_lines(), "shares change where they count")?;
        // Once: otherwise one round would do for as far as the steward likes.
        require(!view.has_shares() && !shares.moves.is_empty(), "shares change once in a round, if at all")?;
        require(shares.moves.is_sorted_by(|one, next| one.slot < next.slot), "shares are in order of slots")?;
        let new = |moved: &ShareMove| {
            let member = view.member_at(moved.slot).and_then(|member| roster.member(&member));
            let member = member.ok_or(Reject::Rule("a share is that of a seat"))?;
            // Of others there was nothing to measure.
            require(view.has_shown(moved.slot), "a share changes by a part of the first attempt")?;
            require(may_become(member, moved.class), "a share goes one up, or one or two down")?;
            Ok((member.id, moved.class))
        };
        shares.moves.iter().map(new).collect()
    }

    pub(in crate::ledger) fn apply_shares(&mut self) {
        self.newest().into_iter().for_each(RoundView::share_anew);
    }

    /// Which classes change at the end of the open round, in which these members failed.
    pub(in crate::ledger) fn shares_after(
        &self,
        roster: &Roster,
        failed: &BTreeSet<MemberId>,
    ) -> Vec<NewShare> {
        let Some(view) = self.current().or_bug("a round that is over") else { return Vec::new() };
        if !view.weighs_lines() {
            return Vec::new();
        }
        let passed = view.passed_over();
        let after = |slot: &Slot| {
            let (number, member) = roster.numbered(&view.member_at(*slot)?)?;
            let class = if failed.contains(&member.id) {
                fallen(member.share)
            } else if is_turn(view, number) && (member.share.0 < limits::SHARE_FIRST || passed.contains(slot))
            {
                // What made it slow may be over, and without a part nobody would ever know.
                ShareClass(member.share.next().0.min(limits::SHARE_CLASS))
            } else {
                return None;
            };
            Some((member.id, class))
        };
        view.aggregators().iter().filter_map(after).collect()
    }
}

/// Whether a member of this number, in order of admission, goes up in this round: not all in the same one.
fn is_turn(view: &RoundView, number: usize) -> bool {
    (view.round().index() + number).is_multiple_of(limits::SHARE_ROUNDS as usize)
}
