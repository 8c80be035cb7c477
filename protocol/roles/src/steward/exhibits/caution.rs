//! Caution: parts of rounds that are forgotten while an audit lasts are kept by value until the audit shows
//! whether replay needs them.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::audit::docket::OpenCase;
use muster_core::bug::OrBug;
use muster_core::ids::{MemberId, Round};
use muster_core::ledger::{Ledger, RoundView};

use super::counted::{Counted, OwedPart, PartName};

/// Parts that are kept, and the members for whose sake.
#[derive(Default)]
pub(super) struct Caution {
    parts: BTreeMap<PartName, BTreeSet<MemberId>>,
}

/// Members whose audits last.
pub(super) struct Lasting {
    /// Whether a coin is not shown yet that tells whom its verifier audits.
    anybody: bool,
    members: BTreeSet<MemberId>,
}

impl Lasting {
    /// Of the open cases of a docket.
    pub(super) fn of(ledger: &Ledger, cases: impl Iterator<Item = OpenCase>) -> Self {
        // Only long audits count, so that few of the remembered rounds are kept by value.
        let soon = ledger.manifest().lasting_rounds();
        let cases: Vec<OpenCase> =
            cases.filter(|case| case.round.0.saturating_add(soon) < ledger.next_round().0).collect();
        Self {
            anybody: cases.iter().any(|case| case.target.is_none()),
            members: cases.iter().filter_map(|case| case.target).collect(),
        }
    }

    fn holds(&self, member: &MemberId) -> bool {
        self.anybody || self.members.contains(member)
    }
}

impl Caution {
    /// The parts of a round, about to be forgotten, that count a member whose audit lasts. They are kept for
    /// its sake from now on.
    pub(super) fn take(
        &mut self,
        ledger: &Ledger,
        view: &RoundView,
        lasting: &Lasting,
        kept: &impl Fn(&PartName) -> bool,
    ) -> Vec<OwedPart> {
        let mut owed = BTreeMap::new();
        let counted = view.commitments().filter(|(slot, _)| view.counted(*slot));
        for author in counted.map(|(_, commitment)| commitment.author).filter(|author| lasting.holds(author))
        {
            for part in Counted::of(ledger, view, &author).parts {
                let plan = view.parts().get(part.index()).or_bug("a part that counts a contribution");
                let Some(plan) = plan else { continue };
                let name = (view.round(), part);
                // A part that is kept for another reason stays for good.
                if kept(&name) && !self.parts.contains_key(&name) {
                    continue;
                }
                self.parts.entry(name).or_default().insert(author);
                if !kept(&name) {
                    owed.insert(part, (view.round(), part, plan.blocks.clone()));
                }
            }
        }
        owed.into_values().collect()
    }

    /// This part is kept for good, for another reason.
    pub(super) fn keep(&mut self, name: &PartName) {
        self.parts.remove(name);
    }

    /// Parts of forgotten rounds that nobody needs any more: every audit for whose sake they were kept is
    /// over, and nobody was banned. The parts of a banned member stay for good.
    pub(super) fn drop_needless(
        &mut self,
        ledger: &Ledger,
        lasting: &Lasting,
        kept: &BTreeSet<PartName>,
    ) -> Vec<PartName> {
        self.parts.retain(|_, members| !members.iter().any(|member| ledger.is_banned(member)));
        let forgotten = |round: Round| ledger.round(round).is_none();
        // Parts that are being written are dropped the next time.
        let over = self.parts.iter().filter(|(name, members)| {
            let needed = members.iter().any(|member| lasting.holds(member));
            forgotten(name.0) && kept.contains(*name) && !needed
        });
        let over: Vec<PartName> = over.map(|(name, _)| *name).collect();
        over.iter().for_each(|name| self.keep(name));
        over
    }
}
