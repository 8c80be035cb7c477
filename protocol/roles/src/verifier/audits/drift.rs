//! Who stays within the tolerance but leans on it: a running sum over the audited leaves of each member.

use std::collections::BTreeMap;

use muster_core::ids::MemberId;
use muster_core::sketch::probe::SUSPECT;

/// Deviation that honest leaves stay below on average, in units of the tolerance, which one in a thousand exceeds.
const AVERAGE: f64 = 0.75;
/// Sum of what goes beyond it at which a member is looked into.
const ALARM: f64 = 3.0;

/// TOL-10: what each member's leaves deviate beyond the average, never below 0 (Page's cumulative sum): a member whose leaves
/// deviate by x is looked into after 3 / (x − ¾) of them.
#[derive(Default)]
pub(super) struct Drifts(BTreeMap<MemberId, f64>);

impl Drifts {
    /// Takes in the deviations of drawn leaves that pass; why all leaves of the member are to be recomputed.
    pub(super) fn suspect(&mut self, member: MemberId, deviations: &[f64]) -> Option<String> {
        let sum = self.0.entry(member).or_default();
        for deviation in deviations {
            // Never below 0: good leaves of long ago are no credit to lean on.
            *sum = (*sum + deviation - AVERAGE).max(0.0);
        }
        let most = deviations.iter().copied().fold(0.0, f64::max);
        // TOL-4: one suspect leaf is enough; the sum below is for leaves that are each within the limit.
        if most > SUSPECT {
            return Some(format!("is {most:.1} tolerances away in a leaf"));
        }
        (*sum >= ALARM).then(|| {
            // TOL-10: begun again, since all leaves are looked at now.
            *sum = 0.0;
            "has been near the limit leaf after leaf".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tol_10_a_lean_shows_and_noise_does_not() {
        let member = MemberId([1; 32]);
        let mut drifts = Drifts::default();
        let noise =
            (0..10_000u32).map(|leaf| f64::from(leaf.wrapping_mul(2_654_435_761) >> 16) / 65_536.0 * 0.9);
        let (mut alarms, mut leaves) = (0, 0);
        for deviation in noise {
            alarms += u32::from(drifts.suspect(member, &[deviation]).is_some());
            leaves += 1;
        }
        assert!(alarms * 20 < leaves, "{alarms} of {leaves}");
        let mut drifts = Drifts::default();
        let steps = (1..).find(|_| drifts.suspect(member, &[0.95]).is_some()).unwrap();
        assert!((15..=16).contains(&steps), "3 / 0.2: {steps}");
        assert!(Drifts::default().suspect(member, &[0.2, 1.2]).is_some());
    }
}
