//! Aggregators under a verifier's eye: drawn blocks of sealed parts are reduced again and compared, bit for bit, with
//! the values that were applied. One that differs has the whole part reduced anew before anybody is accused.

use std::collections::{BTreeSet, VecDeque};

use muster_core::coins::Coin;
use muster_core::ids::{Block, Digest, MemberId, Part, Round};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::evidence::Reduction;
use muster_core::messages::round::PartResult;
use muster_core::sign::Signed;

/// Tries to fetch what a drawn part needs.
const TRIES: u32 = 3;
/// Milliseconds between two of them.
const PAUSE: u64 = 1_000;

/// Drawn blocks of one sealed part.
pub struct DrawnBlocks {
    /// What the aggregator signed.
    pub signed: Signed<PartResult>,
    /// The same, checked.
    pub result: PartResult,
    /// The aggregator that signed it.
    pub author: MemberId,
    /// The drawn blocks, ascending.
    pub blocks: Vec<Block>,
    /// The round.
    pub view: RoundView,
    /// All blocks of the part.
    pub part: Vec<Block>,
    /// Members that may have the values.
    pub holders: Vec<MemberId>,
    /// How often it was tried.
    tries: u32,
}

/// What a look at drawn blocks gave.
#[derive(Clone, Debug)]
pub enum Seen {
    /// All are what the rule gives.
    Right,
    /// This one is not.
    Wrong(Block),
    /// Something is unavailable; what.
    Missing(String),
}

impl DrawnBlocks {
    /// Blocks of a part that are drawn; `None` for a part without a sealed result.
    fn of(ledger: &Ledger, view: &RoundView, part: Part, blocks: Vec<Block>) -> Option<Self> {
        let signed = view.signed_result(part)?.clone();
        let result = signed.verify(ledger.run()).ok()?;
        let author = result.author();
        let plan = view.parts().get(part.index())?;
        let holders = view.signers(part).filter(|signer| ledger.member(signer).is_some()).collect();
        let drawn = Self {
            signed,
            result: result.into_inner(),
            author,
            blocks,
            view: view.clone(),
            part: plan.blocks.clone(),
            holders,
            tries: 0,
        };
        // Every input must have a known root: a sum over fewer would differ, and accuse an honest aggregator.
        let counted = drawn.result.inputs.slots().count();
        (drawn.senders().count() == counted).then_some(drawn)
    }

    /// Who counts in the part, with the root of what each committed to.
    pub fn senders(&self) -> impl Iterator<Item = (MemberId, Digest)> + '_ {
        let commitments = self.result.inputs.slots().filter_map(|slot| self.view.commitment(slot));
        commitments.map(|commitment| (commitment.author, commitment.commit.root))
    }

    /// What convicts, if a judge agrees.
    pub fn evidence(&self) -> Option<Reduction> {
        self.view.reduction(&self.result, &self.signed)
    }
}

/// The drawn parts that have yet to be looked at.
#[derive(Default)]
pub struct Parts {
    surveyed: BTreeSet<Round>,
    queue: RetryQueue<DrawnBlocks>,
}

/// What waits for its turn, each from a time on, and how often it was tried. One that waits for another try holds up nobody:
/// who keeps values back, or has none of rounds before this verifier came, must not keep it from looking at the others.
struct RetryQueue<T>(VecDeque<Retry<T>>);

struct Retry<T> {
    from: u64,
    tries: u32,
    item: T,
}

impl<T> Default for RetryQueue<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> RetryQueue<T> {
    fn put(&mut self, from: u64, tries: u32, item: T) {
        self.0.push_back(Retry { from, tries, item });
    }

    /// What was tried least, and of that what came first.
    fn pop(&mut self, now: u64) -> Option<T> {
        let due = self.0.iter().enumerate().filter(|(_, waiting)| waiting.from <= now);
        let (index, _) = due.min_by_key(|(index, waiting)| (waiting.tries, *index))?;
        self.0.remove(index).map(|waiting| waiting.item)
    }

    /// When the first one may be popped.
    fn timeout(&self) -> Option<u64> {
        self.0.iter().map(|waiting| waiting.from).min()
    }
}

impl Parts {
    /// Draws blocks of the rounds that are over and were not drawn from before, as verifier `me` with these coins.
    pub fn survey(&mut self, now: u64, ledger: &Ledger, me: &MemberId, coin: impl Fn(Round) -> Option<Coin>) {
        for view in ledger.rounds().filter(|view| view.results().is_some()) {
            // Once a round: what was given up after its tries is not drawn again with each batch of news.
            if self.surveyed.insert(view.round())
                && let Some(coin) = coin(view.round())
            {
                let ppm = ledger.manifest().audit.blocks_ppm;
                let drawn = view.drawn_blocks(me, &coin, ppm).into_iter();
                let found = drawn.filter_map(|(part, blocks)| DrawnBlocks::of(ledger, view, part, blocks));
                found.for_each(|drawn| self.queue.put(now, 0, drawn));
            }
        }
        let oldest = ledger.rounds().next().map(RoundView::round);
        self.surveyed.retain(|round| oldest.is_none_or(|oldest| *round >= oldest));
        self.queue.0.retain(|waiting| oldest.is_none_or(|oldest| waiting.item.result.round >= oldest));
    }

    /// The next one.
    pub fn pop(&mut self, now: u64) -> Option<DrawnBlocks> {
        self.queue.pop(now)
    }

    /// When the next one is due.
    pub fn timeout(&self) -> Option<u64> {
        self.queue.timeout()
    }

    /// Has one looked at again after a pause, unless that was tried often enough; whether it will be.
    pub fn again(&mut self, now: u64, mut drawn: DrawnBlocks) -> bool {
        drawn.tries += 1;
        let more = drawn.tries < TRIES;
        if more {
            self.queue.put(now + PAUSE, drawn.tries, drawn);
        }
        more
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_to_be_had_holds_up_nothing_else() {
        let (mut queue, now) = (RetryQueue::default(), 7);
        queue.put(now + PAUSE, 1, "kept back");
        queue.put(now, 0, "first");
        queue.put(now, 0, "second");
        assert_eq!([(); 3].map(|()| queue.pop(now)), [Some("first"), Some("second"), None]);
        queue.put(now, 0, "new");
        assert_eq!([(); 2].map(|()| queue.pop(now + PAUSE)), [Some("new"), Some("kept back")]);
    }
}
