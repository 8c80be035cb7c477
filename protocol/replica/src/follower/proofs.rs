//! What convicts the steward, on the disk of whoever follows it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use muster_core::audit::{Judgement, claim, judge, judge_steward, source};
use muster_core::ids::{Height, Round, ShardId};
use muster_core::lock::lock;
use muster_core::messages::evidence::{Evidence, Misconduct, Seal, SealedRound, TwoSeals, WrongRoot};
use muster_core::messages::record::{Body, Record};
use muster_core::sign::{Signed, Verified};
use muster_core::state::{Arithmetic, State, StateRoots};
use muster_store::error::StoreError;
use muster_store::home::Home;

use super::{FollowError, Follower};
use crate::held::KeptState;
use crate::witness::{Brought, Exhibited};

/// The note in the journal that names the wrong root which this member has found itself.
const DIVERGED: &str = "diverged";

/// A proof that cannot be decided yet, and where it is kept.
#[derive(Clone)]
pub(super) struct Shown {
    evidence: Evidence,
    path: PathBuf,
}

impl Follower {
    /// Writes proofs of the steward's misconduct into this home. AUDIT-13: does not follow where one is there already, of
    /// an earlier process or from somebody who showed it; a wrong root is re-executed with what else is there, and an invalid
    /// record is put to this member's own ledger.
    ///
    /// # Errors
    /// [`FollowError::Convicted`] by the first such proof; [`FollowError::Store`].
    pub fn keep_proofs(&mut self, home: Home) -> Result<(), FollowError> {
        let journal = self.journal.as_ref();
        // AUDIT-13: a member that computed another state itself must not go on before it has found out that it was
        // wrong.
        let own = journal.and_then(|journal| journal.note(DIVERGED).transpose()).transpose();
        let own = own.map_err(FollowError::Store)?;
        for name in home.evidence().map_err(FollowError::Store)? {
            // Evidence against members stops nobody from following.
            let Ok(evidence @ Evidence::Misconduct(_)) = home.load_evidence(&name) else { continue };
            let why = match self.judge(&home, &evidence) {
                Judgement::Guilty { detail, .. } => detail,
                // Else it would go on with whatever state the steward offers.
                Judgement::Undecided(why) if own.as_deref() == Some(&name.0) => format!(
                    "this member computed another state than the sealed one, and cannot any more ({why}); without the proof \
                     it follows again"
                ),
                Judgement::Undecided(_) => {
                    self.shown.push(Shown { evidence, path: home.evidence_path(&name) });
                    continue;
                }
                _ => continue,
            };
            return Err(FollowError::Convicted { why, proof: Some(home.evidence_path(&name)) });
        }
        self.proofs = Some(home);
        self.weigh_shown()
    }

    /// AUDIT-13: what was shown of a record that lies ahead is decided as soon as the ledger is there.
    pub(super) fn weigh_shown(&mut self) -> Result<(), FollowError> {
        let (Some(home), height) = (&self.proofs, self.ledger.height()) else { return Ok(()) };
        let mut ahead = Vec::new();
        for shown in &self.shown {
            let Some(record) = self.shown_record(&shown.evidence) else { continue };
            if record.height <= height
                && let Judgement::Guilty { detail, .. } = self.judge(home, &shown.evidence)
            {
                return Err(FollowError::Convicted { why: detail, proof: Some(shown.path.clone()) });
            }
            // At the ledger's own height it may turn out yet that another record stands there.
            if record.height >= height {
                ahead.push(shown.clone());
            }
        }
        self.shown = ahead;
        Ok(())
    }

    /// The record that evidence calls invalid, if the steward signed it.
    fn shown_record(&self, evidence: &Evidence) -> Option<Verified<Record>> {
        let Evidence::Misconduct(Misconduct::Record(signed)) = evidence else { return None };
        let record = signed.verify(self.ledger.run()).ok()?;
        (record.author() == self.ledger.manifest().steward).then_some(record)
    }

    /// Decides evidence against the steward. For a wrong root the home must hold the state before the round and the
    /// round's aggregate, for an invalid record the ledger must have come to its height: without, nothing is decided.
    fn judge(&self, home: &Home, evidence: &Evidence) -> Judgement {
        // Beside another record of its height, or of the height before, a record is one of two seals, whatever it says: what
        // lies behind the ledger is either that or a record that the ledger has taken.
        if let Evidence::Misconduct(Misconduct::Record(signed)) = evidence
            && let Some(Evidence::Misconduct(split @ Misconduct::Split(_))) = self.proof_of(signed)
        {
            return judge_steward(self.ledger.manifest(), &split);
        }
        let mut replica = lock(&self.replica);
        let (manifest, dataset) = (replica.manifest().clone(), replica.dataset().clone());
        let (mut states, mut brought) = (Vec::new(), Brought::default());
        brought.ledger = self.shown_record(evidence).is_some().then(|| self.ledger.clone());
        if let (Some(_), Ok(claim)) = (evidence.freeze(), claim(&manifest, evidence)) {
            let state = home.load_state(claim.round).ok();
            states.extend(state.map(|(state, roots)| KeptState::in_memory(roots.root(), Arc::new(state))));
            let layout = self.ledger.layout();
            brought.update =
                source(&manifest, evidence).and_then(|round| home.load_update(layout, round).ok());
        }
        let mut witness = Exhibited::new(states, dataset, &manifest, brought);
        judge(&manifest, evidence, &mut witness, replica.arithmetic())
    }

