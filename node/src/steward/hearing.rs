//! A hearing: one accusation, examined until somebody is found to be wrong or nobody is.
//!
//! What is fetched is fetched before the arithmetic is asked for, and in `exact` only where messages and leaves do not
//! decide without it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use muster_compute::{Backend, Machine};
use muster_core::audit::{Judgement, judge, judge_reduction};
use muster_core::ids::{Block, MemberId, Round};
use muster_core::manifest::Profile;
use muster_core::messages::audit::{Finding, FindingKind};
use muster_core::messages::evidence::{Evidence, FalseVerdict, Total, Transcript};
use muster_core::messages::record::Record;
use muster_core::sign::Signed;
use muster_replica::{Brought, Exhibited, patience};
use tokio::sync::SemaphorePermit;

use super::court::{Court, Wants};
use crate::exit::{Failure, Outcome};

/// Tries to fetch what evidence needs before it is judged without it, where nothing else stands for that.
const TRIES: u32 = 3;
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(700);
/// For all of them: evidence of somebody who stalls must not keep the next from being examined.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What is to be examined.
pub(super) struct Matter {
    pub(super) evidence: Evidence,
    pub(super) wants: Wants,
    /// The record that admitted the verifier of a transcript, by which it is judged itself (DUTY-9).
    pub(super) admit: Option<Signed<Record>>,
    /// Whether the integers were asked for in vain before: in `exact` they are not asked for again.
    pub(super) withheld: bool,
    /// Whether the author of the contribution is banned: then it is an exhibit, or about to be.
    pub(super) expelled: bool,
    /// How long what it wants is waited for.
    pub(super) patience: Duration,
}

/// What came of it.
pub(super) struct Ruling {
    /// What the judgement is about, and a ban rests on. It need not be what was brought.
    pub(super) evidence: Evidence,
    pub(super) judgement: Judgement,
    /// The contribution, where it was at hand.
    pub(super) q: Option<Vec<i32>>,
    /// Whether the contribution was asked for in vain.
    pub(super) withheld: bool,
    /// Whether what was brought is undecided all the same, and examined again.
    pub(super) open: bool,
}

impl Ruling {
    /// One that needed no contribution.
    pub(super) fn plain(evidence: Evidence, judgement: Judgement) -> Self {
        Self { evidence, judgement, q: None, withheld: false, open: false }
    }

    /// Whether somebody is guilty.
    pub(super) fn is_guilty(&self) -> bool {
        is_guilty(&self.judgement)
    }
}

fn is_guilty(judgement: &Judgement) -> bool {
    matches!(judgement, Judgement::Guilty { .. })
}

/// Another code path for leaves, made when the first ban for life depends on it.
pub(super) struct Second {
    machine: Machine,
    made: Mutex<Option<Box<dyn Backend>>>,
}

impl Second {
    /// Of this machine.
    pub(super) fn new(machine: Machine) -> Self {
        Self { machine, made: Mutex::new(None) }
    }

    fn judge(&self, court: &Court, evidence: &Evidence, brought: Brought) -> Outcome<Judgement> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let second = match &mut *made {
            Some(second) => second,
            none => {
                let broken = |misuse: muster_core::error::Misuse| Failure::environment(misuse.to_string());
                let mut second = self.machine.second(court.manifest.profile).map_err(broken)?;
                second.self_test().map_err(broken)?;
                none.insert(second)
            }
        };
        Ok(judge(&court.manifest, evidence, &mut court.witness(evidence, brought), &mut **second))
    }
}

impl Court {
    /// Re-executes evidence, with what it wants if that can be had.
    ///
    /// In `exact` every guilty verdict ends here with the guilt of the member or of the verifier, as long as the state is
    /// kept: where the integers are not to be had, all leaves decide (DUTY-10).
    ///
    /// # Errors
    /// [`Failure`] when two code paths of this machine do not agree on whom a ban for life would fall (AUDIT-12).
    pub(super) async fn hear(self: Arc<Self>, matter: Matter) -> Outcome<Ruling> {
        let exact = self.manifest.profile == Profile::Exact;
        let (brought, withheld) = Default::default();
        let mut hearing = Hearing { court: &self, matter: &matter, brought, withheld, permit: None };
        match &matter.evidence {
            Evidence::Audit(transcript) if exact => hearing.transcript(transcript).await,
            Evidence::Verdict(verdict) if exact => hearing.verdict(verdict).await,
            evidence => {
                hearing.bring_patiently().await;
                let ruling = hearing.ruling(evidence.clone()).await?;
                if ruling.is_guilty() {
                    hearing.keep_inputs().await?;
                }
                match evidence {
                    Evidence::Audit(transcript) if !ruling.is_guilty() => {
                        hearing.doubt(transcript, ruling).await
                    }
                    _ => Ok(ruling),
                }
            }
        }
    }

