//! How an attack of the rehearsal lets an audit wait for its member.

use std::sync::Arc;
use std::time::Duration;

use muster_core::ledger::Ledger;
use tokio::sync::watch;

/// Lets nearly as much time pass as AUDIT-8 gives a member for a step of an audit. No honest member does.
pub(super) async fn dawdle(mut ledgers: watch::Receiver<Arc<Ledger>>) {
    let (last, patience) = {
        let ledger = ledgers.borrow();
        let rounds = (ledger.audit_window() / 2).saturating_sub(1);
        (ledger.next_round().0.saturating_add(rounds), ledger.manifest().timers.audit)
    };
    let patience = Duration::from_millis(patience.into());
    let many_rounds = async {
        // A tenth of the patience, and some of it left for the answer to arrive.
        tokio::time::sleep(patience.mul_f32(0.085)).await;
        let _ = ledgers.wait_for(|ledger| ledger.next_round().0 >= last).await;
    };
    let _ = tokio::time::timeout(patience.mul_f32(0.93), many_rounds).await;
}
