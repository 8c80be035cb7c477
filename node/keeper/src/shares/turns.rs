//! Turns: what several members wait for is given to them by turns, whoever asks the most.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use muster_core::ids::MemberId;

/// Turns of a higher rank after which a lower one that waits has its own.
const PASSED: u32 = 8;

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// The open round waits for it.
    Round,
    /// A member does.
    Member,
    /// Whoever is no member, or was banned.
    Stranger,
}

impl Rank {
    const ALL: [Self; 3] = [Self::Round, Self::Member, Self::Stranger];
}

/// Things that wait, by rank and by whoever asked for them.
pub struct Turns<T> {
    lines: [Line<T>; 3],
}

/// Those of one rank.
struct Line<T> {
    waiting: BTreeMap<MemberId, VecDeque<T>>,
    /// Whose turn was last.
    last: Option<MemberId>,
    /// Turns of higher ranks since then.
    passed: u32,
}

impl<T> Default for Turns<T> {
    fn default() -> Self {
        Self { lines: Rank::ALL.map(|_| Line { waiting: BTreeMap::new(), last: None, passed: 0 }) }
    }
}

impl<T> Turns<T> {
    /// Has something wait, behind what the same member asked for before.
    pub fn push(&mut self, rank: Rank, of: MemberId, item: T) {
        self.lines[rank as usize].waiting.entry(of).or_default().push_back(item);
    }

    /// What has its turn, among those that may have one now. Members of one rank follow each other; a higher rank goes
    /// first, but none has the others wait for ever.
    pub fn pop(&mut self, may: impl Fn(Rank, &MemberId) -> bool) -> Option<(MemberId, T)> {
        let next = Rank::ALL.map(|rank| self.lines[rank as usize].next(|member| may(rank, member)));
        let long = |rank: &&Rank| self.lines[**rank as usize].passed >= PASSED;
        let there = |rank: &&Rank| next[**rank as usize].is_some();
        let ranks = &Rank::ALL;
        let rank = *ranks.iter().rev().filter(there).find(long).or_else(|| ranks.iter().find(there))?;
        for lower in ranks.iter().filter(|lower| **lower > rank).filter(there) {
            self.lines[*lower as usize].passed += 1;
        }
        let (line, member) = (&mut self.lines[rank as usize], next[rank as usize]?);
        (line.last, line.passed) = (Some(member), 0);
        let own = line.waiting.get_mut(&member)?;
        let item = own.pop_front();
        if own.is_empty() {
            line.waiting.remove(&member);
        }
        Some((member, item?))
    }
}

impl<T> Line<T> {
    /// Who comes after the last one.
    fn next(&self, may: impl Fn(&MemberId) -> bool) -> Option<MemberId> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let behind = self.waiting.range((after, Bound::Unbounded));
        behind.chain(&self.waiting).map(|(member, _)| *member).find(may)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_asks_a_thousand_times_has_every_second_turn() {
        let [flood, honest] = [1, 2].map(|name| MemberId([name; 32]));
        let mut turns = Turns::default();
        (0..1000).for_each(|number| turns.push(Rank::Member, flood, number));
        (0..3).for_each(|number| turns.push(Rank::Member, honest, number));
        let order: Vec<_> = std::iter::from_fn(|| turns.pop(|_, _| true)).take(6).collect();
        assert_eq!(order.iter().filter(|(member, _)| *member == honest).count(), 3);
        assert_eq!(order.iter().map(|(_, number)| *number).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
        assert_eq!(turns.pop(|_, member| *member == honest), None);
        assert_eq!(turns.pop(|_, _| true), Some((flood, 3)));
    }

    #[test]
    fn what_the_round_waits_for_goes_first_and_strangers_still_get_through() {
        let members = [1, 2, 3].map(|name| MemberId([name; 32]));
        let mut turns = Turns::default();
        for (member, rank) in members.into_iter().zip(Rank::ALL) {
            (0..100).for_each(|_| turns.push(rank, member, rank));
        }
        let order: Vec<Rank> = std::iter::from_fn(|| turns.pop(|_, _| true)).map(|(_, rank)| rank).collect();
        assert_eq!(order.len(), 300);
        assert_eq!(order[..8], [Rank::Round; 8]);
        let of = |rank| order[..50].iter().filter(|other| **other == rank).count();
        assert!(of(Rank::Round) > 36 && of(Rank::Member) >= 4 && of(Rank::Stranger) >= 4, "{order:?}");
    }
}
