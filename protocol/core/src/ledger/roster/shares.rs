//! How much of a round each member reduces beside others (LEDGER-25).

use super::Roster;
use crate::bug::OrBug;
use crate::ids::{MemberId, ShareClass};
use crate::ledger::member::Member;
use crate::messages::record::Seat;

impl Roster {
    /// A member, and its number in order of admission.
    pub(in crate::ledger) fn numbered(&self, id: &MemberId) -> Option<(usize, &Member)> {
        let number = *self.index.get(id)?;
        Some((number, self.members.get(number)?))
    }

    /// The classes of the members on these seats.
    pub(in crate::ledger) fn shares(&self, seats: &[Seat]) -> Vec<ShareClass> {
        let share = |seat: &Seat| self.member(&seat.member).map(|member| member.share);
        seats.iter().map(|seat| share(seat).unwrap_or_default()).collect()
    }

    /// These members have these classes from now on.
    pub(in crate::ledger) fn apply_shares(&mut self, shares: &[(MemberId, ShareClass)]) {
        for (id, class) in shares {
            let member = self.member_mut(id).or_bug("a member with a share");
            member.into_iter().for_each(|member| member.share = *class);
        }
    }
}
