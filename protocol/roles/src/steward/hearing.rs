//! A hearing: the examination of one accusation, until somebody is found guilty or nobody is.
//!
//! In `exact` a hearing fetches something only where messages and leaves do not decide. Every guilty verdict
//! then ends with the guilt of the member or of the verifier, as long as the state is kept: where the
//! integers are unavailable, all leaves decide (DUTY-10).

use muster_core::audit::Judgement;
use muster_core::bug::OrBug;
use muster_core::ids::RunId;
use muster_core::messages::audit::{Finding, FindingKind};
use muster_core::messages::evidence::{Evidence, FalseVerdict, Total, Transcript};
use muster_core::messages::record::Record;
use muster_core::sign::Signed;

/// The matter of a hearing.
#[derive(Clone)]
pub struct Matter {
    /// The evidence that was brought.
    pub evidence: Evidence,
    /// The run.
    pub run: RunId,
    /// Whether leaves have one result on every machine.
    pub exact: bool,
    /// The record that admitted the verifier of a transcript: its coins judge the verifier itself (DUTY-9).
    pub admit: Option<Signed<Record>>,
    /// Whether the integers were unavailable before: in `exact` they are not asked for again.
    pub withheld: bool,
    /// Whether the author of the contribution is banned: then the contribution is an exhibit, or about to be.
    pub expelled: bool,
}

/// The outcome of a hearing.
#[derive(Clone)]
pub struct Ruling {
    /// The evidence that the judgement is about, and that a ban rests on. It need not be the evidence that
    /// was brought.
    pub evidence: Evidence,
    /// Who is wrong.
    pub judgement: Judgement,
    /// The contribution, where it was at hand.
    pub q: Option<Vec<i32>>,
    /// Whether the contribution was asked for and unavailable.
    pub withheld: bool,
    /// Whether the evidence that was brought is undecided all the same, and examined again.
    pub open: bool,
}

impl Ruling {
    /// A ruling that needed no contribution.
    pub fn plain(evidence: Evidence, judgement: Judgement) -> Self {
        Self { evidence, judgement, q: None, withheld: false, open: false }
    }

    /// Whether somebody is guilty.
    pub fn is_guilty(&self) -> bool {
        is_guilty(&self.judgement)
    }
}

fn is_guilty(judgement: &Judgement) -> bool {
    matches!(judgement, Judgement::Guilty { .. })
}

/// For how long something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Once, and soon or not at all: all leaves can replace the answer, so that a member that stalls holds up
    /// nobody.
    Soon,
    /// A few times: nothing replaces contributions with a tolerance, or the inputs of a part.
    Long,
}

/// The bench fetches what a hearing needs, and re-executes evidence.
pub trait Bench {
    /// Why this machine cannot judge at all.
    type Failure;

    /// Fetches what the matter's evidence needs, which may be nothing. Returns whether everything is at hand.
    fn bring(&mut self, patience: Patience) -> bool;

    /// Re-executes evidence by what is at hand.
    ///
    /// # Errors
    /// When two code paths of this machine disagree about whom to ban (AUDIT-12).
    fn judge(&mut self, evidence: &Evidence) -> Result<Judgement, Self::Failure>;

    /// The contribution that is at hand.
    fn contribution(&self) -> Option<Vec<i32>>;

    /// AUDIT-24: keeps the inputs of a wrong part for good beside the evidence. Their authors may be
    /// convicts, or may have committed to something that nobody can recompute. The inputs need not have
    /// counted: another aggregator may have reduced the part instead.
    ///
    /// # Errors
    /// Errors of the disk.
    fn keep_inputs(&mut self) -> Result<(), Self::Failure>;
}

/// Examines a matter, with the contribution and inputs that are available.
///
/// # Errors
/// As [`Bench::judge`] and [`Bench::keep_inputs`].
pub fn hear<B: Bench>(matter: &Matter, bench: &mut B) -> Result<Ruling, B::Failure> {
    let mut hearing = Hearing { matter, bench, withheld: false };
    // In `exact` leaves decide without Q: a member that shows Q only to verifiers would otherwise be found
    // guilty every time and never banned.
    match &matter.evidence {
        Evidence::Audit(transcript) if matter.exact => hearing.transcript(transcript),
        Evidence::Verdict(verdict) if matter.exact => hearing.verdict(verdict),
        evidence => {
            hearing.bench.bring(Patience::Long);
            let ruling = hearing.ruling(evidence.clone())?;
            // AUDIT-24: kept before the ban is proposed. Once another aggregator has reduced the part, these
            // inputs count nowhere and nobody may have them.
            if ruling.is_guilty() {
                hearing.bench.keep_inputs()?;
            }
            match evidence {
                Evidence::Audit(transcript) if !ruling.is_guilty() => hearing.doubt(transcript, ruling),
                _ => Ok(ruling),
            }
        }
    }
}

