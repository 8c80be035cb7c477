//! What the settings of a run mean for those who keep its rules: one value, made once from the manifest. A site asks for the
//! consequence that it is about, and not for the profile, the exchange, the delay or the rows behind it.

use crate::manifest::{Exchange, Family, Local, Manifest, Profile};

/// The regime of a run.
#[derive(Clone, Debug)]
pub struct Regime {
    profile: Profile,
    /// Steps of each member's own; none where gradients are exchanged.
    local: Option<Local>,
    /// Leaves of a round.
    leaves: usize,
    delayed: bool,
    row_rules: Option<RowRules>,
    weighs_lines: bool,
}

/// How a row of experts is kept from the few that may train it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RowRules {
    /// A row with fewer contributions of weight is thin: each of them is audited (STAND-10).
    pub few: u16,
    /// A row with so many at most is held: its update waits until they have passed (ROW-5).
    pub held: u16,
    /// Most root mean square of an aggregate of a row's block, in units of twice the grid's own (AGG-22).
    pub trust: f32,
}

impl Regime {
    /// Of a run with this manifest.
    pub fn of(manifest: &Manifest) -> Self {
        let row_rules = match &manifest.model.family {
            Family::Mixture(mixture) => {
                Some(RowRules { few: mixture.few, held: mixture.held, trust: mixture.trust.value() })
            }
            Family::Decoder(_) | Family::Variant(_) | Family::Albert(_) => None,
        };
        let local = match &manifest.exchange {
            Exchange::Gradients => None,
            Exchange::Local(local) => Some(local.clone()),
        };
        Self {
            profile: manifest.profile,
            local,
            leaves: manifest.training.leaves as usize,
            delayed: manifest.delay == 1,
            row_rules,
            weighs_lines: manifest.aggregation.replicas == 1 && manifest.model.rows() == 1,
        }
    }

    /// Whether an audit compares bits; where not, two honest leaves may be a tolerance apart (TOL-2).
    pub fn compares_bits(&self) -> bool {
        self.profile.has_defined_bits()
    }

    /// CALL-1: whether an answer to a call binds the member that gave it. Elsewhere two honest machines would sign different
    /// digests.
    pub fn binds_answers(&self) -> bool {
        self.profile.has_defined_bits()
    }

    /// Whether an audit asks a member for the integers that it has committed to (TOL-6, TOL-12), which it keeps until then.
    /// Where not, all its leaves, recomputed, stand for them (AUDIT-10, AUDIT-25).
    pub fn keeps_integers(&self) -> bool {
        !self.profile.leaves_stand_for_integers()
    }

    /// TOL-9: whether what one machine recomputes bans nobody before drawn jurors have recomputed it.
    pub fn needs_jury(&self) -> bool {
        self.profile.needs_jury()
    }

    /// ROUND-28: what the leaves of a round that opens are computed on: the newest state or, with a delay, the one that the
    /// round before began with.
    pub fn base_of<'a, S>(&self, newest: &'a S, before: Option<&'a S>) -> &'a S {
        before.filter(|_| self.delayed).unwrap_or(newest)
    }

    /// ROUND-28: whether leaves may be computed on the state before the one that they change.
    pub fn computes_behind(&self) -> bool {
        self.delayed
    }

    /// ROUND-29: whether the leaves of the next round can be computed while the values of this one travel.
    pub fn foresees(&self) -> bool {
        self.delayed
    }

    /// GRID-8: exponents of a tensor: with a delay, those of the state that a round's leaves are computed on are kept beside
    /// the newest ones.
    pub fn exponents_of_tensor(&self) -> usize {
        if self.delayed { 2 } else { 1 }
    }

    /// LAYOUT-7: whether second moments are contributed beside what moves the parameters, on a plane of their own.
    pub fn exchanges_moments(&self) -> bool {
        self.local.is_some()
    }

    /// LOCAL-1: whether what a member computes begins with the second moments of the state.
    pub fn begins_with_moments(&self) -> bool {
        self.local.is_some()
    }

    /// LOCAL-6: whether an aggregate is multiplied by the mean number of segments, which are no sum of leaves.
    pub fn scales_aggregates(&self) -> bool {
        self.local.is_some()
    }

    /// LOCAL-8: whether a drawn leaf is recomputed with all that were computed before it.
    pub fn recomputes_chains(&self) -> bool {
        self.local.is_some()
    }

    /// ASSIGN-12: whether share classes count: only where each part has one aggregator, and any aggregator may have it. With two,
    /// colluders could choose their partner by their classes, and so could they among the few that are outside of a row.
    pub fn weighs_lines(&self) -> bool {
        self.weighs_lines
    }

    /// ASSIGN-11: how many leaves a number of a contribution stands for: one, or those of a segment.
    pub fn leaves_of_number(&self) -> u32 {
        self.local.as_ref().map_or(1, |local| local.segment)
    }

    /// LEDGER-14: leaves of a seat, among so many that share a round, within what its member can do.
    pub fn leaves_of_seat(&self, slot: usize, sharers: usize) -> usize {
        // Chains of steps cannot be shared out: in a run of local updates every seat has one.
        if self.local.is_some() {
            return self.leaves;
        }
        // No seat shares with nobody.
        let sharers = sharers.max(1);
        self.leaves / sharers + usize::from(slot < self.leaves % sharers)
    }

    /// How rows are kept from the few that may train them; none where the model has none.
    pub fn row_rules(&self) -> Option<RowRules> {
        self.row_rules
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::MemberId;
    use crate::manifest::fixture::tiny;

    fn regime(change: impl FnOnce(&mut Manifest)) -> Regime {
        let mut manifest = tiny(MemberId([1; 32]), MemberId([2; 32]), 4, 3);
        manifest.training.leaves = 8;
        change(&mut manifest);
        Regime::of(&manifest)
    }

    #[test]
    fn round_28_leaves_are_of_the_state_before_where_values_travel_meanwhile() {
        let at_once = regime(|_| {});
        assert_eq!((*at_once.base_of(&5, Some(&4)), at_once.foresees()), (5, false));
        let delayed = regime(|manifest| manifest.delay = 1);
        assert_eq!((*delayed.base_of(&5, Some(&4)), delayed.foresees()), (4, true));
        assert_eq!((*delayed.base_of(&5, None), delayed.exponents_of_tensor()), (5, 2));
    }

    #[test]
    fn tol_9_where_bits_differ_jurors_decide_and_integers_are_kept() {
        let exact = regime(|_| {});
        assert!(exact.compares_bits() && !exact.needs_jury() && !exact.keeps_integers());
        let near = regime(|manifest| manifest.profile = Profile::F32);
        assert!(!near.compares_bits() && near.needs_jury() && near.keeps_integers());
    }

    #[test]
    fn ledger_14_leaves_are_shared_equally_and_the_first_seats_take_the_remainder() {
        let shared = regime(|_| {});
        assert_eq!([0, 1, 2].map(|slot| shared.leaves_of_seat(slot, 3)), [3, 3, 2]);
        assert_eq!(shared.leaves_of_seat(0, 0), 8);
        assert!(!shared.recomputes_chains() && shared.leaves_of_number() == 1);
    }
}