    /// Writes down what convicts the steward, and gives the reason to halt.
    pub fn convict(&self, evidence: &Evidence, why: String) -> FollowError {
        FollowError::Convicted { why, proof: self.keep_proof(Some(evidence)) }
    }

    pub(super) fn keep_proof(&self, evidence: Option<&Evidence>) -> Option<PathBuf> {
        let (home, evidence) = (self.proofs.as_ref()?, evidence?);
        match home.save_evidence(evidence) {
            Ok(name) => Some(home.evidence_path(&name)),
            Err(error) => {
                tracing::warn!("the proof could not be kept: {error}");
                None
            }
        }
    }

    /// Writes down what shows that a round's sealed root does not follow, beside it the round's aggregate and, if this member
    /// can still have it whole, the state before.
    pub(super) fn prove_root(&self, round: Round, outcome: Height, shard: ShardId) -> Option<PathBuf> {
        let (home, journal, view) =
            (self.proofs.as_ref()?, self.journal.as_ref()?, self.ledger.round(round)?);
        let outcome = journal.records(outcome, 1).ok()?.pop()?;
        let source = view.shard_steps().into_iter().find(|step| step.shard == shard).map(|step| step.round);
        let earlier = match source.filter(|source| *source != round) {
            Some(source) => Some(self.sealed_round(source)?),
            None => None,
        };
        let (freeze, before) = (view.freeze()?.clone(), view.state().clone());
        let wrong = WrongRoot { freeze, outcome, before, shard, earlier };
        let evidence = Evidence::Misconduct(Misconduct::Root(wrong));
        let proof = self.keep_proof(Some(&evidence));
        // Noted beside the proof: the evidence alone stops nobody, since a stranger may have put it there.
        let kept = journal.put_note(DIVERGED, &evidence.digest().0);
        if let Err(error) = kept.and_then(|()| self.keep_step(home, round, view.state())) {
            tracing::warn!("what shows it could not be kept: {error}");
        }
        proof
    }

    /// What sealed the results of a round.
    fn sealed_round(&self, round: Round) -> Option<SealedRound> {
        let freeze = self.ledger.round(round)?.freeze()?.clone();
        let mut height = freeze.verify(self.ledger.run()).ok()?.height;
        loop {
            let outcome = self.journal.as_ref()?.records(height.next(), 1).ok()?.pop()?;
            let record = outcome.verify(self.ledger.run()).ok()?;
            if matches!(&record.body, Body::Outcome(of) if of.round == round) {
                return Some(SealedRound { freeze, outcome });
            }
            height = record.height;
        }
    }

    /// Keeps what a round's step is taken again with.
    fn keep_step(&self, home: &Home, round: Round, before: &StateRoots) -> Result<(), StoreError> {
        let steps = self.steps(round).unwrap_or_default();
        for of in steps.iter().map(|step| step.round).collect::<BTreeSet<Round>>() {
            if let Some(update) = self.aggregate(of, &steps) {
                home.save_update(self.ledger.layout(), of, &update, &steps)?;
            }
        }
        let state = self.state_before(home, round, before);
        state.map_or(Ok(()), |state| home.save_state(round, &state, before))
    }

    /// The state before a round, moments included: one that is kept to go back to, or the newest on the disk and the steps
    /// since.
    fn state_before(&self, home: &Home, round: Round, roots: &StateRoots) -> Option<State> {
        // Only states that keep their moments: the step cannot be taken again without.
        let kept = lock(&self.replica).state_at(&roots.root()).filter(KeptState::has_moments);
        if let Some(state) = kept.and_then(|kept| kept.near()) {
            return Some(Arc::unwrap_or_clone(state));
        }
        let start = home.states().ok()?.into_iter().rev().find(|kept| *kept <= round)?;
        let (manifest, mut state) = (self.ledger.manifest(), home.load_state(start).ok()?.0);
        for passed in (start.0..round.0).map(Round) {
            // Before the replica is locked, which this looks into as well.
            let update = self.update(passed)?;
            lock(&self.replica).arithmetic().apply(manifest, &mut state, &update);
        }
        // What is on the disk may be damaged, and would convict an honest steward.
        (roots.with(&state) == *roots).then_some(state)
    }

    /// What a record that the ledger refuses proves: two seals, when it goes on from another head; else an invalid one.
    /// Nothing, when it is not the steward's.
    pub(super) fn proof_of(&self, signed: &Signed<Record>) -> Option<Evidence> {
        let record = signed.verify(self.ledger.run()).ok()?;
        // Anybody can sign a record; only the steward's own proves anything against it.
        if record.author() != self.ledger.manifest().steward {
            return None;
        }
        let height = record.height;
        if height == self.ledger.height() && record.previous == self.ledger.head() {
            return Some(Evidence::Misconduct(Misconduct::Record(signed.clone())));
        }
        let journal = self.journal.as_ref()?;
        // A record gives two heads, the one after it and, as `previous`, the one before.
        let heights = [Some(height.0), height.0.checked_sub(1)].into_iter().flatten();
        heights.filter_map(|height| journal.records(Height(height), 1).ok()?.pop()).find_map(|own| {
            let seals = TwoSeals { first: Seal::Record(own), second: Seal::Record(signed.clone()) };
            let misconduct = Misconduct::Split(seals);
            let judgement = judge_steward(self.ledger.manifest(), &misconduct);
            matches!(judgement, Judgement::Guilty { .. }).then_some(Evidence::Misconduct(misconduct))
        })
    }
}
