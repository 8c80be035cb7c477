//! Judging a verifier by a verdict of its own.
//!
//! It is convicted by what it signed alone: request, results and verdict name the member's table and opening by their
//! digests, so that a member cannot put others beside them, and a transcript whose steps do not fit each other proves
//! nothing against anybody.

use super::{FrozenCommit, Judgement, Witness, check_transcript, committed_total, judge_audit, judge_total};
use super::{leaf_coin, recompute, recompute_sum, require, table_sum};
use crate::coins::{CoinKind, CoinTerms, draw};
use crate::contribution::Commitment;
use crate::error::Reject;
use crate::ids::{Block, Digest, MemberId, Round};
use crate::layout::Layout;
use crate::ledger::RoundView;
use crate::manifest::Manifest;
use crate::messages::audit::{FalseVerdict, Finding, FindingKind, Row, Rows, Total, Transcript, Verdict};
use crate::messages::record::{Body, Record};
use crate::messages::wire::BlockData;
use crate::sign::{Signed, Verified};
use crate::sketch;
use crate::state::{Arithmetic, State};

/// Decides whether a verdict is false: against the verifier, whatever it is for the member (DUTY-9).
pub(super) fn judge(
    manifest: &Manifest,
    accused: &FalseVerdict,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Result<Judgement, Reject> {
    let transcript = &accused.transcript;
    let (frozen, rows, positions) = check_transcript(manifest, transcript)?;
    let verdict = transcript.verdict.verify(manifest.run())?;
    let terms = admitted(manifest, &accused.admit, &verdict.author())?;
    let coin = verdict.coin.verify(&terms)?;
    let (kind, round, k) = (coin.kind(), coin.round(), coin.k());
    let own = kind == CoinKind::Leaf && round == frozen.commit.round && k == leaf_coin(frozen.commit.slot);
    require(own, "a verdict shows the leaf coin of the audited slot")?;
    let seal = transcript.table.verify(manifest.run())?.seal;
    let drawn = draw(&coin, &frozen.freeze, &seal, frozen.commit.leaves, manifest.audit.leaves);
    let mut case = Case { manifest, frozen, rows, verdict, witness, arithmetic };
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

    /// A guilty verdict is false when neither the transcript nor the recomputed total is against the member.
    fn accusation(&mut self, transcript: &Transcript) -> Result<Judgement, Reject> {
        let stands = |what: String| Ok(Judgement::NotGuilty(format!("the accused member is guilty: {what}")));
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
        // The commitment is right to the last leaf, so that its integers are at hand now.
        let (Some(state), commit) = (self.witness.state(&self.frozen.commit.state), &self.frozen.commit)
        else {
            return Ok(self.no_state());
        };
        let sum = recompute_sum(self.manifest, commit, &state, self.witness, self.arithmetic);
        let Some((q, _)) = sum else { return Ok(no_text()) };
        let mut known = Known { inner: self.witness, q };
        match judge_audit(self.manifest, transcript, &mut known, self.arithmetic)? {
            Judgement::Guilty { detail, .. } => stands(detail),
            Judgement::NotGuilty(_) => {
                Ok(self.guilty("every leaf, the table and the sum are right, and it finds them wrong".into()))
            }
            undecided => Ok(undecided),
        }
    }

    /// A passing verdict is false when the table is not that of the drawn leaves and the committed sum, or when the
    /// verifier's own figures are not the true ones. Leaves that were not drawn prove nothing against it.
    fn acquittal(&mut self) -> Result<Judgement, Reject> {
        let (sketch, loss) = table_sum(&self.rows);
        if loss != self.frozen.commit.loss {
            return Ok(self.guilty("the losses of the table do not add up, and it lets them pass".into()));
        }
        let Some(state) = self.witness.state(&self.frozen.commit.state) else { return Ok(self.no_state()) };
        let points = sketch::points(&self.frozen.freeze);
        for result in &self.verdict.results {
            let commit = &self.frozen.commit;
            let leaf =
                recompute(self.manifest, commit, result.position, &state, self.witness, self.arithmetic);
            let Some((q, loss)) = leaf else { return Ok(no_text()) };
            let row = Row { sketch: sketch::fingerprint(points, &q), loss };
            let place = result.position;
            if result.row != row {
                return Ok(self.guilty(format!("the leaf at {place} is {row:x?}, it says {:x?}", result.row)));
            }
            if self.rows.get(place as usize) != Some(&row) {
                return Ok(
                    self.guilty(format!("the table is wrong about the leaf at {place}, and it lets it pass"))
                );
            }
        }
        let Some(q) = self.total(&state) else {
            return Ok(Judgement::Undecided(
                "the drawn leaves agree, but the committed total is not at hand".into(),
            ));
        };
        let total = sketch::fingerprint(points, &q);
        if total != sketch {
            return Ok(
                self.guilty("the table does not add up to the committed total, and it lets it pass".into())
            );
        }
        if total != self.verdict.total {
            return Ok(self.guilty(format!("the total is {total:x?}, it says {:x?}", self.verdict.total)));
        }
        Ok(Judgement::NotGuilty("the drawn leaves, the sum and the verifier's figures agree".into()))
    }

    /// The committed integers: fetched, or recomputed where that gives the committed root. Where it does not, a leaf is
    /// wrong that the verifier need not have drawn, and without the integers nothing follows.
    fn total(&mut self, state: &State) -> Option<Vec<i32>> {
        if let Some(q) = committed_total(self.manifest, &self.frozen, self.witness) {
            return Some(q);
        }
        let commit = &self.frozen.commit;
        let (q, _) = recompute_sum(self.manifest, commit, state, self.witness, self.arithmetic)?;
        (Commitment::new(&Layout::of(&self.manifest.model), &q).root() == commit.root).then_some(q)
    }

    fn no_state(&self) -> Judgement {
        Judgement::Undecided(format!("the state {} is not at hand", self.frozen.commit.state))
    }
}

fn no_text() -> Judgement {
    Judgement::Undecided("the training text is not at hand".into())
}

/// A witness that has the contribution.
struct Known<'a> {
    inner: &'a mut dyn Witness,
    q: Vec<i32>,
}

impl Witness for Known<'_> {
    fn state(&mut self, root: &Digest) -> Option<State> {
        self.inner.state(root)
    }

    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>> {
        self.inner.windows(indices)
    }

    fn contribution(&mut self, _: Round, _: &MemberId) -> Option<Vec<i32>> {
        Some(self.q.clone())
    }

    fn round(&mut self, round: Round) -> Option<RoundView> {
        self.inner.round(round)
    }

    fn block(&mut self, round: Round, member: &MemberId, block: Block) -> Option<BlockData> {
        self.inner.block(round, member, block)
    }
}
