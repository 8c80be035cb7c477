//! The sealed records as members see them: applied once, by one ledger that is not the steward's.

use std::collections::VecDeque;
use std::sync::Arc;

use muster_core::ledger::Ledger;
use muster_core::messages::record::{Body, Record};
use muster_core::sign::{Signed, Verified};

/// Ledgers kept: nobody who lives is further behind.
const KEPT: usize = 64;

/// Records, as they were signed and as they were read, and the ledger after each of the last ones.
pub(super) struct Book {
    signed: Vec<Signed<Record>>,
    records: Vec<Verified<Record>>,
    ledgers: VecDeque<Arc<Ledger>>,
}

impl Book {
    /// No record yet.
    pub(super) fn new(empty: Arc<Ledger>) -> Self {
        Self { signed: Vec::new(), records: Vec::new(), ledgers: VecDeque::from([empty]) }
    }

    /// Adds the next record.
    pub(super) fn add(&mut self, signed: &Signed<Record>) {
        let mut ledger = Ledger::clone(&self.newest());
        let record = ledger.apply(signed).expect("an honest steward's records apply");
        self.signed.push(signed.clone());
        self.records.push(record);
        self.ledgers.push_back(Arc::new(ledger));
        while self.ledgers.len() > KEPT {
            self.ledgers.pop_front();
        }
    }

    /// The ledger after all records.
    pub(super) fn newest(&self) -> Arc<Ledger> {
        self.ledgers.back().expect("never empty").clone()
    }

    /// The ledger one record after this one, or the oldest that is kept; `None` when there is no further record.
    pub(super) fn after(&self, ledger: &Ledger) -> Option<Arc<Ledger>> {
        let oldest = self.records.len() + 1 - self.ledgers.len();
        let next = (ledger.height().index() + 1).max(oldest);
        self.ledgers.get(next - oldest).cloned()
    }

    /// All records.
    pub(super) fn records(&self) -> &[Verified<Record>] {
        &self.records
    }

    /// The newest record of this kind, as it was signed.
    pub(super) fn newest_of(&self, wanted: impl Fn(&Body) -> bool) -> Option<Signed<Record>> {
        let place = self.records.iter().rposition(|record| wanted(&record.body))?;
        self.signed.get(place).cloned()
    }
}
