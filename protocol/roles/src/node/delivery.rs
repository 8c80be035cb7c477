//! The delivery of one contribution: which receipts keep a part, and what an aggregator does not take.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_core::bug::OrBug;
use muster_core::codec::List;
use muster_core::error::Reject;
use muster_core::ids::{MemberId, Part, Round};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::round::{Delivered, Receipt};
use muster_core::sign::Signed;

/// A part on its way to one keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parcel {
    /// The round.
    pub round: Round,
    /// 0, or 1 after a reassignment.
    pub attempt: u8,
    /// The part.
    pub part: Part,
    /// Who takes it in.
    pub keeper: MemberId,
    /// How long its keeper may take, in milliseconds.
    pub within: u64,
    /// Whether it goes to the steward because an aggregator did not take it (ROUND-24).
    pub relayed: bool,
}

/// The parts of one contribution in one attempt, and the receipts for them.
pub(super) struct Delivery {
    me: MemberId,
    /// As of when the delivery was owed: a later reassignment is another delivery.
    ledger: Arc<Ledger>,
    round: Round,
    attempt: u8,
    parts: BTreeMap<Part, Handed>,
}

/// What became of one part.
#[derive(Default)]
struct Handed {
    /// Keepers that have not answered yet.
    awaited: BTreeSet<MemberId>,
    receipts: BTreeMap<MemberId, Signed<Receipt>>,
    relayed: bool,
}

impl Delivery {
    /// Of these parts, each to a keeper.
    pub(super) fn new(
        me: MemberId,
        ledger: Arc<Ledger>,
        round: Round,
        attempt: u8,
        parcels: Vec<(Part, MemberId)>,
    ) -> Self {
        let mut parts: BTreeMap<Part, Handed> = BTreeMap::new();
        for (part, keeper) in parcels {
            parts.entry(part).or_default().awaited.insert(keeper);
        }
        Self { me, ledger, round, attempt, parts }
    }

    /// What is to be brought first: every part, to all its keepers at once. Each has half of the time that there is.
    pub(super) fn parcels(&self) -> Vec<Parcel> {
        // ROUND-24: the other half of T_part is for bringing to the steward what a keeper did not take.
        let within = self.patience() / 2;
        let keepers =
            self.parts.iter().flat_map(|(part, handed)| handed.awaited.iter().map(|keeper| (*part, *keeper)));
        keepers.map(|(part, keeper)| self.parcel(part, keeper, within, false)).collect()
    }

    /// Takes the answer to a parcel. ROUND-24: a part that an aggregator did not take goes to the steward.
    pub(super) fn brought(&mut self, parcel: &Parcel, receipt: Option<Signed<Receipt>>) -> Option<Parcel> {
        // A receipt that does not fit counts as none, so that the part still gets to the steward in time.
        let receipt = receipt.filter(|receipt| {
            let checked = self.check(parcel, receipt);
            checked.inspect_err(|reject| tracing::warn!("a receipt by {}: {reject}", parcel.keeper)).is_ok()
        });
        let handed = self.parts.get_mut(&parcel.part)?;
        if !handed.awaited.remove(&parcel.keeper) {
            return None;
        }
        handed.receipts.extend(receipt.map(|receipt| (parcel.keeper, receipt)));
        let handed = self.parts.get(&parcel.part)?;
        // Once, and only when no keeper is left to wait for: the steward takes half of the parts at most.
        if !handed.awaited.is_empty() || handed.relayed || self.is_kept(parcel.part, handed) {
            return None;
        }
        // To the steward, not to another member: a relay and an author together could have an input counted that nobody
        // can get.
        let steward = self.ledger.manifest().steward;
        let handed = self.parts.get_mut(&parcel.part)?;
        handed.relayed = true;
        handed.awaited.insert(steward);
        // A quarter, so that the receipts are reported before T_part is over.
        Some(self.parcel(parcel.part, steward, self.patience() / 4, true))
    }

    /// Whether nothing is on its way any more.
    pub(super) fn is_over(&self) -> bool {
        self.parts.values().all(|handed| handed.awaited.is_empty())
    }

    /// Keepers that have not answered yet.
    pub(super) fn awaited(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.parts.values().flat_map(|handed| handed.awaited.iter().copied())
    }

    /// What to tell the steward: the receipts of all parts that count with them (ROUND-5).
    pub(super) fn said(&self) -> Option<Delivered> {
        let kept = self.parts.iter().filter(|(part, handed)| self.is_kept(**part, handed));
        let receipts = kept.flat_map(|(_, handed)| handed.receipts.values().cloned()).collect();
        let receipts = List::new(receipts).or_bug("as many receipts as there are parts and keepers")?;
        Some(Delivered { round: self.round, attempt: self.attempt, receipts })
    }

    fn is_kept(&self, part: Part, handed: &Handed) -> bool {
        let keepers: Vec<MemberId> = handed.receipts.keys().copied().collect();
        self.view().is_some_and(|view| view.is_kept(part, &self.me, &keepers))
    }

    /// ROUND-3: a false receipt would have the whole delivery refused.
    fn check(&self, parcel: &Parcel, receipt: &Signed<Receipt>) -> Result<(), Reject> {
        // The root that was frozen, and not the one that is here: only the frozen one is what the keeper checked
        // against.
        let own = self.view().and_then(|view| view.commitment(view.slot_of(&self.me)?));
        let root = own.ok_or(Reject::Stale("the round is not remembered"))?.commit.root;
        let Parcel { round, part, attempt, .. } = *parcel;
        let said = receipt.verify(self.ledger.run())?;
        if said.author() != parcel.keeper
            || *said != (Receipt { round, part, attempt, sender: self.me, root })
        {
            return Err(Reject::Rule("a keeper signs for the part that it was brought"));
        }
        Ok(())
    }

    fn parcel(&self, part: Part, keeper: MemberId, within: u64, relayed: bool) -> Parcel {
        Parcel { round: self.round, attempt: self.attempt, part, keeper, within, relayed }
    }

    /// T_part, in milliseconds.
    fn patience(&self) -> u64 {
        self.ledger.manifest().timers.part.into()
    }

    fn view(&self) -> Option<&RoundView> {
        self.ledger.round(self.round)
    }
}
