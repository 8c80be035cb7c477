//! Deliveries: bounded before their receipts are checked, checked beside the round, then promised.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::bug::OrBug;
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId};
use muster_core::messages::round::{Delivered, DeliveryReceipt};
use muster_core::messages::wire::{Request, Response};
use muster_core::round::ShownDelivery;
use muster_core::sign::Signed;

use super::requests::Disposition;
use super::{Question, Steward, StewardEffect};

/// Deliveries of one member that are checked in one round at most: a restarted node may have more receipts than before.
const DELIVERIES: usize = 8;

/// What members have said of their deliveries in the open round.
#[derive(Default)]
pub(super) struct Deliveries {
    /// Those that have a receipt.
    taken: BTreeMap<MemberId, BTreeSet<Digest>>,
    /// How many of each member were checked, good or not.
    tries: BTreeMap<MemberId, usize>,
    /// Those whose receipts are being checked.
    checking: BTreeMap<Question, Signed<Delivered>>,
}

impl Deliveries {
    /// The round is over.
    pub(super) fn forget(&mut self) {
        (self.taken, self.tries) = Default::default();
    }
}

impl Steward {
    /// ROUND-35: a delivery is refused for what it cannot bring before the signature of any receipt is checked.
    pub(super) fn delivered(
        &mut self,
        question: Question,
        signed: Signed<Delivered>,
    ) -> Result<Disposition, Reject> {
        let claimed = self.conductor.claim_delivery(&signed)?;
        let author = claimed.author();
        if self.deliveries.taken.get(&author).is_some_and(|taken| taken.contains(&signed.digest())) {
            // The answer may have been lost.
            return self.promise(signed).map(Disposition::Now);
        }
        if !claimed.is_new() {
            return Err(Reject::Rule("a second delivery brings a receipt that the first one did not"));
        }
        // Nothing is kept of an author before the round knows it: keys cost nothing.
        let tries = self.deliveries.tries.entry(author).or_default();
        if *tries >= DELIVERIES {
            return Err(Reject::Rule("a delivery is told a few times in a round at most"));
        }
        *tries += 1;
        if claimed.unchecked() == 0 {
            return self.take_delivery(signed, &claimed.check()?).map(Disposition::Now);
        }
        // ROUND-36: the phase does not end while the steward is at it.
        self.conductor.owes(self.now, question.0);
        self.deliveries.checking.insert(question, signed);
        Ok(Disposition::Claimed(Box::new(claimed)))
    }

    /// The receipts of a delivery were checked.
    pub(super) fn delivery_checked(&mut self, question: Question, shown: Result<ShownDelivery, Reject>) {
        let signed = self.deliveries.checking.remove(&question).or_bug("a delivery that is being checked");
        let Some(signed) = signed else { return };
        let answer = shown.and_then(|shown| self.take_delivery(signed, &shown));
        let answer = answer.unwrap_or_else(|reject| Response::refused(&reject.to_string()));
        self.effects.push_back(StewardEffect::Answer(question, answer));
        // Last: until here the phase has waited for it.
        self.conductor.paid(self.now, question.0);
    }

    fn take_delivery(
        &mut self,
        signed: Signed<Delivered>,
        shown: &ShownDelivery,
    ) -> Result<Response, Reject> {
        self.conductor.deliver(self.now, shown)?;
        let said = signed.verify(self.ledger().run())?;
        // Before the receipt: a promise that a crash lets this steward forget would convict it (AUDIT-13).
        self.keep(Request::Delivered(signed.clone()));
        self.deliveries.taken.entry(said.author()).or_default().insert(signed.digest());
        self.promise(signed)
    }

    /// The answer to a delivery that is taken.
    fn promise(&self, signed: Signed<Delivered>) -> Result<Response, Reject> {
        let ledger = self.ledger();
        let said = signed.verify(ledger.run())?;
        let commitment = ledger
            .current()
            .and_then(|view| view.slot_of(&said.author()).and_then(|slot| view.commitment(slot)));
        if commitment.is_none_or(|commitment| commitment.weight == 0) {
            // STAND-3: what has no weight is not counted, so nothing is promised.
            return Ok(Response::Done);
        }
        // ROUND-5: from here on the sealed inputs must count it.
        let receipt =
            DeliveryReceipt { delivered: signed.digest(), round: said.round, attempt: said.attempt };
        Ok(Response::Delivered(self.identity.sign(ledger.run(), &receipt)))
    }
}