    /// Reduces a part again, as [`Court::hear`] does, from inputs that come in this time.
    ///
    /// # Errors
    /// As by [`Court::hear`].
    pub(super) async fn examine_part(
        self: Arc<Self>,
        evidence: Evidence,
        wants: Wants,
        patience: Duration,
    ) -> Outcome<Judgement> {
        let (admit, withheld, expelled) = (None, false, false);
        let matter = Matter { evidence, wants, admit, withheld, expelled, patience };
        Ok(self.hear(matter).await?.judgement)
    }

    /// Judges on the first code path, and where a ban for life would follow from leaves in `exact`, on the second one too.
    fn judge_twice(&self, evidence: &Evidence, brought: &Brought) -> Outcome<Judgement> {
        let judgement = self.judge(evidence, brought.clone());
        let exact = self.manifest.profile == Profile::Exact;
        let Judgement::Guilty { culprit, round, finding, .. } = &judgement else { return Ok(judgement) };
        // AUDIT-12: what messages decide needs no arithmetic, and where there is a tolerance a jury judges.
        if !exact || !finding.needs_jury() {
            return Ok(judgement);
        }
        match self.second.judge(self, evidence, brought.clone())? {
            Judgement::Guilty { culprit: other, finding: also, .. }
                if other == *culprit && also == *finding =>
            {
                Ok(judgement)
            }
            other => Err(differ(*round, culprit, *finding, &other)),
        }
    }

    fn judge(&self, evidence: &Evidence, brought: Brought) -> Judgement {
        // The rule's arithmetic is its own; a round may be waiting for this.
        if let Evidence::Aggregation(part) = evidence {
            return judge_reduction(&self.manifest, part, &mut self.witness(evidence, brought));
        }
        let mut arithmetic = self.arithmetic.lock().unwrap_or_else(PoisonError::into_inner);
        judge(&self.manifest, evidence, &mut self.witness(evidence, brought), &mut **arithmetic)
    }

    fn witness(&self, evidence: &Evidence, brought: Brought) -> Exhibited {
        Exhibited::new(self.states(evidence), self.dataset.clone(), &self.manifest, brought)
    }
}

fn differ(round: Round, culprit: &MemberId, finding: FindingKind, other: &Judgement) -> Failure {
    let words = finding.words();
    Failure::environment(format!(
        "round {round}: one code path finds {culprit} guilty of a {words}, another one does not ({other:?}): this machine \
         computes wrongly, and nobody is banned; test its memory and processor, or host the run's folder on another machine"
    ))
}

/// A matter with what was brought for it.
struct Hearing<'a> {
    court: &'a Arc<Court>,
    matter: &'a Matter,
    brought: Brought,
    withheld: bool,
    /// Held while a contribution is in memory.
    permit: Option<SemaphorePermit<'a>>,
}

