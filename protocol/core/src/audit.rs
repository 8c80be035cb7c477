//! What evidence proves: one function that anyone can run, [`judge`].

pub mod docket;
mod misconduct;
mod reduction;
mod root;
pub mod roster;
mod verdict;

pub use reduction::check_reduction;

use crate::assign;
use crate::coins::CoinKind;
use crate::contribution::Commitment;
use crate::error::Reject;
use crate::ids::{Block, Digest, Height, MemberId, Round, Slot};
use crate::layout::Layout;
use crate::ledger::{Ledger, RoundView};
use crate::manifest::{Manifest, Profile};
use crate::messages::audit::{
    AuditRequest, Equivocation, Evidence, FindingKind, Misconduct, Reduction, Rows, Total, Transcript,
    results_seal, table_seal,
};
use crate::messages::record::{Body, Record};
use crate::messages::round::Commit;
use crate::messages::wire::BlockData;
use crate::sign::Signed;
use crate::sketch::Probe;
use crate::sketch::probe::{Allowance, WRONG};
use crate::state::{Arithmetic, LeafTask, State, Update};

/// What re-executing evidence gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// Proved.
    Guilty {
        /// Who.
        culprit: MemberId,
        /// When.
        round: Round,
        /// Of what.
        finding: FindingKind,
        /// The figures, for people.
        detail: String,
    },
    /// Re-executed: the accused was right.
    NotGuilty(String),
    /// Something needed is not at hand; the text names it. Never a ban.
    Undecided(String),
    /// Not evidence of anything.
    Malformed(String),
}

/// Where a judge finds what evidence refers to. Implementations give only what they have checked.
pub trait Witness {
    /// Parameters and exponents of the state with this root; moments may be empty, but where a step is taken again.
    fn state(&mut self, root: &Digest) -> Option<State>;
    /// Windows of the training text.
    fn windows(&mut self, indices: &[u64]) -> Option<Vec<Vec<u32>>>;
    /// All of a committed contribution. The judge checks it against the commitment.
    fn contribution(&mut self, round: Round, member: &MemberId) -> Option<Vec<i32>>;
    /// A round as the judge's own ledger has it: its parts, and who had to reduce them.
    fn round(&mut self, round: Round) -> Option<RoundView>;
    /// One block of a committed contribution with its proofs. The judge checks them against the commitment.
    fn block(&mut self, round: Round, member: &MemberId, block: Block) -> Option<BlockData>;
    /// The ledger before the record of this height; only evidence against the steward needs it.
    fn ledger(&mut self, _height: Height) -> Option<Ledger> {
        None
    }
    /// The aggregate of a round; only evidence against the steward needs it. The judge checks it against the sealed
    /// digests.
    fn update(&mut self, _round: Round) -> Option<Update> {
        None
    }
}

/// A frozen contribution, proved by the steward's seal.
#[derive(Clone, Debug)]
pub struct FrozenCommit {
    /// R_t.
    pub freeze: Digest,
    /// The commitment.
    pub commit: Commit,
    /// Its author.
    pub author: MemberId,
}

/// Finds a member's commitment in a sealed freeze.
///
/// # Errors
/// [`Reject`] when the record is not the steward's, is no freeze, or has no commitment of the member.
pub fn frozen_commit(
    manifest: &Manifest,
    record: &Signed<Record>,
    member: &MemberId,
) -> Result<FrozenCommit, Reject> {
    let run = manifest.run();
    let record = record.verify(run)?;
    if record.author() != manifest.steward {
        return Err(Reject::NotEntitled("seal records"));
    }
    let Body::Freeze(freeze) = &record.body else {
        return Err(Reject::Rule("evidence holds the freeze of its round"));
    };
    let signed = freeze.commits.iter().find(|signed| signed.claimed_signer() == *member);
    let commit = signed.ok_or(Reject::Rule("the accused has a commitment in the freeze"))?.verify(run)?;
    Ok(FrozenCommit { freeze: record.head(), author: commit.author(), commit: commit.into_inner() })
}

