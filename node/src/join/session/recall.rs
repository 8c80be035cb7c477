//! Finding the sealed records that a promise of the steward's is held against.

use muster_core::ids::Height;
use muster_core::ledger::Ledger;
use muster_core::messages::record::{Body, Record};
use muster_core::sign::Signed;
use muster_roles::node::Promise;
use muster_store::journal::Journal;

/// Records that are read at a time, and how often.
const PAGE: u64 = 32;
const PAGES: usize = 32;

/// The Inputs of the promise's round and attempt.
pub(super) fn inputs(ledger: &Ledger, journal: &Journal, promise: &Promise) -> Option<Signed<Record>> {
    let Promise { round, attempt, .. } = promise;
    find(ledger, journal, &|body| {
        matches!(body, Body::Inputs(inputs) if inputs.round == *round && inputs.attempt == *attempt)
    })
}

/// The Reassign before a second attempt.
pub(super) fn reassign(ledger: &Ledger, journal: &Journal, promise: &Promise) -> Option<Signed<Record>> {
    if promise.attempt == 0 {
        return None;
    }
    find(ledger, journal, &|body| matches!(body, Body::Reassign(again) if again.round == promise.round))
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
