//! Members that let a round wait in vain: they lose their seats, each time for longer (LEDGER-20).

use super::Roster;
use crate::bug::OrBug;
use crate::ids::{Height, MemberId, Round};
use crate::ledger::member::Standing;
use crate::limits;
use crate::messages::record::Seat;
use crate::messages::round::Commit;
use crate::sign::Verified;

impl Roster {
    /// LEDGER-20: counts the failure of a seat.
    ///
    /// A member that is away or silent has failed already: one round counts one failure at most.
    fn fail(&mut self, id: &MemberId, round: Round, at: Height) {
        if self.member(id).is_some_and(|member| member.standing == Standing::Active) {
            self.count_failure(id, round, at);
        }
    }

    /// LEDGER-20: a member that has failed is away. After n failures it may have a seat again 2^(n − 1) rounds later.
    pub(super) fn count_failure(&mut self, id: &MemberId, round: Round, at: Height) {
        // Not banned: why it did not answer nobody knows.
        self.stand(id, Standing::Away, at);
        self.note_failure(id, round);
    }

    /// LEDGER-20: counts the failure, and leaves the standing as it is.
    pub(super) fn note_failure(&mut self, id: &MemberId, round: Round) {
        let Some(member) = self.member_mut(id).or_bug("a member that has failed") else { return };
        // Bounded: 2^6 rounds is the longest pause, and 64 good rounds each undo one failure.
        member.failures = member.failures.saturating_add(1).min(limits::FAILURES);
        member.good_rounds = 0;
        // Doubling: one absence costs nothing, a habit costs ever more.
        let pause = 1u32 << (u32::from(member.failures) - 1).min(31);
        member.barred = Round(round.0.saturating_add(pause));
    }

    /// These members failed in a round.
    pub(in crate::ledger) fn apply_failures<'a>(
        &mut self,
        failed: impl IntoIterator<Item = &'a MemberId>,
        round: Round,
        at: Height,
    ) {
        failed.into_iter().for_each(|member| self.fail(member, round, at));
    }

    /// LEDGER-15: adjusts the pace of every seat to what it committed; a seat without a commitment has failed.
    pub(in crate::ledger) fn apply_freeze(
        &mut self,
        round: Round,
        seats: &[Seat],
        commits: &[Verified<Commit>],
        at: Height,
    ) {
        // LEDGER-24: a supporter has nothing to commit to.
        for seat in seats.iter().filter(|seat| seat.quota > 0) {
            let leaves =
                commits.iter().find(|commit| commit.author() == seat.member).map(|commit| commit.leaves);
            if leaves.is_none() {
                self.fail(&seat.member, round, at);
            }
            let Some(member) = self.member_mut(&seat.member).or_bug("a member with a seat") else { continue };
            match leaves {
                // By committed leaves, not by measured speed: others can check only the former.
                Some(leaves) if leaves < seat.quota => member.pace = leaves.max(1),
                // One more each round: a member that grew slower for a while finds its pace again.
                Some(_) => member.pace = member.pace.saturating_add(1).min(limits::QUOTA),
                None => {}
            }
        }
    }

    /// LEDGER-20: those that counted in a round that is over, with so many leaves, come closer to forgiveness.
    pub(in crate::ledger) fn apply_good_round(&mut self, counted: &[(MemberId, u32)]) {
        for (member, leaves) in counted {
            let member = self.member_mut(member).or_bug("a member that counted");
            let Some(member) = member else { continue };
            member.service.leaves = member.service.leaves.saturating_add(u64::from(*leaves));
            // Nothing is forgiven to whoever has not failed.
            if member.failures == 0 {
                continue;
            }
            member.good_rounds += 1;
            // One at a time: that bounds the rounds that it lets wait in vain by 7 + R/64.
            if member.good_rounds >= limits::FORGIVING {
                member.failures -= 1;
                member.good_rounds = 0;
            }
        }
    }
}
