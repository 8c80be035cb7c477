//! One audit: who is asked about what, and how far it has come.

use std::sync::Arc;

use muster_core::audit::steps::{Requested, ResultsSealed, TableOpened, TableSealed};
use muster_core::bug::OrBug;
use muster_core::contribution::PackedContribution;
use muster_core::error::Reject;
use muster_core::ids::Digest;
use muster_core::messages::audit::{Finding, FindingKind, LeafResult, Results, Rows, TableOpening};
use muster_core::messages::wire::Notice;
use muster_core::sign::Signed;
use muster_core::sketch::probe::WRONG;
use muster_core::sketch::{Probe, Sketch};
use tracing::debug;

use super::subject::Subject;
use super::work::{DrawnLeaves, WorkKind};

/// An audit in progress. How far it has come changes here alone: others say what happened.
pub(super) struct Case {
    pub(super) subject: Arc<Subject>,
    /// None: the member is not asked, all its leaves are recomputed.
    request: Option<Asked>,
    phase: Phase,
    /// What the steward has yet to be told.
    owed: Option<Notice>,
    /// An opening that came before this verifier, just restarted, had recomputed what it sealed.
    early: Option<Signed<TableOpening>>,
    /// Leaves that were recomputed for a table with this seal.
    recomputed: Option<(Digest, Results)>,
    /// Whether all leaves are to be recomputed, because the member was silent.
    distrusted: bool,
    /// Whether the committed integers are unavailable, which the steward was told.
    withheld: bool,
}

/// A request.
pub(super) struct Asked {
    pub(super) requested: Arc<Requested>,
    /// What the answer is sketched with.
    pub(super) probe: Arc<Probe>,
}

/// How far an audit has come.
enum Phase {
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
    pub(super) q: Option<Arc<PackedContribution>>,
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
    /// Nobody is asked yet.
    pub(super) fn new(subject: Subject, distrusted: bool) -> Self {
        Self {
            subject: Arc::new(subject),
            request: None,
            phase: Phase::Over { passed: false },
            owed: None,
            early: None,
            recomputed: None,
            distrusted,
            withheld: false,
        }
    }

    /// The request, if its author is asked.
    pub(super) fn asked(&self) -> Option<&Asked> {
        self.request.as_ref()
    }

    /// The request of an audit that is under way.
    pub(super) fn asked_or_bug(&self) -> Option<&Asked> {
        self.asked().or_bug("a request of an audit that is under way")
    }

    /// What the steward has yet to be told.
    pub(super) fn owed(&self) -> Option<&Notice> {
        self.owed.as_ref()
    }

