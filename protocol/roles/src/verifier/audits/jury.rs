//! Cases that the steward brings before the jurors it has drawn, where there is a tolerance (DUTY-11).

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_core::audit::{Judgement, claim};
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::{Ledger, RoundView};
use muster_core::messages::audit::Opinion;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::wire::Notice;
use tracing::info;

use super::{Audits, Done, Subject, Work, WorkKind};

/// The cases of rounds that are remembered, by evidence.
#[derive(Default)]
pub(super) struct Charges(BTreeMap<Digest, Charge>);

struct Charge {
    culprit: MemberId,
    subject: Arc<Subject>,
    /// Whether this verifier may be a juror: with those drawn before it gone, it is later on.
    drawn: bool,
    /// None once it was judged.
    evidence: Option<Box<Evidence>>,
}

impl Charges {
    /// Rounds whose states are still needed.
    pub(super) fn rounds(&self) -> impl Iterator<Item = Round> {
        let open = self.0.values().filter(|charge| charge.drawn && charge.evidence.is_some());
        open.map(|charge| charge.subject.commit.round)
    }

    /// The next case to be judged.
    pub(super) fn next_work(&self, have: &dyn Fn(&Digest) -> bool) -> Option<Work> {
        let mut charges = self.0.values().filter(|charge| charge.drawn && have(&charge.subject.commit.state));
        charges.find_map(|charge| {
            let kind = WorkKind::Opinion(charge.evidence.clone()?);
            Some(Work { subject: charge.subject.clone(), kind })
        })
    }

    /// Looks who is drawn, now that inspectors may have gone.
    pub(super) fn draw(&mut self, ledger: &Ledger, me: &MemberId) {
        for charge in self.0.values_mut().filter(|charge| !charge.drawn) {
            let round = charge.subject.commit.round;
            charge.drawn = ledger.round(round).is_some_and(|view| is_drawn(view, &charge.culprit, me));
            if charge.drawn {
                info!("round {round}: drawn as a juror in the case of {}", charge.culprit);
            }
        }
    }

    pub(super) fn forget(&mut self, oldest: Round) {
        self.0.retain(|_, charge| charge.subject.commit.round >= oldest);
    }
}

/// Whether somebody is a juror, whoever of the others accuses: the steward alone knows who does, so that one juror more
/// than needed may do the work.
fn is_drawn(view: &RoundView, culprit: &MemberId, me: &MemberId) -> bool {
    let first = view.jury(culprit, culprit);
    // Without an accuser among the first, the next one is drawn as well.
    let next = first.first().map(|accuser| view.jury(culprit, accuser));
    first.contains(me) || next.is_some_and(|jurors| jurors.contains(me))
}

impl Audits {
    /// Takes a case that this verifier may have to judge. One that comes again, on a new board, is answered again.
    pub(super) fn charged(&mut self, ledger: &Ledger, evidence: &Evidence) {
        let name = evidence.digest();
        if self.charges.0.contains_key(&name) {
            // A restarted steward has lost the opinions with its board.
            let own = |notice: &Notice| matches!(notice, Notice::Opinion(_));
            return self
                .sayings
                .iter_mut()
                .filter(|saying| own(&saying.notice))
                .for_each(|saying| saying.told = false);
        }
        self.charges.0.extend(self.charge(ledger, evidence, &name).map(|charge| (name, charge)));
    }

    /// The charge that this evidence is, where this verifier may be a juror of it; a steward may post what is none.
    fn charge(&self, ledger: &Ledger, evidence: &Evidence, name: &Digest) -> Option<Charge> {
        let claim = claim(&self.manifest, evidence).ok()?;
        let (view, me) = (ledger.round(claim.round)?, self.identity.id());
        // DUTY-11: neither the accused nor whoever accuses is a juror.
        let accuses = self.accusations.contains_key(name);
        let inspects = view.inspectors().contains(&me) && claim.culprit != me && !accuses;
        let subject = Subject::of(ledger, view, view.slot_of(&claim.subject)?).filter(|_| inspects)?;
        let evidence = Some(Box::new(evidence.clone()));
        Some(Charge { culprit: claim.culprit, subject: Arc::new(subject), drawn: false, evidence })
    }

    /// A case was judged; what cannot be decided is left to the other jurors.
    pub(super) fn opined(&mut self, evidence: &Evidence, done: Done) {
        let name = evidence.digest();
        // Its round was forgotten while it was judged.
        let Some(charge) = self.charges.0.get_mut(&name) else { return };
        charge.evidence = None;
        let (round, author) = (charge.subject.commit.round, charge.subject.author);
        let guilty = match done {
            Done::Opinion(Judgement::Guilty { .. }) => true,
            Done::Opinion(Judgement::NotGuilty(_)) => false,
            other => return info!("round {round}: the case of {author} could not be judged: {other:?}"),
        };
        info!(
            "round {round}: as a juror in the case of {author}: {}",
            if guilty { "guilty" } else { "not guilty" }
        );
        let opinion = self.identity.sign(self.run, &Opinion { evidence: name, guilty });
        self.say(round, Notice::Opinion(opinion));
    }
}
