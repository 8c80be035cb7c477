//! Deliveries: which receipts they may bring, and that no signature is checked before that is known.

use std::collections::BTreeMap;

use super::Conductor;
use crate::codec::encode;
use crate::error::Reject;
use crate::ids::{Digest, MemberId, Part, RunId, Slot};
use crate::ledger::{RoundView, Stage};
use crate::messages::round::{Delivered, Receipt};
use crate::sign::{Signed, Verified};

/// A delivery of the phase in progress that may be true: each of its receipts is one that the ledger allows, and its
/// signature is not checked yet.
#[derive(Clone, Debug)]
pub struct ClaimedDelivery {
    run: RunId,
    delivered: Verified<Delivered>,
    /// Receipts that no delivery has brought before.
    unchecked: Vec<Signed<Receipt>>,
    /// Whether it says something that was not said before.
    new: bool,
}

/// A delivery whose receipts are those of keepers. [`ClaimedDelivery::check`] is the only way to one.
#[derive(Debug)]
pub struct ShownDelivery(Verified<Delivered>);

impl ClaimedDelivery {
    /// Who has signed it.
    pub fn author(&self) -> MemberId {
        self.delivered.author()
    }

    /// Whether it brings a receipt that was not brought before, or is the first one of its author.
    pub fn is_new(&self) -> bool {
        self.new
    }

    /// How many signatures [`ClaimedDelivery::check`] looks at.
    pub fn unchecked(&self) -> usize {
        self.unchecked.len()
    }

    /// Checks the signatures: up to a thousand of them, so not where others wait.
    ///
    /// # Errors
    /// [`Reject`] for a receipt that its keeper has not signed.
    pub fn check(self) -> Result<ShownDelivery, Reject> {
        self.unchecked.iter().try_for_each(|receipt| receipt.verify(self.run).map(drop))?;
        Ok(ShownDelivery(self.delivered))
    }
}

impl Conductor {
    /// A member has delivered what it could; the receipts say what.
    ///
    /// # Errors
    /// As [`Conductor::claim_delivery`], or for a receipt that the part's keeper did not sign.
    pub fn delivered(&mut self, now: u64, signed: &Signed<Delivered>) -> Result<(), Reject> {
        let shown = self.claim_delivery(signed)?.check()?;
        self.deliver(now, &shown)
    }

    /// Looks at a delivery without checking the signature of any receipt.
    ///
    /// # Errors
    /// [`Reject`] for another round or attempt, before the echo of a sender with weight, for more receipts than there
    /// are keepers, for one that comes twice, and for one that is not of a keeper of its part for this sender.
    pub fn claim_delivery(&self, signed: &Signed<Delivered>) -> Result<ClaimedDelivery, Reject> {
        let delivered = signed.verify(self.ledger.run())?;
        let (view, slot, root) = self.delivering(&delivered)?;
        let allowed = allowed(view, slot, &delivered, root);
        // ROUND-35: what the ledger says can be true comes before the work of checking it.
        let most = allowed.values().map(|(_, keepers)| keepers.len()).sum();
        if delivered.receipts.len() > most {
            return Err(Reject::Rule("a delivery brings no more receipts than its parts have keepers"));
        }
        let steward = self.ledger.manifest().steward;
        let (mut parts, mut unchecked) = (BTreeMap::<Part, Vec<MemberId>>::new(), Vec::new());
        for receipt in &delivered.receipts {
            let keeper = receipt.claimed_signer();
            // SIGN-6: compared, not decoded. A receipt for another sender, or of other integers, shows nothing.
            let known = allowed.get(receipt.body());
            // The steward takes in what a keeper did not (ROUND-24).
            let known = known.filter(|(_, keepers)| keepers.contains(&keeper) || keeper == steward);
            let (part, _) =
                known.ok_or(Reject::Rule("a receipt is signed by the part's keeper for this sender"))?;
            let by = parts.entry(*part).or_default();
            if by.contains(&keeper) {
                return Err(Reject::Rule("a delivery brings each receipt once"));
            }
            by.push(keeper);
            // What was shown once needs no second look, whatever signature it comes with.
            if !self.gathered.brought.contains(&(slot, *part, keeper)) {
                unchecked.push(receipt.clone());
            }
        }
        // ROUND-5: what a delivery names, it brings whole, so that its receipt promises every part of it.
        if !parts.iter().all(|(part, by)| view.is_kept(*part, &delivered.author(), by)) {
            return Err(Reject::Rule(
                "a delivery brings the receipts of all keepers of a part, or the steward's",
            ));
        }
        let new = !unchecked.is_empty() || !self.gathered.delivered.contains(&slot);
        Ok(ClaimedDelivery { run: self.ledger.run(), delivered, unchecked, new })
    }

    /// Takes a delivery whose receipts are checked.
    ///
    /// # Errors
    /// [`Reject`] when the phase is over by now.
    pub fn deliver(&mut self, now: u64, shown: &ShownDelivery) -> Result<(), Reject> {
        let ShownDelivery(delivered) = shown;
        let (view, slot, root) = self.delivering(delivered)?;
        let allowed = allowed(view, slot, delivered, root);
        for receipt in &delivered.receipts {
            if let Some((part, _)) = allowed.get(receipt.body()) {
                self.gathered.receipts.entry(*part).or_default().insert(slot);
                self.gathered.brought.insert((slot, *part, receipt.claimed_signer()));
            }
        }
        self.gathered.delivered.insert(slot);
        self.tick(now);
        Ok(())
    }

    /// The round and slot that a delivery is for, and the root of what its author has committed to.
    fn delivering(&self, delivered: &Verified<Delivered>) -> Result<(&RoundView, Slot, Digest), Reject> {
        let view = self.ledger.current().ok_or(Reject::Stale("no round is open"))?;
        // Receipts of the first attempt are of other aggregators.
        let attempt = u8::from(view.reassigned().next().is_some());
        if delivered.round != view.round()
            || delivered.attempt != attempt
            || self.ledger.stage() != Stage::Exchanging
        {
            return Err(Reject::Stale("the delivery is of another phase"));
        }
        let slot = view.slot_of(&delivered.author()).ok_or(Reject::NotEntitled("deliver: it has no seat"))?;
        let commitment =
            view.commitment(slot).ok_or(Reject::Rule("only a frozen contribution is delivered"))?;
        // ROUND-5: without its echo it could not be counted, and a receipt would bind the steward to do so.
        if commitment.weight > 0 && !self.gathered.echoes.contains_key(&slot) {
            return Err(Reject::Rule("echo the freeze first: nothing of a member counts before its echo"));
        }
        Ok((view, slot, commitment.commit.root))
    }
}

/// The bytes of the receipts that may be brought for a slot, each with its part and the part's keepers.
fn allowed(
    view: &RoundView,
    slot: Slot,
    delivered: &Verified<Delivered>,
    root: Digest,
) -> BTreeMap<Vec<u8>, (Part, Vec<MemberId>)> {
    let (sender, attempt) = (delivered.author(), delivered.attempt);
    let receipts = view.parts_of(slot).filter_map(|(part, _)| {
        let (keepers, turn) = view.keepers(part, &sender)?;
        let receipt = Receipt { round: view.round(), part, attempt, sender, root };
        (turn == attempt).then(|| (encode(&receipt), (part, keepers)))
    });
    receipts.collect()
}
