//! What members say within a round: commitments, echoes, results, credits.

use super::Conductor;
use super::results::parts;
use crate::error::Reject;
use crate::ids::{Digest, MemberId, Part, Slot};
use crate::messages::record::Credit;
use crate::messages::round::{Commit, Echo, PartResult};
use crate::sign::{Signed, Verified};

/// Credits that wait for an outcome at most.
const CREDITS_WAITING: usize = 8192;

impl Conductor {
    /// A commitment. The first one of a slot counts; the caller looks for a second one.
    ///
    /// # Errors
    /// [`Reject`] as by [`check_commit`](crate::ledger::Ledger::check_commit).
    pub fn commit(&mut self, now: u64, signed: Signed<Commit>) -> Result<Verified<Commit>, Reject> {
        let commit = self.ledger.check_commit(&signed)?;
        // COMMIT-4: the first one has the receipt, and a second one is evidence.
        self.gathered.commits.entry(commit.slot).or_insert(signed);
        self.tick(now);
        Ok(commit)
    }

    /// The commitment held for a slot of the open round.
    pub fn held_commit(&self, slot: Slot) -> Option<&Signed<Commit>> {
        self.gathered.commits.get(&slot)
    }

    /// An echo of the freeze; whether it is the first one of its author.
    ///
    /// # Errors
    /// [`Reject`] as by [`check_echo`](crate::ledger::Ledger::check_echo).
    pub fn echo(&mut self, now: u64, signed: Signed<Echo>) -> Result<bool, Reject> {
        let echo = self.ledger.check_echo(&signed)?;
        let slot = self.ledger.current().and_then(|view| view.slot_of(&echo.author()));
        let new = slot.filter(|slot| !self.gathered.echoes.contains_key(slot));
        if let Some(slot) = new {
            self.gathered.echoes.insert(slot, signed);
        }
        self.tick(now);
        Ok(new.is_some())
    }

    /// An aggregator has reduced a part; whether this is new of it.
    ///
    /// # Errors
    /// [`Reject`] as by [`check_result`](crate::ledger::Ledger::check_result), and while the results are being applied: what is applied is what the
    /// outcome lists.
    pub fn result(&mut self, now: u64, signed: Signed<PartResult>) -> Result<bool, Reject> {
        // Another result now would change what the Outcome lists, but not the state that was computed.
        if self.applying || self.gathered.next.is_some() {
            return Err(Reject::Stale("the round's results are being applied"));
        }
        let result = self.ledger.check_result(&signed)?;
        let new = self.results.claim(&result, signed)?;
        // ROUND-40: what is taken again after a restart was said before.
        if !self.started {
            self.timing.broke_off();
        } else if new {
            self.timing.said(&result, result.author(), now);
        }
        self.tick(now);
        Ok(new)
    }

    /// The result that an aggregator of the open round has said and that was not struck.
    pub fn held_result(&self, part: Part, author: &MemberId) -> Option<&Signed<PartResult>> {
        self.results.claimed(part, author)
    }

    /// The results that would be sealed now, by part, with their digests.
    pub fn standing(&self) -> impl Iterator<Item = (Part, Digest, &Signed<PartResult>)> {
        let view = self.ledger.current().into_iter();
        view.flat_map(|view| parts(view).map(move |part| (view, part))).filter_map(|(view, part)| {
            let (digest, signed) = self.results.standing(view, part)?;
            Some((part, digest, signed))
        })
    }

    /// A verdict gives credit: the next outcome holds it. One that the ledger would refuse is dropped.
    pub fn credit(&mut self, credit: Credit) {
        // STAND-1: the ledger would refuse the whole Outcome for one credit that is in it twice.
        let same = |other: &Credit| {
            (other.round, other.verifier, other.member) == (credit.round, credit.verifier, credit.member)
        };
        let new = self.ledger.check_credit(&credit).is_ok() && !self.credits.iter().any(same);
        // Verifiers that pass everything must not fill the steward's memory.
        if new && self.credits.len() < CREDITS_WAITING {
            self.credits.push(credit);
        }
    }
}
