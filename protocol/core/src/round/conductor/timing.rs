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
}

/// Of one part.
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

    /// From an aggregator's first result until its last values, in milliseconds; none where no values of it came.
    fn of(&self, author: MemberId) -> Option<u64> {
        // Of two aggregators one shows the values, and whoever shows none fails in another way (ROUND-7).
        let shown = self.spans.iter().filter(|((_, of), _)| *of == author);
        let shown: Vec<(u64, u64)> =
            shown.filter_map(|(_, Span { said, here })| Some((*said, (*here)?))).collect();
        let first = shown.iter().map(|(said, _)| *said).min()?;
        Some(shown.iter().map(|(_, here)| *here).max()?.saturating_sub(first))
    }

    /// ROUND-40: whose classes change in the round, and to which.
    pub(super) fn moves(&self, ledger: &Ledger, view: &RoundView) -> Vec<ShareMove> {
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
