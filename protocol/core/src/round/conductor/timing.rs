//! How long the steward waits for what aggregators show (ROUND-40).

use std::collections::BTreeMap;

use crate::assign::{TimedShare, timed_classes};
use crate::ids::{MemberId, Part, Slot};
use crate::ledger::{Ledger, RoundView};
use crate::messages::record::ShareMove;
use crate::messages::round::PartResult;

/// Times of the open round's first attempt, by this machine's clock alone.
#[derive(Default)]
pub(super) struct Timing {
    spans: BTreeMap<(Part, MemberId), Span>,
    /// The steward was not there for all of it: what it saw tells nothing of lines.
    broken: bool,
}

/// Of one part.
#[derive(Clone, Copy)]
struct Span {
    /// Since when the values could be asked for.
    said: u64,
    /// Since when they are here.
    here: Option<u64>,
}

impl Timing {
    /// An aggregator has said what a part gives.
    pub(super) fn said(&mut self, result: &PartResult, author: MemberId, now: u64) {
        if result.attempt == 0 {
            self.spans.entry((result.part, author)).or_insert(Span { said: now, here: None });
        }
    }

    /// The values of this author's result are here.
    pub(super) fn came(&mut self, part: Part, author: MemberId, now: u64) {
        if let Some(span) = self.spans.get_mut(&(part, author)) {
            span.here.get_or_insert(now);
        }
    }

    /// The steward stood still, or was started anew: nothing is said of the open round.
    pub(super) fn broke_off(&mut self) {
        self.broken = true;
    }

    /// Milliseconds in which values of an aggregator were on their way; none where no values of it came.
    fn of(&self, author: MemberId) -> Option<u64> {
        // Whoever shows none fails in another way (ROUND-7).
        let shown = self.spans.iter().filter(|((_, of), _)| *of == author);
        let mut shown: Vec<(u64, u64)> =
            shown.filter_map(|(_, span)| Some((span.said, span.here?))).collect();
        shown.sort_unstable();
        // Between one part and the next it may have waited for inputs that others brought late: only what was under way counts, and
        // once what was under way together.
        let mut until = shown.first()?.0;
        let mut time = 0;
        for (said, here) in shown {
            time += here.saturating_sub(said.max(until));
            until = until.max(here);
        }
        Some(time)
    }

    /// ROUND-40: whose classes change in the round, and to which.
    pub(super) fn moves(&self, ledger: &Ledger, view: &RoundView) -> Vec<ShareMove> {
        if self.broken || !view.weighs_lines() {
            return Vec::new();
        }
        let timed = |slot: &Slot| {
            let member = view.member_at(*slot).filter(|_| view.has_shown(*slot))?;
            Some((*slot, TimedShare { class: ledger.member(&member)?.share, time: self.of(member)? }))
        };
        let timed: Vec<(Slot, TimedShare)> = view.aggregators().iter().filter_map(timed).collect();
        let shares: Vec<TimedShare> = timed.iter().map(|(_, share)| *share).collect();
        let after = timed.into_iter().zip(timed_classes(&shares));
        let changed = after.filter(|((_, before), class)| before.class != *class);
        changed.map(|((slot, _), class)| ShareMove { slot, class }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_40_what_others_deliver_late_between_two_parts_is_nobodys_time() {
        let author = MemberId([1; 32]);
        let time = |spans: &[(u64, Option<u64>)]| {
            let spans = (0..).map(Part).zip(spans);
            let spans = spans.map(|(part, (said, here))| ((part, author), Span { said: *said, here: *here }));
            Timing { spans: spans.collect(), broken: false }.of(author)
        };
        assert_eq!(time(&[(10, Some(30)), (9_000, Some(9_005))]), Some(25), "one after the other");
        assert_eq!(time(&[(10, Some(30)), (20, Some(50)), (12, Some(18))]), Some(40), "together");
        assert_eq!(time(&[(10, Some(30)), (20, None)]), Some(20));
        assert_eq!([time(&[(10, None)]), time(&[])], [None; 2]);
        assert_eq!(Timing::default().of(author), None);
    }
}