/// Recomputes one leaf of a contribution. `None` when its windows are not at hand.
pub fn recompute(
    manifest: &Manifest,
    commit: &Commit,
    position: u32,
    state: &State,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Option<(Vec<i32>, i64)> {
    let task = leaf_task(manifest, commit, position, state, witness)?;
    let mut q = vec![0; state.parameters.len()];
    let loss = arithmetic.leaf(manifest, &task.job(), &mut q);
    Some((q, loss))
}

/// One leaf of a contribution, to be recomputed among others. `None` when its windows are not at hand.
pub fn leaf_task<'a>(
    manifest: &Manifest,
    commit: &Commit,
    position: u32,
    state: &'a State,
    witness: &mut dyn Witness,
) -> Option<LeafTask<'a>> {
    let round_seed = assign::round_seed(manifest.run(), commit.round, &commit.state);
    let leaf = assign::leaf(commit.slot, commit.seats, position);
    let indices = assign::windows(&round_seed, leaf, manifest.training.leaf_windows, manifest.windows());
    Some(LeafTask { state, round_seed, leaf, windows: witness.windows(&indices)?, q: Vec::new() })
}

/// What leaves are sketched with in the audit that a request opens (TOL-2): its beacon is the verifier's coin or, where
/// it shows none, the signed request itself, neither of which the member knew when it committed.
pub fn probe(manifest: &Manifest, signed: &Signed<AuditRequest>, request: &AuditRequest) -> Probe {
    let beacon = request.coin.as_ref().map_or_else(|| signed.digest(), |opening| opening.coin);
    Probe::new(manifest, &request.freeze, &beacon)
}

/// Whom evidence accuses, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The accused.
    pub culprit: MemberId,
    /// Whose contribution is looked at: the culprit's own, or the one that it judged.
    pub subject: MemberId,
    /// Round of that contribution.
    pub round: Round,
}

/// What evidence claims, by its signatures alone. Against the steward that is no contribution of a round: round 0, but for a
/// wrong root that of the step.
///
/// # Errors
/// [`Reject`] for what is no evidence of anything.
pub fn claim(manifest: &Manifest, evidence: &Evidence) -> Result<Claim, Reject> {
    let run = manifest.run();
    let (culprit, subject, freeze) = match evidence {
        Evidence::Equivocation(pair) => {
            let first = pair.first.verify(run)?;
            return Ok(Claim { culprit: first.author(), subject: first.author(), round: first.round });
        }
        Evidence::Audit(transcript) => {
            let target = transcript.request.verify(run)?.target;
            (target, target, &transcript.freeze)
        }
        Evidence::Total(total) => (total.culprit, total.culprit, &total.freeze),
        Evidence::Aggregation(part) => {
            let result = part.result.verify(run)?;
            return Ok(Claim { culprit: result.author(), subject: result.author(), round: result.round });
        }
        Evidence::Results(pair) => {
            let first = pair.first.verify(run)?;
            return Ok(Claim { culprit: first.author(), subject: first.author(), round: first.round });
        }
        Evidence::Misconduct(misconduct) => {
            let round = match misconduct {
                Misconduct::Root(wrong) => root::round(manifest, wrong)?,
                _ => Round(0),
            };
            return Ok(Claim { culprit: manifest.steward, subject: manifest.steward, round });
        }
        Evidence::Recomputation(accused) => {
            let said = accused.recomputation.verify(run)?;
            (said.author(), said.target, &accused.freeze)
        }
        Evidence::Verdict(accused) => {
            let target = accused.transcript.request.verify(run)?.target;
            (accused.transcript.verdict.verify(run)?.author(), target, &accused.transcript.freeze)
        }
    };
    let frozen = frozen_commit(manifest, freeze, &subject)?;
    Ok(Claim { culprit, subject, round: frozen.commit.round })
}

/// Checks that a transcript's steps fit each other, before anything is fetched or recomputed because of it; other evidence
/// has none.
///
/// # Errors
/// [`Reject`] naming the step that does not fit.
pub fn check_steps(manifest: &Manifest, evidence: &Evidence) -> Result<(), Reject> {
    evidence.transcript().map_or(Ok(()), |transcript| check_transcript(manifest, transcript).map(drop))
}

