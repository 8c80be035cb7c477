//! A verifier's look at drawn blocks: comparison and second opinion are the product's, fetching takes no time.

use std::collections::BTreeMap;

use muster_core::audit::Judgement;
use muster_core::contribution::{Commitment, open_block};
use muster_core::messages::evidence::Reduction;
use muster_core::messages::wire::BlockData;
use muster_replica::{InputBlocks, Results};
use muster_roles::verifier::parts::{DrawnBlocks, Seen};
use muster_verifier::parts;

use super::Sim;

impl Sim {
    /// Reduces drawn blocks again.
    pub(super) fn look_at(&self, drawn: &DrawnBlocks) -> Seen {
        let (values, inputs) = (self.values_of(drawn), self.inputs_of(drawn));
        let seen = parts::look(drawn, &self.manifest, &self.layout, &values, &inputs);
        if let Seen::Missing(what) = &seen {
            panic!("seed {}: {what}", self.plan.seed);
        }
        seen
    }

    /// Reduces the whole part again.
    pub(super) fn doubt(&self, drawn: &DrawnBlocks, evidence: &Reduction) -> Judgement {
        let (view, dataset) = (drawn.view.clone(), self.dataset.clone());
        parts::second_opinion(view, &self.manifest, dataset, evidence, self.inputs_of(drawn))
    }

    /// The values that were applied.
    fn values_of(&self, drawn: &DrawnBlocks) -> Results {
        let (round, digest) = (drawn.result.round, drawn.result.digest);
        let results = Results::new(self.replica.layout().clone());
        if let Some(values) = self.reduced.get(&(round, drawn.result.part, digest)) {
            results.put(round, &drawn.part, &digest, values.clone());
        }
        results
    }

    /// The part of every counted contribution, with its proofs.
    fn inputs_of(&self, drawn: &DrawnBlocks) -> InputBlocks {
        let mut inputs = BTreeMap::new();
        for (member, root) in drawn.senders() {
            let Some(q) = self.contributions.get(&(drawn.result.round, member)) else { continue };
            let tree = Commitment::new(&self.layout, q);
            for block in &drawn.part {
                let proved = |data: &BlockData| open_block(&self.layout, &root, data).is_ok();
                if let Some(data) = tree.block(&self.layout, q, *block).filter(proved) {
                    inputs.insert((member, *block), data);
                }
            }
        }
        inputs
    }
}
