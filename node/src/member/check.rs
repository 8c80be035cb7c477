//! A contributor's comparison of a round's results with its own contribution, before they are sealed. The values are
//! fetched anyway, to be applied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_core::ids::{Block, Part};
use muster_core::ledger::Ledger;
use muster_core::round::Check;
use muster_replica::Phase;

use super::own::Contribution;
use super::server::NodeContext;

/// Waits for the values of every part, and compares each block with this member's own. Returns the blocks to object to, by
/// part; `None`, and so no Checked, if the values do not come within the timer `result`.
pub(super) async fn compare_results(
    shared: Arc<NodeContext>,
    ledger: Arc<Ledger>,
    contribution: Arc<Contribution>,
    check: Check,
) -> Option<(Check, BTreeMap<Part, Vec<Block>>)> {
    let parts = planned(&ledger, &check)?;
    // The steward waits for a Checked no longer than this (ROUND-21).
    let patience = Duration::from_millis(u64::from(ledger.manifest().timers.result));
    let all = async {
        for (part, digest) in &check.parts {
            shared.results.wait(check.round, &parts[part], digest).await;
        }
    };
    if tokio::time::timeout(patience, all).await.is_err() {
        tracing::warn!("results of round {} did not come in time to be checked", check.round);
        return None;
    }
    // Beside the runtime: it goes through as many values as the model has.
    let looked = tokio::task::spawn_blocking(move || {
        let Contribution { commit, q, .. } = &*contribution;
        let shown = |_, block, digest: &_| shared.results.block(check.round, block, digest);
        let look = || check.objections(&ledger, commit, q, shown);
        let objections = shared.stopwatch.time(Phase::Aggregation, look);
        (check, objections)
    });
    looked.await.ok()
}

fn planned(ledger: &Ledger, check: &Check) -> Option<BTreeMap<Part, Vec<Block>>> {
    let view = ledger.round(check.round)?;
    let blocks = |part: &Part| Some((*part, view.parts().get(part.index())?.blocks.clone()));
    check.parts.iter().map(|(part, _)| blocks(part)).collect()
}
