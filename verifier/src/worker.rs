//! The heavy part of audits: recomputing leaves, on an arithmetic of its own and, before an accusation, on a second one.

use std::sync::Arc;

use muster_compute::{Exact, Path, paths};
use muster_core::audit::{FrozenCommit, Witness, committed_total, judge, recompute, recompute_sum};
use muster_core::contribution::Commitment;
use muster_core::error::Misuse;
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::{LeafResult, Results};
use muster_core::sketch::probe::WRONG;

use crate::audits::{Done, DrawnLeaves, Subject, Work, WorkKind};

/// Two arithmetics of one run.
pub struct Worker {
    manifest: Arc<Manifest>,
    layout: Layout,
    first: Exact,
    second: Exact,
}

impl Worker {
    /// Computes on this many threads along `path`, or along the fastest one; second opinions come from another path
    /// where this processor has one. Both pass their self-test first.
    ///
    /// # Errors
    /// [`Misuse`] when this machine cannot compute in defined bits.
    pub fn new(manifest: Arc<Manifest>, threads: usize, path: Option<Path>) -> Result<Self, Misuse> {
        let mut first = Exact::new(threads, path)?;
        let other = paths().into_iter().find(|path| *path != first.path());
        let mut second = Exact::new(threads, other)?;
        first.self_test()?;
        second.self_test()?;
        Ok(Self { layout: Layout::of(&manifest.model), manifest, first, second })
    }

    /// Does a piece of work with what the witness has. Takes as long as the leaves take.
    pub fn perform(&mut self, work: &Work, witness: &mut dyn Witness) -> Done {
        match &work.kind {
            WorkKind::Leaves(drawn) => self.leaves(&work.subject, drawn, witness),
            WorkKind::Contribution => self.contribution(&work.subject, witness),
            WorkKind::Everything => self.everything(&work.subject, witness),
            WorkKind::SecondOpinion(evidence, _) | WorkKind::Recheck(evidence, true) => {
                Done::Opinion(judge(&self.manifest, evidence, witness, &mut self.second))
            }
            WorkKind::Recheck(evidence, false) | WorkKind::Opinion(evidence) => {
                Done::Opinion(judge(&self.manifest, evidence, witness, &mut self.first))
            }
        }
    }

    fn leaves(&mut self, subject: &Subject, drawn: &DrawnLeaves, witness: &mut dyn Witness) -> Done {
        let commit = &subject.commit;
        let Some(state) = witness.state(&commit.state) else { return missing_state(subject) };
        let mut results = Vec::with_capacity(drawn.positions.len());
        for position in &drawn.positions {
            let leaf = recompute(&self.manifest, commit, *position, &state, witness, &mut self.first);
            let Some((q, loss)) = leaf else { return missing_text() };
            results.push(LeafResult { position: *position, row: drawn.probe.row(&q, loss) });
        }
        Results::new(results).map_or_else(|misuse| Done::Missing(misuse.to_string()), Done::Leaves)
    }

    fn contribution(&mut self, subject: &Subject, witness: &mut dyn Witness) -> Done {
        match witness.contribution(subject.commit.round, &subject.author) {
            Some(q) if Commitment::new(&self.layout, &q).root() == subject.commit.root => {
                Done::Contribution(q)
            }
            _ => self.everything(subject, witness),
        }
    }

    fn everything(&mut self, subject: &Subject, witness: &mut dyn Witness) -> Done {
        let commit = &subject.commit;
        let Some(state) = witness.state(&commit.state) else { return missing_state(subject) };
        let sum = recompute_sum(&self.manifest, commit, &state, witness, &mut self.first);
        let Some(sum) = sum else { return missing_text() };
        let frozen = FrozenCommit { freeze: subject.freeze, commit: commit.clone(), author: subject.author };
        let committed = || committed_total(&self.manifest, &frozen, witness);
        let Some(deviation) = sum.deviation(&self.manifest, commit, committed) else {
            return Done::Missing("the committed integers are not to be had".into());
        };
        Done::Summed(sum.q, deviation <= WRONG)
    }
}

fn missing_state(subject: &Subject) -> Done {
    Done::Missing(format!("the state {} is not at hand any more", subject.commit.state))
}

fn missing_text() -> Done {
    Done::Missing("the training text is not at hand".into())
}
