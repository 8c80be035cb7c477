//! A hearing: one accusation, examined until somebody is found to be wrong or nobody is.
//!
//! In `exact` something is fetched only where messages and leaves do not decide without it, and every guilty verdict ends
//! with the guilt of the member or of the verifier, as long as the state is kept: where the integers are unavailable,
//! all leaves decide (DUTY-10).

use muster_core::audit::Judgement;
use muster_core::bug::OrBug;
use muster_core::ids::RunId;
use muster_core::messages::audit::{Finding, FindingKind};
use muster_core::messages::evidence::{Evidence, FalseVerdict, Total, Transcript};
use muster_core::messages::record::Record;
use muster_core::sign::Signed;

/// What is to be examined.
#[derive(Clone)]
pub struct Matter {
    /// The evidence that was brought.
    pub evidence: Evidence,
    /// The run.
    pub run: RunId,
    /// Whether leaves have one result on every machine.
    pub exact: bool,
    /// The record that admitted the verifier of a transcript, by which it is judged itself (DUTY-9).
    pub admit: Option<Signed<Record>>,
    /// Whether the integers were asked for in vain before: in `exact` they are not asked for again.
    pub withheld: bool,
    /// Whether the author of the contribution is banned: then it is an exhibit, or about to be.
    pub expelled: bool,
}

/// The outcome of a hearing.
#[derive(Clone)]
pub struct Ruling {
    /// What the judgement is about, and a ban rests on. It need not be what was brought.
    pub evidence: Evidence,
    /// Who is wrong.
    pub judgement: Judgement,
    /// The contribution, where it was at hand.
    pub q: Option<Vec<i32>>,
    /// Whether the contribution was asked for in vain.
    pub withheld: bool,
    /// Whether what was brought is undecided all the same, and examined again.
    pub open: bool,
}

impl Ruling {
    /// One that needed no contribution.
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
    /// Once and soon or not at all: all leaves can stand for it, so that who stalls holds up nobody.
    Soon,
    /// A few times: where there is a tolerance, and of parts, nothing stands for it.
    Long,
}

/// What a hearing needs done: evidence fetched and re-executed.
pub trait Bench {
    /// Why this machine cannot judge at all.
    type Failure;

    /// Fetches what the matter's evidence wants; whether that is at hand then. Nothing may be wanted.
    fn bring(&mut self, patience: Patience) -> bool;

    /// Re-executes evidence by what is at hand.
    ///
    /// # Errors
    /// When two code paths of this machine do not agree on whom a ban for life would fall (AUDIT-12).
    fn judge(&mut self, evidence: &Evidence) -> Result<Judgement, Self::Failure>;

    /// The contribution that is at hand.
    fn contribution(&self) -> Option<Vec<i32>>;

    /// AUDIT-24: what a wrong part was to be made of is kept for good beside the evidence. Its authors may be convicts, or
    /// have committed to what nobody can recompute, and it need not have counted: another one may have reduced the part
    /// instead.
    ///
    /// # Errors
    /// What the disk reports.
    fn keep_inputs(&mut self) -> Result<(), Self::Failure>;
}

/// Examines a matter, with what it wants if that can be had.
///
/// # Errors
/// As [`Bench::judge`] and [`Bench::keep_inputs`].
pub fn hear<B: Bench>(matter: &Matter, bench: &mut B) -> Result<Ruling, B::Failure> {
    let mut hearing = Hearing { matter, bench, withheld: false };
    // In `exact` leaves decide without Q: a member that shows Q only to verifiers would otherwise be found every time
    // and never banned.
    match &matter.evidence {
        Evidence::Audit(transcript) if matter.exact => hearing.transcript(transcript),
        Evidence::Verdict(verdict) if matter.exact => hearing.verdict(verdict),
        evidence => {
            hearing.bench.bring(Patience::Long);
            let ruling = hearing.ruling(evidence.clone())?;
            // AUDIT-24: before the ban is proposed. Another aggregator may reduce the part, and then these inputs count
            // nowhere.
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
    /// In `exact`: the member by its transcript; if it was right, the verifier. The integers are asked for where they alone
    /// tell a false sum from a false table, and not waited for: without them all leaves decide (AUDIT-10).
    fn transcript(&mut self, transcript: &Transcript) -> Result<Ruling, B::Failure> {
        let verdict = transcript.verdict.verify(self.matter.run);
        if verdict.is_ok_and(|verdict| verdict.finding == Finding::Guilty(FindingKind::SumMismatch)) {
            self.bring_soon();
        }
        let ruling = self.ruling(Evidence::Audit(transcript.clone()))?;
        let right = matches!(ruling.judgement, Judgement::NotGuilty(_));
        if right { self.doubt(transcript, ruling) } else { Ok(ruling) }
    }

    /// In `exact`: a verifier by its verdict; and the member, where that is why the verifier is not guilty, or cannot be shown
    /// to be. The integers are asked for where leaves do not decide: they tell whether it let a false sum pass.
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

    /// The member by all of its leaves, where these convict it: a verdict may be true for another reason than it gives.
    fn member_or(&mut self, transcript: &Transcript, otherwise: Ruling) -> Result<Ruling, B::Failure> {
        let request =
            transcript.request.verify(self.matter.run).or_bug("a transcript that was checked before");
        let Some(request) = request else { return Ok(otherwise) };
        // All leaves first: they need nothing that a member can withhold.
        let total = Total { freeze: transcript.freeze.clone(), culprit: request.target };
        let ruling = self.ruling(Evidence::Total(total))?;
        if ruling.is_guilty() {
            return Ok(ruling);
        }
        let ruling = self.ruling(Evidence::Audit(transcript.clone()))?;
        Ok(if ruling.is_guilty() { ruling } else { otherwise })
    }

    /// What a verifier found guilty is not, by the transcript: perhaps the verdict is false (DUTY-9).
    fn doubt(&mut self, transcript: &Transcript, found: Ruling) -> Result<Ruling, B::Failure> {
        // Without its admission nobody knows which coins the verifier has registered.
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
        // Millions of integers: only a ban keeps them.
        let q = if is_guilty(&judgement) { self.bench.contribution() } else { None };
        let open = matches!(judgement, Judgement::Undecided(_));
        Ok(Ruling { evidence, judgement, q, withheld: self.withheld, open })
    }

    fn bring_soon(&mut self) {
        // A member that withheld its integers once would make the court wait at each of its cases. A convict's may be
        // here as an exhibit.
        if !self.matter.withheld || self.matter.expelled {
            self.withheld = !self.bench.bring(Patience::Soon);
        }
    }
}
