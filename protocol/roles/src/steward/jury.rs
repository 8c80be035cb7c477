//! Juries, where there is a tolerance: what re-execution decides, drawn verifiers re-execute before anybody is banned.

use std::collections::{BTreeMap, BTreeSet};

use muster_core::bug::OrBug;
use muster_core::coins::majority;
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::{Ledger, Standing};
use muster_core::messages::audit::{FindingKind, Jury, Opinion};
use muster_core::messages::evidence::Evidence;
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::wire::Notice;
use muster_core::sign::Signed;

use super::{Bulletin, Steward, StewardEffect};

/// What the steward's own examination found.
#[derive(Clone, Debug)]
pub(super) struct Conviction {
    pub(super) culprit: MemberId,
    /// Whose contribution it is about.
    pub(super) subject: MemberId,
    pub(super) round: Round,
    pub(super) finding: FindingKind,
    pub(super) evidence: Digest,
    pub(super) accuser: MemberId,
    /// The figures, for people.
    pub(super) detail: String,
}

/// A case before its jurors. Who they are is the ledger's to say at each look: they are inspectors of the round, and
/// those may go idle, leave or be banned while the others think.
pub(super) struct Trial {
    found: Conviction,
    said: BTreeMap<MemberId, (bool, Signed<Opinion>)>,
}

impl Trial {
    fn new(found: Conviction) -> Self {
        Self { found, said: BTreeMap::new() }
    }

    fn count(&self, jurors: &[MemberId], guilty: bool) -> usize {
        jurors.iter().filter(|juror| self.said.get(juror).is_some_and(|(said, _)| *said == guilty)).count()
    }

    /// What these jurors have decided, if it is decided.
    fn decision(&self, jurors: &[MemberId]) -> Option<Decision> {
        // DUTY-11: of those that are jurors now. Whoever has gone would otherwise be waited for until the round is
        // forgotten.
        let needed = majority(jurors.len());
        if self.count(jurors, true) >= needed {
            let words = jurors.iter().filter_map(|juror| self.said.get(juror)).filter(|(guilty, _)| *guilty);
            return Some(Decision::Guilty(words.map(|(_, signed)| signed.clone()).collect()));
        }
        let against = self.count(jurors, false);
        // So many against that ⌈5n/7⌉ cannot be reached any more, whatever the others say.
        (against > jurors.len() - needed)
            .then(|| Decision::Dismissed(format!("{against} of {} jurors do not find it", jurors.len())))
    }
}

/// How a case ends.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Guilty(Vec<Signed<Opinion>>),
    Dismissed(String),
}

impl Steward {
    /// DUTY-11: bans at once what messages and equalities decide, and asks the jurors about the rest.
    pub(super) fn convict_or_charge(&mut self, found: Conviction, evidence: &Evidence) {
        let ledger = self.ledger();
        if !ledger.manifest().profile.needs_jury() || !found.finding.needs_jury() {
            return self.convict(&found, Jury::default());
        }
        tracing::info!("{} is charged before the jurors of the case: {}", found.culprit, found.detail);
        // TOL-9: with a tolerance one machine's finding bans nobody.
        self.justice.trials.insert(found.evidence, Trial::new(found));
        self.effects.push_back(StewardEffect::Post(Notice::Charge(evidence.clone())));
    }

    fn convict(&mut self, found: &Conviction, jury: Jury) {
        let Conviction { culprit, round, finding, evidence, accuser, .. } = *found;
        tracing::info!("{culprit} is convicted: {}", found.detail);
        let effective = self.ledger().first_round_without();
        self.conductor.propose(Body::Ban(Ban {
            culprit,
            effective,
            round,
            finding,
            evidence,
            accuser,
            jury,
        }));
    }

    /// A juror has recomputed; what follows is settled in the next turn.
    pub(super) fn opinion(&mut self, signed: &Signed<Opinion>) -> Result<(), Reject> {
        let ledger = self.conductor.ledger();
        let opinion = signed.verify(ledger.run())?;
        let trial =
            self.justice.trials.get_mut(&opinion.evidence).ok_or(Reject::Stale("no such case is open"))?;
        let Conviction { round, culprit, accuser, .. } = trial.found;
        // Who may be drawn when a juror goes has its word kept; it counts once it is one.
        let inspects = ledger.round(round).is_some_and(|view| view.inspectors().contains(&opinion.author()));
        if !inspects || [culprit, accuser].contains(&opinion.author()) {
            return Err(Reject::NotEntitled("judge this: it is not drawn"));
        }
        // A Ban holds one opinion of each juror (LEDGER-22).
        if trial.said.contains_key(&opinion.author()) {
            return Err(Reject::Rule("a juror has one word"));
        }
        trial.said.insert(opinion.author(), (opinion.guilty, signed.clone()));
        Ok(())
    }

