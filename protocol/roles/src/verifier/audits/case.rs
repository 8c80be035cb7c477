//! One audit: who is asked about what, and how far it has come.

use std::sync::Arc;

use muster_core::audit::steps::{Requested, ResultsSealed, TableOpened, TableSealed};
use muster_core::bug::OrBug;
use muster_core::error::Reject;
use muster_core::ids::{Block, Digest, MemberId, Part, Round, Slot};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::audit::{Finding, FindingKind, LeafResult, Results, Rows, TableOpening};
use muster_core::messages::record::Record;
use muster_core::messages::round::Commit;
use muster_core::messages::wire::Notice;
use muster_core::sign::Signed;
use muster_core::sketch::probe::WRONG;
use muster_core::sketch::{Probe, Sketch};

/// A frozen contribution, and where its integers can be had.
#[derive(Debug)]
pub struct Subject {
    /// The freeze that holds it.
    pub record: Signed<Record>,
    /// R_t.
    pub freeze: Digest,
    /// What was committed.
    pub commit: Commit,
    /// Its author.
    pub author: MemberId,
    /// All its blocks, by part.
    pub sources: Vec<Source>,
}

/// Where some blocks of a contribution can be had.
#[derive(Clone, Debug)]
pub struct Source {
    /// The part that they are.
    pub part: Part,
    /// The blocks.
    pub blocks: Vec<Block>,
    /// Members that may hold them: the aggregators of their part, then the author. Whom nobody can dial is not among them, but
    /// for an author whom nobody stands in for.
    pub holders: Vec<MemberId>,
    /// Whether the part counts its author, so that its keepers have signed for the blocks (ROUND-5).
    pub signed: bool,
}

impl Source {
    /// AUDIT-29: whose fault it is that none of them shows the blocks: that of all who have signed for them and can be
    /// asked, else the author's.
    pub fn charged<'a>(&'a self, author: &'a MemberId) -> &'a [MemberId] {
        if self.signed { &self.holders } else { std::slice::from_ref(author) }
    }
}

impl Subject {
    /// The contribution of a slot; `None` when it has none, or nothing is frozen.
    pub fn of(ledger: &Ledger, view: &RoundView, slot: Slot) -> Option<Self> {
        let commitment = view.commitment(slot)?;
        let sources = view.parts_of(slot).map(|(part, plan)| {
            let keepers = |attempt| view.reducers(part, attempt);
            // Those of the reassignment first: they reduced the part. The author last: it may want to delay.
            let keepers = keepers(1).chain(keepers(0)).chain([commitment.author]);
            let can_be_dialled =
                |keeper: &MemberId| ledger.member(keeper).is_some_and(|member| !member.addresses.is_empty());
            let mut holders: Vec<MemberId> = keepers.filter(can_be_dialled).collect();
            holders.dedup();
            if holders.is_empty() {
                holders.push(commitment.author);
            }
            let signed = view.inputs().get(part.index()).is_some_and(|inputs| inputs.contains(slot));
            Source { part, blocks: plan.blocks.clone(), holders, signed }
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
    /// Whether the committed integers are unavailable, which the steward was told.
    pub(super) withheld: bool,
}

/// A request.
pub(super) struct Asked {
    pub(super) requested: Arc<Requested>,
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
    /// The table is open; the committed total is fetched as soon as it is available.
    Opened(Opened),
    /// Something is wrong; it is said only after a second opinion.
    Doubted(Doubt),
    /// It was found right, or its author was expelled, or nothing more can be said.
    Over {
        /// Found right.
        passed: bool,
    },
}

pub(super) struct Drawn {
    pub(super) table: TableSealed,
    pub(super) positions: Vec<u32>,
}

pub(super) struct Sealed {
    pub(super) results: ResultsSealed,
    pub(super) positions: Vec<u32>,
    pub(super) salt: [u8; 32],
    pub(super) computed: Results,
}

pub(super) struct Opened {
    pub(super) table: TableOpened,
    pub(super) rows: Rows,
    pub(super) positions: Vec<u32>,
    pub(super) salt: [u8; 32],
    pub(super) computed: Results,
}

pub(super) struct Doubt {
    pub(super) evidence: Box<muster_core::messages::evidence::Evidence>,
    pub(super) verdict: Option<Notice>,
    pub(super) q: Option<Arc<Vec<i32>>>,
}

impl Sealed {
    /// The table and its rows, where this opens what was sealed.
    pub(super) fn open(&self, signed: &Signed<TableOpening>, probe: &Probe) -> Result<Opened, Reject> {
        let (table, rows) = self.results.open(signed, probe)?;
        let (positions, salt, computed) = (self.positions.clone(), self.salt, self.computed.clone());
        Ok(Opened { table, rows, positions, salt, computed })
    }
}

impl Case {
    /// The request of an audit that is under way.
    pub(super) fn asked_or_bug(&self) -> Option<&Asked> {
        self.request.as_ref().or_bug("a request of an audit that is under way")
    }

    /// What is doubted, where something is: with the second opinion the audit is over, and has not passed.
    pub(super) fn take_doubt(&mut self) -> Option<Doubt> {
        match std::mem::replace(&mut self.phase, Phase::Over { passed: false }) {
            Phase::Doubted(doubt) => Some(doubt),
            other => {
                self.phase = other;
                None
            }
        }
    }

    /// Leaves and total against the opened table, in the order in which a judge looks; and how far each drawn leaf is
    /// away, in units of the tolerance.
    pub(super) fn finding(&self, probe: &Probe, opened: &Opened, total: &Sketch) -> (Finding, Vec<f64>) {
        let (sketch, loss) = probe.sum(&opened.rows);
        // AUDIT-10 looks at sums first: the verdict must name what a judge will find.
        if loss != self.subject.commit.loss || sketch != *total {
            return (Finding::Guilty(FindingKind::SumMismatch), Vec::new());
        }
        let deviation = |result: &LeafResult| {
            let said = opened.rows.get(result.position as usize);
            said.map_or(f64::INFINITY, |said| probe.deviation(&result.row, said))
        };
        let deviations: Vec<f64> = opened.computed.iter().map(deviation).collect();
        let wrong = deviations.iter().any(|deviation| *deviation > WRONG);
        (if wrong { Finding::Guilty(FindingKind::LeafMismatch) } else { Finding::Pass }, deviations)
    }

    /// Whether it waits for nothing and nobody.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over { .. }) && !self.distrusted && self.owed.is_none()
    }

    /// Says its request once more, on a board that has never seen it; what was recomputed is kept.
    pub(super) fn ask_again(&mut self) {
        if let Some(request) = &self.request {
            self.owed = Some(Notice::Request(request.requested.signed().clone()));
            self.phase = Phase::Asked;
            self.early = None;
            self.withheld = false;
        }
    }
}
