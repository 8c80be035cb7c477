//! Finding sealed records in the journal.

use muster_core::ids::Height;
use muster_core::ledger::Ledger;
use muster_core::messages::record::{Body, Record};
use muster_core::sign::Signed;
use muster_store::journal::Journal;

/// Records that are read at a time, and how often.
const PAGE: u64 = 32;
const PAGES: usize = 32;

/// The newest record whose body is wanted, among the last `PAGE * PAGES`.
pub(super) fn newest_of(
    ledger: &Ledger,
    journal: &Journal,
    wanted: &dyn Fn(&Body) -> bool,
) -> Option<Signed<Record>> {
    let mut end = ledger.height().0;
    // Bounded: the journal grows with the run, and the driver waits for this.
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
