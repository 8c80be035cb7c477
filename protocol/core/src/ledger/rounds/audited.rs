//! What happens to rounds that are audited: members that do not answer, verifiers that are gone.

use super::Rounds;
use crate::bug::OrBug;
use crate::ids::{MemberId, Round, Slot};
use crate::ledger::chain::ChainTip;
use crate::ledger::roster::Roster;
use crate::ledger::view::{Reach, RoundView};
use crate::messages::record::Credit;

impl Rounds {
    /// A member is silent, or leaves: in every round so far. Its turn would otherwise begin again for each of its audits
    /// (AUDIT-8).
    pub(in crate::ledger) fn apply_unanswered(&mut self, member: &MemberId) {
        self.views.iter_mut().for_each(|view| view.unanswered(member));
    }

    /// DUTY-6: what a verifier inspected goes to the others.
    pub(in crate::ledger) fn apply_retirement(&mut self, chain: &ChainTip, verifier: &MemberId) {
        for view in &mut self.views {
            view.retire(verifier, reach(chain, view.round()));
        }
    }

    /// DUTY-3: what nobody has passed but this verifier, which was banned, and others that were, is open again.
    pub(in crate::ledger) fn apply_open_again(
        &mut self,
        chain: &ChainTip,
        roster: &Roster,
        verifier: &MemberId,
    ) {
        let slots = |view: &RoundView| -> Vec<Slot> {
            let of_its = view.credited().filter(|(by, _)| by == verifier);
            let slots = of_its.filter_map(|(_, member)| view.slot_of(member));
            slots.filter(|slot| view.is_open_again(*slot, |id| roster.is_banned(id))).collect()
        };
        let opened: Vec<_> =
            self.views.iter().map(|view| (slots(view), reach(chain, view.round()))).collect();
        for (view, (slots, reach)) in self.views.iter_mut().zip(opened) {
            slots.into_iter().for_each(|slot| view.open_again(slot, reach));
        }
    }

    /// Notes a credit that was checked.
    pub(in crate::ledger) fn apply_credit(&mut self, credit: &Credit) {
        let view = self.views.iter_mut().find(|view| view.round() == credit.round);
        let view = view.or_bug("the round of a credit that was checked");
        view.into_iter().for_each(|view| view.credit(credit.verifier, credit.member));
    }
}

/// What can still be audited of a round.
fn reach(chain: &ChainTip, round: Round) -> Reach {
    if chain.keeps_state(round) {
        Reach::Anything
    } else if chain.is_answerable(round) {
        Reach::Drawn
    } else {
        Reach::Nothing
    }
}
