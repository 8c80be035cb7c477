//! The steward in place of members that nobody can dial (ROUND-39): it has all inputs of such a round, so that it reduces a part by
//! itself to have the values whose digest an aggregator signed.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use muster_core::assign::PartPlan;
use muster_core::contribution::block_integers;
use muster_core::ids::Part;
use muster_core::layout::Layout;
use muster_core::ledger::{Ledger, RoundView};
use muster_core::manifest::Manifest;
use muster_core::messages::round::PartResult;
use muster_core::reduction::{Reduced, SealedInputs, reduce};
use muster_keeper::intake::Intake;
use muster_replica::Results;

/// A round in which the steward stands in.
#[derive(Clone)]
pub(super) struct StandIn {
    view: Arc<RoundView>,
    manifest: Arc<Manifest>,
    layout: Arc<Layout>,
    intake: Arc<Intake>,
}

impl StandIn {
    /// Of the open round; none where members are dialled for their values.
    pub(super) fn of(ledger: &Ledger, intake: &Arc<Intake>) -> Option<Self> {
        let view = ledger.current().filter(|view| view.is_stood_in())?;
        let (manifest, layout) = (ledger.manifest().clone(), ledger.layout().clone());
        Some(Self { view: Arc::new(view.clone()), manifest, layout, intake: intake.clone() })
    }

    /// Has the values of a result here, unless it is false or an input is missing; whether they are.
    pub(super) async fn reduce(&self, result: &PartResult, results: &Results) -> bool {
        let (own, part, name) = (self.clone(), result.part, result.digest);
        // Beside the runtime: a rule goes through all inputs of the part several times.
        let reduced = tokio::task::spawn_blocking(move || own.reduced(part)).await;
        let Some(reduced) = reduced.ok().flatten().filter(|reduced| reduced.digest == name) else {
            return false;
        };
        let blocks = self.view.parts().get(part.index()).map(|plan| &*plan.blocks).unwrap_or_default();
        results.put_own(result.round, blocks, &name, reduced.values);
        true
    }

    fn reduced(&self, part: Part) -> Option<Reduced> {
        let Self { view, manifest, layout, intake } = self;
        let PartPlan { blocks, .. } = view.parts().get(part.index())?;
        let inputs = view.inputs().get(part.index())?;
        let mut held = BTreeMap::new();
        for slot in inputs.slots() {
            let commitment = view.commitment(slot)?;
            for block in blocks {
                let (author, root) = (&commitment.author, &commitment.commit.root);
                held.insert((slot, *block), intake.block(view.round(), author, root, *block)?);
            }
        }
        let input = |slot, block| {
            let data = held.get(&(slot, block))?;
            block_integers(layout, data).ok().map(Cow::Owned)
        };
        let sealed = SealedInputs { freeze: view.freeze_digest()?, slots: inputs };
        reduce(manifest, layout, blocks, &sealed, |slot| view.commitment(slot), input)
    }
}