/// Decides evidence by re-executing it.
pub fn judge(
    manifest: &Manifest,
    evidence: &Evidence,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Judgement {
    let decided = match evidence {
        Evidence::Equivocation(pair) => judge_equivocation(manifest, pair),
        Evidence::Audit(transcript) => judge_audit(manifest, transcript, witness, arithmetic),
        Evidence::Total(total) => judge_total(manifest, total, witness, arithmetic),
        Evidence::Misconduct(Misconduct::Root(wrong)) => root::judge(manifest, wrong, witness, arithmetic),
        Evidence::Misconduct(misconduct) => {
            misconduct::judge(manifest, misconduct, &mut |height| witness.ledger(height))
        }
        Evidence::Verdict(accused) => verdict::judge(manifest, accused, witness, arithmetic),
        Evidence::Aggregation(part) => reduction::judged(manifest, part, witness),
        Evidence::Results(pair) => reduction::judge_results(manifest, pair),
        Evidence::Recomputation(accused) => {
            verdict::judge_recomputation(manifest, accused, witness, arithmetic)
        }
    };
    decided.unwrap_or_else(|reject| Judgement::Malformed(reject.to_string()))
}

/// Decides evidence about a part, which needs no arithmetic but the rule's.
pub fn judge_reduction(manifest: &Manifest, part: &Reduction, witness: &mut dyn Witness) -> Judgement {
    let decided = reduction::judged(manifest, part, witness);
    decided.unwrap_or_else(|reject| Judgement::Malformed(reject.to_string()))
}

/// Decides evidence against the steward from the messages alone; an invalid record and a wrong root stay undecided.
pub fn judge_steward(manifest: &Manifest, misconduct: &Misconduct) -> Judgement {
    let decided = misconduct::judge(manifest, misconduct, &mut |_| None);
    decided.unwrap_or_else(|reject| Judgement::Malformed(reject.to_string()))
}

fn judge_equivocation(manifest: &Manifest, pair: &Equivocation) -> Result<Judgement, Reject> {
    let first = pair.first.verify(manifest.run())?;
    let second = pair.second.verify(manifest.run())?;
    if first.author() != second.author() || first.round != second.round {
        return Err(Reject::Rule("equivocation is two commitments of one member in one round"));
    }
    if *first == *second {
        return Ok(Judgement::NotGuilty("the two commitments are equal".into()));
    }
    let detail = format!("committed to {} and to {}", first.root, second.root);
    Ok(Judgement::Guilty {
        culprit: first.author(),
        round: first.round,
        finding: FindingKind::Equivocation,
        detail,
    })
}

fn judge_audit(
    manifest: &Manifest,
    transcript: &Transcript,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Result<Judgement, Reject> {
    let Checked { frozen, probe, rows, positions } = check_transcript(manifest, transcript)?;
    let commit = &frozen.commit;
    let guilty = |finding, detail| {
        Ok(Judgement::Guilty { culprit: frozen.author, round: commit.round, finding, detail })
    };
    let (sketch, loss) = probe.sum(&rows);
    if loss != commit.loss {
        return guilty(
            FindingKind::SumMismatch,
            format!("the table's losses add up to {loss}, committed is {}", commit.loss),
        );
    }
    let committed = committed_total(manifest, &frozen, witness);
    let differs = |q: &[i32]| {
        let total = probe.sketch(q);
        (total != sketch).then(|| format!("the table adds up to {sketch}, the committed total is {total}"))
    };
    if let Some(detail) = committed.as_deref().and_then(differs) {
        return guilty(FindingKind::SumMismatch, detail);
    }
    // AUDIT-11: the losses, and the sum where Q is at hand, have decided without it.
    let Some(state) = witness.state(&commit.state) else {
        return Ok(Judgement::Undecided(format!("the state {} is not at hand", commit.state)));
    };
    for position in positions {
        let Some((q, loss)) = recompute(manifest, commit, position, &state, witness, arithmetic) else {
            return Ok(Judgement::Undecided("the training text is not at hand".into()));
        };
        let row = probe.row(&q, loss);
        let said = rows.get(position as usize).ok_or(Reject::Rule("a drawn leaf is in the table"))?;
        let deviation = probe.deviation(&row, said);
        if deviation > WRONG {
            let leaf = assign::leaf(commit.slot, commit.seats, position);
            let by = if deviation.is_finite() {
                format!(", {deviation:.1} tolerances away")
            } else {
                String::new()
            };
            let detail = format!("leaf {leaf} is {}, the table says {}{by}", row.sketch, said.sketch);
            return guilty(FindingKind::LeafMismatch, detail);
        }
    }
    if committed.is_some() {
        return Ok(Judgement::NotGuilty("the drawn leaves and the sum agree".into()));
    }
    if manifest.profile != Profile::Exact {
        return Ok(Judgement::Undecided(
            "the drawn leaves agree, but the committed total is not at hand".into(),
        ));
    }
    // AUDIT-10: in `exact` all leaves stand for the committed integers, so that nobody escapes by keeping them back.
    let Some(sum) = recompute_sum(manifest, commit, &state, witness, arithmetic) else {
        return Ok(Judgement::Undecided("the training text is not at hand".into()));
    };
    if let Some(detail) = sum.mismatch(manifest, commit) {
        return guilty(FindingKind::TotalMismatch, detail);
    }
    match differs(&sum.q) {
        Some(detail) => guilty(FindingKind::SumMismatch, detail),
        None => Ok(Judgement::NotGuilty("all leaves and the sum agree".into())),
    }
}

/// A transcript whose signatures and order are right.
struct Checked {
    frozen: FrozenCommit,
    probe: Probe,
    /// The opened table.
    rows: Rows,
    /// The drawn leaves.
    positions: Vec<u32>,
}

fn check_transcript(manifest: &Manifest, transcript: &Transcript) -> Result<Checked, Reject> {
    let run = manifest.run();
    let request = transcript.request.verify(run)?;
    let frozen = frozen_commit(manifest, &transcript.freeze, &request.target)?;
    let name = transcript.request.digest();
    let table = transcript.table.verify(run)?;
    let opening = transcript.opening.verify(run)?;
    let results = transcript.results.verify(run)?;
    let verdict = transcript.verdict.verify(run)?;
    let parties = table.author() == request.target && opening.author() == request.target;
    let parties = parties && results.author() == request.author() && verdict.author() == request.author();
    require(parties, "each step of an audit is signed by its party")?;
    // AUDIT-10: each step names what the table of the steps says, also where nothing below would miss it.
    let round = frozen.commit.round;
    require(request.freeze == frozen.freeze && request.round == round, "the request is of this freeze")?;
    let shown = request.coin.as_ref();
    let shown = shown.is_none_or(|coin| coin.kind == CoinKind::Node && coin.round == round);
    require(shown, "a request shows the node coin of its round")?;
    let chained =
        [table.request, results.request, opening.request, verdict.request].iter().all(|step| *step == name);
    require(chained, "each step names the request")?;
    require(
        table.freeze == frozen.freeze && table.round == round && table.root == frozen.commit.root,
        "the table is of this contribution",
    )?;
    require(results.table == transcript.table.digest(), "the results name the sealed table")?;
    require(opening.results == transcript.results.digest(), "the opening names the sealed results")?;
    require(verdict.opening == transcript.opening.digest(), "the verdict names the opening")?;
    let coin = &verdict.coin;
    let own = coin.kind == CoinKind::Leaf && coin.round == round && coin.k == leaf_coin(frozen.commit.slot);
    require(own, "a verdict shows the leaf coin of the audited slot")?;
    // AUDIT-3, AUDIT-5, AUDIT-6: what was hidden fits its seal, and a table has one row a leaf.
    require(table_seal(&opening.salt, &opening.rows) == table.seal, "the opening fits its seal")?;
    require(results_seal(&verdict.salt, &verdict.results) == results.seal, "the results fit their seal")?;
    require(opening.rows.len() == frozen.commit.leaves as usize, "the table has a row for each leaf")?;
    let probe = probe(manifest, &transcript.request, &request);
    let fits = opening.rows.iter().all(|row| probe.fits(&row.sketch));
    require(fits, "the table's sketches are those of the profile")?;
    let positions = verdict.results.iter().map(|result| result.position).collect();
    Ok(Checked { frozen, probe, rows: opening.into_inner().rows, positions })
}

fn judge_total(
    manifest: &Manifest,
    total: &Total,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Result<Judgement, Reject> {
    let frozen = frozen_commit(manifest, &total.freeze, &total.culprit)?;
    let commit = &frozen.commit;
    let Some(state) = witness.state(&commit.state) else {
        return Ok(Judgement::Undecided(format!("the state {} is not at hand", commit.state)));
    };
    let Some(sum) = recompute_sum(manifest, commit, &state, witness, arithmetic) else {
        return Ok(Judgement::Undecided("the training text is not at hand".into()));
    };
    let Some(deviation) = sum.deviation(manifest, commit, || committed_total(manifest, &frozen, witness))
    else {
        return Ok(Judgement::Undecided("the committed total is not at hand".into()));
    };
    if deviation <= WRONG {
        return Ok(Judgement::NotGuilty("all leaves give the committed total".into()));
    }
    let detail = if deviation.is_finite() {
        format!("the leaves give a total that is {deviation:.1} tolerances away from the committed one")
    } else {
        sum.mismatch(manifest, commit).unwrap_or_default()
    };
    Ok(Judgement::Guilty {
        culprit: frozen.author,
        round: commit.round,
        finding: FindingKind::TotalMismatch,
        detail,
    })
}

/// A contribution, all leaves recomputed.
#[derive(Clone, Debug)]
pub struct Sum {
    /// Q.
    pub q: Vec<i32>,
    /// Of all leaves.
    pub loss: i64,
    allowance: Allowance,
}

impl Sum {
    /// The root that Q would be committed with.
    pub fn root(&self, manifest: &Manifest) -> Digest {
        Commitment::new(&Layout::of(&manifest.model), &self.q).root()
    }

    /// How this differs from what was committed; none where root and loss are the same.
    fn mismatch(&self, manifest: &Manifest, commit: &Commit) -> Option<String> {
        let root = self.root(manifest);
        let differs = self.loss != commit.loss || root != commit.root;
        differs.then(|| {
            let (loss, committed) = (self.loss, commit.root);
            format!("the leaves give {root} with loss {loss}, committed is {committed} with {}", commit.loss)
        })
    }

    /// How far what was committed is from this, in units of what honest contributions may be apart: 0 or ∞ in profile
    /// exact. The others compare the committed integers (TOL-6); `None` where they are needed and not at hand.
    pub fn deviation(
        &self,
        manifest: &Manifest,
        commit: &Commit,
        committed: impl FnOnce() -> Option<Vec<i32>>,
    ) -> Option<f64> {
        if self.mismatch(manifest, commit).is_none() {
            return Some(0.0);
        }
        if manifest.profile == Profile::Exact {
            return Some(f64::INFINITY);
        }
        Some(self.allowance.deviation((&self.q, self.loss), (&committed()?, commit.loss)))
    }
}

/// Recomputes all leaves of a contribution. `None` when windows are not at hand.
pub fn recompute_sum(
    manifest: &Manifest,
    commit: &Commit,
    state: &State,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Option<Sum> {
    let mut sum = Sum { q: vec![0i32; state.parameters.len()], loss: 0, allowance: Allowance::new(manifest) };
    let tasks = (0..commit.leaves).map(|position| leaf_task(manifest, commit, position, state, witness));
    let tasks: Vec<_> = tasks.collect::<Option<_>>()?;
    arithmetic.leaves(manifest, &mut tasks.into_iter(), &mut |q, loss| {
        sum.q.iter_mut().zip(&q).for_each(|(sum, leaf)| *sum = sum.wrapping_add(*leaf));
        sum.loss = sum.loss.wrapping_add(loss);
        sum.allowance.add(&q);
    });
    Some(sum)
}

/// The committed integers, where the witness has them.
pub fn committed_total(
    manifest: &Manifest,
    frozen: &FrozenCommit,
    witness: &mut dyn Witness,
) -> Option<Vec<i32>> {
    let q = witness.contribution(frozen.commit.round, &frozen.author)?;
    let layout = Layout::of(&manifest.model);
    (q.len() == layout.parameters() && Commitment::new(&layout, &q).root() == frozen.commit.root).then_some(q)
}

fn require(holds: bool, rule: &'static str) -> Result<(), Reject> {
    if holds { Ok(()) } else { Err(Reject::Rule(rule)) }
}

/// Number of the leaf coin that a verifier uses for a slot.
pub fn leaf_coin(slot: Slot) -> u16 {
    slot.0
}
