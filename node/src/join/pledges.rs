//! What the steward has promised this member: its receipts, kept until the records are sealed that must honour them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use muster_core::audit::{Judgement, judge_steward};
use muster_core::ids::{Height, Round};
use muster_core::ledger::Ledger;
use muster_core::lock::lock;
use muster_core::messages::evidence::{Evidence, Misconduct, OmittedCommit, OmittedDelivery};
use muster_core::messages::record::{Body, Record};
use muster_core::messages::round::{Commit, CommitReceipt, Delivered, DeliveryReceipt};
use muster_core::messages::wire::Response;
use muster_core::sign::Signed;
use muster_store::journal::Journal;

/// Receipts of each kind kept at most; the oldest go.
const KEPT: usize = 16;
/// Records that are read at a time to find one of a round, and how often.
const PAGE: u64 = 32;
const PAGES: usize = 32;

/// Receipts that are not settled yet.
#[derive(Default)]
pub struct Pledges {
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    commits: BTreeMap<Round, (Signed<Commit>, Signed<CommitReceipt>)>,
    deliveries: BTreeMap<(Round, u8), (Signed<Delivered>, Signed<DeliveryReceipt>)>,
}

impl Pledges {
    /// Takes the answer to a commitment. What is no receipt of it is worth nothing, and is told.
    pub fn committed(&self, ledger: &Ledger, commit: &Signed<Commit>, answer: Option<Response>) {
        let Some(Response::Committed(receipt)) = answer else { return };
        let said = receipt.verify(ledger.run()).ok();
        let fits =
            said.filter(|said| said.author() == ledger.manifest().steward && said.commit == commit.digest());
        match fits {
            Some(said) => {
                let mut held = self.held();
                held.commits.insert(said.round, (commit.clone(), receipt));
                while held.commits.len() > KEPT {
                    held.commits.pop_first();
                }
            }
            None => tracing::warn!("the steward's receipt for a commitment is not one"),
        }
    }

    /// Takes the answer to a delivery.
    pub fn delivered(&self, ledger: &Ledger, delivered: &Signed<Delivered>, answer: Option<Response>) {
        let Some(Response::Delivered(receipt)) = answer else { return };
        let said = receipt.verify(ledger.run()).ok();
        let fits = said.filter(|said| {
            said.author() == ledger.manifest().steward && said.delivered == delivered.digest()
        });
        match fits {
            Some(said) => {
                let mut held = self.held();
                held.deliveries.insert((said.round, said.attempt), (delivered.clone(), receipt));
                while held.deliveries.len() > KEPT {
                    held.deliveries.pop_first();
                }
            }
            None => tracing::warn!("the steward's receipt for a delivery is not one"),
        }
    }

    /// A promise that the ledger breaks, with the words for it. Promises that were kept are forgotten.
    pub fn broken(&self, ledger: &Ledger, journal: &Journal) -> Option<(Evidence, String)> {
        self.broken_commit(ledger).or_else(|| self.broken_delivery(ledger, journal))
    }

    // COMMIT-4: a Commit with a receipt is in the Freeze of its round.
    fn broken_commit(&self, ledger: &Ledger) -> Option<(Evidence, String)> {
        let mut held = self.held();
        let frozen = |round: &Round| ledger.round(*round).and_then(|view| view.freeze()).cloned();
        let due: Vec<Round> = held.commits.keys().copied().filter(|round| frozen(round).is_some()).collect();
        due.into_iter().find_map(|round| {
            let (commit, receipt) = held.commits.remove(&round)?;
            convict(ledger, Misconduct::Commit(OmittedCommit { commit, receipt, freeze: frozen(&round)? }))
        })
    }

    // ROUND-5: a Delivered with a receipt counts its author in each part that it has a keeper's receipt for.
    fn broken_delivery(&self, ledger: &Ledger, journal: &Journal) -> Option<(Evidence, String)> {
        let mut held = self.held();
        let sealed = |key: &(Round, u8)| {
            let Some(view) = ledger.round(key.0) else { return true };
            !view.inputs().is_empty() && (key.1 == 0 || view.inputs_sealed())
        };
        let due: Vec<(Round, u8)> = held.deliveries.keys().copied().filter(sealed).collect();
        due.into_iter().find_map(|(round, attempt)| {
            let (delivered, receipt) = held.deliveries.remove(&(round, attempt))?;
            let freeze = ledger.round(round)?.freeze()?.clone();
            let inputs =
                |body: &Body| matches!(body, Body::Inputs(i) if i.round == round && i.attempt == attempt);
            let inputs = find(ledger, journal, &inputs)?;
            let reassign = |body: &Body| matches!(body, Body::Reassign(r) if r.round == round);
            let reassign = if attempt == 0 { None } else { Some(find(ledger, journal, &reassign)?) };
            let omitted = OmittedDelivery { delivered, receipt, freeze, reassign, inputs };
            convict(ledger, Misconduct::Delivery(omitted))
        })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }
}

fn convict(ledger: &Ledger, misconduct: Misconduct) -> Option<(Evidence, String)> {
    match judge_steward(ledger.manifest(), &misconduct) {
        Judgement::Guilty { detail, .. } => Some((Evidence::Misconduct(misconduct), detail)),
        _ => None,
    }
}

/// The newest record of this kind.
fn find(ledger: &Ledger, journal: &Journal, wanted: &dyn Fn(&Body) -> bool) -> Option<Signed<Record>> {
    let mut end = ledger.height().0;
    for _ in 0..PAGES {
        let first = end.saturating_sub(PAGE);
        let records = journal.records(Height(first), (end - first) as usize).ok()?;
        let found = records
            .into_iter()
            .rev()
            .find(|signed| signed.verify(ledger.run()).is_ok_and(|record| wanted(&record.body)));
        if found.is_some() || first == 0 {
            return found;
        }
        end = first;
    }
    None
}
