//! What convicts the steward, on the disk of whoever follows it.

use std::fmt;
use std::path::{Path, PathBuf};

use muster_core::audit::{Judgement, judge_steward};
use muster_core::ids::Height;
use muster_core::messages::audit::{Evidence, Misconduct, Seal, TwoSeals};
use muster_core::messages::record::Record;
use muster_core::sign::Signed;
use muster_store::home::Home;

use super::{FollowError, Follower};

impl Follower {
    /// Writes proofs of the steward's misconduct into this home. AUDIT-13: does not follow where one is there already, of
    /// an earlier process or from somebody who showed it.
    ///
    /// # Errors
    /// [`FollowError::Convicted`] by the first such proof; [`FollowError::Store`].
    pub fn keep_proofs(&mut self, home: Home) -> Result<(), FollowError> {
        for name in home.evidence().map_err(FollowError::Store)? {
            let Ok(Evidence::Misconduct(misconduct)) = home.load_evidence(&name) else { continue };
            if let Judgement::Guilty { detail, .. } = judge_steward(self.ledger.manifest(), &misconduct) {
                let proof = Some(home.evidence_path(&name));
                return Err(FollowError::Convicted { why: detail, proof });
            }
        }
        self.proofs = Some(home);
        Ok(())
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

    /// What a record that the ledger refuses proves: two seals, when it goes on from another head; else an invalid one.
    /// Nothing, when it is not the steward's.
    pub(super) fn proof_of(&self, signed: &Signed<Record>) -> Option<Evidence> {
        let record = signed.verify(self.ledger.run()).ok()?;
        if record.author() != self.ledger.manifest().steward {
            return None;
        }
        let height = record.height;
        if height == self.ledger.height() && record.previous == self.ledger.head() {
            return Some(Evidence::Misconduct(Misconduct::Record(signed.clone())));
        }
        let journal = self.journal.as_ref()?;
        let heights = [Some(height.0), height.0.checked_sub(1)].into_iter().flatten();
        heights.filter_map(|height| journal.records(Height(height), 1).ok()?.pop()).find_map(|own| {
            let seals = TwoSeals { first: Seal::Record(own), second: Seal::Record(signed.clone()) };
            let misconduct = Misconduct::Split(seals);
            let judgement = judge_steward(self.ledger.manifest(), &misconduct);
            matches!(judgement, Judgement::Guilty { .. }).then_some(Evidence::Misconduct(misconduct))
        })
    }
}

/// What to do with a proof of misconduct.
pub(super) fn advise(f: &mut fmt::Formatter<'_>, proof: Option<&Path>) -> fmt::Result {
    let Some(proof) = proof else { return Ok(()) };
    write!(
        f,
        ". The proof is {}: `muster-verifier check` judges it on any machine that has the run's manifest.bin. Show it to the \
         organiser and to the other members: in the evidence/ of their data directories it stops them, too",
        proof.display()
    )
}
