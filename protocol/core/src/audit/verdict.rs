//! Judging a verifier by a verdict of its own.
//!
//! It is convicted by what it signed alone: request, results and verdict name the member's table and opening by their
//! digests, so that a member cannot put others beside them, and a transcript whose steps do not fit each other proves
//! nothing against anybody.

use std::sync::Arc;

use super::frozen::{FrozenCommit, frozen_commit};
use super::judgement::{Judgement, Witness};
use super::recomputation::{Recomputing, committed_total, leaf_state, recompute_sum};
use super::transcript::{Checked, check_transcript, judge_audit, judge_total};
use crate::coins::{CoinTerms, draw};
use crate::contribution::PackedContribution;
use crate::error::{Reject, require};
use crate::ids::{Block, Digest, MemberId, Round, Row, RowSet, ShardId};
use crate::layout::Layout;
use crate::ledger::RoundView;
use crate::manifest::Manifest;
use crate::messages::audit::{Finding, FindingKind, Rows, Verdict};
use crate::messages::evidence::{FalseRecomputation, FalseVerdict, Total, Transcript};
use crate::messages::record::{Body, Record};
use crate::messages::wire::BlockData;
use crate::regime::Regime;
use crate::sign::{Signed, Verified};
use crate::sketch::probe::{SUSPECT, WRONG};
use crate::sketch::{Probe, Sketch};
use crate::state::{Arithmetic, State};