    /// Counts the words of those that are jurors now: when some are gone, the others may have decided. Nobody left
    /// leaves the steward's own finding. A case stays open until its ban is sealed, so that a ban refused because the
    /// jury changed just before is proposed once more.
    pub(super) fn settle_trials(&mut self) {
        self.drop_forgotten_trials();
        let ledger = self.conductor.ledger();
        let decide = |trial: &Trial| trial.decision(&jurors(ledger, &trial.found));
        let decided = self.justice.trials.iter().filter_map(|(name, trial)| Some((*name, decide(trial)?)));
        let decided: Vec<(Digest, Decision)> = decided.collect();
        let mut convicted = BTreeSet::new();
        for (name, decision) in decided {
            let trial = self.justice.trials.get(&name).or_bug("a trial that was just decided");
            let Some(found) = trial.map(|trial| trial.found.clone()) else { continue };
            match decision {
                // Several cases against one member may be ripe: it is banned once.
                Decision::Guilty(words) if convicted.insert(found.culprit) => {
                    self.convict(&found, Jury::new(words).unwrap_or_default());
                }
                Decision::Guilty(_) => {}
                Decision::Dismissed(why) => {
                    self.justice.trials.remove(&name);
                    self.board.strike(found.round, &found.subject, &found.accuser);
                    let Conviction { accuser, culprit, .. } = found;
                    self.tell(Bulletin::Dismissed { accuser, culprit, why });
                }
            }
        }
    }

    /// A round that is forgotten, or somebody banned meanwhile, is no case any more.
    fn drop_forgotten_trials(&mut self) {
        let ledger = self.conductor.ledger();
        let open = |trial: &Trial| {
            let standing = ledger.member(&trial.found.culprit).map(|member| member.standing);
            ledger.round(trial.found.round).is_some() && standing.is_some_and(|s| s != Standing::Banned)
        };
        self.justice.trials.retain(|_, trial| open(trial));
    }
}

/// Who has a word in a case, as of now.
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
        trial.said.insert(identity.id(), (guilty, signed));
        identity.id()
    }

    fn words(decision: Option<Decision>) -> Option<usize> {
        match decision? {
            Decision::Guilty(words) => Some(words.len()),
            Decision::Dismissed(_) => None,
        }
    }

    #[test]
    fn who_goes_while_others_think_is_not_waited_for() {
        let mut trial = case();
        let silent = [11, 12].map(|secret| Identity::from_secret(&[secret; 32]).id());
        let mut jury = vec![say(&mut trial, 13, true), say(&mut trial, 14, true), silent[0], silent[1]];
        assert_eq!(trial.decision(&jury), None, "two of four, three are needed");
        jury.pop();
        assert_eq!(trial.decision(&jury), None, "two of three, three are needed");
        jury.pop();
        assert_eq!(words(trial.decision(&jury)), Some(2), "both that are left");
        // Whose words are no juror's any more does not count, for or against.
        jury.remove(0);
        assert_eq!(words(trial.decision(&jury)), Some(1));
        assert_eq!(words(trial.decision(&[])), Some(0), "nobody is left to ask");
        assert_eq!(trial.decision(&silent), None);
    }

    #[test]
    fn enough_jurors_that_find_nothing_end_a_case() {
        let mut trial = case();
        let silent = [11, 12].map(|secret| Identity::from_secret(&[secret; 32]).id());
        let jury = [say(&mut trial, 13, true), say(&mut trial, 14, false), silent[0], silent[1]];
        assert_eq!(trial.decision(&jury), None, "three of four can still find it");
        say(&mut trial, 15, false);
        assert_eq!(trial.decision(&jury), None, "a stranger's word");
        say(&mut trial, 11, false);
        assert!(matches!(trial.decision(&jury), Some(Decision::Dismissed(_))));
    }
}
