//! One audit: who is asked about what, and how far it has come.

use std::sync::Arc;

use muster_core::error::Reject;
use muster_core::ids::{Block, Digest, MemberId, Round, RunId, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::audit::{
    AuditRequest, Finding, FindingKind, LeafResult, Results, ResultsSeal, Rows, TableOpening, TableSeal,
    table_seal,
};
use muster_core::messages::record::Record;
use muster_core::messages::round::Commit;
use muster_core::messages::wire::Notice;
use muster_core::sign::Signed;
use muster_core::sketch::probe::WRONG;
use muster_core::sketch::{Probe, Row, Sketch};

/// A frozen contribution, and where its integers can be had.
#[derive(Debug)]
pub struct Subject {
    /// The freeze that holds it.
    pub record: Signed<Record>,
    /// R_t.
    pub freeze: Digest,
    /// What was committed.
    pub commit: Commit,
    /// By whom.
    pub author: MemberId,
    /// All its blocks, by part.
    pub sources: Vec<Source>,
}

/// Where some blocks of a contribution can be had.
#[derive(Clone, Debug)]
pub struct Source {
    /// Which.
    pub blocks: Vec<Block>,
    /// Who may hold them: the aggregators of their part, then the author.
    pub holders: Vec<MemberId>,
}

impl Subject {
    /// The contribution of a slot; `None` when it has none, or nothing is frozen.
    pub fn of(ledger: &Ledger, view: &RoundView, slot: Slot) -> Option<Self> {
        let commitment = view.commitment(slot)?;
        let sources = view.parts().iter().enumerate().map(|(part, plan)| {
            let keepers = |attempt| view.reducers(muster_core::ids::Part(part as u16), attempt);
            let keepers = keepers(1).chain(keepers(0)).chain([commitment.author]);
            let mut holders: Vec<MemberId> =
                keepers.filter(|keeper| ledger.member(keeper).is_some()).collect();
            holders.dedup();
            Source { blocks: plan.blocks.clone(), holders }
        });
        Some(Self {
            record: view.freeze()?.clone(),
            freeze: view.freeze_digest()?,
            commit: commitment.commit.clone(),
            author: commitment.author,
            sources: sources.collect(),
        })
    }

    /// Round and slot: the order in which audits are worked on.
    pub fn key(&self) -> (Round, Slot) {
        (self.commit.round, self.commit.slot)
    }
}

/// An audit in progress.
pub(super) struct Case {
    pub(super) subject: Arc<Subject>,
    /// None: the member is not asked, all its leaves are recomputed.
    pub(super) request: Option<Asked>,
    pub(super) phase: Phase,
    /// What the steward has yet to be told.
    pub(super) owed: Option<Notice>,
    /// An opening that came before this verifier, just restarted, had recomputed what it sealed.
    pub(super) early: Option<Signed<TableOpening>>,
    /// Leaves that were recomputed for a table with this seal.
    pub(super) recomputed: Option<(Digest, Results)>,
    /// Whether all leaves are to be recomputed, because the member was silent.
    pub(super) distrusted: bool,
    /// Whether the committed integers are not to be had, which the steward was told.
    pub(super) withheld: bool,
}

/// A request.
pub(super) struct Asked {
    pub(super) signed: Signed<AuditRequest>,
    pub(super) name: Digest,
    /// What the answer is sketched with.
    pub(super) probe: Arc<Probe>,
}

/// How far an audit has come.
pub(super) enum Phase {
    /// The member has yet to seal its table.
    Asked,
    /// The table is sealed; the drawn leaves are to be recomputed.
    Drawn(Drawn),
    /// The results are sealed; the member has yet to open its table.
    Sealed(Sealed),
    /// The table is open; the committed total is to be fetched, once it is to be had.
    Opened(Opened),
    /// Something is wrong; a second opinion is to be had before it is said aloud.
    Doubted(Doubt),
    /// It was found right, or its author was expelled, or nothing more can be said.
    Over {
        /// Found right.
        passed: bool,
    },
}

#[derive(Clone)]
pub(super) struct Drawn {
    pub(super) table: Signed<TableSeal>,
    pub(super) seal: Digest,
    pub(super) positions: Vec<u32>,
}

#[derive(Clone)]
pub(super) struct Sealed {
    pub(super) drawn: Drawn,
    pub(super) results: Signed<ResultsSeal>,
    pub(super) salt: [u8; 32],
    pub(super) computed: Results,
}

#[derive(Clone)]
pub(super) struct Opened {
    pub(super) sealed: Sealed,
    pub(super) opening: Signed<TableOpening>,
    pub(super) rows: Rows,
}

pub(super) struct Doubt {
    pub(super) evidence: Box<muster_core::messages::evidence::Evidence>,
    pub(super) verdict: Option<Notice>,
    pub(super) q: Option<Arc<Vec<i32>>>,
}

impl Case {
    /// Leaves and total against the opened table, in the order in which a judge looks; and how far each drawn leaf is
    /// away, in units of the tolerance.
    pub(super) fn finding(&self, probe: &Probe, opened: &Opened, total: &Sketch) -> (Finding, Vec<f64>) {
        let (sketch, loss) = probe.sum(&opened.rows);
        if loss != self.subject.commit.loss || sketch != *total {
            return (Finding::Guilty(FindingKind::SumMismatch), Vec::new());
        }
        let deviation = |result: &LeafResult| {
            let said = opened.rows.get(result.position as usize);
            said.map_or(f64::INFINITY, |said| probe.deviation(&result.row, said))
        };
        let deviations: Vec<f64> = opened.sealed.computed.iter().map(deviation).collect();
        let wrong = deviations.iter().any(|deviation| *deviation > WRONG);
        (if wrong { Finding::Guilty(FindingKind::LeafMismatch) } else { Finding::Pass }, deviations)
    }

    /// Checks that a sealed table answers the request.
    pub(super) fn check_table(&self, run: RunId, signed: &Signed<TableSeal>) -> Result<Digest, Reject> {
        let table = signed.verify(run)?;
        let subject = &self.subject;
        require(table.author() == subject.author, "the audited member seals its table")?;
        require(
            table.round == subject.commit.round && table.freeze == subject.freeze,
            "the table is of the asked round",
        )?;
        require(table.root == subject.commit.root, "the table is of the frozen commitment")?;
        Ok(table.seal)
    }

    /// Checks that an opening opens the sealed table, after the results were sealed.
    pub(super) fn check_opening(
        &self,
        run: RunId,
        sealed: &Sealed,
        signed: &Signed<TableOpening>,
    ) -> Result<Rows, Reject> {
        let opening = signed.verify(run)?;
        require(opening.author() == self.subject.author, "the audited member opens its table")?;
        require(opening.results == sealed.results.digest(), "the opening names the sealed results")?;
        require(table_seal(&opening.salt, &opening.rows) == sealed.drawn.seal, "the opening fits its seal")?;
        require(
            opening.rows.len() == self.subject.commit.leaves as usize,
            "the table has a row for each leaf",
        )?;
        let fits = |row: &Row| self.request.as_ref().is_some_and(|asked| asked.probe.fits(&row.sketch));
        require(opening.rows.iter().all(fits), "the table's sketches are those of the profile")?;
        Ok(opening.into_inner().rows)
    }

    /// Whether it waits for nothing and nobody.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over { .. }) && !self.distrusted && self.owed.is_none()
    }

    /// Says its request once more, on a board that has never seen it; what was recomputed is kept.
    pub(super) fn ask_again(&mut self) {
        if let Some(request) = &self.request {
            self.owed = Some(Notice::Request(request.signed.clone()));
            self.phase = Phase::Asked;
            self.early = None;
            self.withheld = false;
        }
    }
}

fn require(holds: bool, rule: &'static str) -> Result<(), Reject> {
    if holds { Ok(()) } else { Err(Reject::Rule(rule)) }
}