impl Hearing<'_> {
    /// In `exact`: the member by its transcript; if it was right, the verifier. The integers are asked for where they alone
    /// tell a false sum from a false table, and not waited for: without them all leaves decide (AUDIT-10).
    async fn transcript(&mut self, transcript: &Transcript) -> Outcome<Ruling> {
        let verdict = transcript.verdict.verify(self.court.manifest.run());
        if verdict.is_ok_and(|verdict| verdict.finding == Finding::Guilty(FindingKind::SumMismatch)) {
            self.bring_soon().await;
        }
        let ruling = self.ruling(Evidence::Audit(transcript.clone())).await?;
        let right = matches!(ruling.judgement, Judgement::NotGuilty(_));
        if right { self.doubt(transcript, ruling).await } else { Ok(ruling) }
    }

    /// In `exact`: a verifier by its verdict; and the member, where that is why the verifier is not guilty, or cannot be shown
    /// to be. The integers are asked for where leaves do not decide: they tell whether it let a false sum pass.
    async fn verdict(&mut self, verdict: &FalseVerdict) -> Outcome<Ruling> {
        let mut ruling = self.ruling(self.matter.evidence.clone()).await?;
        if matches!(ruling.judgement, Judgement::Undecided(_)) {
            self.bring_soon().await;
            ruling = self.ruling(self.matter.evidence.clone()).await?;
        }
        if ruling.is_guilty() || matches!(ruling.judgement, Judgement::Malformed(_)) || self.matter.expelled {
            return Ok(ruling);
        }
        let open = ruling.open;
        Ok(Ruling { open, ..self.member_or(&verdict.transcript, ruling).await? })
    }

    /// The member by all of its leaves, where these convict it: a verdict may be true for another reason than it gives.
    async fn member_or(&mut self, transcript: &Transcript, otherwise: Ruling) -> Outcome<Ruling> {
        let Ok(request) = transcript.request.verify(self.court.manifest.run()) else { return Ok(otherwise) };
        let total = Total { freeze: transcript.freeze.clone(), culprit: request.target };
        let ruling = self.ruling(Evidence::Total(total)).await?;
        if ruling.is_guilty() {
            return Ok(ruling);
        }
        let ruling = self.ruling(Evidence::Audit(transcript.clone())).await?;
        Ok(if ruling.is_guilty() { ruling } else { otherwise })
    }

    /// What a verifier found guilty is not, by the transcript: perhaps the verdict is false (DUTY-9).
    async fn doubt(&mut self, transcript: &Transcript, found: Ruling) -> Outcome<Ruling> {
        let Some(admit) = self.matter.admit.clone() else { return Ok(found) };
        let accused = FalseVerdict { admit, transcript: transcript.clone() };
        let ruling = self.ruling(Evidence::Verdict(accused)).await?;
        if ruling.is_guilty() || self.court.manifest.profile != Profile::Exact {
            return Ok(if ruling.is_guilty() { ruling } else { found });
        }
        self.member_or(transcript, found).await
    }

    /// Judges evidence by what is at hand, beside the runtime.
    async fn ruling(&self, evidence: Evidence) -> Outcome<Ruling> {
        let (court, brought, judged) = (self.court.clone(), self.brought.clone(), evidence.clone());
        let task = tokio::task::spawn_blocking(move || court.judge_twice(&judged, &brought));
        let undecided = |error| Ok(Judgement::Undecided(format!("the examination failed: {error}")));
        let judgement = task.await.unwrap_or_else(undecided)?;
        let q = self.brought.contributions.values().next().filter(|_| is_guilty(&judgement)).cloned();
        let open = matches!(judgement, Judgement::Undecided(_));
        Ok(Ruling { evidence, judgement, q, withheld: self.withheld, open })
    }

    /// Fetches the contribution, once and soon or not at all: all leaves can stand for it, so that who stalls holds up nobody.
    async fn bring_soon(&mut self) {
        if self.matter.withheld && !self.matter.expelled {
            return;
        }
        self.hold().await;
        let blocks: Vec<_> = (0..self.court.layout.blocks().len() as u32).map(Block).collect();
        let limit = patience(&self.court.layout, &blocks);
        let name = self.matter.evidence.digest();
        match tokio::time::timeout(limit, self.court.bring(&self.matter.wants)).await {
            Ok(Ok(found)) => self.brought = found,
            Ok(Err(why)) => tracing::debug!("evidence {name} wants more: {why}"),
            Err(_) => tracing::debug!("evidence {name} wants more: nobody showed it in time"),
        }
        self.withheld = self.brought.contributions.is_empty();
    }

    /// What is wanted, or nothing after a few tries: where there is a tolerance, and of parts, nothing stands for it.
    async fn bring_patiently(&mut self) {
        match self.matter.wants {
            Wants::Nothing => return,
            Wants::Contribution(_) => self.hold().await,
            // A round may be waiting for it.
            Wants::Part(_) => {}
        }
        let found = tokio::time::timeout(self.matter.patience, async {
            for _ in 0..TRIES {
                match self.court.bring(&self.matter.wants).await {
                    Ok(found) => return found,
                    Err(why) => {
                        tracing::debug!("evidence {} wants more: {why}", self.matter.evidence.digest())
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
            Brought::default()
        });
        self.brought = found.await.unwrap_or_default();
    }

    /// AUDIT-24: what a wrong part was to be made of is kept for good beside the evidence. Its authors may be convicts, or have
    /// committed to what nobody can recompute, and it need not have counted: another one may have reduced the part instead.
    async fn keep_inputs(&self) -> Outcome<()> {
        let Wants::Part(inputs) = &self.matter.wants else { return Ok(()) };
        let (court, part) = (self.court.clone(), (inputs.view.round(), inputs.part));
        let blocks = self.brought.blocks.clone();
        let kept = tokio::task::spawn_blocking(move || court.exhibit_inputs(part, blocks)).await;
        Ok(kept.map_err(|error| Failure::environment(error.to_string()))??)
    }

    /// Waits until another contribution may be in memory.
    async fn hold(&mut self) {
        if self.permit.is_none() {
            // It is never closed; without it, only memory is at stake.
            self.permit = self.court.hoard.acquire().await.ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_compute::{Exact, Spent};
    use muster_core::audit::recompute_sum;
    use muster_core::codec::List;
    use muster_core::contribution::Commitment;
    use muster_core::ids::{Height, Slot};
    use muster_core::manifest::Manifest;
    use muster_core::messages::record::{Body, Freeze};
    use muster_core::messages::round::Commit;
    use muster_core::sign::Identity;
    use muster_core::state::{Arithmetic, LeafJob, State, Update};

    use super::*;
    use crate::exit::Exit;
    use crate::steward::retro::tests::{TINY, court};

    /// A processor that computes one coefficient of each leaf wrongly, every time.
    struct Faulty(Exact);

    impl Arithmetic for Faulty {
        fn initial(&mut self, manifest: &Manifest, calibration: &[Vec<u32>]) -> State {
            self.0.initial(manifest, calibration)
        }

        fn leaf(&mut self, manifest: &Manifest, job: &LeafJob<'_>, q: &mut [i32]) -> i64 {
            let loss = self.0.leaf(manifest, job, q);
            q[0] += 1;
            loss
        }

        fn apply(&mut self, manifest: &Manifest, state: &mut State, update: &Update) {
            self.0.apply(manifest, state, update);
        }

        fn evaluate(&mut self, manifest: &Manifest, state: &State, windows: &[Vec<u32>]) -> f64 {
            self.0.evaluate(manifest, state, windows)
        }
    }

    impl Backend for Faulty {
        fn gradient(&mut self, manifest: &Manifest, job: &LeafJob<'_>) -> &[f32] {
            self.0.gradient(manifest, job)
        }

        fn spent(&self) -> Spent {
            self.0.spent()
        }

        fn self_test(&mut self) -> Result<(), muster_core::error::Misuse> {
            Ok(())
        }

        fn describe(&self) -> String {
            "a faulty processor".into()
        }
    }

    /// The contribution of a member to the first round, right or not, said to be wrong.
    fn accused(court: &Court, steward: &Identity, right: bool) -> Evidence {
        let member = Identity::from_secret(&[9; 32]);
        let manifest = &court.manifest;
        let (state, kept) = court.replica.lock().unwrap().snapshot();
        let mut commit = Commit {
            round: Round(0),
            head: Default::default(),
            state,
            slot: Slot(1),
            seats: 2,
            leaves: 2,
            profile: manifest.profile,
            loss: 0,
            root: Default::default(),
        };
        let nothing = Brought::default();
        let mut text = Exhibited::new(Vec::new(), court.dataset.clone(), manifest, nothing);
        let mut exact = Exact::new(1, None).unwrap();
        let mut sum = recompute_sum(manifest, &commit, &kept, &mut text, &mut exact).unwrap();
        sum.q[7] += i32::from(!right);
        (commit.loss, commit.root) = (sum.loss, Commitment::new(&court.layout, &sum.q).root());
        let commits = List::new(vec![member.sign(manifest.run(), &commit)]).unwrap();
        let body = Body::Freeze(Freeze { round: Round(0), state, commits });
        let record = Record { height: Height(3), previous: Default::default(), body };
        let freeze = steward.sign(manifest.run(), &record);
        Evidence::Total(Total { freeze, culprit: member.id() })
    }

    async fn heard(court: Court, evidence: Evidence) -> Outcome<Judgement> {
        let matter = Matter {
            evidence,
            wants: Wants::Nothing,
            admit: None,
            withheld: false,
            expelled: false,
            patience: PATIENCE,
        };
        Ok(Arc::new(court).hear(matter).await?.judgement)
    }

    #[tokio::test]
    async fn audit_12_two_code_paths_agree_before_a_ban_for_life() {
        let folder = tempfile::tempdir().unwrap();
        let (good, steward) = court(&folder.path().join("good"), TINY);
        let evidence = accused(&good, &steward, false);
        let judgement = heard(good, evidence).await.unwrap();
        assert!(matches!(judgement, Judgement::Guilty { .. }), "{judgement:?}");
        let (good, steward) = court(&folder.path().join("right"), TINY);
        let evidence = accused(&good, &steward, true);
        let judgement = heard(good, evidence).await.unwrap();
        assert!(matches!(judgement, Judgement::NotGuilty(_)), "{judgement:?}");
    }

    #[tokio::test]
    async fn audit_12_a_steward_that_computes_wrongly_bans_nobody_and_stops() {
        let folder = tempfile::tempdir().unwrap();
        let (mut faulty, steward) = court(folder.path(), TINY);
        let evidence = accused(&faulty, &steward, true);
        faulty.arithmetic = Arc::new(Mutex::new(Box::new(Faulty(Exact::new(1, None).unwrap()))));
        let failure = heard(faulty, evidence).await.unwrap_err();
        assert_eq!(failure.exit, Exit::Environment);
        assert!(failure.message.contains("computes wrongly, and nobody is banned"), "{failure}");
    }
}
