//! The heavy part of audits: recomputing leaves, on an arithmetic of its own and, before an accusation, on a second one.

use std::sync::Arc;

use muster_compute::{Backend, Machine, row};
use muster_core::audit::{
    FrozenCommit, Judgement, Recomputing, Witness, committed_total, judge, leaf_state, recompute_sum,
};
use muster_core::error::Misuse;
use muster_core::layout::Layout;
use muster_core::manifest::Manifest;
use muster_core::messages::audit::{LeafResult, Results};
use muster_core::messages::evidence::Evidence;
use muster_core::regime::Regime;
use muster_core::sketch::probe::WRONG;
use muster_core::state::Arithmetic;

use muster_roles::verifier::audits::{Done, DrawnLeaves, Subject, Work, WorkKind};

/// Two arithmetics of one run.
pub struct AuditWorker {
    manifest: Arc<Manifest>,
    layout: Layout,
    first: Box<dyn Backend>,
    second: Box<dyn Backend>,
    threads: usize,
}

impl AuditWorker {
    /// As the run's profile and this machine have it; second opinions come from as much other code as there is here
    /// ([`Machine::second`]). Both pass their self-test first.
    ///
    /// # Errors
    /// [`Misuse`] when this machine cannot compute the run's leaves.
    pub fn new(manifest: Arc<Manifest>, machine: &Machine) -> Result<Self, Misuse> {
        let [mut first, mut second] = [machine.leaves(manifest.profile)?, machine.second(&manifest)?];
        // Whoever computes wrongly accuses the innocent, and is banned for it (DUTY-9).
        first.self_test()?;
        second.self_test()?;
        first.has_room(&manifest)?;
        let reason = machine.reason(&manifest);
        tracing::info!("leaves are computed by {}{reason}; then by {}", first.describe(), second.describe());
        Ok(Self { layout: Layout::of_run(&manifest), manifest, first, second, threads: machine.threads })
    }

    /// Does a piece of work with what the witness has. Takes as long as the leaves take.
    pub fn perform(&mut self, work: &Work, witness: &mut dyn Witness) -> Done {
        match &work.kind {
            WorkKind::Leaves(drawn) => self.leaves(&work.subject, drawn, witness),
            WorkKind::Contribution => self.contribution(&work.subject, witness),
            WorkKind::Everything => self.everything(&work.subject, witness),
            WorkKind::SecondOpinion(evidence, _) => {
                Done::Opinion(judge(&self.manifest, evidence, witness, &mut *self.second))
            }
            WorkKind::Opinion(evidence) => {
                Done::Opinion(judge(&self.manifest, evidence, witness, &mut *self.first))
            }
            WorkKind::Recheck(evidence) => {
                match rechecked(&self.manifest, evidence, witness, &mut *self.first) {
                    Judgement::Guilty { culprit, .. } => {
                        let commit = &work.subject.commit;
                        // DUTY-8: the second path judges by these; the member might show them no second time.
                        let q = witness.contribution(commit.round, &work.subject.author);
                        Done::Suspicion(culprit, q)
                    }
                    other => Done::Opinion(other),
                }
            }
            WorkKind::SecondRecheck(evidence, _) => {
                Done::Opinion(rechecked(&self.manifest, evidence, witness, &mut *self.second))
            }
        }
    }

    fn leaves(&mut self, subject: &Subject, drawn: &DrawnLeaves, witness: &mut dyn Witness) -> Done {
        let commit = &subject.commit;
        let Some(state) = leaf_state(&self.manifest, commit, witness) else { return missing_state(subject) };
        let DrawnLeaves { positions, probe, .. } = drawn;
        let Self { manifest, first, threads, .. } = self;
        let mut results = Vec::with_capacity(positions.len());
        let in_pieces = !Regime::of(manifest).recomputes_chains() && first.in_pieces().is_some();
        let arithmetic = &mut **first;
        let mut recomputing = Recomputing { manifest, commit, state: &state, witness, arithmetic };
        let found = if in_pieces {
            positions.iter().try_for_each(|position| {
                let row = recomputing.row(*position, probe)?;
                results.push(LeafResult { position: *position, row });
                Some(())
            })
        } else {
            recomputing.each(positions, &mut |position, q, loss| {
                results.push(LeafResult { position, row: row(*threads, probe, &q, loss) });
            })
        };
        if found.is_none() {
            return missing_text();
        }
        Results::new(results).map_or_else(|misuse| Done::Missing(misuse.to_string()), Done::Leaves)
    }

    fn contribution(&mut self, subject: &Subject, witness: &mut dyn Witness) -> Done {
        match witness.contribution(subject.commit.round, &subject.author) {
            // AUDIT-7: integers with the frozen root, from wherever they came.
            Some(q) if q.is_whole(&self.layout) && q.root() == subject.commit.root => Done::Contribution(q),
            // TOL-12: other machines' leaves do not add up to the root, so that nothing stands for the integers.
            _ if !self.manifest.profile.leaves_stand_for_integers() => Done::Withheld,
            _ => self.everything(subject, witness),
        }
    }

    fn everything(&mut self, subject: &Subject, witness: &mut dyn Witness) -> Done {
        let commit = &subject.commit;
        let Some(state) = leaf_state(&self.manifest, commit, witness) else { return missing_state(subject) };
        let sum = recompute_sum(&self.manifest, commit, &state, witness, &mut *self.first);
        let Some(sum) = sum else { return missing_text() };
        let frozen = FrozenCommit { freeze: subject.freeze, commit: commit.clone(), author: subject.author };
        let committed = || committed_total(&self.manifest, &frozen, witness);
        let Some(deviation) = sum.deviation(&self.manifest, commit, committed) else {
            return Done::Missing("the committed integers are unavailable".into());
        };
        Done::Summed(sum.packed(&self.manifest), deviation <= WRONG)
    }
}

/// What a verdict is worth; and where it stands, what the member's own table is: with a tolerance figures half-way between
/// what is true and what it says are wrong about neither (DUTY-8), and in `exact` a leaf may be wrong that was not drawn.
fn rechecked(
    manifest: &Manifest,
    evidence: &Evidence,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Judgement {
    let of_verdict = judge(manifest, evidence, witness, arithmetic);
    let Evidence::Verdict(verdict) = evidence else { return of_verdict };
    let settled = match of_verdict {
        Judgement::NotGuilty(_) => !manifest.profile.may_split_opinions(),
        Judgement::Undecided(_) => manifest.profile.may_split_opinions(),
        _ => true,
    };
    if settled {
        return of_verdict;
    }
    match judge(manifest, &Evidence::Audit(verdict.transcript.clone()), witness, arithmetic) {
        guilty @ Judgement::Guilty { .. } => guilty,
        _ => of_verdict,
    }
}

fn missing_state(subject: &Subject) -> Done {
    Done::Missing(format!("the state {} is not at hand any more", subject.commit.state))
}

fn missing_text() -> Done {
    Done::Missing("the training text is not at hand".into())
}
