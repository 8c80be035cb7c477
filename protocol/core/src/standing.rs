//! What a member's credit is worth: weight in the aggregate, and how often it is inspected. Integers only.
//!
//! Credit are the leaves that verifiers recomputed and found right. It is earned by honest work, so that a new
//! identity has a price; it never buys a rate of audits below the run's.

use crate::manifest::Admission;

/// Vouched leaves of a member, each verifier counting for its share of the probation at most (STAND-2).
///
/// With P = `probation` and V = `vouchers`: Σ min(c, ⌈P/V⌉) over the verifiers' credits c. It reaches P only where V
/// verifiers or more have recomputed.
pub fn vouched(admission: &Admission, credits: impl Iterator<Item = u32>) -> u64 {
    // Capped: otherwise one leaf by an honest verifier would be enough beside 99 by a colluding one.
    let most = voucher_share(admission);
    credits.map(|credit| u64::from(credit.min(most))).sum()
}

/// ⌈P/V⌉: the leaves that one verifier contributes to the end of a probation at most (STAND-2).
pub fn voucher_share(admission: &Admission) -> u32 {
    admission.probation.div_ceil(u32::from(admission.vouchers.max(1)))
}

/// What a member has of one verifier's credit once that verifier is convicted, and how many of its leaves are in doubt then
/// (STAND-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AfterConviction {
    /// Leaves of credit by the convict that still count.
    pub credit: u32,
    /// Leaves that others have to recompute before the member is audited like others again.
    pub doubt: u32,
}

impl AfterConviction {
    /// Of a member with `credit` by the convict, of which `opened` is for contributions that are open again, and with `doubt`
    /// of before. `accused` says that the conviction is for a false accusation.
    pub fn of(admission: &Admission, accused: bool, credit: u32, opened: u32, doubt: u32) -> Self {
        let opened = opened.min(credit);
        // Who accuses falsely may have passed truly; whoever has passed falsely once may have done so always.
        let unproved = if accused { opened } else { credit };
        // A whole probation at most: a convict must not have the others audited for ever.
        let doubt = doubt.saturating_add(unproved).min(admission.probation);
        Self { credit: credit - opened, doubt }
    }
}

/// m_eff: how many of m leaves count in the aggregate, given what each verifier has recomputed of the member's.
///
/// All of them without probation; none before its end; then no more than were ever recomputed.
pub fn weight(admission: &Admission, credits: impl Iterator<Item = u32> + Clone, m: u32) -> u32 {
    if admission.probation == 0 {
        return m;
    }
    if vouched(admission, credits.clone()) < u64::from(admission.probation) {
        return 0;
    }
    // No more than was ever recomputed: a probation of small contributions must not buy a large one.
    let credit: u64 = credits.map(u64::from).sum();
    u32::try_from(credit).unwrap_or(u32::MAX).min(m)
}

/// The probability that a verifier audits a member's round (STAND-4), in parts per million:
/// max(`share_ppm`, ⌊`newcomer_ppm` / 2^⌊credit / `halving`⌋⌋).
pub fn audit_ppm(admission: &Admission, share_ppm: u32, credit: u64) -> u32 {
    let halvings = u32::try_from(credit / u64::from(admission.halving.max(1))).unwrap_or(u32::MAX);
    // Never below the run's rate: credit must not buy freedom from audits.
    admission.newcomer_ppm.checked_shr(halvings).unwrap_or(0).max(share_ppm)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission() -> Admission {
        Admission {
            probation: 100,
            vouchers: 2,
            newcomer_ppm: 500_000,
            halving: 100,
            ..Admission::closed(1, 0, 9)
        }
    }

    fn of(credits: &[u32], m: u32) -> u32 {
        weight(&admission(), credits.iter().copied(), m)
    }

    #[test]
    fn stand_2_one_verifier_ends_no_probation_however_much_it_vouches() {
        assert_eq!(of(&[u32::MAX], 256), 0);
        assert_eq!(of(&[1_000_000, 49], 256), 0);
        assert_eq!(of(&[50, 50], 7), 7);
        assert_eq!(of(&[50, 50], 256), 100);
        assert_eq!(of(&[40, 40, 19], 256), 0);
        assert_eq!(of(&[40, 40, 20], 256), 100);
    }

    #[test]
    fn stand_11_what_can_be_examined_again_is_void_and_what_cannot_is_in_doubt() {
        let after = |accused, credit, opened, doubt| {
            let AfterConviction { credit, doubt } =
                AfterConviction::of(&admission(), accused, credit, opened, doubt);
            (credit, doubt)
        };
        assert_eq!(after(true, 60, 6, 0), (54, 6));
        assert_eq!(after(false, 60, 6, 0), (54, 60));
        assert_eq!(after(true, 60, 0, 0), (60, 0));
        assert_eq!(after(false, 4_000, 6, 10), (3_994, 100));
        assert_eq!(after(true, 2, 6, u32::MAX), (0, 100));
    }

    #[test]
    fn weight_is_never_more_than_what_was_recomputed_or_committed() {
        assert_eq!(of(&[], 256), 0);
        assert_eq!(of(&[60, 70], 256), 130);
        assert_eq!(of(&[u32::MAX, u32::MAX], 256), 256);
        let founder_run = Admission { probation: 0, ..admission() };
        assert_eq!(weight(&founder_run, [].into_iter(), 256), 256);
    }

    #[test]
    fn the_rate_halves_and_never_falls_below_the_floor() {
        let rate = |credit| audit_ppm(&admission(), 100_000, credit);
        assert_eq!([0, 99, 100, 199, 200].map(rate), [500_000, 500_000, 250_000, 250_000, 125_000]);
        assert_eq!([300, 10_000, u64::MAX].map(rate), [100_000; 3]);
        assert_eq!(audit_ppm(&admission(), 600_000, 0), 600_000);
    }
}
