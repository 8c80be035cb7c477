//! Juries, where there is a tolerance: what re-execution decides, drawn verifiers re-execute before anybody is banned.

use std::collections::BTreeMap;

use muster_core::coins::majority;
use muster_core::error::Reject;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::Standing;
use muster_core::manifest::Profile;
use muster_core::messages::audit::{Evidence, FindingKind, Jury, Opinion};
use muster_core::messages::record::{Ban, Body};
use muster_core::messages::wire::Notice;
use muster_core::sign::Signed;

use super::actor::Actor;

/// What the steward's own examination found.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) culprit: MemberId,
    pub(super) round: Round,
    pub(super) finding: FindingKind,
    pub(super) evidence: Digest,
    pub(super) accuser: MemberId,
    /// The figures, for people.
    pub(super) detail: String,
}

/// A case before its jurors.
pub(super) struct Trial {
    found: Found,
    jurors: Vec<MemberId>,
    said: BTreeMap<MemberId, (bool, Signed<Opinion>)>,
}

impl Trial {
    fn count(&self, guilty: bool) -> usize {
        self.said.values().filter(|(opinion, _)| *opinion == guilty).count()
    }
}

impl Actor {
    /// DUTY-11: bans at once what messages and equalities decide, and asks the jurors about the rest.
    pub(super) fn convict_or_charge(&mut self, found: Found, evidence: &Evidence) {
        let ledger = self.ledger();
        let view = ledger.round(found.round);
        let tolerant = ledger.manifest().profile != Profile::Exact && found.finding.needs_jury();
        let jurors = view.map_or_else(Vec::new, |view| view.jury(&found.culprit, &found.accuser));
        if !tolerant || jurors.is_empty() {
            return self.convict(&found, Jury::default());
        }
        tracing::info!("{} is charged before {} jurors: {}", found.culprit, jurors.len(), found.detail);
        self.justice.trials.insert(found.evidence, Trial { found, jurors, said: BTreeMap::new() });
        self.board.post(Notice::Charge(evidence.clone()));
    }

    fn convict(&mut self, found: &Found, jury: Jury) {
        let Found { culprit, round, finding, evidence, accuser, .. } = *found;
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

    /// A juror has recomputed.
    pub(super) fn opinion(&mut self, signed: &Signed<Opinion>) -> Result<(), Reject> {
        let opinion = signed.verify(self.ledger().run())?;
        let trial =
            self.justice.trials.get_mut(&opinion.evidence).ok_or(Reject::Stale("no such case is open"))?;
        if !trial.jurors.contains(&opinion.author()) {
            return Err(Reject::NotEntitled("judge this: it is not drawn"));
        }
        if trial.said.contains_key(&opinion.author()) {
            return Err(Reject::Rule("a juror has one word"));
        }
        trial.said.insert(opinion.author(), (opinion.guilty, signed.clone()));
        let needed = majority(trial.jurors.len());
        let (guilty, innocent) = (trial.count(true), trial.count(false));
        if guilty < needed && innocent <= trial.jurors.len() - needed {
            return Ok(());
        }
        let Some(trial) = self.justice.trials.remove(&opinion.evidence) else { return Ok(()) };
        if guilty < needed {
            let why = format!("{innocent} of {} jurors do not find it", trial.jurors.len());
            self.justice.acquit(&trial.found.culprit);
            self.report.dismissed(trial.found.accuser, trial.found.culprit, &why);
            return Ok(());
        }
        let words =
            trial.said.into_values().filter(|(guilty, _)| *guilty).map(|(_, signed)| signed).collect();
        self.convict(&trial.found, Jury::new(words).unwrap_or_default());
        Ok(())
    }

    /// A round that is forgotten, or somebody banned meanwhile, is no case any more.
    pub(super) fn drop_forgotten_trials(&mut self) {
        let ledger = self.conductor.ledger();
        let open = |trial: &Trial| {
            let standing = ledger.member(&trial.found.culprit).map(|member| member.standing);
            ledger.round(trial.found.round).is_some() && standing.is_some_and(|s| s != Standing::Banned)
        };
        self.justice.trials.retain(|_, trial| open(trial));
    }
}
