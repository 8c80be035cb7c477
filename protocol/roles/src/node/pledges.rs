//! What the steward has promised this member: its receipts, kept until the records are sealed that must honour them.

use std::collections::BTreeMap;

use muster_core::audit::{Judgement, judge_steward};
use muster_core::bug::OrBug;
use muster_core::ids::Round;
use muster_core::ledger::Ledger;
use muster_core::messages::evidence::{Evidence, Misconduct, OmittedCommit, OmittedDelivery};
use muster_core::messages::record::{Body, Record};
use muster_core::messages::round::{Commit, CommitReceipt, Delivered, DeliveryReceipt};
use muster_core::sign::Signed;

/// Receipts of each kind kept at most; the oldest go.
const KEPT: usize = 16;

/// Receipts that are not settled yet.
#[derive(Default)]
pub(super) struct Pledges {
    commits: BTreeMap<Round, (Signed<Commit>, Signed<CommitReceipt>)>,
    deliveries: BTreeMap<(Round, u8), Promise>,
}

/// A delivery that the steward has promised to count.
pub struct Promise {
    round: Round,
    attempt: u8,
    delivered: Signed<Delivered>,
    receipt: Signed<DeliveryReceipt>,
}

/// A promise that the ledger breaks.
pub(super) struct Broken {
    pub(super) evidence: Evidence,
    /// In words.
    pub(super) why: String,
}

impl Pledges {
    /// Takes what should be the receipt for a commitment. One that is not is worth nothing, and is told.
    pub(super) fn committed(
        &mut self,
        ledger: &Ledger,
        commit: &Signed<Commit>,
        receipt: Signed<CommitReceipt>,
    ) {
        let said = receipt.verify(ledger.run()).ok();
        let fits =
            said.filter(|said| said.author() == ledger.manifest().steward && said.commit == commit.digest());
        let Some(said) = fits else {
            return tracing::warn!("the steward's receipt for a commitment is not one");
        };
        self.commits.insert(said.round, (commit.clone(), receipt));
        // A steward may promise for rounds that never come: receipts are bounded.
        while self.commits.len() > KEPT {
            self.commits.pop_first();
        }
    }

    /// Likewise for a delivery.
    pub(super) fn delivered(
        &mut self,
        ledger: &Ledger,
        delivered: &Signed<Delivered>,
        receipt: Signed<DeliveryReceipt>,
    ) {
        let said = receipt.verify(ledger.run()).ok();
        let own = delivered.verify(ledger.run()).or_bug("a delivery that this member has signed");
        let fits = said.zip(own).filter(|(said, own)| {
            said.author() == ledger.manifest().steward
                && said.delivered == delivered.digest()
                && (said.round, said.attempt) == (own.round, own.attempt)
        });
        let Some((said, _)) = fits else {
            return tracing::warn!("the steward's receipt for a delivery is not one");
        };
        let (round, attempt) = (said.round, said.attempt);
        let promise = Promise { round, attempt, delivered: delivered.clone(), receipt };
        self.deliveries.insert((round, attempt), promise);
        while self.deliveries.len() > KEPT {
            self.deliveries.pop_first();
        }
    }

    /// COMMIT-4: a Commit with a receipt is in the Freeze of its round. Promises that were kept are forgotten.
    pub(super) fn broken_commit(&mut self, ledger: &Ledger) -> Option<Broken> {
        let frozen = |round: &Round| ledger.round(*round).and_then(|view| view.freeze()).cloned();
        let due: Vec<Round> = self.commits.keys().copied().filter(|round| frozen(round).is_some()).collect();
        due.into_iter().find_map(|round| {
            let (commit, receipt) = self.commits.remove(&round)?;
            let freeze = frozen(&round)?;
            convict(ledger, Misconduct::Commit(OmittedCommit { commit, receipt, freeze }))
        })
    }

    /// Promised deliveries of which the records are sealed that must count them. They are looked at once.
    pub(super) fn due(&mut self, ledger: &Ledger) -> Vec<Promise> {
        let sealed = |(round, attempt): &(Round, u8)| {
            // A forgotten round is due as well, so that its promise is dropped below.
            let Some(view) = ledger.round(*round) else { return true };
            // The first inputs settle attempt 0; attempt 1 waits for those after the Reassign.
            !view.inputs().is_empty() && (*attempt == 0 || view.inputs_sealed())
        };
        let due: Vec<(Round, u8)> = self.deliveries.keys().copied().filter(sealed).collect();
        let due = due.into_iter().filter_map(|key| self.deliveries.remove(&key));
        // Of a round that is forgotten nothing can be shown.
        due.filter(|promise| ledger.round(promise.round).is_some()).collect()
    }
}

impl Promise {
    /// Whether this is the Inputs that must count it.
    pub fn is_settled_by(&self, body: &Body) -> bool {
        matches!(body, Body::Inputs(inputs) if (inputs.round, inputs.attempt) == (self.round, self.attempt))
    }

    /// Whether it is of a second attempt, and follows a Reassign.
    pub fn is_second(&self) -> bool {
        self.attempt > 0
    }

    /// Whether this is the Reassign that it follows.
    pub fn follows(&self, body: &Body) -> bool {
        matches!(body, Body::Reassign(again) if again.round == self.round && self.is_second())
    }

    /// ROUND-5: a Delivered with a receipt counts its author in each part that it has a keeper's receipt for. Given the
    /// Inputs of its round and attempt, and the Reassign before them.
    pub(super) fn broken(
        self,
        ledger: &Ledger,
        inputs: Signed<Record>,
        reassign: Option<Signed<Record>>,
    ) -> Option<Broken> {
        let freeze = ledger.round(self.round)?.freeze()?.clone();
        // Without the Reassign nothing can be shown of a second attempt.
        if self.is_second() && reassign.is_none() {
            return None;
        }
        let Self { delivered, receipt, .. } = self;
        convict(
            ledger,
            Misconduct::Delivery(OmittedDelivery { delivered, receipt, freeze, reassign, inputs }),
        )
    }
}

fn convict(ledger: &Ledger, misconduct: Misconduct) -> Option<Broken> {
    match judge_steward(ledger.manifest(), &misconduct) {
        Judgement::Guilty { detail, .. } => {
            Some(Broken { evidence: Evidence::Misconduct(misconduct), why: detail })
        }
        _ => None,
    }
}
