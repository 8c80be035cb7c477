//! Who has a seat in a round, and with how many leaves.

use std::collections::BTreeSet;

use super::Roster;
use crate::ids::{MemberId, Round, Row, Slot};
use crate::ledger::member::{Member, Turnout};
use crate::limits;
use crate::messages::enrol::{Engagement, Role};
use crate::messages::record::Seat;

impl Roster {
    /// How many members of a role are here, and how many the next round needs; `first` says that no round is remembered. Of
    /// nodes, those count that are `able` to compute on a row.
    pub(in crate::ledger) fn turnout(
        &self,
        role: Role,
        first: bool,
        able: impl Fn(&Member) -> bool,
    ) -> Turnout {
        let admission = &self.terms.manifest().admission;
        let able = |member: &&Member| role == Role::Verifier || (member.trains() && able(member));
        let here = self.active(role).filter(able).count();
        match role {
            // Newcomers alone would train nothing: their leaves do not count.
            Role::Node if first => Turnout {
                here: self.training().filter(|member| self.weighs(member)).count(),
                wanted: admission.start_nodes.into(),
            },
            Role::Node => Turnout { here, wanted: 1 },
            Role::Verifier if first => Turnout { here, wanted: admission.start_verifiers.into() },
            Role::Verifier => Turnout { here, wanted: 0 },
        }
    }

    /// The seats of a round that begins now (LEDGER-14): active nodes with weight in order of admission, in turn where they
    /// are more than the seats, the leaves shared equally, the first ones taking the remainder, each within its pace, and at
    /// least one leaf each. Then newcomers in turn, on a quarter of the seats at most but at least one, with as many leaves
    /// each on top. Those that `failed` have none; `row` is the row that a member computes on. Where somebody computes, supporters
    /// with weight come last, on the seats that are left, without leaves; not where there are `rows` (LEDGER-24).
    pub(in crate::ledger) fn seats(
        &self,
        round: Round,
        failed: &BTreeSet<MemberId>,
        row: impl Fn(&Member) -> Option<Row>,
        rows: u16,
    ) -> Vec<Seat> {
        // ROW-3: whoever still fetches its row has no seat.
        let there = self.training().filter(|member| !failed.contains(&member.id));
        let there = there.filter(|member| row(member).is_some());
        let (weighted, newcomers): (Vec<&Member>, Vec<&Member>) =
            there.partition(|member| self.weighs(member));
        // A quarter at most, so that a flood of keys does not displace those with weight; one at least, so that
        // a probation can end at all.
        let taken = newcomers.len().min((weighted.len() / 3).clamp(1, limits::SEATS / 4));
        let most = weighted.len().min(limits::SEATS - taken);
        // In turn, by the round's number: whoever chose them could keep its friends seated, or those on probation.
        let turn = round.index();
        let mut nodes: Vec<&Member> = in_turn(&weighted, most, turn).collect();
        // Newcomers' leaves come on top: otherwise every round would lose leaves to work that counts for
        // nothing.
        let sharers = if nodes.is_empty() { taken } else { nodes.len() };
        nodes.extend(in_turn(&newcomers, taken, turn));
        let share = |slot: usize| self.terms.regime().leaves_of_seat(slot, sharers);
        let seat = |(slot, member): (usize, &&Member)| Seat {
            member: member.id,
            // At least one leaf: a seat without one would have nothing to commit to, and fail.
            quota: u32::try_from(share(slot)).unwrap_or(u32::MAX).min(member.pace).clamp(1, limits::QUOTA),
            row: row(member).unwrap_or_default(),
        };
        let mut seats: Vec<Seat> = nodes.iter().enumerate().map(seat).collect();
        // LEDGER-24: with several rows a seat opens its row, and there would be none to compute it. Alone they have nothing to do.
        if rows == 1 && !seats.is_empty() {
            let supports =
                |member: &&Member| member.engagement == Engagement::Supports && self.weighs(member);
            let supporters: Vec<&Member> = self.active(Role::Node).filter(supports).collect();
            let there: Vec<&Member> =
                supporters.into_iter().filter(|member| !failed.contains(&member.id)).collect();
            let left = there.len().min(limits::SEATS - seats.len());
            let seat = |member: &Member| Seat { member: member.id, quota: 0, row: Row(0) };
            seats.extend(in_turn(&there, left, turn).map(seat));
        }
        seats
    }

    /// Active nodes that compute.
    fn training(&self) -> impl Iterator<Item = &Member> {
        self.active(Role::Node).filter(|member| member.trains())
    }

    /// Who reduces the parts of a round with these seats.
    pub(in crate::ledger) fn aggregators(&self, seats: &[Seat]) -> Aggregators {
        // Without weight a key costs nothing, so that it could let rounds wait for free.
        let slots = |able: &dyn Fn(&Member) -> bool| -> Vec<Slot> {
            let able = |seat: &Seat| {
                self.member(&seat.member).is_some_and(|member| self.weighs(member) && able(member))
            };
            let slots = seats.iter().enumerate().filter(|(_, seat)| able(seat));
            slots.map(|(slot, _)| Slot(slot as u16)).collect()
        };
        // Senders must be able to dial it.
        let dialled = slots(&|member| !member.addresses.is_empty());
        let coefficients = self.terms.layout().coefficients() as u64;
        let training = seats.iter().filter(|seat| seat.quota > 0).count() as u64;
        let bytes = training.saturating_mul(coefficients).saturating_mul(4);
        // ROUND-39: or they meet at the steward, up to a bound.
        match dialled.is_empty() && bytes <= limits::STOOD_IN_BYTES {
            true => Aggregators { slots: slots(&|_| true), stood_in: true },
            false => Aggregators { slots: dialled, stood_in: false },
        }
    }
}

/// Who reduces the parts of a round.
pub(in crate::ledger) struct Aggregators {
    /// Their slots, ascending.
    pub(in crate::ledger) slots: Vec<Slot>,
    /// ROUND-39: whether nobody can be dialled, so that the steward takes in what they would.
    pub(in crate::ledger) stood_in: bool,
}

/// So many of these members, each round others where they are more.
fn in_turn<'a>(members: &[&'a Member], seats: usize, round: usize) -> impl Iterator<Item = &'a Member> {
    let first = round.saturating_mul(seats);
    (0..seats).filter_map(move |turn| members.get((first + turn) % members.len()).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_14_where_there_are_more_members_than_seats_each_has_one_in_turn() {
        let chain = crate::ledger::fixture::chain::Chain::begin();
        let all: Vec<&Member> = chain.ledger.members().iter().take(3).collect();
        let of = |round| -> Vec<MemberId> { in_turn(&all, 2, round).map(|member| member.id).collect() };
        let ids: Vec<MemberId> = all.iter().map(|member| member.id).collect();
        assert_eq!([of(0), of(1), of(2)], [[0, 1], [2, 0], [1, 2]].map(|turn| turn.map(|i| ids[i]).to_vec()));
        // Where all have seats they keep their order.
        assert_eq!(in_turn(&all, 3, 7).map(|member| member.id).collect::<Vec<_>>(), ids);
        assert_eq!(in_turn(&[], 0, 7).count(), 0);
    }
}
