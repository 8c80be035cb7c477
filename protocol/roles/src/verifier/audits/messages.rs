//! What the steward is told: steps of audits, coins, rechecks, opinions and accusations, each until it is settled.

use muster_core::audit::claim;
use muster_core::ids::{Digest, MemberId, Round};
use muster_core::ledger::Ledger;
use muster_core::messages::evidence::Evidence;
use muster_core::messages::wire::Notice;

use super::case::Case;
use super::{Audits, Key};

/// What the steward is to be told.
#[derive(Clone, Debug)]
pub enum Message {
    /// A step of an audit.
    Notice(Key, Box<Notice>),
    /// A coin, a recheck, an opinion, or that it is back.
    Say(Box<Notice>),
    /// Proof of guilt, until the ban is sealed.
    Accuse(Box<Evidence>),
}

pub(super) struct Saying {
    pub(super) round: Round,
    pub(super) notice: Notice,
    pub(super) told: bool,
}

pub(super) struct Accusation {
    pub(super) evidence: Box<Evidence>,
    pub(super) culprit: MemberId,
    pub(super) told: bool,
}

impl Audits {
    /// The next thing to tell the steward. `have` says whether a state is at hand: nobody is asked what cannot be
    /// followed up.
    pub fn next_message(&self, have: &dyn Fn(&Digest) -> bool) -> Option<Message> {
        // Not asked before the state is at hand: the member would answer, and its verifier be idle for what it cannot
        // compute.
        let ready = |case: &&Case| {
            !matches!(case.owed(), Some(Notice::Request(_))) || have(&case.subject.commit.state)
        };
        let spoken = |saying: &&Saying| !saying.told && self.conduct.speaks(saying.round);
        if let Some(saying) = self.sayings.iter().find(spoken) {
            return Some(Message::Say(Box::new(saying.notice.clone())));
        }
        let owed = self.cases.iter().filter(|((round, _), _)| self.conduct.speaks(*round));
        let mut owed = owed.filter(|(_, case)| case.owed().is_some() && ready(case));
        let notice = owed.find_map(|(key, case)| Some(Message::Notice(*key, Box::new(case.owed()?.clone()))));
        notice.or_else(|| {
            // Last: the verdict on the board already has the steward examine it (DUTY-10).
            let accusation = self.accusations.values().find(|accusation| !accusation.told)?;
            Some(Message::Accuse(accusation.evidence.clone()))
        })
    }

    /// The steward was told, whatever it answered.
    pub fn told(&mut self, message: &Message) {
        match message {
            Message::Notice(key, notice) => {
                if let Some(case) = self.cases.get_mut(key) {
                    case.was_told(notice);
                }
            }
            Message::Say(notice) => self.was_said(notice),
            Message::Accuse(evidence) => {
                if let Some(accusation) = self.accusations.get_mut(&evidence.digest()) {
                    accusation.told = true;
                }
            }
        }
    }

    /// The steward did not take this: what begins or ends an audit is said again after the next record, which may have made it
    /// due.
    pub fn refused(&mut self, message: &Message) {
        if let Message::Notice(key, notice) = message
            && matches!(**notice, Notice::Request(_) | Notice::Verdict(_) | Notice::Recomputation(_))
        {
            self.refused.insert(*key, (**notice).clone());
        }
    }

    /// A coin or a recheck is on the board.
    pub(super) fn was_said(&mut self, notice: &Notice) {
        let said = self.sayings.iter_mut().filter(|saying| saying.notice == *notice);
        said.for_each(|saying| saying.told = true);
    }

    /// Owes again what the steward did not take. A request about what another one has passed meanwhile is dropped: should that
    /// one be banned, the case is opened anew.
    pub(super) fn say_again(&mut self, ledger: &Ledger) {
        for (key, notice) in std::mem::take(&mut self.refused) {
            let asks = matches!(notice, Notice::Request(_));
            let passed = asks && self.others.passed(ledger, key);
            // Its round was forgotten while the steward was being told.
            let Some(case) = self.cases.get_mut(&key) else { continue };
            // The audit has moved on since: the request is not its next step any more.
            if asks && !case.awaits_table() {
                continue;
            }
            if passed {
                case.ask_nobody();
            } else {
                case.owe_again(notice);
            }
        }
    }

    /// Whether it has accused somebody, and no ban has followed yet.
    pub fn is_accusing(&self) -> bool {
        self.accusations.values().any(|accusation| accusation.told)
    }

    /// Repeats the accusations that no ban has followed yet.
    pub fn remind(&mut self) {
        self.accusations.values_mut().for_each(|accusation| accusation.told = false);
    }

    /// Accuses until the ban is sealed; evidence of an earlier process that proves nothing here is left out.
    pub fn accuse(&mut self, ledger: &Ledger, evidence: Box<Evidence>) {
        // Read from a disk, which may hold anything.
        let Ok(claim) = claim(&self.manifest, &evidence) else { return };
        // A ban that was sealed meanwhile settles it, also for a process that was killed before it heard.
        if ledger.member(&claim.culprit).is_some() && !ledger.is_banned(&claim.culprit) {
            self.accuse_of(claim.culprit, evidence);
        }
    }

    pub(super) fn accuse_of(&mut self, culprit: MemberId, evidence: Box<Evidence>) {
        self.accusations.insert(evidence.digest(), Accusation { evidence, culprit, told: false });
    }

    /// Owes the board a coin or a recheck.
    pub(super) fn say(&mut self, round: Round, notice: Notice) {
        self.sayings.push(Saying { round, notice, told: false });
    }
}