struct Hearing<'a, B: Bench> {
    matter: &'a Matter,
    bench: &'a mut B,
    withheld: bool,
}

impl<B: Bench> Hearing<'_, B> {
    /// In `exact`: judges the member by the transcript; if the member was right, the verifier. The integers
    /// are asked for where they alone tell a false sum from a false table. They are not waited for: without
    /// them all leaves decide (AUDIT-10).
    fn transcript(&mut self, transcript: &Transcript) -> Result<Ruling, B::Failure> {
        let verdict = transcript.verdict.verify(self.matter.run);
        if verdict.is_ok_and(|verdict| verdict.finding == Finding::Guilty(FindingKind::SumMismatch)) {
            self.bring_soon();
        }
        let ruling = self.ruling(Evidence::Audit(transcript.clone()))?;
        let right = matches!(ruling.judgement, Judgement::NotGuilty(_));
        if right { self.doubt(transcript, ruling) } else { Ok(ruling) }
    }

    /// In `exact`: judges a verifier by its verdict; then the member, if the verifier is not shown to be
    /// guilty. The integers are asked for where leaves do not decide: they tell whether the verifier let a
    /// false sum pass.
    fn verdict(&mut self, verdict: &FalseVerdict) -> Result<Ruling, B::Failure> {
        let mut ruling = self.ruling(self.matter.evidence.clone())?;
        if matches!(ruling.judgement, Judgement::Undecided(_)) {
            self.bring_soon();
            ruling = self.ruling(self.matter.evidence.clone())?;
        }
        if ruling.is_guilty() || matches!(ruling.judgement, Judgement::Malformed(_)) || self.matter.expelled {
            return Ok(ruling);
        }
        let open = ruling.open;
        Ok(Ruling { open, ..self.member_or(&verdict.transcript, ruling)? })
    }

    /// Judges the member by all of its leaves, then by the transcript: a verdict may be true for another
    /// reason than it gives. Returns `otherwise` where neither convicts it.
    fn member_or(&mut self, transcript: &Transcript, otherwise: Ruling) -> Result<Ruling, B::Failure> {
        let request =
            transcript.request.verify(self.matter.run).or_bug("a transcript that was checked before");
        let Some(request) = request else { return Ok(otherwise) };
        // All leaves go first: they need nothing that a member can withhold.
        let total = Total { freeze: transcript.freeze.clone(), culprit: request.target };
        let ruling = self.ruling(Evidence::Total(total))?;
        if ruling.is_guilty() {
            return Ok(ruling);
        }
        let ruling = self.ruling(Evidence::Audit(transcript.clone()))?;
        Ok(if ruling.is_guilty() { ruling } else { otherwise })
    }

    /// The transcript does not convict the member that a verifier found guilty: perhaps the verdict is false
    /// (DUTY-9).
    fn doubt(&mut self, transcript: &Transcript, found: Ruling) -> Result<Ruling, B::Failure> {
        // Without its admission the verifier's coins are unknown.
        let Some(admit) = self.matter.admit.clone() else { return Ok(found) };
        let accused = FalseVerdict { admit, transcript: transcript.clone() };
        let ruling = self.ruling(Evidence::Verdict(accused))?;
        if ruling.is_guilty() || !self.matter.exact {
            return Ok(if ruling.is_guilty() { ruling } else { found });
        }
        self.member_or(transcript, found)
    }

    /// Judges evidence by what is at hand.
    fn ruling(&mut self, evidence: Evidence) -> Result<Ruling, B::Failure> {
        let judgement = self.bench.judge(&evidence)?;
        // These are millions of integers: only a ban keeps them.
        let q = if is_guilty(&judgement) { self.bench.contribution() } else { None };
        let open = matches!(judgement, Judgement::Undecided(_));
        Ok(Ruling { evidence, judgement, q, withheld: self.withheld, open })
    }

    fn bring_soon(&mut self) {
        // A member that withheld its integers once would make the court wait in each of its cases. The
        // integers of a convict may be here as an exhibit.
        if !self.matter.withheld || self.matter.expelled {
            self.withheld = !self.bench.bring(Patience::Soon);
        }
    }
}