/// Decides whether a verdict is false: against the verifier, whatever it is for the member (DUTY-9).
pub(super) fn judge(
    manifest: &Manifest,
    accused: &FalseVerdict,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Result<Judgement, Reject> {
    let transcript = &accused.transcript;
    let Checked { frozen, probe, rows, positions } = check_transcript(manifest, transcript)?;
    let verdict = transcript.verdict.verify(manifest.run())?;
    // From the steward's record: the accuser could show another enrolment, by which the coin draws other
    // leaves.
    let terms = admitted(manifest, &accused.admit, &verdict.author())?;
    let coin = verdict.coin.verify(&terms)?;
    let seal = transcript.table.verify(manifest.run())?.seal;
    let drawn = draw(&coin, &frozen.freeze, &seal, frozen.commit.leaves, manifest.audit.leaves);
    let mut case = Case { manifest, frozen, probe, rows, verdict, witness, arithmetic };
    // Before its finding: a verifier that chooses its leaves can pass any cheat, and needs no lie for it.
    if positions != drawn {
        return Ok(
            case.guilty(format!("its coin draws the leaves at {drawn:?}, it shows those at {positions:?}"))
        );
    }
    match case.verdict.finding {
        Finding::Guilty(_) => case.accusation(transcript),
        Finding::Pass => case.acquittal(),
    }
}

/// Decides whether what a verifier says of all leaves of a contribution is false (DUTY-12).
pub(super) fn judge_recomputation(
    manifest: &Manifest,
    accused: &FalseRecomputation,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Result<Judgement, Reject> {
    // With a tolerance an honest verifier may come to another total.
    require(!Regime::of(manifest).keeps_integers(), "recomputed leaves decide in the profile exact alone")?;
    let said = accused.recomputation.verify(manifest.run())?;
    let frozen = frozen_commit(manifest, &accused.freeze, &said.target)?;
    let commit = &frozen.commit;
    require(said.freeze == frozen.freeze && said.round == commit.round, "the words are about this freeze")?;
    let Some(state) = leaf_state(manifest, commit, witness) else {
        return Ok(Judgement::Undecided(format!("the state {} is unavailable", commit.state)));
    };
    let sum = recompute_sum(manifest, commit, &state, witness, arithmetic);
    let Some(sum) = sum else { return Ok(no_text()) };
    let right = sum.mismatch(manifest, commit).is_none();
    let (finding, detail) = match (said.finding, right) {
        (Finding::Pass, false) => (
            FindingKind::FalseAcquittal,
            "the leaves do not give the committed total, and it says that they do",
        ),
        (Finding::Guilty(_), true) => (
            FindingKind::FalseAccusation,
            "the leaves give the committed total, and it says that they do not",
        ),
        _ => return Ok(Judgement::NotGuilty("it says what all leaves give".into())),
    };
    Ok(Judgement::Guilty { culprit: said.author(), round: commit.round, finding, detail: detail.into() })
}

/// The coins that the steward admitted this verifier with. A verifier may have signed other enrolments, which count for
/// nothing: only the steward's record tells which one does.
fn admitted(manifest: &Manifest, record: &Signed<Record>, verifier: &MemberId) -> Result<CoinTerms, Reject> {
    let record = record.verify(manifest.run())?;
    if record.author() != manifest.steward {
        return Err(Reject::NotEntitled("seal records"));
    }
    let Body::Admit(enrol) = &record.body else {
        return Err(Reject::Rule("evidence holds the admission of the verifier"));
    };
    let enrol = enrol.verify(manifest.run())?;
    require(enrol.author() == *verifier, "the admission is that of the verifier")?;
    enrol.into_inner().coins.ok_or(Reject::Rule("a verifier registers its coins"))
}

struct Case<'a> {
    manifest: &'a Manifest,
    frozen: FrozenCommit,
    probe: Probe,
    rows: Rows,
    verdict: Verified<Verdict>,
    witness: &'a mut dyn Witness,
    arithmetic: &'a mut dyn Arithmetic,
}

impl Case<'_> {
    fn guilty(&self, detail: String) -> Judgement {
        let finding = match self.verdict.finding {
            Finding::Pass => FindingKind::FalseAcquittal,
            Finding::Guilty(_) => FindingKind::FalseAccusation,
        };
        Judgement::Guilty { culprit: self.verdict.author(), round: self.frozen.commit.round, finding, detail }
    }

    /// A guilty verdict is false when neither the transcript nor the recomputed total is against the member. Where
    /// there is a tolerance, a leaf that the verifier may honestly have found beyond it does not convict it either.
    fn accusation(&mut self, transcript: &Transcript) -> Result<Judgement, Reject> {
        let stands = |what: String| Ok(Judgement::NotGuilty(format!("the accused member is guilty: {what}")));
        // First the member: a verdict may be true for another reason than it gives.
        if let Judgement::Guilty { detail, .. } =
            judge_audit(self.manifest, transcript, self.witness, self.arithmetic)?
        {
            return stands(detail);
        }
        let total = Total { freeze: transcript.freeze.clone(), culprit: self.frozen.author };
        match judge_total(self.manifest, &total, self.witness, self.arithmetic)? {
            Judgement::NotGuilty(_) => {}
            Judgement::Guilty { detail, .. } => return stands(detail),
            undecided => return Ok(undecided),
        }
        let Some(state) = self.state() else { return Ok(self.no_state()) };
        let commit = &self.frozen.commit;
        let sum = recompute_sum(self.manifest, commit, &state, self.witness, self.arithmetic);
        let Some(sum) = sum else { return Ok(no_text()) };
        let q = committed_total(self.manifest, &self.frozen, self.witness);
        let deviation = sum.deviation(self.manifest, commit, || q.clone());
        // The total is right, so that where it is unavailable its integers are those of the leaves.
        let mut known = Known { inner: self.witness, q: q.unwrap_or_else(|| sum.packed(self.manifest)) };
        match judge_audit(self.manifest, transcript, &mut known, self.arithmetic)? {
            Judgement::Guilty { detail, .. } => return stands(detail),
            Judgement::NotGuilty(_) => {}
            undecided => return Ok(undecided),
        }
        // Between right and wrong two honest machines may disagree: nobody is convicted there (TOL-8).
        let close = match self.verdict.finding {
            Finding::Guilty(FindingKind::LeafMismatch) => match self.figures(&state) {
                Figures::Right { passing } => !passing,
                Figures::Wrong(_) => false,
                Figures::Unknown => return Ok(no_text()),
            },
            _ => deviation.is_none_or(|deviation| deviation > SUSPECT),
        };
        if close {
            return Ok(Judgement::NotGuilty("what it finds wrong is too near to the limit to tell".into()));
        }
        Ok(self.guilty("every leaf, the table and the sum are right, and it finds them wrong".into()))
    }

    /// The verifier's own figures, recomputed.
    fn figures(&mut self, state: &State) -> Figures {
        let mut passing = true;
        for result in &self.verdict.results {
            let commit = &self.frozen.commit;
            let place = result.position;
            let Self { manifest, witness, arithmetic, probe, .. } = self;
            let (witness, arithmetic) = (&mut **witness, &mut **arithmetic);
            let row = Recomputing { manifest, commit, state, witness, arithmetic }.row(place, probe);
            let Some(row) = row else { return Figures::Unknown };
            // Its own figures are wrong: it did not recompute what it says.
            if self.probe.deviation(&row, &result.row) > WRONG {
                let (is, says) = (row.sketch, &result.row.sketch);
                return Figures::Wrong(format!("the leaf at {place} is {is}, it says {says}"));
            }
            // By what it says itself.
            let said = self.rows.get(place as usize);
            passing &= said.is_some_and(|said| self.probe.deviation(&result.row, said) <= WRONG);
        }
        Figures::Right { passing }
    }

    /// A passing verdict is false when the table is not that of the drawn leaves and the committed sum, or when the
    /// verifier's own figures are not the true ones. Leaves that were not drawn prove nothing against it.
    fn acquittal(&mut self) -> Result<Judgement, Reject> {
        let (sketch, loss) = self.probe.sum(&self.rows);
        if loss != self.frozen.commit.loss {
            return Ok(self.guilty("the losses of the table do not add up, and it lets them pass".into()));
        }
        let Some(state) = self.state() else { return Ok(self.no_state()) };
        match self.figures(&state) {
            Figures::Right { passing: true } => {}
            Figures::Right { passing: false } => {
                return Ok(self.guilty("the table is wrong about a drawn leaf, and it lets it pass".into()));
            }
            Figures::Wrong(how) => return Ok(self.guilty(how)),
            Figures::Unknown => return Ok(no_text()),
        }
        let Some(total) = self.total(&state) else {
            return Ok(Judgement::Undecided(
                "the drawn leaves agree, but the committed total is unavailable".into(),
            ));
        };
        if total != sketch {
            return Ok(
                self.guilty("the table does not add up to the committed total, and it lets it pass".into())
            );
        }
        if total != self.verdict.total {
            return Ok(self.guilty(format!("the total is {total}, it says {}", self.verdict.total)));
        }
        Ok(Judgement::NotGuilty("the drawn leaves, the sum and the verifier's figures agree".into()))
    }

    /// The sketch of the committed integers: of those that were fetched, or recomputed where that gives the committed root. Where it
    /// does not, a leaf is wrong that the verifier need not have drawn, and without the integers nothing follows.
    fn total(&mut self, state: &State) -> Option<Sketch> {
        let layout = Layout::of_run(self.manifest);
        let fetched = committed_total(self.manifest, &self.frozen, self.witness);
        if let Some(total) = fetched.and_then(|q| q.sketch(&layout, &self.probe)) {
            return Some(total);
        }
        let commit = &self.frozen.commit;
        let sum = recompute_sum(self.manifest, commit, state, self.witness, self.arithmetic)?;
        // Another root means another Q: nothing that adds up to it would be what was committed.
        (sum.root(self.manifest) == commit.root).then(|| self.probe.sketch(&sum.q))
    }

    fn state(&mut self) -> Option<State> {
        leaf_state(self.manifest, &self.frozen.commit, self.witness)
    }

    fn no_state(&self) -> Judgement {
        Judgement::Undecided(format!("the state {} is unavailable", self.frozen.commit.state))
    }
}

/// What the verifier's own figures are.
enum Figures {
    /// True; and whether the table agrees with them.
    Right { passing: bool },
    /// False, and how.
    Wrong(String),
    /// The text is unavailable.
    Unknown,
}

fn no_text() -> Judgement {
    Judgement::Undecided("the training text is unavailable".into())
}

/// A witness that has the contribution.
struct Known<'a> {
    inner: &'a mut dyn Witness,
    q: Arc<PackedContribution>,
}

impl Witness for Known<'_> {
    fn state(&mut self, root: &Digest, shards: &[ShardId]) -> Option<State> {
        self.inner.state(root, shards)
    }

    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>> {
        self.inner.windows(indices)
    }

    fn row(&mut self, window: u64, open: RowSet) -> Option<Row> {
        self.inner.row(window, open)
    }

    fn contribution(&mut self, _: Round, _: &MemberId) -> Option<Arc<PackedContribution>> {
        Some(self.q.clone())
    }

    fn round(&mut self, round: Round) -> Option<RoundView> {
        self.inner.round(round)
    }

    fn block(&mut self, round: Round, member: &MemberId, block: Block) -> Option<BlockData> {
        self.inner.block(round, member, block)
    }
}
