//! The contributions of a round: recomputed leaf by leaf, or a convict's as the archive keeps it.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::contribution::Commitment;
use muster_core::ids::{MemberId, Part, Round, Slot};
use muster_core::ledger::{RoundView, WeightedCommit};
use muster_core::messages::round::Commit;
use muster_core::messages::wire::BlockData;

use super::Replay;
use crate::archive::ReplayError;
use crate::archive::exhibits::{CountedContribution, exhibit};
use crate::crew::spread;
use crate::held::HeldState;

/// Contributions of a round.
#[derive(Default)]
pub(super) struct RecomputedRound {
    /// As they were committed; convicts' at least as far as they counted.
    pub(super) sums: BTreeMap<Slot, Vec<i32>>,
    /// Those that are not what the state and the text give, with the proved blocks where the whole is not kept.
    pub(super) bad: BTreeMap<Slot, Vec<BlockData>>,
    /// Parts of which somebody's integers are missing.
    pub(super) missing: BTreeSet<Part>,
}

impl Replay<'_> {
    /// Counted contributions: recomputed on the state that their leaves are of, the newest or an earlier one, or convicts'
    /// exhibits where they are not what they should be.
    pub(super) fn contributions(
        &mut self,
        view: &RoundView,
        slots: &[Slot],
        told: &(dyn Fn() + Sync),
    ) -> Result<RecomputedRound, ReplayError> {
        let commitments: Vec<(Slot, &WeightedCommit)> =
            slots.iter().filter_map(|slot| Some((*slot, view.commitment(*slot)?))).collect();
        let commits: Vec<&Commit> = commitments.iter().map(|(_, commitment)| &commitment.commit).collect();
        let base = base_of(view, &self.state, &self.held).ok_or_else(|| {
            let round = view.round();
            ReplayError::Wrong(format!("the state that leaves of round {round} are computed on was not kept"))
        })?;
        let sums = self.crew.sums(base, &commits, told)?;
        let layout = self.ledger.layout().clone();
        let checked =
            spread(self.plan.threads, commits.into_iter().zip(sums).collect(), |(commit, (q, loss))| {
                // The loss, too: it is committed to beside the root (AUDIT-10).
                let same = loss == commit.loss && Commitment::new(&layout, &q).root() == commit.root;
                (q, same)
            });
        let mut found = RecomputedRound::default();
        for ((slot, commitment), (q, same)) in commitments.into_iter().zip(checked) {
            let q = if same {
                q
            } else {
                let exhibit = self.exhibit(view, slot, &commitment.author)?;
                found.bad.insert(slot, exhibit.blocks);
                found.missing.extend(exhibit.missing);
                exhibit.q
            };
            found.sums.insert(slot, q);
        }
        Ok(found)
    }

    /// A convict's contribution that is not what the state and the text give.
    fn exhibit(
        &self,
        view: &RoundView,
        slot: Slot,
        who: &MemberId,
    ) -> Result<CountedContribution, ReplayError> {
        // Convicted at any time in the run: a ban comes rounds after the contribution that it is for.
        if !self.outlook.convicts.contains(who) {
            return Err(ReplayError::Wrong(format!(
                "round {}, slot {slot}: the contribution of {who} is not what the state and the text give, and it was never \
                 convicted",
                view.round()
            )));
        }
        exhibit(&self.archive.folder, self.ledger.layout(), view, slot)
    }
}

/// The state that leaves of a round are computed on (ROUND-28): the newest, or one of those that are kept.
pub(super) fn base_of<'a>(
    view: &RoundView,
    newest: &'a HeldState,
    kept: &'a BTreeMap<Round, HeldState>,
) -> Option<&'a HeldState> {
    std::iter::once(newest).chain(kept.values()).find(|held| held.roots == *view.base())
}
