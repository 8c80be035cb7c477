//! The heavy part of audits: recomputing leaves, on an arithmetic of its own and, before an accusation, on a second one.

use std::sync::Arc;

use muster_compute::{Exact, Path, paths};
use muster_core::audit::{Witness, judge, recompute, recompute_sum};
use muster_core::contribution::Commitment;
use muster_core::error::Misuse;
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::{LeafResult, Results, Row};
use muster_core::sketch;

use crate::audits::{Done, Subject, Work, WorkKind};

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
            WorkKind::Leaves(_, positions) => self.leaves(&work.subject, positions, witness),
            WorkKind::Contribution => self.contribution(&work.subject, witness),
            WorkKind::Everything => self.everything(&work.subject, witness),
            WorkKind::SecondOpinion(evidence, _) | WorkKind::Recheck(evidence, true) => {
                Done::Opinion(judge(&self.manifest, evidence, witness, &mut self.second))
            }
            WorkKind::Recheck(evidence, false) => {
                Done::Opinion(judge(&self.manifest, evidence, witness, &mut self.first))
            }
        }
    }

    fn leaves(&mut self, subject: &Subject, positions: &[u32], witness: &mut dyn Witness) -> Done {
        let commit = &subject.commit;
        let Some(state) = witness.state(&commit.state) else { return missing_state(subject) };
        let points = sketch::points(&subject.freeze);
        let mut results = Vec::with_capacity(positions.len());
        for position in positions {
            let leaf = recompute(&self.manifest, commit, *position, &state, witness, &mut self.first);
            let Some((q, loss)) = leaf else { return missing_text() };
            let row = Row { sketch: sketch::fingerprint(points, &q), loss };
            results.push(LeafResult { position: *position, row });
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
        let Some((q, loss)) = sum else { return missing_text() };
        let same = loss == commit.loss && Commitment::new(&self.layout, &q).root() == commit.root;
        Done::Summed(q, same)
    }
}

fn missing_state(subject: &Subject) -> Done {
    Done::Missing(format!("the state {} is not at hand any more", subject.commit.state))
}

fn missing_text() -> Done {
    Done::Missing("the training text is not at hand".into())
}
