//! Trials before a jury, where leaves have a tolerance: drawn verifiers re-execute the evidence before
//! anybody is banned.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::bug::OrBug;
use muster_core::coins::majority;
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::{Ledger, Standing};
use muster_core::messages::audit::{FindingKind, Jury, Opinion};
use muster_core::sign::Signed;

/// The finding of the steward's own examination.
#[derive(Clone, Debug)]
pub(super) struct Conviction {
    pub(super) culprit: MemberId,
    /// The author of the contribution.
    pub(super) subject: MemberId,
    pub(super) round: Round,
    pub(super) finding: FindingKind,
    pub(super) evidence: Digest,
    pub(super) accuser: MemberId,
    /// The figures, for people.
    pub(super) detail: String,
}

/// How a trial ends.
pub(super) enum Settled {
    /// The jurors convict, by these opinions.
    Convicted(Conviction, Jury),
    /// The jurors do not convict, and why.
    Dismissed(Conviction, String),
}

/// Open trials, by evidence.
#[derive(Default)]
pub(super) struct Trials(BTreeMap<Digest, Trial>);

impl Trials {
    /// Opens a trial.
    pub(super) fn open(&mut self, found: Conviction) {
        self.0.insert(found.evidence, Trial::new(found));
    }

    /// Takes the opinion of a juror.
    ///
    /// # Errors
    /// [`Reject`] where no such trial is open, or its author may not judge it, or has judged it before.
    pub(super) fn opinion(&mut self, ledger: &Ledger, signed: &Signed<Opinion>) -> Result<(), Reject> {
        let opinion = signed.verify(ledger.run())?;
        let trial = self.0.get_mut(&opinion.evidence).ok_or(Reject::Stale("no such case is open"))?;
        let Conviction { round, culprit, accuser, .. } = trial.found;
        // Keep opinions of inspectors that may replace a juror; they count once they do.
        let inspects = ledger.round(round).is_some_and(|view| view.inspectors().contains(&opinion.author()));
        if !inspects || [culprit, accuser].contains(&opinion.author()) {
            return Err(Reject::NotEntitled("judge this: it is not drawn"));
        }
        // A Ban holds one opinion of each juror (LEDGER-22).
        if trial.opinions.contains_key(&opinion.author()) {
            return Err(Reject::Rule("a juror has one word"));
        }
        trial.opinions.insert(opinion.author(), (opinion.guilty, signed.clone()));
        Ok(())
    }

    /// Counts the opinions of the present jurors: once a juror is gone, the others may have decided. Without
    /// any juror the steward's own finding stands.
    ///
    /// A trial that convicts stays open until its ban is sealed. The ledger refuses a ban whose jury has
    /// changed since it was proposed; the next turn proposes it once more.
    pub(super) fn settle(&mut self, ledger: &Ledger) -> Vec<Settled> {
        self.drop_moot(ledger);
        let decide = |trial: &Trial| trial.decision(&jurors(ledger, &trial.found));
        let decided: Vec<(Digest, Decision)> =
            self.0.iter().filter_map(|(name, trial)| Some((*name, decide(trial)?))).collect();
        let (mut settled, mut convicted) = (Vec::new(), BTreeSet::new());
        for (name, decision) in decided {
            let trial = self.0.get(&name).or_bug("a trial that was just decided");
            let Some(found) = trial.map(|trial| trial.found.clone()) else { continue };
            match decision {
                // Several trials may convict one member: it is banned once.
                Decision::Guilty(opinions) if convicted.insert(found.culprit) => {
                    settled.push(Settled::Convicted(found, Jury::new(opinions).unwrap_or_default()));
                }
                Decision::Guilty(_) => {}
                Decision::Dismissed(why) => {
                    self.0.remove(&name);
                    settled.push(Settled::Dismissed(found, why));
                }
            }
        }
        settled
    }

    /// Whether no trial is open.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Drops trials of forgotten rounds, and of members that have been banned meanwhile.
    fn drop_moot(&mut self, ledger: &Ledger) {
        self.0.retain(|_, trial| {
            let standing = ledger.member(&trial.found.culprit).map(|member| member.standing);
            ledger.round(trial.found.round).is_some() && standing.is_some_and(|s| s != Standing::Banned)
        });
    }
}

/// A case before its jurors.
///
/// The ledger names the jurors anew at each count: they are inspectors of the round, and may go idle, leave
/// or be banned while the others re-execute.
struct Trial {
    found: Conviction,
    opinions: BTreeMap<MemberId, (bool, Signed<Opinion>)>,
}

