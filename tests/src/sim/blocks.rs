//! A verifier's look at drawn blocks: draw, comparison and second opinion are the product's, fetching takes no time.

use std::collections::BTreeMap;

use muster_core::contribution::{Commitment, open_block};
use muster_replica::{InputBlocks, Results};
use muster_roles::verifier::parts::{Drawn, Seen};
use muster_verifier::parts;

use super::Sim;

impl Sim {
    /// A verifier reduces again what its coins draw of the rounds that are over.
    pub(super) fn look_at_blocks(&mut self, number: usize) {
        let ledger = self.book.newest();
        let watcher = &mut self.watchers[number];
        let (me, audits) = (watcher.identity.id(), &watcher.audits);
        let now = self.clock.now();
        watcher.parts.survey(now, &ledger, &me, |round| audits.node_coin(round));
        while let Some(drawn) = self.watchers[number].parts.pop(now) {
            let inputs = self.inputs_of(&drawn);
            match parts::look(&drawn, &self.manifest, &self.layout, &self.values_of(&drawn), &inputs) {
                Seen::Right => {}
                Seen::Wrong(_) => self.doubt(number, &drawn, inputs),
                Seen::Missing(what) => panic!("seed {}: {what}", self.plan.seed),
            }
        }
    }

    fn doubt(&mut self, number: usize, drawn: &Drawn, inputs: InputBlocks) {
        let evidence = drawn.evidence().expect("the round is remembered");
        let dataset = self.dataset.clone();
        let judgement = parts::second_opinion(drawn, &self.manifest, dataset, &evidence, inputs);
        let audits = &mut self.watchers[number].audits;
        audits.judged_part(evidence, judgement).expect("this machine computes rightly");
    }

    /// The values that were applied.
    fn values_of(&self, drawn: &Drawn) -> Results {
        let (round, digest) = (drawn.result.round, drawn.result.digest);
        let results = Results::new(self.replica.layout().clone());
        if let Some(values) = self.reduced.get(&(round, drawn.result.part, digest)) {
            results.put(round, &drawn.part, &digest, values.clone());
        }
        results
    }

    /// The part of every counted contribution, with its proofs.
    fn inputs_of(&self, drawn: &Drawn) -> InputBlocks {
        let mut inputs = BTreeMap::new();
        for (member, root) in drawn.senders() {
            let Some(q) = self.contributions.get(&(drawn.result.round, member)) else { continue };
            let tree = Commitment::new(&self.layout, q);
            for block in &drawn.part {
                let data = tree.block(&self.layout, q, *block);
                let opened = data.and_then(|data| Some((open_block(&self.layout, &root, &data).ok()?, data)));
                if let Some((values, data)) = opened {
                    inputs.insert((member, *block), (data, values));
                }
            }
        }
        inputs
    }
}
