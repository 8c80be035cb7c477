//! Evidence of an audit: its steps, and its leaves and totals computed again.

use std::sync::Arc;

use super::frozen::{FrozenCommit, frozen_commit};
use super::judgement::{Judgement, Witness};
use super::recomputation::{Recomputing, committed_total, leaf_state, recompute_sum};
use super::steps::Requested;
use crate::assign;
use crate::error::Reject;
use crate::layout::Layout;
use crate::manifest::Manifest;
use crate::messages::audit::{AuditRequest, FindingKind, Rows, TableRow};
use crate::messages::evidence::{Total, Transcript};
use crate::messages::round::Commit;
use crate::regime::Regime;
use crate::sign::Signed;
use crate::sketch::probe::WRONG;
use crate::sketch::{Probe, Sketch};
use crate::state::Arithmetic;

/// What leaves are sketched with in the audit that a request opens (TOL-2): its beacon is the verifier's coin or, where
/// it shows none, the signed request itself, neither of which the member knew when it committed.
pub fn probe(manifest: &Manifest, signed: &Signed<AuditRequest>, request: &AuditRequest) -> Probe {
    let beacon = request.coin.as_ref().map_or_else(|| signed.digest(), |opening| opening.coin);
    Probe::new(manifest, &request.freeze, &beacon)
}

/// A transcript whose signatures and order are right.
pub(super) struct Checked {
    pub(super) frozen: FrozenCommit,
    pub(super) probe: Probe,
    /// The opened table.
    pub(super) rows: Rows,
    /// The drawn leaves.
    pub(super) positions: Vec<u32>,
}

pub(super) fn check_transcript(manifest: &Manifest, transcript: &Transcript) -> Result<Checked, Reject> {
    let run = manifest.run();
    let Transcript { freeze, request, table, results, opening, verdict } = transcript;
    let asked = request.verify(run)?;
    let frozen = frozen_commit(manifest, freeze, &asked.target)?;
    let requested = Arc::new(Requested::new(run, request, asked, &frozen.commit, &frozen.freeze)?);
    let probe = probe(manifest, request, requested.request());
    let (opened, rows) = requested.seal(table)?.answer(results)?.open(opening, &probe)?;
    let judged = opened.judge(verdict)?;
    let positions = judged.verdict().results.iter().map(|result| result.position).collect();
    Ok(Checked { frozen, probe, rows, positions })
}

pub(super) fn judge_audit(
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
    // First what needs neither state nor Q: where it convicts, nobody gets off by withholding them.
    let (sketch, loss) = probe.sum(&rows);
    if loss != commit.loss {
        return guilty(
            FindingKind::SumMismatch,
            format!("the table's losses add up to {loss}, committed is {}", commit.loss),
        );
    }
    // Tried before the leaves: it costs no arithmetic.
    let committed = committed_total(manifest, &frozen, witness);
    let committed = committed.and_then(|q| q.sketch(&Layout::of_run(manifest), &probe));
    let differs = |total: &Sketch| {
        (*total != sketch).then(|| format!("the table adds up to {sketch}, the committed total is {total}"))
    };
    if let Some(detail) = committed.as_ref().and_then(differs) {
        return guilty(FindingKind::SumMismatch, detail);
    }
    // AUDIT-11: the losses, and the sum where Q is at hand, have decided without it.
    let Some(state) = leaf_state(manifest, commit, witness) else {
        return Ok(Judgement::Undecided(format!("the state {} is unavailable", commit.state)));
    };
    for position in positions {
        let state = &state;
        let row = Recomputing { manifest, commit, state, witness, arithmetic }.row(position, &probe);
        let Some(row) = row else {
            return Ok(Judgement::Undecided("the training text is unavailable".into()));
        };
        let said = rows.get(position as usize).ok_or(Reject::Rule("a drawn leaf is in the table"))?;
        // Within the tolerance nobody is convicted, and in `exact` there is none.
        if let Some(detail) = leaf_mismatch(&probe, commit, position, &row, said) {
            return guilty(FindingKind::LeafMismatch, detail);
        }
    }
    if committed.is_some() {
        return Ok(Judgement::NotGuilty("the drawn leaves and the sum agree".into()));
    }
    // There recomputed leaves are only near to the committed integers, and prove no sum.
    if Regime::of(manifest).keeps_integers() {
        return Ok(Judgement::Undecided(
            "the drawn leaves agree, but the committed total is unavailable".into(),
        ));
    }
    // AUDIT-10: in `exact` all leaves stand for the committed integers, so that nobody escapes by keeping them back.
    let Some(sum) = recompute_sum(manifest, commit, &state, witness, arithmetic) else {
        return Ok(Judgement::Undecided("the training text is unavailable".into()));
    };
    if let Some(detail) = sum.mismatch(manifest, commit) {
        return guilty(FindingKind::TotalMismatch, detail);
    }
    match differs(&probe.sketch(&sum.q)) {
        Some(detail) => guilty(FindingKind::SumMismatch, detail),
        None => Ok(Judgement::NotGuilty("all leaves and the sum agree".into())),
    }
}

/// What is wrong about the row that the table has for a leaf; none where it is within the tolerance.
fn leaf_mismatch(
    probe: &Probe,
    commit: &Commit,
    position: u32,
    own: &TableRow,
    said: &TableRow,
) -> Option<String> {
    let deviation = probe.deviation(own, said);
    let leaf = assign::leaf(commit.slot, commit.seats, position);
    let by = if deviation.is_finite() { format!(", {deviation:.1} tolerances away") } else { String::new() };
    (deviation > WRONG).then(|| format!("leaf {leaf} is {}, the table says {}{by}", own.sketch, said.sketch))
}

pub(super) fn judge_total(
    manifest: &Manifest,
    total: &Total,
    witness: &mut dyn Witness,
    arithmetic: &mut dyn Arithmetic,
) -> Result<Judgement, Reject> {
    let frozen = frozen_commit(manifest, &total.freeze, &total.culprit)?;
    let commit = &frozen.commit;
    let Some(state) = leaf_state(manifest, commit, witness) else {
        return Ok(Judgement::Undecided(format!("the state {} is unavailable", commit.state)));
    };
    let Some(sum) = recompute_sum(manifest, commit, &state, witness, arithmetic) else {
        return Ok(Judgement::Undecided("the training text is unavailable".into()));
    };
    // Asked for only with a tolerance: in `exact` the root decides.
    let Some(deviation) = sum.deviation(manifest, commit, || committed_total(manifest, &frozen, witness))
    else {
        return Ok(Judgement::Undecided("the committed total is unavailable".into()));
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