impl Trial {
    fn new(found: Conviction) -> Self {
        Self { found, opinions: BTreeMap::new() }
    }

    fn count(&self, jurors: &[MemberId], guilty: bool) -> usize {
        let of_juror = |juror| self.opinions.get(juror).is_some_and(|(said, _)| *said == guilty);
        jurors.iter().filter(|juror| of_juror(*juror)).count()
    }

    /// What these jurors have decided; `None` while they have not.
    fn decision(&self, jurors: &[MemberId]) -> Option<Decision> {
        // DUTY-11: the majority is one of the present jurors. A juror that has gone would otherwise be waited
        // for until the round is forgotten.
        let needed = majority(jurors.len());
        if self.count(jurors, true) >= needed {
            let opinions = jurors.iter().filter_map(|juror| self.opinions.get(juror));
            let guilty = opinions.filter(|(guilty, _)| *guilty).map(|(_, signed)| signed.clone());
            return Some(Decision::Guilty(guilty.collect()));
        }
        let against = self.count(jurors, false);
        // The jurors that are left cannot reach ⌈5n/7⌉ any more.
        (against > jurors.len() - needed)
            .then(|| Decision::Dismissed(format!("{against} of {} jurors do not find it", jurors.len())))
    }
}

/// What jurors decide.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Guilty(Vec<Signed<Opinion>>),
    Dismissed(String),
}

/// The present jurors of a case.
fn jurors(ledger: &Ledger, found: &Conviction) -> Vec<MemberId> {
    let view = ledger.round(found.round);
    view.map_or_else(Vec::new, |view| view.jury(&found.culprit, &found.accuser))
}

#[cfg(test)]
mod tests {
    use muster_core::ids::RunId;
    use muster_core::sign::Identity;

    use super::*;

    const RUN: RunId = RunId(Digest([7; 32]));

    fn case() -> Trial {
        let (culprit, accuser) = (MemberId([1; 32]), MemberId([2; 32]));
        let evidence = Digest([3; 32]);
        let finding = FindingKind::LeafMismatch;
        let (subject, detail) = (culprit, String::new());
        Trial::new(Conviction { culprit, subject, round: Round(0), finding, evidence, accuser, detail })
    }

    fn say(trial: &mut Trial, secret: u8, guilty: bool) -> MemberId {
        let identity = Identity::from_secret(&[secret; 32]);
        let signed = identity.sign(RUN, &Opinion { evidence: trial.found.evidence, guilty });
        trial.opinions.insert(identity.id(), (guilty, signed));
        identity.id()
    }

    fn opinions(decision: Option<Decision>) -> Option<usize> {
        match decision? {
            Decision::Guilty(opinions) => Some(opinions.len()),
            Decision::Dismissed(_) => None,
        }
    }

    #[test]
    fn duty_11_a_juror_that_goes_is_not_waited_for() {
        let mut trial = case();
        let silent = [11, 12].map(|secret| Identity::from_secret(&[secret; 32]).id());
        let mut jury = vec![say(&mut trial, 13, true), say(&mut trial, 14, true), silent[0], silent[1]];
        assert_eq!(trial.decision(&jury), None, "two of four, three are needed");
        jury.pop();
        assert_eq!(trial.decision(&jury), None, "two of three, three are needed");
        jury.pop();
        assert_eq!(opinions(trial.decision(&jury)), Some(2), "both that are left");
        // The opinion of a former juror counts neither for nor against.
        jury.remove(0);
        assert_eq!(opinions(trial.decision(&jury)), Some(1));
        assert_eq!(opinions(trial.decision(&[])), Some(0), "nobody is left to ask");
        assert_eq!(trial.decision(&silent), None);
    }

    #[test]
    fn enough_jurors_that_find_nothing_end_a_case() {
        let mut trial = case();
        let silent = [11, 12].map(|secret| Identity::from_secret(&[secret; 32]).id());
        let jury = [say(&mut trial, 13, true), say(&mut trial, 14, false), silent[0], silent[1]];
        assert_eq!(trial.decision(&jury), None, "three of four can still find it");
        say(&mut trial, 15, false);
        assert_eq!(trial.decision(&jury), None, "a stranger's opinion");
        say(&mut trial, 11, false);
        assert!(matches!(trial.decision(&jury), Some(Decision::Dismissed(_))));
    }
}