    /// Whether its steps are over, whatever they gave.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Over { .. })
    }

    /// Whether it was found right.
    pub(super) fn has_passed(&self) -> bool {
        matches!(self.phase, Phase::Over { passed: true })
    }

    /// Whether it waits for nothing and nobody.
    pub(super) fn is_over(&self) -> bool {
        self.has_ended() && !self.distrusted && self.owed.is_none()
    }

    /// Whether its author has yet to seal a table.
    pub(super) fn awaits_table(&self) -> bool {
        matches!(self.phase, Phase::Asked)
    }

    /// Whether its author has yet to open one.
    fn awaits_opening(&self) -> bool {
        matches!(self.phase, Phase::Asked | Phase::Drawn(_) | Phase::Sealed(_))
    }

    /// The table, once it is open and until it is compared.
    pub(super) fn opened(&self) -> Option<&Opened> {
        if let Phase::Opened(opened) = &self.phase { Some(opened) } else { None }
    }

    /// What is doubted.
    pub(super) fn doubted(&mut self) -> Option<&mut Doubt> {
        if let Phase::Doubted(doubt) = &mut self.phase { Some(doubt) } else { None }
    }

    /// Whether a second opinion is awaited.
    pub(super) fn is_doubted(&self) -> bool {
        matches!(self.phase, Phase::Doubted(_))
    }

    /// Whether it says, or will say, what all leaves give: that stays, whoever inspects.
    pub(super) fn speaks_of_all_leaves(&self) -> bool {
        let by_leaves = |doubt: &Doubt| matches!(doubt.verdict, Some(Notice::Recomputation(_)));
        matches!(&self.phase, Phase::Doubted(doubt) if by_leaves(doubt))
            || matches!(self.owed, Some(Notice::Recomputation(_)))
    }

    /// What is to be computed: of what it owes, or of what it suspects beyond that. `exact` says that all leaves stand for a
    /// verdict (AUDIT-25), so that somebody waits for them.
    pub(super) fn work(&self, owed: bool, exact: bool) -> Option<WorkKind> {
        let everything = self.distrusted && owed == (exact && !self.has_passed());
        let kind = match &self.phase {
            _ if everything => WorkKind::Everything,
            _ if !owed => return None,
            Phase::Drawn(Drawn { table, positions }) => {
                let (seal, positions) = (table.seal(), positions.clone());
                WorkKind::Leaves(DrawnLeaves { seal, positions, probe: self.request.as_ref()?.probe.clone() })
            }
            // Withheld integers are not looked for again until the steward has them (TOL-12).
            Phase::Opened(_) if !self.withheld && !self.distrusted => WorkKind::Contribution,
            Phase::Doubted(doubt) => WorkKind::SecondOpinion(doubt.evidence.clone(), doubt.q.clone()),
            _ => return None,
        };
        Some(kind)
    }

    /// Its author is asked.
    pub(super) fn ask(&mut self, request: Asked, distrusted: bool) {
        self.request = Some(request);
        self.ask_again();
        self.distrust_if(distrusted);
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

    /// Another verifier has passed it before anybody was asked.
    pub(super) fn ask_nobody(&mut self) {
        (self.request, self.phase) = (None, Phase::Over { passed: false });
    }

    /// The first table is sealed, and has drawn these leaves.
    pub(super) fn draw(&mut self, drawn: Drawn) {
        self.phase = Phase::Drawn(drawn);
    }

    /// The leaves that a table with this seal has drawn were recomputed.
    pub(super) fn leaves_are(&mut self, seal: Digest, results: Results) {
        self.recomputed = Some((seal, results));
    }

    /// The sealed table, with the leaves that it has drawn, recomputed: whichever comes first waits for the other. Leaves that
    /// were recomputed for another table are other leaves.
    pub(super) fn recomputed(&self) -> Option<(&Drawn, &Results)> {
        let (Phase::Drawn(drawn), Some((seal, computed))) = (&self.phase, &self.recomputed) else {
            return None;
        };
        (*seal == drawn.table.seal()).then_some((drawn, computed))
    }

    /// The results are sealed by this notice.
    pub(super) fn seal(&mut self, sealed: Sealed, notice: Notice) {
        self.owed = Some(notice);
        self.phase = Phase::Sealed(sealed);
        if let Some(early) = self.early.take() {
            self.open(&early);
        }
    }

    /// Its author opens the table.
    pub(super) fn open(&mut self, signed: &Signed<TableOpening>) {
        match &self.phase {
            // After a restart the board shows the opening before the leaves are recomputed. It is looked at only once
            // they are sealed: results must not be copied from it.
            Phase::Asked | Phase::Drawn(_) => self.early = Some(signed.clone()),
            Phase::Sealed(sealed) => {
                if let Some(asked) = self.asked_or_bug() {
                    match sealed.open(signed, &asked.probe) {
                        Ok(opened) => (self.phase, self.owed) = (Phase::Opened(opened), None),
                        Err(reject) => {
                            let (round, author) = (self.subject.commit.round, self.subject.author);
                            debug!("round {round}: an opening of {author}: {reject}");
                        }
                    }
                }
            }
            // One opening is enough.
            Phase::Opened(_) | Phase::Doubted(_) | Phase::Over { .. } => {}
        }
    }

    /// The committed integers are unavailable, which this notice says.
    pub(super) fn withhold(&mut self, notice: Notice) {
        (self.withheld, self.owed) = (true, Some(notice));
    }

    /// The steward has the integers that this audit waited for.
    pub(super) fn obtained(&mut self) {
        // Its author was silent by now, and all its leaves were recomputed in vain: once more.
        self.distrusted |= self.withheld && matches!(self.phase, Phase::Over { passed: false });
        self.withheld = false;
    }

    /// It was found right, which this notice says.
    pub(super) fn pass(&mut self, notice: Notice) {
        (self.phase, self.owed) = (Phase::Over { passed: true }, Some(notice));
    }

    /// An earlier process has passed it by a verdict. A suspicion that this process has since is another matter.
    pub(super) fn was_passed(&mut self) {
        self.distrusted &= self.has_passed();
        (self.phase, self.owed) = (Phase::Over { passed: true }, None);
    }

    /// An earlier process has said what all leaves give.
    pub(super) fn was_summed(&mut self, right: bool) {
        if matches!(self.owed, Some(Notice::Recomputation(_))) {
            self.owed = None;
        }
        if right {
            (self.phase, self.distrusted) = (Phase::Over { passed: true }, false);
        }
    }

    /// Something is wrong: nothing is said before a second opinion.
    pub(super) fn doubt(&mut self, doubt: Doubt) {
        self.phase = Phase::Doubted(doubt);
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

    /// Nothing more can be found by its steps.
    pub(super) fn give_up(&mut self) {
        self.phase = Phase::Over { passed: false };
    }

    /// The second opinion agrees: this is said, where it is a word at all.
    pub(super) fn convict(&mut self, word: Option<Notice>) {
        self.owed = word;
    }

    /// Says a word again that the steward did not take, unless another one is due.
    pub(super) fn owe_again(&mut self, notice: Notice) {
        self.owed.get_or_insert(notice);
    }

    /// The steward was told this.
    pub(super) fn was_told(&mut self, notice: &Notice) {
        if self.owed.as_ref() == Some(notice) {
            self.owed = None;
        }
    }

    /// All leaves are to be recomputed.
    pub(super) fn distrust_if(&mut self, why: bool) {
        self.distrusted |= why;
    }

    /// All leaves were recomputed, or cannot be.
    pub(super) fn trust(&mut self) {
        self.distrusted = false;
    }

    /// Its author did not answer in time.
    pub(super) fn is_unanswered(&mut self) {
        self.distrusted = !self.has_passed() && !self.is_doubted();
    }

    /// Its author answers nothing any more.
    pub(super) fn is_abandoned(&mut self) {
        self.distrust_if(self.awaits_opening());
    }

    /// Its author was expelled.
    pub(super) fn is_settled(&mut self) {
        (self.owed, self.distrusted) = (None, false);
        self.end();
    }

    /// It is another verifier's. An audit that is void convicts nobody; all leaves may, where they stand for a verdict.
    pub(super) fn hand_over(&mut self, exact: bool) {
        let wrong = self.is_doubted() || self.has_ended() && matches!(self.owed, Some(Notice::Verdict(_)));
        (self.request, self.owed, self.distrusted) = (None, None, exact && wrong);
        self.end();
    }

    fn end(&mut self) {
        if !self.has_ended() {
            self.give_up();
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
}
