//! A contributor's comparison of a round's results with its own contribution, before they are sealed. The values are
//! fetched anyway, to be applied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_core::ids::{Block, Digest, Part};
use muster_core::ledger::Ledger;
use muster_core::round::Check;
use muster_replica::Phase;

use super::own::Contribution;
use super::server::NodeContext;

/// Words in which one check is said, at most: a part whose values are late or unavailable must not keep the others unsaid.
const WORDS: u32 = 4;

/// What a comparison has found: the parts that were looked at, and the blocks to object to.
type Found = (Check, BTreeMap<Part, Vec<Block>>);

/// Waits for the values of the parts, and compares each block with this member's own. `said` hears which blocks to object to:
/// of all parts once their values are here, else of those that have come when a quarter of the timer `result` is over, and
/// so on. Of a part whose values do not come nothing is said.
pub(super) async fn compare_results<F: Future<Output = ()> + Send>(
    shared: Arc<NodeContext>,
    ledger: Arc<Ledger>,
    contribution: Arc<Contribution>,
    check: Check,
    said: impl Fn(Found) -> F,
) {
    let Some(blocks) = planned(&ledger, &check) else { return };
    // The steward waits no longer than this from the moment on when it has the values itself (ROUND-21).
    let patience = Duration::from_millis(u64::from(ledger.manifest().timers.result));
    let (round, mut open) = (check.round, check.parts.clone());
    // Twice as long: the steward may have them later than the board has their digests.
    for _ in 0..2 * WORDS {
        let all = async {
            for (part, digest) in &open {
                shared.results.wait(round, &blocks[part], digest).await;
            }
        };
        let _ = tokio::time::timeout(patience / WORDS, all).await;
        let is_here = |(part, digest): &(Part, Digest)| shared.results.has(round, &blocks[part], digest);
        let here: Vec<_> = open.iter().copied().filter(is_here).collect();
        open.retain(|part| !here.contains(part));
        if !here.is_empty() {
            let some = Check { parts: here, ..check.clone() };
            if let Some(found) = look(shared.clone(), ledger.clone(), contribution.clone(), some).await {
                said(found).await;
            }
        }
        if open.is_empty() {
            return;
        }
    }
    let late: Vec<String> = open.iter().map(|(part, _)| part.to_string()).collect();
    tracing::warn!(
        "round {round}: the values of parts {} did not come in time to be checked",
        late.join(", ")
    );
}

/// Compares beside the runtime: it goes through as many values as the model has.
async fn look(
    shared: Arc<NodeContext>,
    ledger: Arc<Ledger>,
    contribution: Arc<Contribution>,
    check: Check,
) -> Option<Found> {
    let looked = tokio::task::spawn_blocking(move || {
        let Contribution { commit, sum, .. } = &*contribution;
        let q = |block| sum.integers(ledger.layout(), block);
        let shown = |_, block, digest: &_| shared.results.block(check.round, block, digest).map(Arc::new);
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
